"""Bootstrap draws of the difference of two runs, the same items being drawn for both."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregations import Aggregation
from metrics.bootstrap import MAX_ITEM_DRAWS
from metrics.resampling import resampled_totals
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

Run = tuple[Floats | None, Values | None]  # statistics, values


def resampled_differences(
    aggregation: Aggregation, runs: Sequence[Run], groups: Ints | None, options: "StatisticsConfig"
) -> tuple[float, Floats]:
    """The observed difference of the second run from the first, and that of each resample."""
    rng = np.random.default_rng(options.seed)
    tabled = [aggregation.tabled(*run) for run in runs]
    if any(table is None for _, table in tabled):
        columns = [values if values is not None else [] for _, values in runs]
        return _of_values(aggregation, columns, groups, options.bootstrap_iters, rng)
    (first, base), (second, candidate) = tabled
    assert base is not None
    assert candidate is not None
    n, width = len(base), base.shape[1]
    joint = np.column_stack([base, candidate, np.ones(n)])
    if groups is not None:
        joint = np.column_stack([np.bincount(groups, weights=column) for column in joint.T])
    parts = [
        second.of_totals(totals[:, width:-1], totals[:, -1])
        - first.of_totals(totals[:, :width], totals[:, -1])
        for totals in resampled_totals(joint, options.bootstrap_iters, rng)
    ]
    observed = second.of_total(candidate.sum(axis=0), float(n)) - first.of_total(base.sum(axis=0), float(n))
    return observed, np.concatenate(parts)


def _of_values(
    aggregation: Aggregation,
    columns: Sequence[Values],
    groups: Ints | None,
    draws: int,
    rng: np.random.Generator,
) -> tuple[float, Floats]:
    n = len(columns[0])
    units = n if groups is None else int(groups.max()) + 1
    members = None if groups is None else [np.flatnonzero(groups == unit) for unit in range(units)]
    differences = np.empty(min(draws, MAX_ITEM_DRAWS))
    for draw in range(len(differences)):
        picks = rng.integers(0, units, size=units)
        rows = picks if members is None else np.concatenate([members[pick] for pick in picks])
        base, candidate = (aggregation.of_values(_taken(column, rows)) for column in columns)
        differences[draw] = candidate - base
    base, candidate = (aggregation.of_values(column) for column in columns)
    return candidate - base, differences


def _taken(column: Values, rows: Ints) -> Values:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
