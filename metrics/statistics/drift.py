"""Whether a number goes one way over several runs on the same items, such as the nights of a suite.

The null: nothing but chance changes answers, however many of them stay from one run to the next. Each item's
course is then as likely backwards as forwards, and what it adds to the slope as likely negative as positive.
So the slope is tested by turning the signs of the items' parts, exactly, and neither kept answers nor the
number of runs make alarms: of the ranks of a few nights' numbers, which hang together where answers are kept,
nothing is assumed.
"""

import math
from collections.abc import Sequence

import numpy as np

from metrics.aggregation import Aggregation
from metrics.statistics.differences import ItemColumn, aggregated_values
from metrics.statistics.gate import adjust, spent_over
from metrics.statistics.significance import sign_flip
from metrics.types import Floats, Ints

NIGHTS = 30
"""Nights over which alarms by chance are counted."""

_DRAWS = 100_000


def slope_chance(
    runs: Sequence[ItemColumn], aggregation: Aggregation, clusters: Ints | None = None, seed: int = 0
) -> float:
    """Two-sided p-value of "no drift" over three or more runs of the same n items, in their order.

    ``clusters`` (n,) or (n, 2) flip together. NaN for fewer runs, and for numbers of which nobody can say
    what an item adds, such as medians and functions of a user's.

    >>> right = [ItemColumn(np.repeat([1.0, 0.0], [20 - 2 * t, 2 * t])) for t in range(4)]
    >>> from metrics.aggregation import build_aggregation
    >>> slope_chance(right, build_aggregation("mean"))
    0.03125
    """
    n = len(runs[0]) if runs else 0
    if len(runs) < 3 or not n:
        return math.nan
    added = _added(runs, aggregation)
    if added is None or not np.isfinite(added).all():
        return math.nan
    slopes = (np.arange(len(runs)) - (len(runs) - 1) / 2) @ added
    ways = [np.arange(n)] if clusters is None else list(clusters.reshape(n, -1).T)
    units = [np.bincount(np.unique(way, return_inverse=True)[1], weights=slopes) for way in ways]
    return max(_two_sided(np.asarray(own, dtype=np.float64), seed) for own in units)


def _added(runs: Sequence[ItemColumn], aggregation: Aggregation) -> Floats | None:
    """What each item adds to each run's number (T, n), linearised at the sums of all."""
    statistics = [run.statistics for run in runs]
    if aggregation.averages and any(own is None for own in statistics):
        return np.stack([run.value for run in runs])
    values = [aggregated_values(aggregation, run) for run in runs]
    adding, table = aggregation.tabled(
        None if any(own is None for own in statistics) else np.concatenate(statistics),  # type: ignore[arg-type]
        None if any(own is None for own in values) else [one for own in values for one in own],  # type: ignore[union-attr]
    )
    if table is None:
        return None
    moved = table @ adding.gradient(table.sum(axis=0), float(len(table)))
    return np.asarray(moved.reshape(len(runs), -1))


def _two_sided(units: Floats, seed: int) -> float:
    """By sign flips; below what draws resolve, by the bound that holds for any signs (Hoeffding 1963)."""
    units = np.round(units, 12)  # equal but for rounding is equal
    squares = float(units @ units)
    if squares <= 0:
        return 1.0
    bound = 2 * math.exp(-(float(units.sum()) ** 2) / (2 * squares))
    return min(sign_flip(units, _DRAWS, np.random.default_rng(seed)), bound)


def adjusted_over_nights(p_values: Sequence[float]) -> Floats:
    """P-values of all pairs of a night so adjusted that below .05 any of them is there in at most 5 % of
    months without drift: Holm's over the pairs, in equal parts of 30 nights (Bonferroni), whatever nights
    have in common."""
    return spent_over(adjust(p_values), NIGHTS)
