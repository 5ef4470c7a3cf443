"""What a comparison amounts to: p-values adjusted for many metrics, and the answer of a gate."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from metrics.errors import ConfigError
from metrics.statistics.comparison import Comparison
from metrics.types import Floats

Verdict = Literal["pass", "regression", "inconclusive"]
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


def verdict(
    comparison: Comparison,
    margin: float,
    alpha: float,
    p_value: float | None = None,
    higher_is_better: bool = True,
) -> Verdict:
    """Whether the candidate is good enough: ``p_value`` is the adjusted one, by default the comparison's own.

    *regression*: the difference is significantly for the worse, and worse than the margin. *pass*: even the
    worse end of its interval is better than minus the margin. Otherwise *inconclusive*.
    """
    p_value = comparison.p_value if p_value is None else p_value
    sign = 1.0 if higher_is_better else -1.0
    gain = sign * comparison.difference
    worst = comparison.ci_low if higher_is_better else -comparison.ci_high
    if gain < 0 and p_value < alpha and gain < -margin:
        return "regression"
    return "pass" if worst > -margin else "inconclusive"


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several: regression before inconclusive before pass; of none, inconclusive."""
    for answer in ("regression", "inconclusive"):
        if answer in verdicts:
            return answer
    return "pass" if verdicts else "inconclusive"
