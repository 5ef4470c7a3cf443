"""What a difference of two runs has, whatever finds it: its test, its interval, what units that tie hide."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation
from metrics.statistics.clusters import few_clusters
from metrics.statistics.formulas import FEW_UNITS
from metrics.statistics.intervals import Shape, skewed
from metrics.types import Bools, Floats, Ints, Values

Ends = Callable[[float], tuple[float, float]]
Chance = Callable[[float], float]


@dataclass(frozen=True)
class ItemColumn:
    """One run's rows of n items, all scored, in the same order as the other run's."""

    value: Floats  # (n,)
    statistics: Floats | None = None  # (n, k)
    values: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.value)

    def where(self, chosen: Bools) -> "ItemColumn":
        """The rows of the chosen items (n,)."""
        return ItemColumn(
            self.value[chosen],
            None if self.statistics is None else self.statistics[chosen],
            None if self.values is None else list(compress(self.values, chosen)),
        )

    def beside(self, other: "ItemColumn") -> "ItemColumn":
        """The rows with the other run's numbers where they are the same but for rounding: sums in another
        order are no difference, and many such ones would look like a sure one."""
        pairs = (self.statistics, other.statistics)
        return ItemColumn(
            _rounded_alike(self.value, other.value),
            pairs[0] if pairs[0] is None or pairs[1] is None else _rounded_alike(pairs[0], pairs[1]),
            self.values,
        )


def that_count(
    aggregation: Aggregation, runs: Sequence[ItemColumn], clusters: Ints | None
) -> tuple[list[ItemColumn], Ints | None]:
    """The runs' items, with their clusters, less those that count in none of the runs: these are no units.
    If none counts, they are all there."""
    tables = [run.statistics for run in runs if run.statistics is not None]
    if aggregation.leaves_out is None or len(tables) < len(runs):
        return list(runs), clusters
    counted = ~np.logical_and.reduce([aggregation.leaves_out(table) for table in tables])
    if not counted.any():
        return list(runs), clusters
    own = None if clusters is None else np.asarray(clusters)[counted]
    return [run.where(counted) for run in runs], own


SAME_TO = 1e-13
"""Numbers that differ by no larger a share of them are the same but for rounding."""


def _rounded_alike(own: Floats, other: Floats) -> Floats:
    if own.shape != other.shape:
        return own
    with np.errstate(invalid="ignore"):
        close = np.abs(own - other) <= SAME_TO * np.maximum(np.abs(own), np.abs(other))
    # Of an infinite number, everything is within its share.
    return np.where(close & np.isfinite(own) & np.isfinite(other), other, own)


def changes(first: Floats, second: Floats) -> Floats:
    """What each item (n,) changes by; changes that are the same but for the rounding of the items' own
    numbers are equal. Many that lie close are no such ones: the first and the last of them are far apart."""
    changed, noise = second - first, SAME_TO * np.maximum(np.abs(first), np.abs(second))
    order = np.argsort(changed, kind="stable")
    ordered, noise = changed[order], noise[order]
    leads = np.concatenate([[True], np.diff(ordered) > np.minimum(noise[1:], noise[:-1])])
    starts = np.flatnonzero(leads)
    span = np.maximum.reduceat(ordered, starts) - ordered[starts]
    run = np.cumsum(leads) - 1
    same = (span <= np.minimum.reduceat(noise, starts))[run]
    alike = np.empty_like(changed)
    alike[order] = np.where(same, ordered[starts][run], ordered)
    return alike


@dataclass(frozen=True)
class Difference:
    """A difference's standard error, test and smallest effect, its interval of any level and the p-value of
    any other difference."""

    stderr: float
    test: str
    p_value: float
    mde: float
    ends: Ends | None = None
    chance: Chance | None = None
    warning: str | None = None

    @classmethod
    def unsaid(cls, warning: str) -> "Difference":
        """What there is to say where nothing can be tested."""
        return cls(math.nan, "none", math.nan, math.nan, warning=warning)

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of a level, with 0 in it unless the test finds a difference; NaN where there is
        none."""
        if self.ends is None:
            return math.nan, math.nan
        return with_zero(self.ends(level), self.p_value, level)


def with_zero(ends: tuple[float, float], p_value: float, level: float) -> tuple[float, float]:
    """The ends, with 0 between them unless the test finds a difference at that level."""
    if p_value < 1 - level:
        return ends
    return min(ends[0], 0.0), max(ends[1], 0.0)


@dataclass(frozen=True)
class Shift:
    """A mean difference and what it would spread by: ``spread`` is its own standard error, ``growth`` the
    variance that a difference of 1 from ``tied`` has at least, if it is made of units that tied there.

    Without the second, runs that differ on no unit, or on few, would exclude losses of which the sample just
    has none: the score test's idea, for differences of any size.
    """

    mean: float
    spread: float
    shape: Shape
    growth: float
    width: float
    tied: float = 0.0

    def chance(self, value: float) -> float:
        """Two-sided p-value of the difference ``value``."""
        spread = max(self.spread, math.sqrt(self.growth * abs(value - self.tied)))
        return self.shape.chance(_apart(self.mean - value, spread))

    def ends(self, level: float) -> tuple[float, float]:
        """The interval of a level, within what the range of the numbers lets be."""
        below, above = self.shape.ends(level)
        low, high = skewed(self.mean, self.spread, self.shape, level)
        beyond = self.mean - self.tied
        low = min(low, self.tied - self._reached(below, beyond))
        high = max(high, self.tied + self._reached(above, -beyond))
        return within(low, high, self.mean, self.width)

    def _reached(self, reach: float, mean: float) -> float:
        """The largest loss m of which the mean is at most ``reach`` of its own standard errors, √(growth m),
        away; minus infinity for none."""
        most = reach**2 * self.growth
        if most <= 0 or most < 4 * mean or not math.isfinite(most):
            return -math.inf
        return (most - 2 * mean + math.sqrt(most * (most - 4 * mean))) / 2


def within(low: float, high: float, difference: float, width: float) -> tuple[float, float]:
    """The ends of a difference's interval within what two numbers of such a range can differ by: no true
    difference lies beyond, so none is covered less. Rounding may carry ``difference`` a hair beyond."""
    return max(low, min(-width, difference)), min(high, max(width, difference))


def _apart(difference: float, stderr: float) -> float:
    """How many standard errors a difference is from 0; infinitely many where all differ by the same."""
    return difference / stderr if stderr > 0 else math.copysign(math.inf, difference) if difference else 0.0


def undetectable(mde: float, units: int, kind: str, differs: bool) -> str | None:
    """What to say where no detectable effect is known, whether or not these runs differ."""
    if not math.isnan(mde):
        return None
    if differs:
        return f"{units} {kind} find this difference; of others it is not known which they find"
    return f"{units} {kind} are too few to find any difference four times of five"


def few_units(groups: Ints | None, count: int, width: float, enough: int = FEW_UNITS) -> str | None:
    """A doubt where so few units say little of others."""
    if groups is not None:
        return few_clusters(groups)
    if count < enough and not math.isfinite(width):
        return f"only {count} items: the test holds for differences without rare large ones"
    return None


def score_column(run: ItemColumn) -> Floats:
    """The number of each item that a mean is of (n,)."""
    return run.value if run.statistics is None else np.asarray(run.statistics[:, 0])


def aggregated_values(aggregation: Aggregation, run: ItemColumn) -> Values | None:
    """What an aggregation of kind "values" takes of a run; None for sums."""
    if aggregation.kind == "sums":
        return None
    return run.values if run.values is not None else run.value
