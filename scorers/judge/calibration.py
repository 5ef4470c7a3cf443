"""How far a judge can be trusted: the rate behind its verdicts, and the agreement of several judges.

A judge that calls q1 of the right answers right (sensitivity) and q0 of the wrong ones wrong (specificity)
reports p = θ·q1 + (1 - θ)(1 - q0) for a true rate θ. Human verdicts on some answers estimate q0 and q1, hence
θ (Lee et al. 2025); ``ppi`` is the way without error rates. Krippendorff's alpha says how far raters agree
beyond chance. Both are aggregations.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrics.aggregations.aggregation import Aggregation, Count, Total, as_column, build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.statistics.clusters import counts, numbered
from metrics.statistics.formulas import FEW_CLUSTERS, Sampled, bounded_share
from metrics.statistics.intervals import normal_quantile
from metrics.types import Estimate, Floats, Scores
from scorers.judge.ppi import Labelled

CORRECTED_RATE = "corrected_rate"
CALIBRATED = "calibration"
"""``stderr_method`` of a corrected rate."""
_RATE = replace(build_aggregation("mean"), bounds=(0.0, 1.0))


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
    def parameters(self) -> dict[str, Any]:
        """What a result row's signature says of it."""
        return {
            "sensitivity": self.sensitivity,
            "right": self.right,
            "specificity": self.specificity,
            "wrong": self.wrong,
        }

    @property
    def informedness(self) -> float:
        """Youden's: by how much the judged rate rises with the true one."""
        return self.sensitivity + self.specificity - 1

    @property
    def noise(self) -> tuple[float, float]:
        """The variances of specificity and sensitivity, smoothed."""
        q1, q0 = self.smoothed
        return q0 * (1 - q0) / (self.wrong + 2), q1 * (1 - q1) / (self.right + 2)

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
        """Whether the judge's verdict says anything: q0 + q1 above 1, smoothed or not."""
        sensitivity, specificity = self.smoothed
        return min(self.sensitivity + self.specificity, sensitivity + specificity) > 1

    @property
    def smoothed(self) -> tuple[float, float]:
        """Sensitivity and specificity with an answer of either kind added to each."""
        return (self.found + 1) / (self.right + 2), (self.rejected + 1) / (self.wrong + 2)

    @property
    def doubt(self) -> str | None:
        """Says that the calibration can't tell the judge from one that guesses, if so.

        Youden's informedness, q0 + q1 - 1, then lies within two standard errors of 0: what is divided by it
        may be anything.
        """
        q1, q0 = self.smoothed
        if self.informative and q0 + q1 - 1 > 2 * sum(self.noise) ** 0.5:
            return None
        return (
            f"the judge is no better than chance on the calibration (sensitivity {self.sensitivity:.2f} of "
            f"{self.right}, specificity {self.specificity:.2f} of {self.wrong}): nothing can be corrected; "
            "more human verdicts or a better judge would do"
        )

    def corrected(self, rate: Floats | float) -> Floats:
        """The true rate behind a judged one, within 0 and 1; NaN where ``doubt`` says why."""
        if self.doubt:
            return np.full_like(np.asarray(rate, dtype=np.float64), np.nan)
        return np.asarray(np.clip((np.asarray(rate) + self.specificity - 1) / self.informedness, 0.0, 1.0))


def corrected_rate(by: Calibration | Labelled | None, labels: str = "") -> Aggregation:
    """The rate behind the judged one, as an aggregation; NaN without a calibration.

    It has no error bar of its own (rule "none"), since most of it comes from the calibration:
    ``corrected_estimate`` or ``ppi_estimate``. ``labels`` tells one set of people's verdicts from another.
    """

    def compute(total: Total, n: Count) -> Floats:
        rate = np.asarray(total[..., 0] / n)
        if by is None:
            return np.full_like(rate, np.nan)
        return by.corrected(rate) if isinstance(by, Calibration) else by.rectified(rate, n)

    told = {"labels": labels} if labels else {}
    return Aggregation(
        CORRECTED_RATE,
        compute=compute,
        encode=as_column,
        rule="none",
        bounds=by.bounds if isinstance(by, Labelled) else (0.0, 1.0),
        parameters={} if by is None else by.parameters | told,
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
    if not n or calibration.doubt:
        return Estimate(np.nan, np.nan, "none", np.nan, np.nan, n, calibration.doubt if n else None)
    rate = float(positives.mean())
    value = float(calibration.corrected(rate))
    groups = numbered(clusters)
    units = n if groups is None else min(counts(groups))
    if groups is not None and units < 2:
        return Estimate(value, np.nan, "none", np.nan, np.nan, n, "one cluster has no spread")
    few = None
    if groups is not None and units < FEW_CLUSTERS:
        few = f"only {units} clusters: the error bar is a rough guide"
    z = normal_quantile(level)
    size = _effective_size(positives, rate, groups, level)
    p, n_p = (size * rate + z * z / 2) / (size + z * z), size + z * z
    (q1, q0), (noise0, noise1) = calibration.smoothed, calibration.noise
    theta = (p + q0 - 1) / (q0 + q1 - 1)
    shift = 2 * z * z * (theta * noise1 - (1 - theta) * noise0)
    variance = p * (1 - p) / n_p + (1 - theta) ** 2 * noise0 + theta**2 * noise1
    stderr = variance**0.5 / (q0 + q1 - 1)
    low, high = (min(max(theta + shift + side * z * stderr, 0.0), 1.0) for side in (-1, 1))
    return Estimate(value, stderr, CALIBRATED, min(low, value), max(high, value), n, few)


def _effective_size(positives: Floats, rate: float, groups: NDArray[np.int64] | None, level: float) -> float:
    """Independent 0/1 verdicts that would be as uncertain: n itself unless items are clustered or
    averaged."""
    sampled = Sampled.of(_RATE, positives.reshape(-1, 1), groups, StatisticsConfig(ci_level=level))
    return bounded_share(sampled, 0.0, 1.0).size(level) if len(positives) > 1 else 1.0


ItemGrades = Sequence[float | None]
"""The raters' grades of one sample; None where a rater gave none."""


NAME, BOUNDS = "krippendorff_alpha", (-1.0, 1.0)


def krippendorff_alpha(*, level: Literal["nominal", "interval"] = "nominal") -> Aggregation:
    """Krippendorff's alpha: 1 is full agreement, 0 what chance gives, below 0 systematic disagreement.

    An item's value is a list of units, each the grades of one sample. ``level`` nominal: grades are equal or
    not; interval: their squared difference counts. NaN where all grades are the same, since chance then
    agrees as well. Source: Krippendorff (2011), Computing Krippendorff's alpha-reliability.
    """
    if level not in ("nominal", "interval"):
        raise ConfigError(f"krippendorff_alpha: level is nominal or interval, not {level!r}")
    return Aggregation(
        NAME,
        kind="values",
        read=_read_units,
        tabulate=_nominal_table if level == "nominal" else _interval_table,
        merge=_merged_units,
        bounds=BOUNDS,
        parameters={"level": level},
    )


def _nominal_table(values: Sequence[Any] | Floats) -> tuple[Aggregation, Floats]:
    """Per item: observed disagreement, grades, and how often each grade was given."""
    grades = sorted({grade for item in values for unit in _rated_units(item) for grade in unit})
    column = {grade: place for place, grade in enumerate(grades)}
    table = np.zeros((len(values), 2 + len(grades)))
    for row, item in enumerate(values):
        for unit in _rated_units(item):
            counts = np.bincount([column[grade] for grade in unit], minlength=len(grades))
            n = len(unit)
            table[row, 0] += (n * n - int((counts**2).sum())) / (n - 1)
            table[row, 1] += n
            table[row, 2:] += counts

    def compute(total: Total, n: Count) -> Floats:
        rated, by_grade = total[..., 1], total[..., 2:]
        return _alpha(total[..., 0], (rated**2 - (by_grade**2).sum(axis=-1)) / (rated - 1))

    return Aggregation(NAME, k=table.shape[1], compute=compute, bounds=BOUNDS), table


def _interval_table(values: Sequence[Any] | Floats) -> tuple[Aggregation, Floats]:
    """Per item: observed disagreement, grades, their sum and their sum of squares."""
    # Differences do not depend on the origin, and sums of squares lose fewer digits around the mean.
    everything = [grade for item in values for unit in _rated_units(item) for grade in unit]
    origin = float(np.mean(everything)) if everything else 0.0
    table = np.zeros((len(values), 4))
    for row, item in enumerate(values):
        for unit in _rated_units(item):
            grades = np.asarray(unit) - origin
            n, plain, squares = len(unit), float(grades.sum()), float((grades**2).sum())
            table[row] += [2 * (n * squares - plain**2) / (n - 1), n, plain, squares]

    def compute(total: Total, n: Count) -> Floats:
        rated, plain, squares = total[..., 1], total[..., 2], total[..., 3]
        return _alpha(total[..., 0], 2 * (rated * squares - plain**2) / (rated - 1))

    return Aggregation(NAME, k=4, compute=compute, bounds=BOUNDS), table


def _alpha(observed: Floats, expected: Floats) -> Floats:
    # Rounding leaves a trace of "expected" where all grades are equal.
    varied = expected > 1e-9
    return np.asarray(np.where(varied, 1 - observed / np.where(varied, expected, 1.0), np.nan))


def _rated_units(item: Sequence[ItemGrades]) -> list[list[float]]:
    """Units with the grades there are; one grade alone agrees with nothing."""
    units = [[float(grade) for grade in unit if grade is not None] for unit in item]
    return [unit for unit in units if len(unit) > 1]


def _read_units(values: Sequence[Any]) -> Scores:
    for index, value in enumerate(values):
        if not isinstance(value, Sequence) or not all(isinstance(unit, Sequence) for unit in value):
            raise MetricError(
                f"krippendorff_alpha takes a list of units a sample, and sample {index} has {value!r}", index
            )
    score = np.array([_pairs_in_agreement(value) for value in values], dtype=np.float64)
    return Scores(statistics=None, values=list(values), score=score)


def _pairs_in_agreement(item: Sequence[ItemGrades]) -> float:
    """Share of the pairs of raters that gave the same grade: what people see of one sample; NaN without a
    pair."""
    shares = [
        sum(count * (count - 1) for count in Counter(unit).values()) / (len(unit) * (len(unit) - 1))
        for unit in _rated_units(item)
    ]
    return sum(shares) / len(shares) if shares else np.nan


def _merged_units(values: Sequence[Any]) -> list[ItemGrades]:
    """Repeats of an item are units of their own."""
    return [unit for item in values for unit in item]
