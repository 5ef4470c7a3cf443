"""People's grades of some answers and the judge's of all: one number, whatever errors the judge makes.

θ = mean(Y) + w (mean(f) - mean(f on the answers that people graded)): people's own mean, moved by what the
judge says of all items. The weight w has the smallest variance, cov(Y, f) / ((1 + m/n) var(f)): a judge that
says nothing has none, and people's mean stays. Y and f are verdicts or grades on one scale; the m answers
must be a random sample of answers such as the items'. Source: Angelopoulos, Duchi and Zrnic 2023, PPI++
(arXiv 2311.01453).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from metrics.aggregations.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError
from metrics.statistics.clusters import counts, numbered
from metrics.statistics.formulas import Sampled, bounded_share, influences
from metrics.statistics.intervals import Bounded, Shape, skewed, wilson
from metrics.types import Estimate, Floats, Ints

FEW_GRADES: Final = 20
FEW_OF_ANY_RANGE: Final = 50
PPI: Final = "prediction-powered inference"
"""``stderr_method`` of a number that people's grades rectify."""
VERDICTS: Final = (0.0, 1.0)
_PARAMETERS: Final = (
    "people",
    "human",
    "judged",
    "human_variance",
    "judged_variance",
    "covariance",
    "extreme",
)


@dataclass(frozen=True)
class Labelled:
    """What ``people`` answers that people and the judge graded come to: both means, both variances (over all
    of them), the covariance, and the share of people's grades at an end of ``bounds``."""

    people: int
    human: float
    judged: float
    human_variance: float
    judged_variance: float
    covariance: float
    extreme: float = 1.0
    bounds: tuple[float, float] = VERDICTS

    @classmethod
    def of(
        cls, human: Sequence[float], judge: Sequence[float], bounds: tuple[float, float] = VERDICTS
    ) -> "Labelled":
        """From grades side by side; raises ConfigError for fewer than three."""
        given, predicted = np.asarray(human, dtype=np.float64), np.asarray(judge, dtype=np.float64)
        if len(given) != len(predicted):
            raise ConfigError(
                f"calibration: {len(given)} grades of people and {len(predicted)} of the judge; "
                "one each is due"
            )
        if len(given) < 3:
            raise ConfigError(f"calibration: {len(given)} grades of people; three and more are due")
        both = np.cov(given, predicted, ddof=0)
        at_end = float(((given <= bounds[0]) | (given >= bounds[1])).mean())
        return cls(
            len(given), float(given.mean()), float(predicted.mean()),
            float(both[0, 0]), float(both[1, 1]), float(both[0, 1]), at_end, bounds,
        )  # fmt: skip

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> "Labelled":
        """From ``parameters`` as a result row's signature has them."""
        numbers = [float(parameters[name]) for name in _PARAMETERS]
        people, human, judged, human_variance, judged_variance, covariance, extreme = numbers
        bounds = float(parameters["lowest"]), float(parameters["highest"])
        return cls(int(people), human, judged, human_variance, judged_variance, covariance, extreme, bounds)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a result row's signature says of it."""
        return {name: getattr(self, name) for name in _PARAMETERS} | {
            "lowest": self.bounds[0],
            "highest": self.bounds[1],
        }

    def weight(self, n: Floats | float) -> Floats:
        """How much the judge's grades of n items count, 0 to 1."""
        if self.judged_variance <= 0:
            return np.zeros_like(np.asarray(n, dtype=np.float64))
        best = self.covariance / ((1 + self.people / np.asarray(n)) * self.judged_variance)
        return np.asarray(np.clip(best, 0.0, 1.0))

    def rectified(self, rate: Floats | float, n: Floats | float) -> Floats:
        """People's mean over all items, of which the judge's is ``rate``; within the range of grades."""
        moved = self.human + self.weight(n) * (np.asarray(rate) - self.judged)
        return np.asarray(np.clip(moved, *self.bounds))

    def variance(self, weight: float) -> float:
        """Of what people's few grades leave open: of the mean of Y - w f over them. Verdicts have half an
        answer more of each kind, since those that people and judge see differently are few, or none."""
        human, judged, both = self.human_variance, self.judged_variance, self.covariance
        if self._verdicts:
            m, right = self.people, self.covariance + self.human * self.judged
            cells = [right, self.human - right, self.judged - right, 1 - self.human - self.judged + right]
            n11, n10, n01, _ = ((m * cell + 0.5) / (m + 2) for cell in cells)
            first, second = n11 + n10, n11 + n01
            human, judged, both = first * (1 - first), second * (1 - second), n11 - first * second
        left = max(human + weight**2 * judged - 2 * weight * both, 0.0)
        if self._verdicts or not weight:
            return left / (self.people - 1)
        # The weight is fitted to the same grades: a degree of freedom less, and an error of its own (Cochran,
        # Sampling Techniques, 1977, section 7.7).
        return left / (self.people - 2) * (1 + 1 / max(self.people - 3, 1))

    @property
    def _verdicts(self) -> bool:
        """Whether people and judge said right or wrong, and nothing between."""
        pairs = ((self.human, self.human_variance), (self.judged, self.judged_variance))
        return self.bounds == VERDICTS and all(abs(p * (1 - p) - own) < 1e-9 for p, own in pairs)


def ppi_estimate(labelled: Labelled, grades: Floats, clusters: Ints | None, level: float) -> Estimate:
    """The rectified mean of the judge's grades (n,) of all items, with its standard error and interval:
    Wilson's at an effective size where the range of grades is known, else Student's."""
    n, m = len(grades), labelled.people
    if not n:
        return Estimate(math.nan, math.nan, "none", math.nan, math.nan, n)
    value = float(labelled.rectified(float(grades.mean()), n))
    groups = numbered(clusters)
    if groups is not None and min(counts(groups)) < 2:
        said = "one cluster has no spread"
        return Estimate(value, math.nan, "none", math.nan, math.nan, n, said)
    weight = float(labelled.weight(n))
    low, width = labelled.bounds[0], labelled.bounds[1] - labelled.bounds[0]
    people, (items, degrees) = labelled.variance(weight), _of_items(grades, groups, labelled.bounds, level)
    items *= weight**2
    variance = items + people
    enough = FEW_GRADES if math.isfinite(width) else FEW_OF_ANY_RANGE
    few = f"only {m} verdicts of people: the error bar is a rough guide" if m < enough else None
    noise = people**2 / (m - 1) + items**2 / max(degrees, 1.0)
    known = variance**2 / noise if noise > 0 else m - 1.0
    if not math.isfinite(width):
        ends = skewed(value, math.sqrt(variance), Shape(0.0, known), level)
        return Estimate(value, math.sqrt(variance), PPI, *ends, n, few)
    share = Bounded(
        value=(value - low) / width,
        variance=variance / width**2,
        units=m,
        degrees=min(known, m - 1.0) if labelled.extreme == 1 else known,
        extreme=labelled.extreme,
        least=1.0,
        most=n + m if labelled.extreme == 1 else math.inf,
    )
    ends = wilson(share.value, share.size(level), level)
    return Estimate(value, math.sqrt(variance), PPI, low + width * ends[0], low + width * ends[1], n, few)


def _of_items(
    grades: Floats, groups: Ints | None, bounds: tuple[float, float], level: float
) -> tuple[float, float]:
    """The variance of the mean of the judge's grades, and its degrees of freedom; that of verdicts at the
    effective number of items, which has a size where all are alike."""
    mean = replace(build_aggregation("mean"), bounds=bounds)
    sampled = Sampled.of(mean, grades.reshape(-1, 1), groups, StatisticsConfig(ci_level=level))
    verdicts = bounds == VERDICTS and bool(((grades == 0) | (grades == 1)).all())
    if len(grades) < 2:
        return (0.25 if verdicts else 0.0), 1.0
    influence = influences(sampled)
    assert influence is not None
    stderr, shape = sampled.spread(influence)
    if not verdicts:
        return stderr**2, shape.degrees
    rate = float(grades.mean())
    return rate * (1 - rate) / bounded_share(sampled, *VERDICTS).size(level), shape.degrees
