"""results.json: a run's numbers in the shape that lm-evaluation-harness writes and its readers know."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from metrics.reductions.reduction import reduction_key
from tasks.reduction.facets import parse_facets
from tasks.reporting.exports.files import RunInfo
from tasks.store.files import finite, write_json

Row = Mapping[str, Any]
Section = dict[str, Any]

_BENCHMARK_KEYS = (
    *("dataset", "prompt_template", "prompt_templates", "messages", "target", "choices", "fewshot"),
    *("filter_list", "metric_list", "process_results", "evaluation_methods", "metrics", "facets"),
)
NO_STDERR = "N/A"
"""What the harness writes where a number has no standard error."""


def write_results(path: Path, batches: Iterable[pa.RecordBatch], run: RunInfo) -> None:
    """Writes results.json from all rows (RESULTS, or METRIC_ROWS) of the run."""
    write_json(path, results_document(batches, run))


def results_document(batches: Iterable[pa.RecordBatch], run: RunInfo) -> Section:
    """The document: ``results`` → benchmark → ``"metric,filter"``, ``"metric_stderr,filter"``, and the rest.

    With several models or prompts each has a key of its own, ``name/model/prompt``; further facets add
    ``/facet=value``. A reduction asked for by name is ``"pass@8(exact_match),strict-match"``, a label stands
    behind a colon: ``"pass@1:correct,none"``. A failed or unscored pair is null, and listed under ``failed``
    or ``unscored``.
    """
    results: dict[str, Section] = {}
    better: dict[str, Section] = {}
    counts: dict[str, Section] = {}
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
        "date": run.date,
        "run_id": run.run_id,
        "package_versions": dict(run.versions),
    }


def benchmark_key(row: Row, run: RunInfo) -> str:
    """``name``, or ``name/model/prompt`` and what else the facets hold apart."""
    facets = parse_facets(row["facets"])
    parts = [run.benchmark]
    if run.keeps_apart:
        parts += [str(facets[name]) for name in ("model_name", "prompt_template") if name in facets]
    others = [name for name in facets if name not in ("model_name", "prompt_template")]
    return "/".join([*parts, *(f"{name}={facets[name]}" for name in others)])


def row_key(row: Row) -> str:
    """The metric's part of a key, with the reduction and the label."""
    name = reduction_key(row["metric"], row["reduction"])
    return name if row["label"] is None else f"{name}:{row['label']}"


def _stderr_key(metric: str) -> str:
    return f"{metric}_stderr"


def benchmark_config(run: RunInfo) -> Section:
    """The benchmark's part of ``configs``, under the names that the harness gives them too."""
    named = {name: run.config[name] for name in _BENCHMARK_KEYS if run.config.get(name)}
    return {"task": run.benchmark, "output_type": run.output_type, "num_fewshot": run.num_fewshot, **named}


def run_config(run: RunInfo) -> Section:
    """What the harness calls ``config``: the models and how they were asked."""
    return {
        "model": ",".join(run.models),
        "model_args": run.config.get("models", []),
        "prompt_templates": list(run.prompts),
        "limit": run.n_used if run.n_used < run.n_items else None,
        "bootstrap_iters": dict(run.config.get("statistics") or {}).get("bootstrap_iters"),
        "gen_kwargs": run.config.get("sample_params"),
    }
