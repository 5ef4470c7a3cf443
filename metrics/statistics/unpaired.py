"""Two runs on different items: the difference of two independent estimates.

Nothing can be joined, so the error is that of both runs together, and a difference has to be larger to be
found than on the same items. Means within a known range are compared as proportions at their effective sizes
(Agresti and Caffo 2000, Newcombe 1998), other numbers by Welch's test with the skewness taken out.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregation import Aggregation
from metrics.statistics.clusters import counts, effective, numbered
from metrics.statistics.comparison import Comparison, range_of, too_few_units
from metrics.statistics.differences import (
    Difference,
    ItemColumn,
    aggregated_values,
    score_column,
    that_count,
    undetectable,
    within,
)
from metrics.statistics.estimate import estimate
from metrics.statistics.formulas import FEW_UNITS, Sampled, bounded_share, influences
from metrics.statistics.intervals import (
    Shape,
    bisected,
    normal_quantile,
    skewed,
    student_coverage,
    student_quantile,
    wilson,
)
from metrics.statistics.power import POWER, shift_mde
from metrics.statistics.resampled import Tabled, width_of
from metrics.types import Floats, Ints

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

UNPAIRED = "the runs do not have the same items: compared as two samples of items, which finds less"
_FEW, _FEW_BESIDE_MANY, _ALIKE = 30, 50, 2.0  # by simulation of lognormal numbers: bench/levels.py
Runs = tuple[ItemColumn, ItemColumn]
Groups = tuple[Ints | None, Ints | None]


@np.errstate(over="ignore", invalid="ignore")  # infinities: the warning says what they leave unsaid
def compare_unpaired(
    aggregation: Aggregation,
    runs: Runs,
    clusters: Groups,
    options: "StatisticsConfig",
    *,
    higher_is_better: bool = True,
) -> Comparison:
    """Compares the candidate, ``runs[1]``, with a base on other items; ``clusters`` are each run's own.

    Wins, losses and ties are 0 and the correlation is NaN: they belong to items in common. ``n_items`` counts
    the items of both runs.
    """
    base, candidate = (aggregation.value(run.statistics, aggregated_values(aggregation, run)) for run in runs)
    groups = numbered(clusters[0]), numbered(clusters[1])
    counted = [that_count(aggregation, [run], own) for run, own in zip(runs, clusters, strict=True)]
    (((one,), first), ((other,), second)) = counted
    rows, units = (one, other), (numbered(first), numbered(second))
    found = _difference(aggregation, rows, units, options, higher_is_better)
    low, high = found.interval(options.ci_level)
    clustered = [min(counts(own)) for own in groups if own is not None]
    return Comparison(
        base=base,
        candidate=candidate,
        difference=candidate - base,
        stderr=found.stderr,
        ci_low=low,
        ci_high=high,
        test=found.test,
        p_value=found.p_value,
        correlation=math.nan,
        wins=0,
        losses=0,
        ties=0,
        mde=found.mde,
        n_items=len(runs[0]) + len(runs[1]),
        n_clusters=sum(clustered) if clustered else None,
        warning="; ".join(filter(None, (UNPAIRED, found.warning))),
        ends=found.ends,
        chance=found.chance,
        too_few=too_few_units(aggregation, rows, units),
    )


def _difference(
    aggregation: Aggregation,
    runs: Runs,
    groups: Groups,
    options: "StatisticsConfig",
    higher_is_better: bool,
) -> Difference:
    units = [len(run) if own is None else min(counts(own)) for run, own in zip(runs, groups, strict=True)]
    if min(units) < 2:
        return Difference.unsaid("a run of one item, or of one cluster, has no spread")
    if aggregation.averages:
        columns = [score_column(run) for run in runs]
        if not all(bool(np.isfinite(column).all()) for column in columns):
            return Difference.unsaid("some items have a value that is not finite")
        low, high = range_of(aggregation, *columns)
        if math.isfinite(low) and math.isfinite(high):
            known = replace(aggregation, bounds=(low, high))
            sampled = [
                Sampled.of(known, column.reshape(-1, 1), own, options)
                for column, own in zip(columns, groups, strict=True)
            ]
            shares = [_Share.of(one, low, high - low) for one in sampled]
            found = _of_shares(shares[0], shares[1], high - low, options, higher_is_better)
            clusters = min((effective(own) for own in groups if own is not None), default=math.inf)
            return _unforeseen(found, clusters) if clusters < FEW_UNITS else found
    return _by_welch(aggregation, runs, groups, options)


def _unforeseen(found: Difference, clusters: float) -> Difference:
    said = (
        f"only {clusters:.3g} clusters of equal size, or as many as those there are count for: the error bar "
        "is a rough guide, and what would be found is not known"
    )
    return replace(found, mde=math.nan, warning=said)


@dataclass(frozen=True)
class _Share:
    """A mean as a share of its range: its standard error, and how many right-or-wrong answers are as
    uncertain."""

    value: float
    stderr: float
    size: float
    items: float
    clustered: bool

    @classmethod
    def of(cls, sampled: Sampled, low: float, width: float) -> "_Share":
        bounded = bounded_share(sampled, low, width)
        return cls(
            bounded.value,
            math.sqrt(bounded.variance),
            bounded.size(sampled.options.ci_level),
            sampled.n,
            sampled.clustered,
        )

    @property
    def graded(self) -> bool:
        """Whether items are neither right nor wrong as a whole."""
        return self.size > 1.5 * self.items

    def unseen(self, level: float, distance: float) -> float:
        """By how much the true share may lie towards an end of the range, so far away, at a two-sided level:
        items that lie there may all be missing from the sample (the rule of three: Louis 1981). 0 of items
        that are right or wrong, whose variance knows, and of means of clusters."""
        if not self.graded or self.clustered:
            return 0.0
        return distance * (1 - math.pow((1 - level) / 2, 1 / self.items))

    def unseen_chance(self, shift: float, distance: float) -> float:
        """The two-sided p-value of a share that lies so far towards that end."""
        if not self.graded or self.clustered or shift >= distance:
            return 0.0
        return min(2 * math.pow(1 - shift / distance, self.items), 1.0)

    @property
    def centre(self) -> float:
        """The share with one answer of either kind added."""
        return (self.value * self.size + 1) / (self.size + 2)

    def variance(self, share: float) -> float:
        """Of the centre of such a run whose true share that is. Items that are right or wrong as a whole then
        spread otherwise; those that are neither just lie elsewhere."""
        share = self.centre if self.graded else share
        return share * (1 - share) / (self.size + 2)

    def reaches(self, level: float) -> tuple[float, float]:
        """By how much the run's own interval, Wilson's, reaches below and above its share."""
        low, high = wilson(self.value, self.size, level)
        return self.value - low, high - self.value


def _of_shares(
    base: _Share, candidate: _Share, width: float, options: "StatisticsConfig", higher_is_better: bool
) -> Difference:
    """The wider of Agresti and Caffo's interval of a difference of proportions and of Newcombe's, at the
    effective sizes of the runs.

    Where one share is near an end and the other is not, the first ends too soon: 100 and 100 answers at .99
    and .89 passed a margin of .1 with a chance of .046. Newcombe's, which is made of both runs' own
    intervals, ends too soon where both are near. The wider of them is wrong on either side .028 of the time
    at most, by enumeration of 20 to 1,000 answers (Newcombe 1998, Interval estimation for the difference
    between independent proportions, method 10).

    The first has Student's quantiles, and a tenth of what one answer is worth added to the reach: counts are
    discrete, and a step of theirs just beyond the quantile gives 50 and 50 answers at .5 a level of .057.
    Grades reach to where items lie that either sample may just not have.
    """
    centre = candidate.centre - base.centre
    degrees, step = base.size + candidate.size - 2, _step(base, candidate)
    spread = math.sqrt(base.variance(base.centre) + candidate.variance(candidate.centre))
    # What may be missing from either run, and make the difference smaller, or larger.
    sides = (
        ((candidate, candidate.value), (base, 1 - base.value)),
        ((candidate, 1 - candidate.value), (base, base.value)),
    )

    def ends(level: float) -> tuple[float, float]:
        reach = student_quantile(level, degrees) * spread + step
        below, above = (max(reach, *(run.unseen(level, far) for run, far in side)) for side in sides)
        low, high = _newcombe(base, candidate, level)
        return width * max(min(centre - below, low), -1.0), width * min(max(centre + above, high), 1.0)

    def chance(value: float) -> float:
        apart = centre - value / width
        seen = 1 - student_coverage(max(abs(apart) - step, 0.0) / spread, degrees)
        unseen = max(run.unseen_chance(abs(apart), far) for run, far in sides[apart < 0])
        return max(seen, unseen, _newcombe_chance(base, candidate, value / width))

    alpha = 1 - options.ci_level
    both = [_share_mde(*runs, alpha, higher_is_better) for runs in ((base, candidate), (candidate, base))]
    mde = math.nan if any(map(math.isnan, both)) else width * max(both)
    return Difference(
        width * math.hypot(base.stderr, candidate.stderr),
        "unpaired, Agresti–Caffo",
        chance(0.0),
        mde,
        ends,
        chance,
        undetectable(mde, round(base.items + candidate.items), "items", chance(0.0) < alpha),
    )


def _newcombe(base: _Share, candidate: _Share, level: float) -> tuple[float, float]:
    (below, above), (under, over) = base.reaches(level), candidate.reaches(level)
    apart = candidate.value - base.value
    return apart - math.hypot(under, above), apart + math.hypot(over, below)


def _newcombe_chance(base: _Share, candidate: _Share, value: float) -> float:
    """The two-sided p-value of a difference: one less the level from which on the interval has it."""

    def holds(level: float) -> bool:
        low, high = _newcombe(base, candidate, level)
        return low <= value <= high

    return 1 - bisected(holds, 1.0, 0.0)[0]


def _step(base: _Share, candidate: _Share) -> float:
    return 0.1 / (max(base.size, candidate.size) + 2)


def _share_mde(base: _Share, candidate: _Share, alpha: float, higher_is_better: bool) -> float:
    """The loss that the test finds: the candidate's share is that of the base less it."""
    start, centre = base.value, base.centre
    if not higher_is_better:
        start, centre = 1 - start, 1 - centre
    within, beyond = (
        student_quantile(1 - alpha, base.size + candidate.size - 2),
        normal_quantile(2 * POWER - 1),
    )
    unseen = max(base.unseen(1 - alpha, start), candidate.unseen(1 - alpha, 1 - start))

    def found(loss: float) -> bool:
        spread = math.sqrt(base.variance(base.centre) + candidate.variance(max(start - loss, 0.0)))
        expected = ((start - loss) * candidate.size + 1) / (candidate.size + 2)
        shares = replace(base, value=start), replace(candidate, value=max(start - loss, 0.0))
        seen = -_newcombe(*shares, 1 - alpha)[1] >= beyond * spread
        reach = max(within * spread + _step(base, candidate), unseen)
        return seen and centre - expected >= reach + beyond * spread

    return bisected(found, start, 0.0)[0] if found(start) else math.nan


def _by_welch(
    aggregation: Aggregation, runs: Runs, groups: Groups, options: "StatisticsConfig"
) -> Difference:
    """Any other number: its own standard errors, degrees of freedom after Welch and Satterthwaite, and the
    skewness of both runs' influences."""
    made = [
        estimate(aggregation, run.statistics, aggregated_values(aggregation, run), own, options)
        for run, own in zip(runs, groups, strict=True)
    ]
    unknown = [one for one in made if not (math.isfinite(one.value) and math.isfinite(one.stderr))]
    if unknown:
        reasons = [one.warning for one in unknown if one.warning]
        return Difference.unsaid(reasons[0] if reasons else f"no error bar for {aggregation.name}")
    observed = made[1].value - made[0].value
    variances = [one.stderr**2 for one in made]
    stderr = math.sqrt(sum(variances))
    if stderr == 0:
        return Difference.unsaid("neither run has any spread")
    shapes = [_shape(aggregation, run, own, options) for run, own in zip(runs, groups, strict=True)]
    parts = zip(variances, shapes, strict=True)
    degrees = stderr**4 / sum(variance**2 / max(shape.degrees, 1.0) for variance, shape in parts)
    skew = (shapes[1].skew * variances[1] ** 1.5 - shapes[0].skew * variances[0] ** 1.5) / stderr**3
    shapes = [Shape(skew, degrees), Shape(0.0, degrees)]
    width = width_of([Tabled.of(aggregation, run) for run in runs])

    def ends(level: float) -> tuple[float, float]:
        made = [skewed(observed, stderr, shape, level) for shape in shapes]
        return within(min(low for low, _ in made), max(high for _, high in made), observed, width)

    def chance(value: float) -> float:
        # Where two runs are skewed alike their difference is not, and what is left of it is noise.
        return max(shape.chance((observed - value) / stderr) for shape in shapes)

    alpha = 1 - options.ci_level
    mde = shift_mde(stderr, degrees, 0.0, 1.0, alpha, width)
    said = [*(one.warning for one in made if one.warning), *_few(runs, groups)]
    missed = None if said else undetectable(mde, sum(map(len, runs)), "items", chance(0.0) < alpha)
    warning = "; ".join(dict.fromkeys(said)) or missed
    return Difference(stderr, "unpaired, Welch", chance(0.0), mde, ends, chance, warning)


def _few(runs: Runs, groups: Groups) -> list[str]:
    """A doubt where a run is small: the skewness of two runs cancels only where they are alike in size."""
    units = [len(run) if own is None else min(counts(own)) for run, own in zip(runs, groups, strict=True)]
    enough = _FEW if max(units) <= _ALIKE * min(units) else _FEW_BESIDE_MANY
    if min(units) >= enough:
        return []
    kind = "items" if all(own is None for own in groups) else "clusters"
    return [
        f"only {min(units)} {kind} in a run: the test holds for numbers without rare large ones; {enough} "
        "and more are safer"
    ]


def _shape(
    aggregation: Aggregation, run: ItemColumn, groups: Ints | None, options: "StatisticsConfig"
) -> Shape:
    """Skewness and degrees of freedom of one run's number; a median's, or that of a function, has none of the
    first."""
    adding, table = aggregation.tabled(run.statistics, aggregated_values(aggregation, run))
    units = len(run) if groups is None else min(counts(groups))
    if table is None:
        return Shape(0.0, units - 1.0)
    sampled = Sampled.of(adding, table, groups, options)
    influence: Floats | None = influences(sampled)
    return Shape(0.0, units - 1.0) if influence is None else sampled.spread(influence)[1]
