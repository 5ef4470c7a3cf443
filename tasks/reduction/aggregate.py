"""Item rows to results: one number with its uncertainty a reduction × label × facet group."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tasks.reduction.cells import Cell, cells
from tasks.reduction.facets import missing_facets, parse_facets
from tasks.reduction.failures import failure_of, rows_of_failures
from tasks.reduction.records import FailedPart, PairIdentity
from tasks.reduction.rows import Row, base_row
from tasks.store.schemas import RESULTS

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig
    from metrics.types import Estimate, Floats, Ints

Estimator: TypeAlias = "Callable[[Floats | None, Ints | None, StatisticsConfig], Estimate | None]"
"""From the items' statistics (n, k) and clusters (n,) to a number with its uncertainty; None: it knows no
more of it than the metric's aggregation does."""


def aggregate_pair(
    pair: PairIdentity,
    item_rows: Iterable[pa.RecordBatch],
    options: "StatisticsConfig",
    failed: Sequence[FailedPart] = (),
    facets: Sequence[str] = (),
    *,
    estimator: "Estimator | None" = None,
) -> Iterator[pa.RecordBatch]:
    """The pair's results (RESULTS), in the order of the item rows.

    A group that a failed part belongs to is ``failed`` with that part's error, whatever its other partitions
    gave: a number from some of its items would not say so. A group without a single scored item is
    ``unscored``. ``facets`` are those of the item rows, needed for groups of which nothing was left.
    ``estimator`` comes before the estimate of the metric's aggregation. Raises what a user's aggregation
    raises.
    """
    rows = [
        failed_row(pair, cell, error) if error else result_row(pair, cell, options, estimator)
        for cell in cells(item_rows)
        for error in [failure_of(parse_facets(cell.facets), cell.label, failed)]
    ]
    rows += rows_of_failures(pair, failed, facets, rows)
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=RESULTS)


def result_row(
    pair: PairIdentity, cell: Cell, options: "StatisticsConfig", estimator: "Estimator | None" = None
) -> Row:
    """One row of RESULTS: the estimate, the counts and every doubt there is about them."""
    from metrics.statistics.estimate import estimate

    if not cell.n_valid:
        return _without_value(pair, cell, "unscored", "; ".join(cell_doubts(cell)))
    made = estimator(cell.statistics, cell.clusters, options) if estimator is not None else None
    if made is None:
        made = estimate(pair.metric.aggregation, cell.statistics, cell.values, cell.clusters, options)
    doubts = [made.warning, *cell_doubts(cell)]
    return base_row(pair, cell.reduction, cell.label, cell.facets) | {
        "value": _number(made.value),
        "stderr": _number(made.stderr),
        "stderr_method": made.stderr_method,
        "ci_low": _number(made.ci_low),
        "ci_high": _number(made.ci_high),
        **_counts(cell),
        "status": "ok",
        "error": "; ".join(doubt for doubt in doubts if doubt) or None,
        "signature": signature(pair, cell.reduction, made, options),
    }


def failed_row(pair: PairIdentity, cell: Cell, error: str) -> Row:
    """One row of RESULTS for a group whose numbers would rest on a part of its items."""
    return _without_value(pair, cell, "failed", error)


def cell_doubts(cell: Cell) -> list[str]:
    """Sentences about items without an outcome and about facets that the group's rows lack."""
    doubts = []
    if cell.n_lost:
        more = ", …" if cell.n_lost > len(cell.unscored) else ""
        doubts.append(f"{cell.n_lost} of {cell.n_items} items are unscored: {', '.join(cell.unscored)}{more}")
    lacking = missing_facets(parse_facets(cell.facets))
    if lacking:
        doubts.append(f"no value for {', '.join(lacking)} in these responses")
    return doubts


def signature(pair: PairIdentity, reduction: str, made: "Estimate", options: "StatisticsConfig") -> str:
    """Says how the number was computed: metric, arguments, filter, reduction, error bar."""
    parts = [pair.metric.signature(), f"filter:{pair.filter}", f"red:{reduction}"]
    if made.stderr_method != "none":
        parts.append(f"se:{made.stderr_method}|ci:{options.ci_level:g}")
    if "bootstrap" in made.stderr_method or "bca" in made.stderr_method:
        parts.append(f"iters:{options.bootstrap_iters}|seed:{options.seed}")
    return "|".join(parts)


def _without_value(pair: PairIdentity, cell: Cell, status: str, error: str) -> Row:
    return base_row(pair, cell.reduction, cell.label, cell.facets) | {
        "value": None,
        "stderr": None,
        "stderr_method": "none",
        **_counts(cell),
        "status": status,
        "error": error,
    }


def _counts(cell: Cell) -> Row:
    return {
        "n_items": cell.n_items,
        "n_samples": cell.n_samples,
        "n_scored": cell.n_scored,
        "n_unscored": cell.n_samples - cell.n_scored,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
