"""Standard errors by formula: of means, sums and perplexities, and by jackknife and delta method of anything;
and what such a way is given and gives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregation import Aggregation, total_of
from metrics.statistics.clusters import (
    FEW_CLUSTERS,
    ROUNDING,
    Crossed,
    between_clusters,
    cluster_sums,
    counts,
    effective,
    few_clusters,
    sizes,
)
from metrics.statistics.intervals import (
    Bounded,
    Shape,
    clopper_pearson,
    effective_units,
    jeffreys,
    normal_quantile,
    residuals,
    skewed,
    standard_error,
    student_quantile,
    wilson,
    wilson_near_bounds,
    without_rounding,
)
from metrics.statistics.power import are_samples
from metrics.statistics.tied import CLOSE, Tied, size_of_change
from metrics.types import Floats, Ints

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


_UNKNOWN = (-math.inf, math.inf)
FEW_UNITS = 15
_FEW_WEIGHTS = 38
_FEW_DEGREES = 8  # of a standard error that a few runaway outputs make
_SAME_LEFT = 1e-14  # of a number: what is less is rounding; without one of many items little changes
_NEARLY = 1.4  # times its tail an end may be passed: five items' extremes hold the median with .94
_BEYOND = 1.05  # times the whole that a part may be by chance
_PROPORTIONS: dict[str, Callable[[float, float, float], tuple[float, float]]] = {
    "clopper_pearson": clopper_pearson,
    "jeffreys": jeffreys,
}


@dataclass(frozen=True)
class Spread:
    """A standard error with the interval that goes with it, and a doubt about it, if any."""

    stderr: float
    method: str
    low: float
    high: float
    warning: str | None = None


NOTHING = Spread(math.nan, "none", math.nan, math.nan)


@dataclass(frozen=True)
class Sampled:
    """n items as G independent units: ``table`` (G, k) sums and ``sizes`` (G,) items of each. Where clusters
    of two fields cross, the units are the items, and ``ways`` (n, 2) numbers what each belongs to."""

    aggregation: Aggregation
    table: Floats
    sizes: Floats
    value: float
    options: "StatisticsConfig"
    clustered: bool
    samples: float | None = None  # scored samples altogether, where that is known
    ways: Ints | None = None

    @classmethod
    def of(
        cls,
        aggregation: Aggregation,
        table: Floats,
        groups: Ints | None,
        options: "StatisticsConfig",
        samples: float | None = None,
    ) -> "Sampled":
        """Items added up within their groups (n,), 0 … G-1, or as they are; groups (n, 2) cross."""
        value = aggregation.of_total(total_of(table), float(len(table)))
        if groups is None or groups.ndim == 2:
            crossed = groups is not None
            return cls(aggregation, table, np.ones(len(table)), value, options, crossed, samples, groups)
        sums = cluster_sums(table, groups)
        return cls(aggregation, sums, sizes(groups), value, options, True, samples)

    @property
    def units(self) -> int:
        """Number of rows: items, or clusters."""
        return len(self.table)

    @property
    def independent(self) -> int:
        """Number of independent units: items, clusters, or the clusters of the field that has fewer."""
        return self.units if self.ways is None else min(counts(self.ways))

    @property
    def few_clusters(self) -> bool:
        """Whether so few clusters, or so uneven ones, are there that every interval warns of it."""
        if self.ways is not None:
            return few_clusters(self.ways) is not None
        return self.clustered and effective_units(self.sizes) < FEW_CLUSTERS - ROUNDING

    @property
    def n(self) -> float:
        """Number of items."""
        return float(self.sizes.sum())

    @property
    def total(self) -> Floats:
        """Sum of all statistics (k,)."""
        return np.asarray(self.table.sum(axis=0))

    def rng(self) -> np.random.Generator:
        """The generator that the config's seed makes."""
        return np.random.default_rng(self.options.seed)

    def spread(self, influence: Floats) -> tuple[float, Shape]:
        """Standard error and shape of an estimate that each unit raises by ``influence`` (G,) over G."""
        if self.ways is None and not self.clustered:
            return standard_error(influence), Shape.of(influence)
        if self.ways is None:
            return standard_error(influence, self.sizes), Shape.of_unequal(influence, self.sizes)
        crossed = Crossed.of(influence, self.ways)
        return crossed.stderr, crossed.shape

    def alone(self) -> Spread:
        """What to answer for a single unit."""
        said = "one cluster has no spread" if self.clustered else "one item has no spread"
        return Spread(math.nan, "none", math.nan, math.nan, said)


def mean_error(sampled: Sampled) -> Spread:
    """Standard error of a mean, s / √n; clustered as Miller 2024, bias reduced for few clusters of unequal
    size. Where the metric's range is known, the interval is Wilson's at an effective size."""
    low, high = _range(sampled)
    if math.isfinite(low) and math.isfinite(high) and high > low:
        return _bounded_mean(sampled, low, high)
    if sampled.independent < 2:
        return sampled.alone()
    spread = _skewed(sampled, _mean_influence(sampled), "closed form")
    if spread.stderr == 0:
        said = "every item has the same number and the metric's range is not known: no interval"
        return Spread(0.0, spread.method, math.nan, math.nan, said)
    return spread


def _range(sampled: Sampled) -> tuple[float, float]:
    """The numbers that an item can have: the metric's own; of a metric that does not say, 0 to 1 where all
    of them are right or wrong, or means of samples that are, and not all alike. Numbers that happen to lie
    between have no range."""
    known = sampled.aggregation.bounds
    if known != _UNKNOWN:
        return known
    means = sampled.table[:, 0] / sampled.sizes
    low, high = float(means.min()), float(means.max())
    counted = 0 <= low < high <= 1 and math.isfinite(_most(sampled, 0.0, 1.0))
    return (0.0, 1.0) if counted else _UNKNOWN


def _bounded_mean(sampled: Sampled, low: float, high: float) -> Spread:
    width, method = high - low, "wilson"
    share = min(max((sampled.value - low) / width, 0.0), 1.0)
    level = sampled.options.ci_level
    if sampled.independent < 2:
        if share not in (0.0, 1.0) or sampled.clustered:
            return sampled.alone()
        stderr, size, warning = math.nan, 1.0, sampled.alone().warning
    else:
        stderr, warning = sampled.spread(_mean_influence(sampled))[0], None
        size = bounded_share(sampled, low, width).size(level)
    chosen = sampled.options.method
    formula: Callable[[float, float, float], tuple[float, float]] = wilson
    if size == sampled.n:  # answers that are right or wrong
        formula = _PROPORTIONS.get(chosen, wilson_near_bounds)
        method = chosen if chosen in _PROPORTIONS else method
    interval = formula(share, size, level)
    return Spread(stderr, method, low + width * interval[0], low + width * interval[1], warning)


def bounded_share(sampled: Sampled, low: float, width: float) -> Bounded:
    """The mean as a share of the way from ``low`` to ``low + width``, for Wilson's interval; two units at
    least."""
    stderr, shape = sampled.spread(_mean_influence(sampled))
    sums, sizes = _of_larger_way(sampled)
    means = (sums / sizes - low) / width
    equal = effective_units(sizes)
    return Bounded(
        value=min(max((float(sampled.table[:, 0].sum()) / sampled.n - low) / width, 0.0), 1.0),
        variance=(stderr / width) ** 2,
        units=equal,
        degrees=shape.degrees,
        extreme=float(((means <= 0) | (means >= 1)).mean()),
        least=equal,
        most=_most(sampled, low, width),
        unseen=0.0 if sampled.clustered else unseen_variance(means),
    )


def unseen_variance(means: Floats) -> float:
    """The variance that one unit more adds to the mean of units between 0 and 1, which differs from those
    that lie close together, and not at an end, by all that it can. Others show how far units differ: it
    counts by as much of all as those that are close outnumber them."""
    tied = Tied.of(means, np.ones(len(means)), 1.0, CLOSE)
    far = max(tied.change, 1 - tied.change)
    inside = (tied.moved == 0) & (means > 0) & (means < 1)
    share = max(2 * float(inside.mean()) - 1, 0.0)
    return share * (size_of_change(tied.moved, far) / len(means)) ** 2


def _of_larger_way(sampled: Sampled) -> tuple[Floats, Floats]:
    """Sums and sizes of the units; of crossed clusters, those of the field that the larger part of the
    variance comes from."""
    if sampled.ways is None:
        return sampled.table[:, 0], sampled.sizes
    groups = sampled.ways[:, Crossed.of(_mean_influence(sampled), sampled.ways).way]
    sums = np.bincount(groups, weights=sampled.table[:, 0])
    return sums.astype(np.float64), np.bincount(groups).astype(np.float64)


def _most(sampled: Sampled, low: float, width: float) -> float:
    """The number of samples, if each item is the mean of equally many samples that are 0 or 1."""
    repeats = sampled.samples / sampled.n if sampled.samples else 1.0
    right = (sampled.table[:, 0] - low * sampled.sizes) / width * repeats
    whole = repeats == round(repeats) and bool((np.abs(right - np.rint(right)) < 1e-9).all())
    return sampled.n * repeats if whole else math.inf


def _mean_influence(sampled: Sampled) -> Floats:
    """By how much each unit raises the mean, times the number of units (G,)."""
    return np.asarray(residuals(sampled.table[:, 0], sampled.sizes) * (sampled.units / sampled.n))


def _skewed(sampled: Sampled, influence: Floats, method: str) -> Spread:
    """The interval of an estimate without known ends, with a doubt where there are too few units for one."""
    stderr, shape = sampled.spread(influence)
    if not math.isfinite(stderr):
        return Spread(stderr, method, -math.inf, math.inf)
    low, high = skewed(sampled.value, stderr, shape, sampled.options.ci_level)
    return Spread(stderr, method, low, high, _few_units(sampled, shape))


def _equal_units(column: Floats) -> float:
    weights = np.abs(column)
    return effective_units(weights) if weights.any() else math.inf


def _few_units(sampled: Sampled, shape: Shape) -> str | None:
    """A doubt where rare large numbers may be missing from the sample; no formula sees what is not there."""
    low, high = sampled.aggregation.bounds
    weight, known = sampled.aggregation.weight, math.isfinite(low) and math.isfinite(high)
    if known and sampled.aggregation.even:
        return None
    kind = "clusters" if sampled.clustered else "items"
    if sampled.few_clusters:
        return None  # said whatever the interval is
    if sampled.independent < FEW_UNITS and weight is None:
        return (
            f"only {sampled.independent} {kind}: the interval holds for numbers without rare large ones; "
            f"{FEW_UNITS} and more are safer"
        )
    if weight is None:
        return None
    size = min(_equal_units(sampled.table[:, column]) for column in weight)
    if size >= _FEW_WEIGHTS:
        decisive = shape.degrees < _FEW_DEGREES
        said = f"a few {kind} make most of the error bar: leaving one out says that others like them decide"
        return said if decisive else None
    return (
        f"the {sampled.units} {kind} weigh as {size:.0f} equal ones: a single long or runaway one may decide "
        f"the value, and the interval does not know of those unseen; {_FEW_WEIGHTS} and more are safer"
    )


def variance_components(means: Floats, repeats: Floats, stderr: float) -> tuple[float, float] | None:
    """The standard error that endless repeats of the same items would leave, and that of the repeats alone;
    their squares add up to ``stderr`` squared. None unless each of the n ``means`` is of at least two
    ``repeats`` of 0 or 1, and where repeats alone spread more than ``stderr``, as within clusters that err
    against each other: samples and items are no parts of such an error.

    More repeats divide the square of the second by as much, more items that of both (Miller 2024).
    """
    if len(means) < 2 or not are_samples(means, repeats):
        return None
    sampling = math.sqrt(float((means * (1 - means) / (repeats - 1)).sum())) / len(means)
    if sampling > _BEYOND * stderr:
        return None
    sampling = min(sampling, stderr)
    return math.sqrt(max(stderr**2 - sampling**2, 0.0)), sampling


def sum_error(sampled: Sampled) -> Spread:
    """Standard error of a sum: n times that of the mean."""
    if sampled.independent < 2:
        return sampled.alone()
    return _skewed(sampled, sampled.n * _mean_influence(sampled), "closed form")


def perplexity_error(sampled: Sampled) -> Spread:
    """Standard error of exp(-mean) as infinitely many bootstrap draws give it, with n / (n - 1), or clustered
    by the jackknife; the interval is that of the mean, exponentiated.

    A resampled mean is a sum of n independent parts, so that E[exp(-t mean*)] = (mean of exp(-t x_i / n))^n.
    """
    if sampled.independent < 2:
        return sampled.alone()
    n, influence = sampled.units, _mean_influence(sampled)
    centre = float(sampled.table[:, 0].sum()) / sampled.n
    mean = _skewed(replace(sampled, value=centre), influence, "exact bootstrap")
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (float(np.exp(-end)) for end in (mean.high, mean.low))
    if sampled.clustered:
        left_out = jackknife(sampled)
        return replace(mean, stderr=left_out.stderr, method="jackknife", low=low, high=high)
    with np.errstate(over="ignore", invalid="ignore"):
        once, twice = (np.expm1(-t * influence / n).mean() for t in (1.0, 2.0))
        log_first = n * np.log1p(once)
        excess = np.expm1(n * np.log1p(twice) - 2 * log_first) if np.isfinite(twice) else math.inf
        stderr = float(sampled.value * np.exp(log_first) * np.sqrt(max(excess, 0.0) * n / (n - 1)))
    return replace(mean, stderr=stderr, low=low, high=high)


def jackknife(sampled: Sampled) -> Spread:
    """Standard error from leaving out each unit in turn: √((G-1)/G Σ (f_-i - mean)²)."""
    if sampled.independent < 2:
        return sampled.alone()
    left_out = leave_one_out(sampled)
    if not np.isfinite(left_out).all():
        return Spread(
            math.nan, "none", math.nan, math.nan, "a single item decides whether the value is defined"
        )
    return _skewed(sampled, _of_left_out(left_out), "jackknife")


def influences(sampled: Sampled) -> Floats | None:
    """By how much each unit raises the value, times the number of units (G,); None where a single one decides
    whether there is a value."""
    if sampled.aggregation.averages:
        return _mean_influence(sampled)
    left_out = leave_one_out(sampled)
    if not np.isfinite(left_out).all():
        return None
    return _of_left_out(left_out)


def _of_left_out(left_out: Floats) -> Floats:
    """The influence of each unit (G,) from the values without it."""
    largest = float(np.abs(left_out).max())
    return without_rounding(left_out.mean() - left_out, largest, _SAME_LEFT) * (len(left_out) - 1)


def leave_one_out(sampled: Sampled) -> Floats:
    """The value without each unit (G,)."""
    return sampled.aggregation.of_totals(sampled.total - sampled.table, sampled.n - sampled.sizes)


def delta(sampled: Sampled) -> Spread:
    """Standard error from the gradient of the value and the spread of the units' statistics."""
    if sampled.independent < 2:
        return sampled.alone()
    total, n, units = sampled.total, sampled.n, sampled.units
    gradient = sampled.aggregation.gradient(total, n)
    if not np.isfinite(gradient).all():
        return jackknife(sampled)
    residual = (sampled.table - np.outer(sampled.sizes, total / n)) @ gradient
    residual = without_rounding(residual, np.abs(sampled.table) @ np.abs(gradient))
    return _skewed(sampled, residual * units, "delta")


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def maritz_jarrett(ordered: Floats, q: float) -> float:
    """Standard error of the q-quantile of sorted values: that of infinitely many bootstrap draws.

    A resampled order statistic is ``ordered[floor(n U)]`` with U ~ Beta(m, n - m + 1), m being the (real)
    rank of the quantile; the Beta density is integrated over each cell by Gauss-Legendre (Maritz and Jarrett
    1978).
    """
    n = len(ordered)
    rank = (n - 1) * q + 1
    a, b = rank, n - rank + 1
    centre, width = a / (a + b), math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    first = max(0, math.floor(n * (centre - 12 * width)))
    last = min(n, math.ceil(n * (centre + 12 * width)))
    cells = np.arange(first, last)
    points = (cells[:, None] + (1 + _NODES) / 2) / n
    log_density = (a - 1) * np.log(points) + (b - 1) * np.log1p(-points)
    mass = (np.exp(log_density - log_density.max()) @ _WEIGHTS).astype(np.float64)
    mass /= mass.sum()
    centred = ordered[first:last] - ordered[min(int(rank) - 1, n - 1)]
    mean = float(mass @ centred)
    return math.sqrt(max(float(mass @ centred**2) - mean**2, 0.0))


def order_statistic_interval(
    ordered: Floats, q: float, level: float, size: int | None = None
) -> tuple[float, float, bool]:
    """Interval of the q-quantile between two order statistics, and whether it reaches ``level``.

    The binomial distribution says between which ranks the quantile lies with at least that probability,
    whatever the distribution of the values. With too few items it has no end on that side. ``size`` is the
    number of independent values that these count as, where it is smaller.
    """
    n, tail = size or len(ordered), (1 - level) / 2
    below = _binomial_cdf(n, q)  # below[r] = P(at most r values lie under the quantile)
    lower = int(np.searchsorted(below, tail, side="right"))  # values that may all lie under it
    upper = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    reached = lower >= 1 and upper <= n
    # An extreme beyond which the quantile lies too often is no end.
    first = ordered[(max(lower, 1) - 1) * len(ordered) // n]
    last = ordered[-(-min(upper, n) * len(ordered) // n) - 1]
    low = -math.inf if lower < 1 and below[0] > _NEARLY * tail else first
    high = math.inf if upper > n and q**n > _NEARLY * tail else last
    return float(low), float(high), reached


def woodruff(values: Floats, clusters: Ints, q: float, level: float) -> tuple[float, float, float, bool]:
    """Standard error and interval of the q-quantile of clustered values, and whether it reaches ``level``.

    The share of values up to the quantile has a clustered standard error; its interval, read back through the
    values' own distribution, is the quantile's (Woodruff 1952). The interval's ends are those of as many
    independent values as would know that share as well (Korn and Graubard 1998). Whether there is an end at
    all is for the clusters alone to say: what lies beyond may be in none of them.
    """
    ordered, units, centre = np.sort(values), effective(clusters), np.quantile(values, q)
    size, stderr = float(len(values)), 0.0
    for below in (values <= centre, values < centre):
        share = float(below.mean())
        spread, shape = _clustered_share(np.asarray(below - share), clusters)
        reach = student_quantile(level, shape.degrees)
        if spread > 0:
            shares = np.clip([q - reach * spread, q + reach * spread], 0.0, 1.0)
            low, high = np.quantile(ordered, shares)
            stderr = max(stderr, spread * float((high - low) / (shares[1] - shares[0])))
            size = min(size, share * (1 - share) * (normal_quantile(level) / (reach * spread)) ** 2)
    low, high, reached = order_statistic_interval(ordered, q, level, math.floor(units + ROUNDING))
    first, last, _ = order_statistic_interval(ordered, q, level, math.floor(max(size, units) + ROUNDING))
    return stderr, first if math.isfinite(low) else low, last if math.isfinite(high) else high, reached


def _clustered_share(below: Floats, clusters: Ints) -> tuple[float, Shape]:
    """Standard error and shape of a share that each value (n,) raises by ``below``."""
    if clusters.ndim == 1:
        return between_clusters(below, clusters)
    crossed = Crossed.of(below, clusters)
    return crossed.stderr, crossed.shape


def _binomial_cdf(n: int, q: float) -> Floats:
    if q in (0.0, 1.0):
        return np.where(np.arange(n + 1) >= n * q, 1.0, 0.0)
    successes = np.arange(n + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    log_mass = (
        log_factorial[n]
        - log_factorial
        - log_factorial[::-1]
        + successes * math.log(q)
        + (n - successes) * math.log1p(-q)
    )
    return np.asarray(np.cumsum(np.exp(log_mass)))
