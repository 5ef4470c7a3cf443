"""What a judge's errors do to a rate, and how to take them out again (Lee et al. 2025).

A judge that calls q1 of the right answers right (sensitivity) and q0 of the wrong ones wrong (specificity)
reports p = θ·q1 + (1 - θ)(1 - q0) for a true rate θ. Human verdicts on some answers estimate q0 and q1, hence
θ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from metrics.aggregations.aggregation import Aggregation, Count, Total, as_column
from metrics.errors import ConfigError
from metrics.types import Estimate, Floats

METHOD = "calibration"
"""``stderr_method`` of a corrected rate."""


@dataclass(frozen=True)
class Calibration:
    """How a judge did on answers that people judged too.

    ``right`` and ``wrong`` count the answers by the human verdict, ``found`` and ``rejected`` those of them
    on which the judge said the same.
    """

    right: int
    found: int
    wrong: int
    rejected: int

    @classmethod
    def of(cls, human: Sequence[bool], judge: Sequence[bool]) -> "Calibration":
        """From verdicts side by side; raises ConfigError unless people called some answers right and some
        wrong."""
        if len(human) != len(judge):
            raise ConfigError(
                f"calibration: {len(human)} human verdicts and {len(judge)} of the judge; one each is due"
            )
        right, wrong = sum(human), len(human) - sum(human)
        if not right or not wrong:
            raise ConfigError(
                f"calibration: people called {right} answers right and {wrong} wrong; sensitivity and "
                "specificity need some of both"
            )
        pairs = list(zip(human, judge, strict=True))
        return cls(right, pairs.count((True, True)), wrong, pairs.count((False, False)))

    @property
    def sensitivity(self) -> float:
        """Share of the right answers that the judge calls right, q1."""
        return self.found / self.right

    @property
    def specificity(self) -> float:
        """Share of the wrong answers that the judge calls wrong, q0."""
        return self.rejected / self.wrong

    @property
    def informative(self) -> bool:
        """Whether the judge's verdict says anything: q0 + q1 above 1."""
        return self.sensitivity + self.specificity > 1

    def corrected(self, rate: Floats | float) -> Floats:
        """The true rate behind a judged one, within 0 and 1; NaN where the judge is no better than chance."""
        if not self.informative:
            return np.full_like(np.asarray(rate, dtype=np.float64), np.nan)
        informedness = self.sensitivity + self.specificity - 1
        return np.asarray(np.clip((np.asarray(rate) + self.specificity - 1) / informedness, 0.0, 1.0))


def corrected_rate(calibration: Calibration | None) -> Aggregation:
    """The rate behind the judged one, as an aggregation; NaN without a calibration.

    It has no error bar of its own (rule "none"), since most of it comes from the calibration:
    ``corrected_estimate``.
    """

    def compute(total: Total, n: Count) -> Floats:
        rate = np.asarray(total[..., 0] / n)
        return np.full_like(rate, np.nan) if calibration is None else calibration.corrected(rate)

    said = (
        {}
        if calibration is None
        else {
            "sensitivity": calibration.sensitivity,
            "right": calibration.right,
            "specificity": calibration.specificity,
            "wrong": calibration.wrong,
        }
    )
    return Aggregation(
        "corrected_rate", compute=compute, encode=as_column, rule="none", bounds=(0.0, 1.0), parameters=said
    )


def corrected_estimate(
    calibration: Calibration, positives: Floats, clusters: NDArray[np.int64] | None, level: float
) -> Estimate:
    """The corrected rate of the items' positive verdicts (n,), with an interval that also carries the
    uncertainty of sensitivity and specificity.

    Source: Lee et al. 2025, How to Correctly Report LLM-as-a-Judge Evaluations (arXiv 2511.21140), after Lang
    and Reiczigel 2014: smoothed proportions, a delta-method standard error and a shift towards the middle.
    Clustered or averaged verdicts enter with their effective number of items.
    """
    n = len(positives)
    if not n or not calibration.informative:
        warning = (
            None
            if not n
            else (
                "the judge is no better than chance on the calibration (sensitivity "
                f"{calibration.sensitivity:.2f}, specificity {calibration.specificity:.2f}): nothing can be "
                "corrected"
            )
        )
        return Estimate(np.nan, np.nan, "none", np.nan, np.nan, n, warning)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = float(positives.mean())
    size = _effective_size(positives, rate, clusters)
    p, n_p = (size * rate + z * z / 2) / (size + z * z), size + z * z
    q0, m0 = (calibration.rejected + 1) / (calibration.wrong + 2), calibration.wrong + 2
    q1, m1 = (calibration.found + 1) / (calibration.right + 2), calibration.right + 2
    theta = (p + q0 - 1) / (q0 + q1 - 1)
    noise0, noise1 = q0 * (1 - q0) / m0, q1 * (1 - q1) / m1
    shift = 2 * z * z * (theta * noise1 - (1 - theta) * noise0)
    variance = p * (1 - p) / n_p + (1 - theta) ** 2 * noise0 + theta**2 * noise1
    stderr = variance**0.5 / (q0 + q1 - 1)
    low, high = (min(max(theta + shift + side * z * stderr, 0.0), 1.0) for side in (-1, 1))
    return Estimate(float(calibration.corrected(rate)), stderr, METHOD, low, high, n)


def _effective_size(positives: Floats, rate: float, clusters: NDArray[np.int64] | None) -> float:
    """Independent 0/1 verdicts that would be as uncertain: n itself unless items are clustered or
    averaged."""
    n = len(positives)
    binary = bool(np.isin(positives, (0.0, 1.0)).all())
    if (clusters is None and binary) or not 0 < rate < 1 or n < 2:
        return float(n)
    residual = positives - rate
    if clusters is None:
        variance = float((residual**2).sum()) / (n - 1) / n
    else:
        sums = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=residual)
        groups = len(sums)
        variance = float((sums**2).sum()) / n**2 * groups / max(groups - 1, 1)
    return rate * (1 - rate) / variance if variance > 0 else float(n)
