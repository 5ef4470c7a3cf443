"""What a gate answers, and how many items it takes to decide.

P-values are adjusted for many metrics, and a comparison becomes a verdict. What one comparison's spread says
of larger and smaller ones plans a gate: a margin is decided where a candidate as good as the baseline passes
with the power asked for: the interval then reaches from no difference to the margin. Which loss beyond it is
called a regression as often is a number of its own: where items are right or wrong, a loss makes more of them
differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from metrics.errors import ConfigError
from metrics.statistics.comparison import Comparison
from metrics.statistics.intervals import fewest
from metrics.statistics.power import POWER, Alike, larger, reaches, smoothed, units_needed
from metrics.types import Floats

Verdict = Literal["regression", "inconclusive", "worse", "pass"]
ORDER: tuple[Verdict, ...] = ("regression", "inconclusive", "worse", "pass")
CORRECTIONS = ("holm", "bh", "none")


def adjust(p_values: Sequence[float] | Floats, correction: str = "holm") -> Floats:
    """P-values adjusted for their number: Holm 1979, Benjamini and Hochberg 1995, or as they are.

    A NaN stays NaN and does not count.

    >>> adjust([0.01, 0.04, 0.03], "holm").tolist()
    [0.03, 0.06, 0.06]
    """
    if correction not in CORRECTIONS:
        raise ConfigError(f"correction must be one of {', '.join(CORRECTIONS)}, not {correction!r}")
    given = np.asarray(p_values, dtype=np.float64)
    adjusted = given.copy()
    tested = np.flatnonzero(~np.isnan(given))
    if correction == "none" or len(tested) == 0:
        return adjusted
    order = tested[np.argsort(given[tested], kind="stable")]
    m = len(order)
    if correction == "holm":
        stepped = np.maximum.accumulate(given[order] * (m - np.arange(m)))
    else:
        stepped = np.minimum.accumulate((given[order] * m / (np.arange(m) + 1))[::-1])[::-1]
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def spent_over(p_values: Sequence[float] | Floats, nights: float) -> Floats:
    """P-values of one of so many nights that share a level: together they are wrong no more often than the
    level says, whatever the nights have in common (Bonferroni). A night's part may be its own: the level over
    ``nights``.

    >>> spent_over([0.001, 0.2], 30).tolist()
    [0.03, 1.0]
    """
    return np.minimum(np.asarray(p_values, dtype=np.float64) * nights, 1.0)


@dataclass(frozen=True)
class Decision:
    """A gate's answer to one pair, and the interval that decided: its worse end is that of the unadjusted
    one-sided level alpha / 2, its better end that of the level after correction."""

    verdict: Verdict
    ci_low: float
    ci_high: float


def p_regression(comparison: Comparison, margin: float, higher_is_better: bool = True) -> float:
    """Two-sided p-value of a loss of exactly ``margin``, 1 where the loss is not larger; NaN without a
    test."""
    return comparison.chance_beyond(-margin if higher_is_better else margin, above=not higher_is_better)


def decide(
    comparison: Comparison,
    margin: float,
    alpha: float,
    adjusted: tuple[float, float] | None = None,
    higher_is_better: bool = True,
) -> Decision:
    """Whether the candidate is good enough. ``adjusted`` are the p-values of a loss beyond the margin and of
    no difference after correction, by default the comparison's own.

    In this order: *regression*: even the better end of the interval is a loss beyond the margin; *worse*: the
    worse end is a loss within the margin, and the better end is a loss too; *pass*: the worse end is within
    the margin; otherwise *inconclusive*. Regression and worse are told at the level after correction; the
    whole passes only if every pair does, so pass takes alpha / 2 on its side as it is. Clusters that are too
    few to rule out a loss neither pass nor are worse within the margin.
    """
    own = p_regression(comparison, margin, higher_is_better), comparison.p_value
    beyond, different = own if adjusted is None else adjusted
    plain = comparison.interval(1 - alpha)
    if math.isnan(comparison.p_value) or any(map(math.isnan, plain)):
        return Decision("inconclusive", *plain)
    worst = plain[0] if higher_is_better else -plain[1]
    loses = comparison.difference < 0 if higher_is_better else comparison.difference > 0
    if beyond < alpha:
        answer: Verdict = "regression"
    elif worst > -margin and comparison.too_few is None:
        answer = "worse" if loses and different < alpha else "pass"
    else:
        answer = "inconclusive"
    raw, after = (own[1], different) if answer in ("worse", "pass") else (own[0], beyond)
    corrected = comparison.interval(1 - alpha * (raw / after if after > 0 else 1.0))
    ends = (plain[0], corrected[1]) if higher_is_better else (corrected[0], plain[1])
    return Decision(answer, *ends)


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several: regression before inconclusive before worse before pass; of none,
    inconclusive."""
    for answer in ORDER:
        if answer in verdicts:
            return answer
    return "inconclusive"


_MOST = 1 << 40
_STEPS = 40


@dataclass(frozen=True)
class PairSpread:
    """By how much an item's difference varies from item to item, in the metric's own units.

    ``items`` is the variance that stays however often an item is asked, ``sampling`` what one sample adds to
    it in both runs together, and shrinks with the samples. ``width`` is the range of an item's numbers,
    infinite where it is not known. ``least`` are the items that a gate passes on at all.
    """

    items: float
    sampling: float
    width: float = math.inf
    least: int = 0

    def variance(self, samples: int) -> float:
        """Of an item's difference, each side being the mean of so many samples."""
        return self.items + self.sampling / samples

    def margin(self, items: int, samples: int, alpha: float, power: float = POWER) -> float:
        """The margin that a comparison of so many items decides; NaN where none could be."""
        if items < self._fewest(alpha):
            return math.nan
        within, beyond = reaches(items - 1.0, alpha, power)
        varied = self._smoothed(items, samples)
        seen = beyond * math.sqrt(varied / items)
        margin = within * math.sqrt(varied / items) + seen
        if samples > 1 or not math.isfinite(self.width):
            return larger(margin, self._alike(items, samples, alpha, power))
        # If the margin were lost, more items would differ than do: the variance that Tango's test takes.
        for _ in range(_STEPS):
            at_margin = (varied + math.sqrt(varied**2 + 4 * (self.width * margin) ** 2)) / 2
            margin = within * math.sqrt(at_margin / items) + seen
        return margin

    def loss_found(
        self, margin: float, items: int, samples: int, alpha: float, power: float = POWER
    ) -> float:
        """The true loss beyond the margin that is called a regression; NaN where none could be."""
        if items < units_needed(alpha):
            return math.nan
        grows = self.width if samples == 1 and math.isfinite(self.width) else 0.0
        squared = sum(reaches(items - 1.0, alpha, power)) ** 2 / items
        varied = self._smoothed(items, samples) + grows * margin
        found = (squared * grows + math.sqrt((squared * grows) ** 2 + 4 * squared * varied)) / 2
        return margin + larger(found, self._alike(items, samples, alpha, power))

    def _alike(self, items: int, samples: int, alpha: float, power: float) -> float:
        """What is found where means of many samples change by nearly the same; 0 of others."""
        if samples == 1 or not math.isfinite(self.width):
            return 0.0
        alike = Alike.expected(items, np.array([self.variance(samples)]), self.width)
        return alike.mde(items - 1.0, alpha, power)

    def _fewest(self, alpha: float) -> int:
        return max(units_needed(alpha), self.least)

    def _smoothed(self, items: int, samples: int) -> float:
        """The variance with a difference in it that was not seen yet, and may be there."""
        varied = self.variance(samples)
        if not math.isfinite(self.width):
            return varied
        unit = self.width**2 / samples
        return smoothed(varied / unit * items, items) * unit

    def items_for(self, margin: float, samples: int, alpha: float, power: float = POWER) -> int | None:
        """The fewest items that rule out a loss of the margin; None where no number does."""
        if margin <= 0:
            return None
        return fewest(
            lambda items: self.margin(items, samples, alpha, power) <= margin, self._fewest(alpha), _MOST
        )
