"""Error bars of medians and percentiles from order statistics."""

import math

import numpy as np

from metrics.intervals import student_quantile
from metrics.types import Floats, Ints

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
