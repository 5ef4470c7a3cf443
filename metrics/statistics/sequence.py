"""Confidence sequences of a paired difference: what holds at every look, so that asking may end early.

A bettor against "the mean difference is at most m" stakes a part of what they own on each unit. If it is
true, what they own does not grow on average, and ever reaches 1 / level with a chance of at most the level
(Ville 1939). Once it has, the mean lies above m, however often somebody looked. The confidence sequence is
all m that no bettor has won against.

Source: Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by betting, JRSSB 86:1–27:
hedged capital with a grid of stakes (grid Kelly), with and without replacement. Own here: units of
several items, such as clusters, weigh by their number of items, so that the mean is that of items.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from metrics.errors import MetricError
from metrics.statistics.gate import Verdict
from metrics.statistics.intervals import bisected
from metrics.types import Floats, Ints

STAKED = 0.2
"""Share of a level that the sequence takes; the last look, at all items, has the rest. With more of it runs
end sooner, and the last look loses power: at .2 never more than five points (``tests/metrics``)."""
_BOLDEST = 0.99  # part of all that may be lost that is staked; all of it could not come back from one loss
_STEP = 1.6
_SHY = 2 * math.log(200)
_HALVINGS = 30
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PairedUnits:
    """Differences of n units in the order in which they were asked, candidate minus base, negative being
    worse.

    A unit is an item, or a cluster with all its items: ``values`` (n,) are the means of their differences,
    ``weights`` (n,) their items over those of the largest unit. An item's difference lies within ``width`` of
    0. ``planned`` is the number of units if all are asked. ``whole``: the mean is that of these planned units
    and of no others, which were drawn without replacement.
    """

    values: Floats
    weights: Floats
    width: float
    planned: int
    whole: bool = False

    @classmethod
    def of_items(
        cls, differences: Floats, sizes: Ints, largest: int, width: float, planned: int, whole: bool = False
    ) -> Self:
        """From items (m,) in their order, of which the first ``sizes[0]`` are the first unit; ``largest`` is
        the number of items of the largest unit, asked or not.

        Raises MetricError for a difference beyond the width.
        """
        if len(differences) and float(np.abs(differences).max()) > width * (1 + _ROUNDING):
            raise MetricError(f"differences lie within {width:g} of 0, not at {np.abs(differences).max():g}")
        starts = np.cumsum(sizes) - sizes
        sums = np.add.reduceat(differences, starts) if len(sizes) else np.zeros(0)
        return cls(sums / np.maximum(sizes, 1), sizes / largest, width, planned, whole)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def turned(self) -> Self:
        """The same with base and candidate exchanged."""
        return replace(self, values=-self.values)

    @property
    def mean(self) -> float:
        """Mean difference of the items so far."""
        total = float(self.weights.sum())
        return float((self.weights * self.values).sum()) / total if total else math.nan


def log_wealth(units: PairedUnits, mean: float) -> Floats:
    """Logarithm of what a stake of 1 has become after each unit (n,), by bets that the mean difference is
    above ``mean``. If it is not, exp of it exceeds 1 / level anywhere with a chance of at most the level.

    >>> from numpy import ones, zeros
    >>> units = PairedUnits(zeros(400), ones(400), width=1.0, planned=1000)
    >>> bool(log_wealth(units, -0.02)[-1] > math.log(200))
    True
    """
    room = mean / units.width + 1  # from the least that a difference can be
    gains = units.weights * (units.values / units.width - mean / units.width)
    due = np.zeros(len(units))
    if units.whole:  # what is left makes up for what came
        due = -(np.cumsum(gains) - gains) / np.maximum(units.planned - np.arange(len(units)), 1)
    least = due + room
    possible = least > _ROUNDING
    ratios = np.zeros(len(units))
    np.divide(gains - due, least, out=ratios, where=possible)
    stakes = _stakes(units.planned)
    logs = np.cumsum(np.log1p(stakes[:, None] * np.maximum(ratios, -1.0)), axis=1)
    wealth: Floats = np.logaddexp.reduce(logs, axis=0) - math.log(len(stakes))
    if not units.whole:
        return wealth
    # Not even the least that is left to come would make the mean as low as that.
    left = units.planned - np.arange(1, len(units) + 1)
    beyond = np.logical_or.accumulate(np.cumsum(gains) > left * room + _ROUNDING * units.planned)
    return np.where(beyond, math.inf, wealth)


def _stakes(planned: int) -> Floats:
    """Parts of what can be staked, from what suits the smallest difference that so many units can show."""
    least = min(math.sqrt(_SHY / max(planned, 1)), _BOLDEST)
    steps = math.ceil(math.log(_BOLDEST / least) / math.log(_STEP)) + 1
    return np.geomspace(least, _BOLDEST, steps) if steps > 1 else np.array([_BOLDEST])


def is_above(units: PairedUnits, mean: float, level: float) -> int | None:
    """After how many units the mean difference was known to lie above ``mean``, at a one-sided level; None:
    it is not yet."""
    if mean < -units.width:
        return 0
    won = log_wealth(units, mean) >= -math.log(level)
    return int(won.argmax()) + 1 if won.any() else None


def lower_end(units: PairedUnits, level: float) -> float:
    """Lower end of the sequence so far, at a one-sided level: what all looks up to now say together. The
    width below 0 before any unit."""

    def is_below(mean: float) -> bool:
        return is_above(units, mean, level) is not None

    return bisected(is_below, -units.width, units.width, _HALVINGS if len(units) else 0)[0]


def upper_end(units: PairedUnits, level: float) -> float:
    """Upper end, as ``lower_end``."""
    return -lower_end(units.turned, level)


@dataclass(frozen=True)
class SequenceLevels:
    """One-sided levels of a sequence: of its lower end, which passes, and of its upper end, by which a
    pair is a regression or worse."""

    passes: float
    fails: float

    @classmethod
    def of_gate(cls, alpha: float, parts: int) -> Self:
        """Of a gate's two-sided alpha; ``parts`` share the upper one (Bonferroni): pairs, times nights.

        >>> levels = SequenceLevels.of_gate(0.05, 2)
        >>> round(levels.passes, 6), round(levels.fails, 6)
        (0.005, 0.0025)
        """
        return cls(STAKED * alpha / 2, STAKED * alpha / 2 / parts)


def left_for_the_last(alpha: float) -> float:
    """What is left of a gate's alpha once all items are asked.

    >>> round(left_for_the_last(0.05), 6)
    0.04
    """
    return (1 - STAKED) * alpha


@dataclass(frozen=True)
class SequenceLook:
    """What a sequence says of a pair: the interval so far, and the verdict, None where it is not decided."""

    verdict: Verdict | None
    difference: float
    ci_low: float
    ci_high: float
    units: int


def look_at(units: PairedUnits, margin: float, levels: SequenceLevels) -> SequenceLook:
    """A look at a pair, at any time: *pass* once the mean difference was known to be above -margin,
    *regression* once it was known to be below, whichever came first; *worse* for a pass that is known to be a
    loss."""
    passed = is_above(units, -margin, levels.passes)
    failed = is_above(units.turned, margin, levels.fails)
    verdict: Verdict | None = None
    if failed is not None and (passed is None or failed < passed):
        verdict = "regression"
    elif passed is not None:
        verdict = "pass" if is_above(units.turned, 0.0, levels.fails) is None else "worse"
    ends = lower_end(units, levels.passes), upper_end(units, levels.fails)
    return SequenceLook(verdict, units.mean, *ends, len(units))


_HISTORIES = 200


def expected_share(
    levels: SequenceLevels, margin: float, loss: float, differ: float, looks: Sequence[int]
) -> float:
    """Part of right-or-wrong items that is asked before a pair is decided, on average; looks follow after
    ``looks`` items, the last being all. ``differ`` of them differ between two runs, as many gained as lost
    beside the loss. By simulation, always the same.
    """
    rng, items = np.random.default_rng(0), looks[-1]
    worse, better = max((differ + loss) / 2, loss), max((differ - loss) / 2, 0.0)
    asked = 0
    for _ in range(_HISTORIES):
        drawn = rng.random(items)
        values = np.where(drawn < worse, -1.0, np.where(drawn < worse + better, 1.0, 0.0))
        units = PairedUnits(values, np.ones(items), 1.0, items)
        ends = (is_above(units, -margin, levels.passes), is_above(units.turned, margin, levels.fails))
        first = min((end for end in ends if end is not None), default=items)
        asked += next(look for look in looks if look >= first)
    return asked / _HISTORIES / items
