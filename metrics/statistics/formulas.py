"""Standard errors by formula: of means, sums and perplexities, and by jackknife and delta method of
anything."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from metrics.statistics.sampled import Sampled, Spread
from metrics.types import Floats, Ints

_PROPORTION, _UNKNOWN = (0.0, 1.0), (-math.inf, math.inf)


def mean_error(sampled: Sampled) -> Spread:
    """Standard error of a mean, s / √n; clustered as Miller 2024 with the factor G / (G - 1) for few
    clusters."""
    if sampled.units < 2 and not _binary(sampled):
        return sampled.alone()
    stderr = _mean_stderr(sampled)
    if _binary(sampled):
        low, high = wilson(sampled.value, float(sampled.units), sampled.options.ci_level)
        warning = sampled.alone().warning if sampled.units < 2 else None
        return Spread(stderr, "wilson", low, high, warning)
    return _symmetric(sampled, sampled.value, stderr, "closed form")


def sum_error(sampled: Sampled) -> Spread:
    """Standard error of a sum: n times that of the mean."""
    if sampled.units < 2:
        return sampled.alone()
    return _symmetric(sampled, sampled.value, sampled.n * _mean_stderr(sampled), "closed form")


def perplexity_error(sampled: Sampled) -> Spread:
    """Standard error of exp(-mean) as infinitely many bootstrap draws give it, with n / (n - 1).

    A resampled mean is a sum of n independent parts, so that E[exp(-t mean*)] = (mean of exp(-t x_i / n))^n.
    """
    if sampled.clustered:
        return jackknife(sampled)
    if sampled.units < 2:
        return sampled.alone()
    n, column = sampled.units, sampled.table[:, 0]
    centre = float(column.mean())
    reach = student_quantile(sampled.options.ci_level, n - 1) * _mean_stderr(sampled)
    with np.errstate(over="ignore", invalid="ignore"):
        once, twice = (np.expm1(-t * (column - centre) / n).mean() for t in (1.0, 2.0))
        log_first = n * np.log1p(once)
        excess = np.expm1(n * np.log1p(twice) - 2 * log_first) if np.isfinite(twice) else math.inf
        stderr = float(sampled.value * np.exp(log_first) * np.sqrt(max(excess, 0.0) * n / (n - 1)))
        low, high = (float(np.exp(-(centre + sign * reach))) for sign in (1, -1))
    return Spread(stderr, "exact bootstrap", low, high)


def jackknife(sampled: Sampled) -> Spread:
    """Standard error from leaving out each unit in turn: √((G-1)/G Σ (f_-i - mean)²)."""
    if sampled.units < 2:
        return sampled.alone()
    left_out = leave_one_out(sampled)
    if not np.isfinite(left_out).all():
        return Spread(
            math.nan, "none", math.nan, math.nan, "a single item decides whether the value is defined"
        )
    units = sampled.units
    stderr = math.sqrt((units - 1) / units * float(((left_out - left_out.mean()) ** 2).sum()))
    return _symmetric(sampled, sampled.value, stderr, "jackknife")


def leave_one_out(sampled: Sampled) -> Floats:
    """The value without each unit (G,)."""
    return sampled.aggregation.of_totals(sampled.total - sampled.table, sampled.n - sampled.sizes)


def delta(sampled: Sampled) -> Spread:
    """Standard error from the gradient of the value and the spread of the units' statistics."""
    if sampled.units < 2:
        return sampled.alone()
    total, n, units = sampled.total, sampled.n, sampled.units
    gradient = sampled.aggregation.gradient(total, n)
    if not np.isfinite(gradient).all():
        return jackknife(sampled)
    residual = (sampled.table - np.outer(sampled.sizes, total / n)) @ gradient
    stderr = math.sqrt(units / (units - 1) * float(residual @ residual))
    return _symmetric(sampled, sampled.value, stderr, "delta")


def _mean_stderr(sampled: Sampled) -> float:
    """Of the first statistic's mean over items; NaN for a single unit."""
    units, n = sampled.units, sampled.n
    if units < 2:
        return math.nan
    residual = sampled.table[:, 0] - sampled.sizes * (float(sampled.table[:, 0].sum()) / n)
    return math.sqrt(units / (units - 1) * float(residual @ residual)) / n


def _binary(sampled: Sampled) -> bool:
    """Whether Wilson's interval fits: every item's number is 0 or 1; of clusters, all items are 0 or all are
    1. Numbers known to be on another scale (a length, BLEU) are no proportion whatever they are."""
    if sampled.aggregation.bounds not in (_PROPORTION, _UNKNOWN):
        return False
    column = sampled.table[:, 0]
    if not sampled.clustered:
        return bool(((column == 0) | (column == 1)).all())
    return bool((column == 0).all() or (column == sampled.sizes).all())


def _symmetric(sampled: Sampled, value: float, stderr: float, method: str) -> Spread:
    reach = student_quantile(sampled.options.ci_level, sampled.units - 1) * stderr if stderr else 0.0
    return Spread(stderr, method, value - reach, value + reach)


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


def order_statistic_interval(ordered: Floats, q: float, level: float) -> tuple[float, float, bool]:
    """Interval of the q-quantile between two order statistics, and whether it reaches ``level``.

    The binomial distribution says between which ranks the quantile lies with at least that probability,
    whatever the distribution of the values. With too few items the interval ends at the extremes.
    """
    n = len(ordered)
    tail = (1 - level) / 2
    below = _binomial_cdf(n, q)  # below[r] = P(at most r values lie under the quantile)
    lower = int(np.searchsorted(below, tail, side="right"))  # values that may all lie under it
    upper = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    reached = lower >= 1 and upper <= n
    return float(ordered[max(lower, 1) - 1]), float(ordered[min(upper, n) - 1]), reached


def woodruff(values: Floats, clusters: Ints, q: float, level: float) -> tuple[float, float, float]:
    """Standard error and interval of the q-quantile of clustered values (Woodruff 1952).

    The share of values up to the quantile has a clustered standard error; its interval, read back through the
    values' own distribution, is the quantile's.
    """
    ordered = np.sort(values)
    n, groups = len(values), int(clusters.max()) + 1
    residual = np.bincount(clusters, weights=(values <= np.quantile(values, q)) - q, minlength=groups)
    spread = math.sqrt(groups / (groups - 1) * float(residual @ residual)) / n
    reach = student_quantile(level, groups - 1)
    low, high = (
        float(np.quantile(ordered, min(max(q + sign * reach * spread, 0.0), 1.0))) for sign in (-1, 1)
    )
    return (high - low) / (2 * reach), low, high


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


_NORMAL = NormalDist()


def normal_quantile(level: float) -> float:
    """Half-width, in standard errors, of a two-sided normal interval: 1.96 for 0.95."""
    return _NORMAL.inv_cdf(0.5 + level / 2)


@lru_cache(maxsize=4096)
def student_quantile(level: float, degrees: int) -> float:
    """Half-width of a two-sided interval with ``degrees`` of freedom; infinite for none of them.

    >>> round(student_quantile(0.95, 9), 6)
    2.262157
    """
    if degrees < 1:
        return math.inf
    if degrees > 400:
        return _cornish_fisher(normal_quantile(level), degrees)
    low, high = 0.0, 1.0
    while _student_coverage(high, degrees) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_coverage(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def _student_coverage(t: float, degrees: int) -> float:
    """P(|T| < t), by the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3,
    26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for j in range(2 if odd else 1, degrees, 2):
        total += term
        term *= cosine * cosine * j / (j + 1)
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + sine * total)


def _cornish_fisher(z: float, degrees: int) -> float:
    """Expansion of Student's quantile in 1/degrees (Abramowitz and Stegun 26.7.5); 1e-10 from 400 on."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion ``share`` of ``n``, which has a width at 0 and at 1 too.

    >>> [round(end, 6) for end in wilson(0.0, 20, 0.95)]
    [0.0, 0.161125]
    """
    z = normal_quantile(level)
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(max(share * (1 - share) / n + z * z / (4 * n * n), 0.0))
    return (0.0 if share == 0 else max(centre - half, 0.0)), (1.0 if share == 1 else min(centre + half, 1.0))
