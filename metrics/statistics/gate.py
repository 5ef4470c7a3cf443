"""What a comparison amounts to: p-values adjusted for many metrics, and the answer of a gate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from metrics.errors import ConfigError
from metrics.statistics.comparison import Comparison
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


def spent_over(p_values: Sequence[float] | Floats, nights: int) -> Floats:
    """P-values of one of so many nights that share a level in equal parts: together they are wrong no more
    often than the level says, whatever the nights have in common (Bonferroni).

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
    whole passes only if every pair does, so pass takes alpha / 2 on its side as it is.
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
    elif worst > -margin:
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
