"""Bootstrap standard errors and intervals, percentile and BCa (Efron 1987)."""

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregations import Aggregation
from metrics.closed_forms import leave_one_out
from metrics.resampling import resampled_totals
from metrics.sampled import Sampled, Spread
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

MAX_ITEM_DRAWS = 1_000
"""Draws for a user's function of the values, each of which calls it once."""

_FEW_EVENTS = 10
_NORMAL = NormalDist()


def bootstrap_sums(sampled: Sampled, accelerated: bool) -> Spread:
    """Standard error over resamples of the units, times √(G / (G-1)), and the percentile or the BCa
    interval."""
    if sampled.units < 2:
        return sampled.alone()
    draws = drawn(sampled)
    finite = _finite(draws)
    if len(finite) < 2:
        return Spread(math.nan, "none", math.nan, math.nan, "no resample has a finite value")
    units = sampled.units
    stderr = float(finite.std(ddof=1)) * math.sqrt(units / (units - 1))
    low, high = _interval(finite, sampled, accelerated)
    return Spread(stderr, "bootstrap, BCa" if accelerated else "bootstrap", low, high, _rare(sampled))


def drawn(sampled: Sampled) -> Floats:
    """Values of at least ``bootstrap_iters`` resamples of the units."""
    with_sizes = np.column_stack([sampled.table, sampled.sizes]) if sampled.clustered else sampled.table
    parts = [
        sampled.aggregation.of_totals(
            totals[:, : sampled.table.shape[1]], totals[:, -1] if sampled.clustered else sampled.n
        )
        for totals in resampled_totals(with_sizes, sampled.options.bootstrap_iters, sampled.rng())
    ]
    return np.concatenate(parts)


def bootstrap_items(
    aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
) -> Spread:
    """Standard error of any function of the values, by resampling items or whole clusters."""
    rng = np.random.default_rng(options.seed)
    units = len(values) if groups is None else int(groups.max()) + 1
    members = None if groups is None else [np.flatnonzero(groups == unit) for unit in range(units)]
    column = np.asarray(values, dtype=np.float64) if isinstance(values, np.ndarray) else None
    draws = np.empty(min(options.bootstrap_iters, MAX_ITEM_DRAWS))
    for draw in range(len(draws)):
        picks = rng.integers(0, units, size=units)
        rows = picks if members is None else np.concatenate([members[pick] for pick in picks])
        draws[draw] = aggregation.of_values(
            column[rows] if column is not None else [values[row] for row in rows]
        )
    finite = _finite(draws)
    if len(finite) < 2:
        return Spread(math.nan, "none", math.nan, math.nan, "no resample has a finite value")
    tail = (1 - options.ci_level) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return Spread(
        float(finite.std(ddof=1)) * math.sqrt(units / (units - 1)), "bootstrap", float(low), float(high)
    )


def _finite(draws: Floats) -> Floats:
    usable = np.isfinite(draws)
    return draws if usable.all() else draws[usable]


def _interval(draws: Floats, sampled: Sampled, accelerated: bool) -> tuple[float, float]:
    tail = (1 - sampled.options.ci_level) / 2
    levels = (tail, 1 - tail)
    if accelerated:
        levels = _accelerated(draws, sampled, levels)
    low, high = np.quantile(draws, levels)
    return float(low), float(high)


def _accelerated(draws: Floats, sampled: Sampled, levels: tuple[float, float]) -> tuple[float, float]:
    """The levels moved by the draws' bias and by the skewness of the units' influence."""
    below = (float((draws < sampled.value).mean()) + float((draws <= sampled.value).mean())) / 2
    left_out = leave_one_out(sampled)
    if not 0 < below < 1 or not np.isfinite(left_out).all():
        return levels
    bias = _NORMAL.inv_cdf(below)
    influence = left_out.mean() - left_out
    squares = float((influence**2).sum())
    skew = float((influence**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    shifted = [bias + _NORMAL.inv_cdf(level) for level in levels]
    if not math.isfinite(skew) or any(skew * shift >= 1 for shift in shifted):
        return levels  # beyond what the correction is made for
    low, high = (_NORMAL.cdf(bias + shift / (1 - skew * shift)) for shift in shifted)
    return low, high


def _rare(sampled: Sampled) -> str | None:
    """A doubt where a handful of items decides: fewer than ten that are not of the commonest kind."""
    if sampled.aggregation.rule != "multinomial":
        return None
    events = sampled.n - float(sampled.total.max())
    if events < _FEW_EVENTS:
        return f"only {events:g} items are not of the commonest kind: the error bar is not to be relied on"
    return None
