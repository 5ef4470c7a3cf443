"""Numbers of metrics over evaluation results: rows of RESULTS that also keep the metric's own values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tasks.evaluation.confusion import measures_of
from tasks.evaluation.metrics import EvaluationMetric
from tasks.reduction.aggregate import failed_row, result_row
from tasks.reduction.cells import Cell, cells
from tasks.reduction.facets import parse_facets
from tasks.reduction.failures import failure_of, rows_of_failures
from tasks.reduction.records import FailedPart
from tasks.reduction.rows import Row
from tasks.store.keys import canonical_json
from tasks.store.schemas import RESULTS

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

METRIC_ROWS: Final = pa.schema(
    [
        *RESULTS,
        pa.field(
            "values_json", pa.string()
        ),  # JSON object: the metric's own value keys, as metrics.jsonl has them
    ]
)


def aggregate_metric(
    metric: EvaluationMetric,
    benchmark: str,
    item_rows: Iterable[pa.RecordBatch],
    options: "StatisticsConfig",
    failed: Sequence[FailedPart] = (),
) -> Iterator[pa.RecordBatch]:
    """One row (METRIC_ROWS) a label and facet group of a built-in metric, from what ``reduce_metric`` made.

    Groups that a failed part belongs to are ``failed`` with its error.
    """
    pair, failed = metric.identity(benchmark), metric.concerned(failed)
    rows: list[Row] = []
    for cell in cells(item_rows):
        error = failure_of(parse_facets(cell.facets), cell.label, failed)
        made = failed_row(pair, cell, error) if error else result_row(pair, cell, options)
        values = {} if error else _own_values(metric, cell, made)
        rows.append(made | {"values_json": canonical_json(values).decode()})
    yield from metric_batches(rows + rows_of_failures(pair, failed, metric.facets, rows))


def metric_batches(rows: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows as one batch, or none."""
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=METRIC_ROWS)


def _own_values(metric: EvaluationMetric, cell: Cell, row: Row) -> dict[str, Any]:
    """The value under the metric type's own key; all measures and counts of a classification."""
    if metric.config.type == "classification" and cell.statistics is not None:
        return measures_of(cell.statistics)
    return {str(metric.config.type): row["value"]}
