"""Standard errors by formula: of means, sums and perplexities, and by jackknife and delta method of
anything."""

import math

import numpy as np

from metrics.intervals import student_quantile, wilson
from metrics.sampled import Sampled, Spread
from metrics.types import Floats

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
