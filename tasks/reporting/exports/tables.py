"""results.parquet and items.parquet: the numbers and what they rest on, for SQL, comparison and history."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.reduction.facets import parse_facets
from tasks.store.files import whole_file
from tasks.store.keys import canonical_json
from tasks.store.schemas import ITEM_ROWS, RESULTS, TEXT

ROW_GROUP = 20_000


def write_results_table(path: Path, batches: Iterable[pa.RecordBatch], run_id: str) -> int:
    """Writes all results (RESULTS, or METRIC_ROWS) under ``run_id`` and returns the number of rows."""
    return _write(path, RESULTS, (_named(batch, run_id) for batch in batches))


def write_items_table(path: Path, batches: Iterable[pa.RecordBatch], facets: Sequence[str]) -> int:
    """Writes all item rows (ITEM_ROWS) with one text column a facet; returns their number.

    ``facets`` are those of all pairs together; a row is null in those its own pair does not have. A value
    that is no text is written as JSON. The JSON object of all facets stays beside them, for pairs with facets
    of their own.
    """
    facets = [facet for facet in facets if facet != "label"]  # which has a column anyway
    schema = items_schema(facets)
    return _write(path, schema, (_with_facets(batch, facets, schema) for batch in batches))


def items_schema(facets: Sequence[str]) -> pa.Schema:
    """ITEM_ROWS with the facets' own columns; a facet called like a column of items keeps out of its way."""
    place = ITEM_ROWS.get_field_index("facets")
    own = list(ITEM_ROWS)
    return pa.schema([*own[:place], *(pa.field(_column(facet), TEXT) for facet in facets), *own[place:]])


def _column(facet: str) -> str:
    return f"facet.{facet}" if facet in ITEM_ROWS.names else facet


def _named(batch: pa.RecordBatch, run_id: str) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in RESULTS.names}
    columns["run_id"] = pa.array([run_id] * len(batch), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=RESULTS)


def _with_facets(batch: pa.RecordBatch, facets: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    encoded = batch.column("facets").dictionary_encode()
    groups = [parse_facets(text) for text in encoded.dictionary.to_pylist()]
    columns = {name: batch.column(name) for name in ITEM_ROWS.names}
    for facet in facets:
        values = pa.array([_text(group.get(facet)) for group in groups], pa.string())
        columns[_column(facet)] = values.take(encoded.indices).dictionary_encode()
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else canonical_json(value).decode()


def _write(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    rows = 0
    with (
        whole_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=3) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch, row_group_size=ROW_GROUP)
            rows += len(batch)
    return rows
