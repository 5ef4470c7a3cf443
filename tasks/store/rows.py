"""Rows as the bytes of a Parquet file, and their digests: equal rows give equal bytes, however they come."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.store.thresholds import Threshold

ROW_GROUP: Final = Threshold("rows_of_a_group", 20_000)
"""Rows a row group: smaller ones cost milliseconds to open, larger ones gain nothing."""


class ContentDigest:
    """Digest of the values of some columns, whatever the batches they come in and however they are encoded.

    Each column has a digest of its values' presence, one of their lengths where they have any, and one of
    their bytes, so that no two different columns have the same stream.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._streams: dict[str, Any] = {}

    def add(self, table: pa.Table) -> None:
        """Takes the next rows."""
        for name in self._columns:
            for chunk in table.column(name).chunks:
                self._add(name, chunk)

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        total = hashlib.sha256()
        for name in sorted(self._streams):
            total.update(name.encode() + b"\0" + self._streams[name].digest())
        return total.hexdigest()

    def _add(self, name: str, array: pa.Array) -> None:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self._feed(f"{name}/valid", np.asarray(array.is_valid()).astype(np.uint8))
        present = array.drop_null()
        if pa.types.is_list(array.type):
            self._feed(f"{name}/lengths", pc.list_value_length(present).to_numpy(zero_copy_only=False))
            self._add(f"{name}/item", present.flatten())
        elif pa.types.is_string(array.type):
            lengths = pc.binary_length(present).to_numpy(zero_copy_only=False)
            self._feed(f"{name}/lengths", lengths)
            if len(present):
                offsets = np.frombuffer(present.buffers()[1], np.int32)[present.offset :]
                self._feed(name, memoryview(present.buffers()[2])[offsets[0] : offsets[len(present)]])
        else:
            self._feed(name, np.ascontiguousarray(present.to_numpy(zero_copy_only=False)))

    def _feed(self, stream: str, data: Any) -> None:
        self._streams.setdefault(stream, hashlib.sha256()).update(data)


def write_parquet(
    path: Path, schema: pa.Schema, batches: Iterable[Any], content: ContentDigest | None = None
) -> int:
    """Streams batches into one Parquet file (zstd, row groups of ``ROW_GROUP``) and returns the number of
    rows; ``content`` sees them as they pass."""
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, store_schema=True) as writer:
        return write_rows(writer, schema, batches, content)


def write_rows(
    writer: pq.ParquetWriter, schema: pa.Schema, batches: Iterable[Any], content: ContentDigest | None = None
) -> int:
    """As ``write_parquet``, for a file that is open.

    Rows are regrouped, so that the bytes depend on the rows alone and not on how they were batched.
    """
    rows = 0
    pending: list[pa.Table] = []
    waiting = 0
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        pending.append(_conform(table, schema))
        if content is not None:
            content.add(pending[-1])
        waiting += table.num_rows
        rows += table.num_rows
        while waiting >= ROW_GROUP:
            whole = pa.concat_tables(pending)
            writer.write_table(_plain_chunks(whole.slice(0, ROW_GROUP)), row_group_size=ROW_GROUP)
            pending, waiting = [whole.slice(ROW_GROUP)], waiting - ROW_GROUP
    if waiting:
        writer.write_table(_plain_chunks(pa.concat_tables(pending)), row_group_size=ROW_GROUP)
    return rows


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    return table.select(schema.names).cast(schema)


def _plain_chunks(table: pa.Table) -> pa.Table:
    # Dictionaries are built again, in order of appearance: batches may carry values that no row uses.
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            encoded = table.column(index).cast(field.type.value_type).combine_chunks().dictionary_encode()
            table = table.set_column(index, field, encoded)
    return table.combine_chunks()
