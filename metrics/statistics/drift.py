"""Whether a number goes one way over several runs on the same items: a suite's nights, a sweep's checkpoints.

The null: nothing but chance changes answers, however many of them stay from one run to the next. Each item's
course is then as likely backwards as forwards, and what it adds to the slope as likely negative as positive.
So the slope is tested by turning the signs of the items' parts, exactly, and neither kept answers nor the
number of runs make alarms. Of two runs, the slope is their difference.

A night is compared with one that stays, the anchor, and every night looks again. Each look has a part of the
level that depends on its place alone, and the parts of all nights, however many come, add up to the level
(Bonferroni). So nothing is assumed of what nights have in common: their anchor, and answers that were kept.
"""

import math
from collections.abc import Sequence

import numpy as np

from metrics.aggregation import Aggregation
from metrics.statistics.differences import ItemColumn, aggregated_values
from metrics.statistics.gate import adjust, spent_over
from metrics.statistics.power import mcnemar
from metrics.statistics.significance import sign_flip
from metrics.types import Floats, Ints

HALF_SPENT = 30
"""Nights after which half of the level is spent."""

_DRAWS = 100_000


def drift_chance(
    runs: Sequence[ItemColumn], aggregation: Aggregation, clusters: Ints | None = None, seed: int = 0
) -> float:
    """Two-sided p-value of "no drift" over two or more runs of the same n items, in their order.

    ``clusters`` (n,) or (n, 2) flip together. NaN for fewer runs, and for numbers of which nobody can say
    what an item adds, such as medians and functions of a user's.

    >>> right = [ItemColumn(np.repeat([1.0, 0.0], [20 - 2 * t, 2 * t])) for t in range(4)]
    >>> from metrics.aggregation import build_aggregation
    >>> drift_chance(right, build_aggregation("mean"))
    0.03125
    """
    n = len(runs[0]) if runs else 0
    if len(runs) < 2 or not n:
        return math.nan
    added = _added(runs, aggregation)
    if added is None or not np.isfinite(added).all():
        return math.nan
    slopes = (np.arange(len(runs)) - (len(runs) - 1) / 2) @ added
    ways = [np.arange(n)] if clusters is None else list(clusters.reshape(n, -1).T)
    units = [np.bincount(np.unique(way, return_inverse=True)[1], weights=slopes) for way in ways]
    return max(_two_sided(np.asarray(own, dtype=np.float64), seed) for own in units)


def least_chance(items: int, clusters: Ints | None = None) -> float:
    """The smallest p-value that so many items can have, or their ``clusters``: all go one way. Of two fields,
    that of the field with fewer values.

    >>> least_chance(6)
    0.03125
    """
    ways = [] if clusters is None else list(clusters.reshape(items, -1).T)
    return 2.0 ** (1 - min([items, *(len(np.unique(way)) for way in ways)]))


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
    """By sign flips; counted where all units that move do so equally far."""
    units = np.round(units, 12)  # equal but for rounding is equal
    moving = units[units != 0]
    if not len(moving):
        return 1.0
    if np.ptp(np.abs(moving)) == 0:
        return mcnemar(int((moving > 0).sum()), int((moving < 0).sum()))
    return sign_flip(moving, _DRAWS, np.random.default_rng(seed))


def adjusted_at_night(p_values: Sequence[float], night: int) -> Floats:
    """P-values of all pairs of a night. ``night`` is its place after the anchor, from 1.

    Without a drift, the chance that any of them is below a level on any night is at most that level, however
    many nights come. Pairs are adjusted by Holm. The night has the part c / ((night + c - 1) (night + c)) of
    the level, c = 30. These parts add up to 1, those of the first c nights to a half.

    >>> [round(float(adjusted_at_night([0.0001], night)[0]), 4) for night in (1, 30, 365)]
    [0.0031, 0.0118, 0.5188]
    """
    return spent_over(adjust(p_values), (night + HALF_SPENT - 1) * (night + HALF_SPENT) / HALF_SPENT)
