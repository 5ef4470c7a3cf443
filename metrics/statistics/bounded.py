"""Intervals of numbers between two ends that are no plain means: ratios, F1, MCC, BLEU, chrF.

Wilson's interval at an effective size, as for means (``metrics.statistics.intervals``): the number lies so
far along its range, and as many right-or-wrong answers as would spread as much have an interval of the same
width, within the range, and one with a width where nothing spreads.
"""

import math

import numpy as np

from metrics.statistics.formulas import Sampled, influences, unseen_variance
from metrics.statistics.intervals import Bounded, Shape, beta_quantile, effective_units, wilson
from metrics.types import Floats

_FEW = 3.5  # exceptions up to which the end beside them is that of the binomial distribution
_ROUNDING = 1e-9


def bounded_interval(sampled: Sampled, stderr: float, by_cells: bool = False) -> tuple[float, float] | None:
    """The interval of a number with that standard error; None where its range is not known, or one unit
    decides whether there is a number. ``by_cells``: rows count cells, and one item more in a cell moves the
    number by what an answer weighs."""
    own = _own_values(sampled)
    range_ = _range(sampled, own)
    influence = influences(sampled) if range_ is not None else None
    if range_ is None or influence is None:
        return None
    (low, high), (spread, shape) = range_, sampled.spread(influence)
    width, units = high - low, _one_more(sampled) if by_cells else effective_units(_weights(sampled))
    if not units > 0:
        return None
    variance = max(stderr, spread) if math.isfinite(stderr) else spread
    known = own[np.isfinite(own)]
    share = Bounded(
        value=min(max((sampled.value - low) / width, 0.0), 1.0),
        variance=(variance / width) ** 2,
        units=units,
        degrees=_degrees(sampled, shape, units),
        extreme=float(((known <= low) | (known >= high)).mean()) if len(known) else 1.0,
        least=min(1.0, units),
        unseen=_unseen(sampled, (known - low) / width, units),
    )
    level = sampled.options.ci_level
    ends = near_bounds(share.value, share.size(level), level)
    # Rounding may carry the value itself a hair beyond.
    return min(low + width * ends[0], sampled.value), max(low + width * ends[1], sampled.value)


def _unseen(sampled: Sampled, own: Floats, units: float) -> float:
    """What a mean's units hide that lie close together, as so many equal ones; of other numbers that is not
    known, since they do not lie among the units' own."""
    if sampled.clustered or not sampled.aggregation.proportional or not len(own):
        return 0.0
    return unseen_variance(own) * (len(own) / units) ** 2


def _own_values(sampled: Sampled) -> Floats:
    """The number that each unit would have alone (G,)."""
    return sampled.aggregation.of_totals(sampled.table, sampled.sizes)


def _range(sampled: Sampled, own: Floats) -> tuple[float, float] | None:
    """The ends of the number; of a ratio that does not say, 0 to 1 where all units are right or wrong, and
    both occur."""
    low, high = sampled.aggregation.bounds
    known = own[np.isfinite(own)]
    if not len(known):
        return None
    least, most = float(known.min()), float(known.max())
    if math.isfinite(low) and math.isfinite(high):
        return (low, high) if low < high and low - _ROUNDING <= least and most <= high + _ROUNDING else None
    unknown = math.isinf(low) and math.isinf(high) and sampled.aggregation.proportional
    return (0.0, 1.0) if unknown and least < most and bool(((known == 0) | (known == 1)).all()) else None


def _weights(sampled: Sampled) -> Floats:
    """What each unit weighs (G,): its part of the sums where these alone decide, else its items."""
    aggregation, total = sampled.aggregation, sampled.total
    doubled = aggregation.of_totals(2 * total, sampled.n)
    if not np.isclose(float(doubled), sampled.value, rtol=1e-9, atol=0) or not (total > 0).any():
        return sampled.sizes
    used = total > 0
    weights = np.abs(sampled.table[:, used] / total[used]).mean(axis=1)
    return np.asarray(weights)


def _one_more(sampled: Sampled) -> float:
    """So many answers that one more in the cell that moves the number most moves it by one of them."""
    low, high = sampled.aggregation.bounds
    size = sampled.n / effective_units(sampled.sizes)
    more = sampled.total + size * sampled.aggregation.kinds
    moved = sampled.aggregation.of_totals(more, np.full(len(more), sampled.n + size))
    largest = float(np.nanmax(np.abs(moved - sampled.value), initial=0.0)) / (high - low)
    return 1 / largest if largest > 0 else 0.0


def largest_move(sampled: Sampled, by_cells: bool) -> float:
    """By how much the number moves if one unit is answered otherwise, at most; 0 where its range is unknown.

    Of cells of a confusion matrix that is one item less in one and one more in another; of other numbers the
    range, times what a unit weighs.
    """
    low, high = sampled.aggregation.bounds
    width = high - low
    if not math.isfinite(width):
        return 0.0
    if not by_cells:
        return float(width / effective_units(_weights(sampled)))
    size = sampled.n / effective_units(sampled.sizes)
    adding, steps = sampled.aggregation, size * sampled.aggregation.kinds
    left = sampled.total - steps
    left = left[(left >= 0).all(axis=1)]
    more = adding.of_totals(sampled.total + steps, np.full(len(steps), sampled.n + size)) - sampled.value
    fewer = adding.of_totals(left, np.full(len(left), sampled.n - size)) - sampled.value
    up, down = (
        sum(float(np.nanmax(sign * moves, initial=0.0)) for moves in (more, fewer)) for sign in (1, -1)
    )
    return min(max(up, down), width)


def _degrees(sampled: Sampled, shape: Shape, units: float) -> float:
    if sampled.ways is not None:
        return shape.degrees
    return max(min(shape.degrees, units - 1), 1.0)


def near_bounds(share: float, size: float, level: float) -> tuple[float, float]:
    """Wilson's ends, with the exact one beside one to three exceptions."""
    low, high = wilson(share, size, level)
    right, wrong = share * size, (1 - share) * size
    if 0.5 <= right <= min(_FEW, wrong):
        low = min(low, beta_quantile(1 - level, right, wrong + 1))
    if 0.5 <= wrong <= min(_FEW, right):
        high = max(high, 1 - beta_quantile(1 - level, wrong, right + 1))
    return low, high
