"""The records of ``responses.jsonl``, ``evaluation_results.jsonl`` and ``metrics.jsonl``."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from metrics.reductions.reduction import reduction_key
from tasks.reduction.facets import parse_facets
from tasks.reporting.exports.inputs import AnswerPart
from tasks.rows.parts import Row
from tasks.store.files import finite, write_lines
from tasks.verdicts.methods import RESPONSE_COLUMNS, response_rows
from tasks.verdicts.rows import JudgedPart, evaluation_rows


def write_responses(path: Path, parts: Iterable[AnswerPart]) -> int:
    """Writes all parts in their order and returns the number of lines.

    ``total_samples`` counts the samples of the line's item by the same model and prompt template.
    """
    return write_lines(path, (row for part in parts for row in exported_responses(part)))


def exported_responses(part: AnswerPart) -> Iterator[Row]:
    """The lines of one part; an item's samples follow each other, so only one item's are in memory."""
    for _, samples in groupby(_rows(part), key=itemgetter("item_id")):
        responses = list(samples)
        for row in responses:
            yield _with_total(row, len(responses))


def _rows(part: AnswerPart) -> Iterator[Row]:
    for batch in part.responses(RESPONSE_COLUMNS):
        yield from response_rows(batch, part.origin)


def _with_total(row: Row, total: int) -> Row:
    identity = {name: row[name] for name in ("item_id", "sample_id", "sample_index")}
    return identity | {"total_samples": total} | row


def write_evaluation_results(path: Path, judged: Iterable[JudgedPart]) -> int:
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
    place = {"metric_name": metric_name(row), "facets": list(facets), **facets, "label": row["label"]}
    counts = {
        "value": finite(row["value"]),
        "stderr": finite(row["stderr"]),
        "stderr_method": row["stderr_method"],
        "ci_low": finite(row["ci_low"]),
        "ci_high": finite(row["ci_high"]),
        "average_sample_count": row["n_samples"] / n_items if n_items else 0.0,
        "total_sample_count": row["n_samples"],
        "total_item_count": n_items,
        "unscored_sample_count": row["n_unscored"],
        "cut_off_sample_count": row["n_cut_off"],
        "status": row["status"],
        "error": row["error"],
    }
    return {**place, **_beside(_own_values(row), {**place, **counts}), **counts}


def _beside(own: Row, line: Row) -> Row:
    """A metric's own values; one that is called like a field of the line, and differs, is ``returned_…``."""
    return {
        f"returned_{name}" if name in line and line[name] != value else name: value
        for name, value in own.items()
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
