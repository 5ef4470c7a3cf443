"""Two runs' corrected rates: by how much they differ, with what people's verdicts leave open.

Runs that share one calibration share its errors too: the difference of the judge's own numbers then decides,
divided by the judge's response: by how much its grades rise with people's, which for verdicts is its
informedness, and for grades is known between two ends only. That holds as far as the judge errs on both
runs' answers alike; people's labels of one run's answers rectify that run only. With a calibration each, of
the run's own answers, nothing is assumed, and both calibrations add to the error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import MetricError
from metrics.statistics.clusters import alike_variance, few_clusters, numbered
from metrics.statistics.comparison import Comparison, Method, Remedy, compare_items
from metrics.statistics.differences import Difference, ItemColumn, score_column, undetectable, within
from metrics.statistics.formulas import Sampled, influences
from metrics.statistics.intervals import Shape, normal_quantile
from metrics.statistics.power import POWER, shift_mde
from metrics.types import Floats, Ints
from scorers.judge.calibration import CORRECTED_RATE, Calibration, Labelled, corrected_estimate

SHARED = (
    "both runs share one calibration: the difference is that of the judge's grades over its response to "
    "people's, which holds as far as it errs on both alike; a calibration of each run's own answers assumes "
    "less"
)
_STEPS = 60
_MOST_LABELS = 1 << 24
_FAR = 1e6  # standard errors, where a grade has no range
Runs = tuple[ItemColumn, ItemColumn]


@dataclass(frozen=True)
class Correction:
    """What a run's corrected rate rests on; ``labels`` tells one set of people's verdicts from another."""

    by: Calibration | Labelled
    labels: str = ""

    @classmethod
    def read(cls, signature: str | None) -> "Correction | None":
        """From the signature of a result row; None for any other metric, or one without a calibration."""
        parts = (signature or "").split("|")
        if f"agg:{CORRECTED_RATE}" not in parts:
            return None
        pairs = (part.partition(":") for part in parts)
        found = {name: value for name, _, value in pairs}
        labels = found.get("labels", "")
        if "people" in found:
            return cls(Labelled.read(found), labels)
        if "sensitivity" not in found:
            return None
        return cls(_calibration(found), labels)

    @property
    def doubt(self) -> str | None:
        """Why nothing can be corrected, if so."""
        return self.by.doubt if isinstance(self.by, Calibration) else None

    @property
    def response(self) -> tuple[float, float]:
        """By how much the judge's mean rises with people's, and the variance of that."""
        if isinstance(self.by, Labelled):
            return self.by.response
        return self.by.informedness, sum(self.by.noise)

    @property
    def steepest_response(self) -> tuple[float, float]:
        """As ``response``, if people's grades err too."""
        return self.by.steepest_response if isinstance(self.by, Labelled) else self.response

    @property
    def doubt_of_both(self) -> str | None:
        """Why one calibration says nothing of two runs' difference, if so: the judge's response lies within
        two standard errors of none."""
        slope, noise = self.response
        if isinstance(self.by, Calibration) or slope > 2 * math.sqrt(noise):
            return self.doubt
        return (
            f"both runs share one calibration, whose {self.by.people} answers can't tell whether the judge's "
            "grades rise with people's: it decides no difference; label answers of each run"
        )

    def misfit(self, grades: Floats, clusters: Ints | None, level: float) -> str | None:
        """Why a run's own corrected rate has no interval, if so."""
        if not isinstance(self.by, Calibration) or not len(grades):
            return None
        made = corrected_estimate(self.by, grades, clusters, level)
        return made.warning if math.isnan(made.ci_low) else None

    def labels_needed(self, runs: "Runs", margin: float, alpha: float) -> int | None:
        """Labelled answers of each run's own that rule out a loss of the margin on these items; None where no
        number does."""
        n, by = len(runs[0]), self.by
        if isinstance(by, Calibration) or margin <= 0 or n < 2:
            return None
        reach = normal_quantile(1 - alpha) + normal_quantile(2 * POWER - 1)
        moved, high = score_column(runs[1]) - score_column(runs[0]), 3
        spread = float(moved.var(ddof=1)) / n

        def error(people: int) -> float:
            own = replace(by, people=people)
            weight = float(own.weight(n))
            return reach * math.sqrt(weight**2 * spread + 2 * own.variance(weight))

        while error(high) > margin:
            high *= 2
            if high > _MOST_LABELS:
                return None
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if error(middle) <= margin else (middle, high)
        return high

    def value(self, rate: float, n: int) -> float:
        """The corrected rate behind the judge's over n items."""
        if isinstance(self.by, Calibration):
            return float(self.by.corrected(rate))
        return float(self.by.rectified(rate, n))

    def slope(self, n: int) -> float:
        """By how much the corrected rate rises with the judge's."""
        return 1 / self.by.informedness if isinstance(self.by, Calibration) else float(self.by.weight(n))

    def variance(self, rate: float, n: int) -> float:
        """Of the corrected rate, as far as it comes from the calibration."""
        if isinstance(self.by, Labelled):
            return self.by.variance(float(self.by.weight(n)))
        true, (noise0, noise1) = self.value(rate, n), self.by.noise
        return ((1 - true) ** 2 * noise0 + true**2 * noise1) / self.by.informedness**2


def _calibration(found: Mapping[str, str]) -> Calibration:
    right, wrong = int(found["right"]), int(found["wrong"])
    agreed = (
        round(float(found[name]) * count) for name, count in (("sensitivity", right), ("specificity", wrong))
    )
    return Calibration(right, next(agreed), wrong, next(agreed))


def compare_corrected(
    runs: Runs,
    corrections: tuple[Correction, Correction],
    clusters: Ints | None,
    options: StatisticsConfig,
    *,
    method: Method = "auto",
    higher_is_better: bool = True,
) -> Comparison:
    """Compares the corrected rates of two runs on the same items, whose columns hold the judge's verdicts or
    grades.

    ``base`` and ``candidate`` are the runs' own rates; of runs that share people's grades, the difference is
    found without these, and may be another than that of the rates. Raises MetricError for runs that are
    corrected in different ways.
    """
    first, second = corrections
    if type(first.by) is not type(second.by):
        raise MetricError("one run is corrected by error rates, the other by prediction-powered inference")
    bounds = first.by.bounds if isinstance(first.by, Labelled) else (0.0, 1.0)
    mean = replace(build_aggregation("mean"), bounds=bounds)
    plain = compare_items(mean, *runs, clusters, options, method=method, higher_is_better=higher_is_better)
    n = len(runs[0])
    rates = [float(score_column(run).mean()) if n else math.nan for run in runs]
    values = [one.value(rate, n) if n else math.nan for one, rate in zip(corrections, rates, strict=True)]
    one = first == second
    doubt = first.doubt_of_both if one else first.doubt or second.doubt
    for correction, run in zip(corrections, runs, strict=True):
        doubt = doubt or correction.misfit(score_column(run), clusters, options.ci_level)
    difference = values[1] - values[0]
    if doubt or math.isnan(plain.p_value):
        found = Difference.unsaid(doubt or plain.warning or "nothing can be tested")
    elif one:
        found, difference = _shared(plain, first, options)
    else:
        found = _separate(runs, corrections, (rates[0], rates[1]), clusters, options, difference)
    low, high = found.interval(options.ci_level)
    return replace(
        plain,
        base=values[0],
        candidate=values[1],
        difference=difference,
        stderr=found.stderr,
        ci_low=low,
        ci_high=high,
        test=found.test,
        p_value=found.p_value,
        mde=found.mde,
        warning=found.warning,
        ends=found.ends,
        chance=found.chance,
        remedy=_label(first, runs) if one else None,
    )


def _label(correction: Correction, runs: Runs) -> Remedy:
    """What would rule out a loss of the margin where one calibration does not."""

    def remedy(margin: float, alpha: float) -> str | None:
        needed = correction.labels_needed(runs, margin, alpha)
        return None if needed is None else f"{needed:,} labelled answers of each run's own would decide it"

    return remedy


def _shared(plain: Comparison, correction: Correction, options: StatisticsConfig) -> tuple[Difference, float]:
    """One calibration: the judge's difference, over its response. Whether there is any difference does not
    depend on the calibration, how large it is does (Fieller 1954). No difference is ruled out that some
    response between the flattest and the steepest explains."""
    said = "; ".join(filter(None, (SHARED, plain.warning)))
    (informed, noise), width = correction.response, _width(correction)
    responses, steepest = (correction.response, correction.steepest_response), correction.steepest_response[0]
    difference = plain.difference / informed
    inner = plain.chance
    if plain.ends is None or inner is None:
        return Difference(
            plain.stderr / informed, plain.test, plain.p_value, math.nan, warning=said
        ), difference
    low, high = plain.ends(options.ci_level)
    squared = ((high - low) / (2 * normal_quantile(options.ci_level))) ** 2

    def chance(value: float) -> float:
        if abs(plain.difference / steepest) < abs(value) < abs(difference) and value * difference > 0:
            return 1.0
        return max(chance_by(value, *response) for response in responses)

    def chance_by(value: float, slope: float, noise: float) -> float:
        # The judge's own test, of a deviation that is the smaller the less the response is known.
        widened = math.sqrt(1 + value**2 * noise / squared) if squared > 0 else math.inf
        return inner(plain.difference + (value * slope - plain.difference) / widened)

    def ends(level: float) -> tuple[float, float]:
        return _end(chance, difference, -farthest, 1 - level), _end(chance, difference, farthest, 1 - level)

    stderr = math.hypot(plain.stderr / informed, difference * math.sqrt(noise) / informed)
    farthest = width if math.isfinite(width) else abs(difference) + _FAR * stderr
    mde = plain.mde / informed
    possible = mde if mde <= width else math.nan
    return Difference(stderr, plain.test, plain.p_value, possible, ends, chance, said), difference


def _width(correction: Correction) -> float:
    """The range of a rate, or of a grade; of one without a range, what a judge may be off by at most."""
    low, high = correction.by.bounds if isinstance(correction.by, Labelled) else (0.0, 1.0)
    return high - low


def _end(chance: Any, start: float, farthest: float, level: float) -> float:
    """Where the p-value falls to ``level`` on the way from the estimate to the end of the range."""
    if chance(farthest) >= level:
        return farthest
    near, far = start, farthest
    for _ in range(_STEPS):
        middle = (near + far) / 2
        near, far = (middle, far) if chance(middle) >= level else (near, middle)
    return far


def _separate(
    runs: Runs,
    corrections: tuple[Correction, Correction],
    rates: tuple[float, float],
    clusters: Ints | None,
    options: StatisticsConfig,
    difference: float,
) -> Difference:
    """A calibration each: the items' part is paired, those of the calibrations are independent."""
    n, groups = len(runs[0]), numbered(clusters)
    slopes = [one.slope(n) for one in corrections]
    columns = [slope * score_column(run) for slope, run in zip(slopes, runs, strict=True)]
    moved: Floats = np.asarray(columns[1] - columns[0])
    sampled = Sampled.of(build_aggregation("mean"), moved.reshape(-1, 1), groups, options)
    influence = influences(sampled)
    assert influence is not None
    stderr, shape = sampled.spread(influence)
    people = [one.variance(rate, n) for one, rate in zip(corrections, rates, strict=True)]
    varied = max(stderr**2, alike_variance(moved, groups))
    items = varied + (max(slopes) / n) ** 2  # one item more that differs
    variance = items + sum(people)
    degrees = [shape.degrees, *(_degrees(one.by) for one in corrections)]
    noise = sum(part**2 / max(d, 1.0) for part, d in zip([items, *people], degrees, strict=True))
    both = Shape(0.0, variance**2 / noise if noise > 0 else float(n - 1))
    spread = math.sqrt(variance)

    width, alpha, p_value = _width(corrections[0]), 1 - options.ci_level, both.chance(difference / spread)

    def ends(level: float) -> tuple[float, float]:
        below, above = both.ends(level)
        return within(difference - below * spread, difference + above * spread, difference, width)

    mde = shift_mde(spread, both.degrees, 0.0, 1.0, alpha, width)
    return Difference(
        spread,
        "paired, a calibration each",
        p_value,
        mde,
        ends,
        lambda value: both.chance((difference - value) / spread),
        few_clusters(groups) or undetectable(mde, n, "items", p_value < alpha),
    )


def _degrees(by: Calibration | Labelled) -> float:
    return by.people - 1.0 if isinstance(by, Labelled) else by.right + by.wrong - 2.0
