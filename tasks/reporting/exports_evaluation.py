"""evaluation_results.jsonl and metrics.jsonl: what methods said of each sample, and the numbers of that."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from metrics.reductions.reduction import reduction_key
from tasks.evaluation.evaluation_rows import Judged, evaluation_rows
from tasks.reduction.facets import parse_facets
from tasks.reporting.exports_lines import finite, write_lines

Row = dict[str, Any]


def write_evaluation_results(path: Path, judged: Iterable[Judged]) -> int:
    """Writes one line a sample × label, part after part, and returns the number of lines."""
    return write_lines(path, (row for part in judged for row in evaluation_rows(part)))


def write_metrics(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes one line a metric × label × facet group and returns the number of lines.

    ``batches`` are of the schema METRIC_ROWS (metrics over evaluation results) or RESULTS (pairs). The lines
    hold no time, no path and no run id: equal answers give equal bytes.
    """
    return write_lines(path, (metric_line(row) for batch in batches for row in batch.to_pylist()))


def metric_line(row: Mapping[str, Any]) -> Row:
    """One line of metrics.jsonl.

    A pair is called ``metric,filter`` or ``reduction(metric),filter``; a metric over evaluation results by
    its own name. The average counts samples an item; an unscored number is null, and ``error`` says why.
    """
    facets = parse_facets(row["facets"])
    n_items = row["n_items"]
    return {
        "metric_name": metric_name(row),
        "facets": list(facets),
        **facets,
        "label": row["label"],
        **_own_values(row),
        "value": finite(row["value"]),
        "stderr": finite(row["stderr"]),
        "stderr_method": row["stderr_method"],
        "ci_low": finite(row["ci_low"]),
        "ci_high": finite(row["ci_high"]),
        "average_sample_count": row["n_samples"] / n_items if n_items else 0.0,
        "total_sample_count": row["n_samples"],
        "total_item_count": n_items,
        "unscored_sample_count": row["n_unscored"],
        "status": row["status"],
        "error": row["error"],
    }


def metric_name(row: Mapping[str, Any]) -> str:
    """The name of a row of METRIC_ROWS or RESULTS."""
    if "values_json" in row:
        return str(row["metric"])
    return f"{reduction_key(row['metric'], row['reduction'])},{row['filter']}"


def _own_values(row: Mapping[str, Any]) -> Row:
    if "values_json" not in row:
        return {reduction_key(row["metric"], row["reduction"]): finite(row["value"])}
    return dict(orjson.loads(row["values_json"])) if row["values_json"] else {}
