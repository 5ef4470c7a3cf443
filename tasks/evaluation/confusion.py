"""Precision, recall, F1 and balanced accuracy from the cells of a confusion matrix that methods count."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from tasks.reduction.records import BatchSource
from tasks.store.schemas import FLOATS, STATISTICS

if TYPE_CHECKING:
    from metrics.aggregations.aggregation import Aggregation

Floats = NDArray[np.float64]

CELLS: Final = ("tp", "tn", "fp", "fn")


def _ratio(part: Floats, whole: Floats) -> Floats:
    """NaN where the whole is zero: a recall without positives is no recall of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)


def _precision(cells: Floats) -> Floats:
    return _ratio(cells[..., 0], cells[..., 0] + cells[..., 2])


def _recall(cells: Floats) -> Floats:
    return _ratio(cells[..., 0], cells[..., 0] + cells[..., 3])


def _f1(cells: Floats) -> Floats:
    return _ratio(2 * cells[..., 0], 2 * cells[..., 0] + cells[..., 2] + cells[..., 3])


def _balanced_accuracy(cells: Floats) -> Floats:
    return (_recall(cells) + _ratio(cells[..., 1], cells[..., 1] + cells[..., 2])) / 2


MEASURES: Final[dict[str, Callable[[Floats], Floats]]] = {
    "precision": _precision,
    "recall": _recall,
    "f1": _f1,
    "balanced_accuracy": _balanced_accuracy,
}
"""Each takes cells (..., 4) in the order of CELLS and gives numbers (...) in 0 to 1; NaN where undefined."""


def measure(name: str) -> "Aggregation":
    """The aggregation of one measure: items' cells add up, whatever their number."""
    from metrics.aggregations.aggregation import Aggregation

    compute = MEASURES[name]
    return Aggregation(name, k=len(CELLS), compute=lambda total, n: compute(total), bounds=(0.0, 1.0))


def measures_of(statistics: Floats) -> dict[str, float | None]:
    """All measures and the cells' totals, from the cells of n items (n, 4)."""
    total = statistics.sum(axis=0)
    numbers = {name: float(compute(total)) for name, compute in MEASURES.items()}
    known = {name: None if np.isnan(number) else number for name, number in numbers.items()}
    return known | dict(zip(CELLS, total.tolist(), strict=True))


def with_cells(source: BatchSource) -> BatchSource:
    """The same statistics with the cells in place of the vectors; verdicts without cells are unscored."""

    def batches(columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
        for batch in source(list(dict.fromkeys([*columns, "details_json", "scored"]))):
            yield _replaced(batch, list(columns))

    return batches


def _replaced(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    vectors = [_cells(text) for text in batch.column("details_json").to_pylist()]
    held = zip(batch.column("scored").to_pylist(), vectors, strict=True)
    made = {
        "statistics": pa.array(vectors, FLOATS),
        "scored": pa.array([scored and vector is not None for scored, vector in held], pa.bool_()),
    }
    arrays = [made[name] if name in made else batch.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([STATISTICS.field(name) for name in columns]))


def _cells(details: str | None) -> list[float] | None:
    """The four counts that a method put among its custom fields or details; None where there is none.

    ``{"tp": 2, "fp": 1}`` counts, absent ones being zero; ``{"classification": "tp"}`` is one of that cell.
    """
    if details is None:
        return None
    for held in map(orjson.loads(details).get, ("custom_fields", "detailed_results")):
        if not isinstance(held, Mapping):
            continue
        if held.get("classification") in CELLS:
            return [float(held["classification"] == cell) for cell in CELLS]
        if any(cell in held for cell in CELLS):
            return [_count(held.get(cell)) for cell in CELLS]
    return None


def _count(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
