"""How far a judge can be trusted: the rate behind its verdicts, and the agreement of several judges.

A judge that calls q1 of the right answers right (sensitivity) and q0 of the wrong ones wrong
(specificity) reports p = θ·q1 + (1 - θ)(1 - q0) for a true rate θ. Human verdicts on some answers
estimate q0 and q1, hence θ (Lee et al. 2025). Krippendorff's alpha says how far raters agree beyond
chance.

Prediction-powered inference needs no error rates: θ = mean(Y) + w (mean(f) - mean(f on the answers that
people graded)), people's own mean, moved by what the judge says of all items. The weight w has the
smallest variance, cov(Y, f) / ((1 + m/n) var(f)): a judge that says nothing has none, and people's mean
stays. Y and f are verdicts or grades on one scale; the m answers must be a random sample of answers such
as the items'. Source: Angelopoulos, Duchi and Zrnic 2023, PPI++ (arXiv 2311.01453).

All of them are aggregations.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from metrics.aggregation import Aggregation, Count, Total, as_column, build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.statistics.clusters import counts, few_clusters, numbered
from metrics.statistics.formulas import Sampled, bounded_share, influences
from metrics.statistics.intervals import Bounded, Shape, normal_quantile, skewed, wilson
from metrics.statistics.rules import NoErrorBar, SumsRule, few_events
from metrics.types import Estimate, Floats, Ints, Scores

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
            raise ConfigError(f"calibration: {len(given)} grades of people; expected three or more")
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
    def calibration(self) -> "Calibration | None":
        """Verdicts as counts of right and wrong answers; None for grades, and where all are of one kind."""
        if not self._verdicts:
            return None
        m, both = self.people, self.covariance + self.human * self.judged
        right, found = round(m * self.human), round(m * both)
        if right in (0, m):
            return None
        return Calibration(right, found, m - right, m - right - round(m * self.judged) + found)

    @property
    def response(self) -> tuple[float, float]:
        """By how much the judge's grade rises with people's, and the variance of that; (0, ∞) where people's
        do not differ. Of verdicts it is Youden's informedness."""
        counted = self.calibration
        if counted is not None:
            return counted.informedness, sum(counted.noise)
        if self.human_variance <= 0:
            return 0.0, math.inf
        return self._slope(self.human_variance, self.judged_variance)

    @property
    def steepest_response(self) -> tuple[float, float]:
        """The most that the judge's grade may rise with what people mean, and the variance of that.

        A grade is a coarse reading of an answer, and people err as well: that flattens ``response``, the
        regression on their grades. The other one, of their grades on the judge's, turned over, is as much too
        steep as the judge is noisy; what is true lies between the two (Frisch 1934, Statistical Confluence
        Analysis). Verdicts are what they are: there it is ``response``.
        """
        if self.calibration is not None or self.covariance <= 0:
            return self.response
        flat, noise = self._slope(self.judged_variance, self.human_variance)
        return 1 / flat, noise / flat**4

    def _slope(self, of: float, other: float) -> tuple[float, float]:
        """The regression of grades of variance ``other`` on those of variance ``of``, and its variance."""
        slope = self.covariance / of
        left = max(other - slope**2 * of, 0.0)
        return slope, left / of / max(self.people - 2, 1)

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
    little = f"only {m} verdicts of people: the error bar is a rough guide" if m < enough else None
    few = "; ".join(filter(None, (little, few_clusters(groups)))) or None
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


_CLEARLY = 5.0  # standard errors of informedness, by simulation: bench/judges.py
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
                f"calibration: {len(human)} human verdicts and {len(judge)} of the judge; expected one each"
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

    @property
    def hardly_better(self) -> str | None:
        """A warning where a judge is told from one that guesses, and barely: among calibrations of a weak
        judge these are the lucky ones, and the interval is too narrow."""
        q1, q0 = self.smoothed
        if q0 + q1 - 1 > _CLEARLY * sum(self.noise) ** 0.5:
            return None
        return (
            "the judge is hardly better than chance on the calibration (sensitivity "
            f"{self.sensitivity:.2f} of {self.right}, specificity {self.specificity:.2f} of {self.wrong}): "
            "the interval is a rough guide; more human verdicts or a better judge would do"
        )

    def misfit(self, rate: float) -> str:
        """Says that no true rate explains a judged one: the judge errs on the items otherwise than on the
        calibration."""
        given, low, high = (f"{100 * one:.3g} %" for one in (rate, 1 - self.specificity, self.sensitivity))
        return (
            f"the judge accepts {given} of the answers, where its sensitivity and specificity allow {low} to "
            f"{high}: the calibration does not fit these answers"
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
        rule=NoErrorBar(),
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
    Clustered or averaged verdicts enter with their effective number of items. Where that interval lies beyond
    0 or 1 as a whole, no true rate explains the judged one: there is none, and a sentence.
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
    few = "; ".join(filter(None, (calibration.hardly_better, few_clusters(groups)))) or None
    z = normal_quantile(level)
    size = _effective_size(positives, rate, groups, level)
    p, n_p = (size * rate + z * z / 2) / (size + z * z), size + z * z
    (q1, q0), (noise0, noise1) = calibration.smoothed, calibration.noise
    theta = (p + q0 - 1) / (q0 + q1 - 1)
    shift = 2 * z * z * (theta * noise1 - (1 - theta) * noise0)
    variance = p * (1 - p) / n_p + (1 - theta) ** 2 * noise0 + theta**2 * noise1
    stderr = variance**0.5 / (q0 + q1 - 1)
    if (value == 1 and theta + shift - z * stderr >= 1) or (value == 0 and theta + shift + z * stderr <= 0):
        return Estimate(value, np.nan, "none", np.nan, np.nan, n, calibration.misfit(rate))
    # A rate that chance took beyond 0 or 1 would leave a sliver of its interval there.
    middle = min(max(theta, 0.0), 1.0) + shift
    low, high = (min(max(middle + side * z * stderr, 0.0), 1.0) for side in (-1, 1))
    return Estimate(value, stderr, CALIBRATED, min(low, value), max(high, value), n, few)


def _effective_size(positives: Floats, rate: float, groups: NDArray[np.int64] | None, level: float) -> float:
    """Independent 0/1 verdicts that would be as uncertain: n itself unless items are clustered or
    averaged."""
    sampled = Sampled.of(_RATE, positives.reshape(-1, 1), groups, StatisticsConfig(ci_level=level))
    return bounded_share(sampled, 0.0, 1.0).size(level) if len(positives) > 1 else 1.0


ItemGrades = Sequence[float | None]
"""The raters' grades of one sample; None where a rater gave none."""


NAME, BOUNDS = "krippendorff_alpha", (-1.0, 1.0)
_FEW_OTHERS = 5  # by simulation: of 100 items of 5 raters that are 98 % of one grade, .87 were covered


@dataclass(frozen=True)
class AgreementRule(SumsRule):
    """Of Krippendorff's alpha, whose rows begin with the observed disagreement and the number of grades.

    Where nearly all items have one grade, few others decide what chance would give. Of ``squared``
    differences a few are most of what is observed.
    """

    squared: bool = False

    def doubt(self, sampled: Sampled) -> str | None:
        """A doubt where fewer than ten items are not of the commonest kind, or have differences to square; or
        fewer than five have mostly another grade than the rest, whatever single raters gave."""
        rated = sampled.table[sampled.table[:, 1] > 0]
        alike = np.unique(np.round(rated / rated[:, 1:2], 9), axis=0, return_counts=True)[1]
        events, kind = len(rated) - int(alike.max(initial=0)), "are not of the commonest kind"
        differing = int((rated[:, 0] > 0).sum())
        if self.squared and differing < events:
            events, kind = differing, "have grades that differ"
        if not self.squared and len(rated):
            usual = rated[:, 2 + int(rated[:, 2:].sum(axis=0).argmax())]
            others = int((2 * usual <= rated[:, 1]).sum())
            if others < _FEW_OTHERS:
                events, kind = others, "have another grade from half of their raters or more"
        return few_events(events, kind)


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

    return Aggregation(NAME, k=table.shape[1], compute=compute, rule=AgreementRule(), bounds=BOUNDS), table


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

    rule = AgreementRule(squared=True)
    return Aggregation(NAME, k=4, compute=compute, rule=rule, bounds=BOUNDS), table


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
