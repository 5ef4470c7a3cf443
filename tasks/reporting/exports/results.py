"""A run's numbers as files: ``results.json``, ``results.parquet`` and ``items.parquet``.

``results.json`` has the shape that lm-evaluation-harness writes and its readers know. The Parquet files have
the project's own schemas: SQL, the comparison and the history read them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from metrics.reductions.reduction import reduction_key
from tasks.reduction.facets import parse_facets
from tasks.reporting.exports.inputs import RunInfo
from tasks.rows.parts import Row
from tasks.store.files import finite, whole_file, write_json
from tasks.store.keys import canonical_json
from tasks.store.schemas import ITEM_ROWS, RESULTS, TEXT

_BENCHMARK_KEYS = (
    *("dataset", "prompt_template", "prompt_templates", "messages", "target", "choices", "fewshot"),
    *("filter_list", "metric_list", "process_results", "evaluation_methods", "metrics", "facets"),
)
NO_STDERR = "N/A"
"""What the harness writes where a number has no standard error."""
ROW_GROUP = 20_000


def write_results(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    run: RunInfo,
    ratings: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Writes results.json from all rows (RESULTS, or METRIC_ROWS) of the run, and the ``ratings`` of models
    that an arena compared."""
    document = results_document(batches, run)
    write_json(path, {**document, "ratings": ratings} if ratings else document)


def write_results_table(path: Path, batches: Iterable[pa.RecordBatch], run_id: str) -> int:
    """Writes all results (RESULTS, or METRIC_ROWS) under ``run_id`` and returns the number of rows."""
    return _write_table(path, RESULTS, (_with_run_id(batch, run_id) for batch in batches))


def write_items_table(path: Path, batches: Iterable[pa.RecordBatch], facets: Sequence[str]) -> int:
    """Writes all item rows (ITEM_ROWS) with one text column a facet; returns their number.

    ``facets`` are those of all pairs together; a row is null in those its own pair does not have. A value
    that is no text is written as JSON. The JSON object of all facets stays beside them, for pairs with facets
    of their own.
    """
    facets = [facet for facet in facets if facet != "label"]  # which has a column anyway
    schema = items_schema(facets)
    return _write_table(path, schema, (_with_facets(batch, facets, schema) for batch in batches))


def results_document(batches: Iterable[pa.RecordBatch], run: RunInfo) -> dict[str, Any]:
    """The document: ``results`` → benchmark → ``"metric,filter"``, ``"metric_stderr,filter"``, and the rest.

    With several models or prompts each has a key of its own, ``name/model/prompt``; further facets add
    ``/facet=value``. A reduction asked for by name is ``"pass@8(exact_match),strict-match"``, a label stands
    behind a colon: ``"pass@1:correct,none"``. A failed or unscored pair is null, and listed under ``failed``
    or ``unscored``.
    """
    results: dict[str, dict[str, Any]] = {}
    better: dict[str, dict[str, Any]] = {}
    counts: dict[str, dict[str, Any]] = {}
    lost: dict[str, dict[str, str]] = {"failed": {}, "unscored": {}}
    for row in (row for batch in batches for row in batch.to_pylist()):
        key, metric = benchmark_key(row, run), row_key(row)
        entry = results.setdefault(key, {"alias": run.alias or key, "sample_len": 0})
        entry["sample_len"] = max(entry["sample_len"], row["n_items"])
        entry[f"{metric},{row['filter']}"] = finite(row["value"])
        stderr = finite(row["stderr"])
        entry[f"{_stderr_key(metric)},{row['filter']}"] = NO_STDERR if stderr is None else stderr
        better.setdefault(key, {})[metric] = row["higher_is_better"]
        counts[key] = {"original": run.n_items, "effective": entry["sample_len"]}
        if row["status"] in lost:
            lost[row["status"]][f"{key}: {metric},{row['filter']}"] = row["error"] or row["status"]
    keys = list(results) or [run.benchmark]
    return {
        "results": results,
        "group_subtasks": {key: [] for key in keys},
        "configs": dict.fromkeys(keys, benchmark_config(run)),
        "versions": dict.fromkeys(keys, run.version),
        "n-shot": dict.fromkeys(keys, run.num_fewshot),
        "higher_is_better": better,
        "n-samples": counts,
        "config": run_config(run),
        **{name: pairs for name, pairs in lost.items() if pairs},
        "git_hash": run.git_revision,
        "requests": dict(run.requests),
        "date": run.date,
        "run_id": run.run_id,
        "package_versions": dict(run.versions),
    }


def benchmark_key(row: Row, run: RunInfo) -> str:
    """``name``, or ``name/model/prompt`` and what else the facets hold apart."""
    facets = parse_facets(row["facets"])
    parts = [run.benchmark]
    if run.keeps_apart:
        # A row over all of the user's facets has none: model and prompt are in columns of their own.
        own = facets or {name: row[name] for name in ("model_name", "prompt_template") if row[name]}
        parts += [str(own[name]) for name in ("model_name", "prompt_template") if name in own]
    others = [name for name in facets if name not in ("model_name", "prompt_template")]
    return "/".join([*parts, *(f"{name}={facets[name]}" for name in others)])


def row_key(row: Row) -> str:
    """The metric's part of a key, with the reduction and the label."""
    name = reduction_key(row["metric"], row["reduction"])
    return name if row["label"] is None else f"{name}:{row['label']}"


def _stderr_key(metric: str) -> str:
    return f"{metric}_stderr"


def benchmark_config(run: RunInfo) -> dict[str, Any]:
    """The benchmark's part of ``configs``, under the names that the harness gives them too."""
    named = {name: run.config[name] for name in _BENCHMARK_KEYS if run.config.get(name)}
    return {"task": run.benchmark, "output_type": run.output_type, "num_fewshot": run.num_fewshot, **named}


def run_config(run: RunInfo) -> dict[str, Any]:
    """What the harness calls ``config``: the models and how they were asked."""
    return {
        "model": ",".join(run.models),
        "model_args": run.config.get("models", []),
        "prompt_templates": list(run.prompts),
        "limit": run.n_used if run.n_used < run.n_items else None,
        "bootstrap_iters": dict(run.config.get("statistics") or {}).get("bootstrap_iters"),
        "gen_kwargs": run.config.get("sample_params"),
    }


def items_schema(facets: Sequence[str]) -> pa.Schema:
    """ITEM_ROWS with the facets' own columns; a facet called like a column of items keeps out of its way."""
    place = ITEM_ROWS.get_field_index("facets")
    own = list(ITEM_ROWS)
    return pa.schema(
        [*own[:place], *(pa.field(_facet_column(facet), TEXT) for facet in facets), *own[place:]]
    )


def _facet_column(facet: str) -> str:
    return f"facet.{facet}" if facet in ITEM_ROWS.names else facet


def _with_run_id(batch: pa.RecordBatch, run_id: str) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in RESULTS.names}
    columns["run_id"] = pa.array([run_id] * len(batch), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=RESULTS)


def _with_facets(batch: pa.RecordBatch, facets: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    encoded = batch.column("facets").dictionary_encode()
    groups = [parse_facets(text) for text in encoded.dictionary.to_pylist()]
    columns = {name: batch.column(name) for name in ITEM_ROWS.names}
    for facet in facets:
        values = pa.array([_text(group.get(facet)) for group in groups], pa.string())
        columns[_facet_column(facet)] = values.take(encoded.indices).dictionary_encode()
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else canonical_json(value).decode()


def _write_table(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    rows = 0
    with (
        whole_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=3) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch, row_group_size=ROW_GROUP)
            rows += len(batch)
    return rows
