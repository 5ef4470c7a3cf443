"""Bootstrap: resamples of the units of added-up statistics, and of the values of any function.

Bootstrap intervals are percentile or BCa (Efron 1987).
"""

import math
from collections.abc import Callable, Iterator
from itertools import count
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import MetricError
from metrics.statistics.clusters import Members, counts, wider
from metrics.statistics.formulas import FEW_UNITS, Sampled, Spread, leave_one_out
from metrics.statistics.intervals import Shape, deviation, skewed, student_quantile
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


MAX_ITEM_DRAWS = 800
"""Draws for a user's function of the values, each of which calls it once."""

_FEWEST_ITEM_DRAWS = 400
_ENOUGH_VALUES = 0.95  # share of the draws that have a value; below it is said
_DRAWN_VALUES = 4_000_000  # values that all draws hand to such a function, or some tenths of a second

MAX_BLOCKS = 100
"""Blocks left out in turn of more units, for the skewness of a user's function."""

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
    stderr = deviation(finite) * math.sqrt(units / (units - 1))
    low, high = _interval(finite, sampled, accelerated)
    return Spread(stderr, "bootstrap, BCa" if accelerated else "bootstrap", low, high)


def drawn(sampled: Sampled) -> Floats:
    """Values of at least ``bootstrap_iters`` resamples of the units."""
    adding, width = sampled.aggregation, sampled.table.shape[1]
    table = np.column_stack([sampled.table, sampled.sizes]) if sampled.clustered else sampled.table
    parts = [
        adding.of_totals(totals[:, :width], totals[:, -1] if sampled.clustered else sampled.n)
        for totals in resampled_totals(table, sampled.options.bootstrap_iters, sampled.rng())
    ]
    return np.concatenate(parts)


def bootstrap_items(
    aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
) -> Spread:
    """Standard error of any function of the values, by resampling items or whole clusters, times
    √(G / (G-1)). Clusters of two fields that cross are resampled each, and an item comes as often as both of
    its own (Owen 2007), which is a little too wide.

    The interval is Student's around the value, bent by the skewness that leaving out units shows; where a
    function can't do with fewer values, it is the percentile interval at levels that Student's asks for.
    """
    rng = np.random.default_rng(options.seed)
    crossed = groups if groups is not None and groups.ndim == 2 else None
    if crossed is not None:
        groups = wider(crossed)
    units = len(values) if groups is None else int(groups.max()) + 1
    members = None if groups is None else Members.of(groups)

    column = aggregation.drawable(values)

    def of_units(picks: Ints) -> float:
        return value_or_nan(aggregation, taken(column, picks if members is None else members.rows(picks)))

    def drawn_value() -> float:
        if crossed is not None:
            return value_or_nan(aggregation, taken(column, crossed_picks(crossed, rng)))
        return of_units(rng.integers(0, units, size=units))

    draws = [drawn_value() for _ in range(item_draws(len(values), options.bootstrap_iters))]
    finite = _finite(np.asarray(draws, dtype=np.float64))
    if len(finite) < 2:
        return Spread(math.nan, "none", math.nan, math.nan, "no resample has a finite value")
    widening = math.sqrt(units / (units - 1))
    stderr = deviation(finite) * widening
    influence = _influence(of_units, units)
    if influence is not None:
        low, high = skewed(aggregation.of_values(values), stderr, Shape.of(influence), options.ci_level)
    else:
        tail = _NORMAL.cdf(-widening * student_quantile(options.ci_level, units - 1))
        low, high = map(float, np.quantile(finite, [tail, 1 - tail]))
    doubts = []
    if groups is None and units < FEW_UNITS:
        doubts.append(f"only {units} items: the error bar is a rough guide")
    if len(finite) < _ENOUGH_VALUES * len(draws):
        doubts.append(
            f"{len(draws) - len(finite)} of {len(draws)} resamples have no value: the error bar is that of "
            "the others"
        )
    return Spread(stderr, "bootstrap", low, high, "; ".join(doubts) or None)


def crossed_picks(ways: Ints, rng: np.random.Generator) -> Ints:
    """Rows of a resample of both fields' clusters (n, 2): each as often as both its clusters were drawn."""
    times = np.ones(len(ways), dtype=np.int64)
    while True:
        for column, units in zip(ways.T, counts(ways), strict=True):
            times = times * np.bincount(rng.integers(0, units, size=units), minlength=units)[column]
        if times.any():  # of crossings that are not all there, none may be left
            return np.repeat(np.arange(len(ways)), times)
        times = np.ones(len(ways), dtype=np.int64)


def value_or_nan(aggregation: Aggregation, values: Values) -> float:
    """A draw's value; NaN where a function can't do with what was drawn."""
    try:
        return aggregation.of_values(values)
    except MetricError:
        return math.nan


def item_draws(items: int, draws: int) -> int:
    """How often a function of the values of so many items is called, of ``draws`` that are asked for. Of many
    items less often: a standard error of 400 draws is known to 3.5 %."""
    return min(draws, MAX_ITEM_DRAWS, max(_DRAWN_VALUES // max(items, 1), _FEWEST_ITEM_DRAWS))


def taken(values: Values, rows: Ints) -> Values:
    """The values of these rows, in their order."""
    if isinstance(values, np.ndarray):
        return np.asarray(values[rows])
    return [values[row] for row in rows]


def _influence(of_units: Callable[[Ints], float], units: int) -> Floats | None:
    """What leaving out each unit does, or, of many, each of a hundred interleaved blocks; None where the
    function can't say."""
    blocks = min(units, MAX_BLOCKS)
    if units < 3:
        return None
    every = np.arange(units)
    # NaN where a function asks for more values than a resample without one has.
    left_out = np.array([of_units(every[every % blocks != block]) for block in range(blocks)])
    return left_out.mean() - left_out if np.isfinite(left_out).all() else None


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


FEW_ROWS = 64
"""Distinct rows up to which they are counted."""

_FEW_ITEMS = 32
_CHUNK = 1 << 21  # floats held at once
_WORK = 4_000_000  # totals of resamples at most, or some tenths of a second
_FEWEST_DRAWS = 5_000
_COUNTS = 1 << 15  # counts of distinct rows held at once: what stays in a core's cache


def resampled_totals(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Totals (d, k) of resamples of the rows of ``table`` (n, k), chunk by chunk; at least ``draws``
    altogether, and fewer of many columns: a standard error of 5,000 is known to 1 %."""
    rows, counts = distinct_rows(table)
    if rows is not None and counts is not None:
        yield from _multinomial(rows, counts, draws, rng)
    elif len(table) < _FEW_ITEMS:
        yield from _gathered(table, draws, rng)
    else:
        draws = min(draws, max(_WORK // table.shape[1], _FEWEST_DRAWS))
        yield from _circulant(table, 2 * draws, rng)


def distinct_rows(table: Floats) -> tuple[Floats | None, Floats | None]:
    """The distinct rows and how often each occurs, or (None, None) if there are many."""
    probe = table[:: max(1, len(table) // 256)]
    if _one_hot(table):  # the columns are the distinct rows
        if np.count_nonzero(probe.any(axis=0)) > FEW_ROWS:
            return None, None
        counts = table.sum(axis=0)
        used = counts > 0
        return np.eye(table.shape[1])[used], counts[used]
    if len(np.unique(probe, axis=0)) > FEW_ROWS:
        return None, None
    rows, counts = np.unique(table, axis=0, return_counts=True)
    return (rows, counts.astype(np.float64)) if len(rows) <= FEW_ROWS else (None, None)


def _one_hot(table: Floats) -> bool:
    """Whether every row is a single 1 among zeros."""
    if table.shape[1] < 2 or not bool(((table == 0) | (table == 1)).all()):
        return False
    return bool((table.sum(axis=1) == 1).all())


def _multinomial(rows: Floats, counts: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    n = round(float(counts.sum()))
    chances = counts / counts.sum()
    step = max(1, _COUNTS // max(rows.shape))
    columns = rows.argmax(axis=1) if _one_hot(rows) else None
    for start in range(0, draws, step):
        weights = rng.multinomial(n, chances, size=min(step, draws - start))
        yield weights @ rows if columns is None else _in_columns(weights, columns, rows.shape[1])


def _in_columns(weights: Ints, columns: Ints, width: int) -> Floats:
    """``weights @ rows`` of one-hot rows: the weights themselves, in the rows' columns.

    The draws of a column lie side by side in memory, for what computes with whole columns.
    """
    totals = np.zeros((width, len(weights)))
    totals[columns] = weights.T
    return totals.T


def _gathered(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    n, k = table.shape
    step = max(1, _CHUNK // (n * k))
    for start in range(0, draws, step):
        yield table[rng.integers(0, n, size=(min(step, draws - start), n))].sum(axis=1)


def _circulant(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    n, k = table.shape
    whole = bool((table == np.rint(table)).all())
    columns = np.ascontiguousarray(table.T)
    base, together = _digits(columns) if whole else (1.0, 1)
    packed = np.stack([_packed(columns[start : start + together], base) for start in range(0, k, together)])
    vectors, length = -(-draws // n), _transform_length(n)
    step = max(1, _CHUNK // (n * k))
    for start in range(0, vectors, step):
        rounds = min(step, vectors - start)
        picks = rng.integers(0, n, size=(rounds, n)) + n * np.arange(rounds)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rounds * n).reshape(rounds, n).astype(np.float64)
        order = rng.permuted(np.broadcast_to(np.arange(n), (rounds, n)), axis=1)
        if length > n:
            order = np.concatenate([order, order[:, :-1]], axis=1)  # round once: what wraps around is cut off
        spectrum = np.conj(np.fft.rfft(weights, n=length, axis=1)) * np.fft.rfft(packed[:, order], n=length)
        totals = np.fft.irfft(spectrum, n=length)[:, :, :n].reshape(len(packed), -1)[:, : draws - start * n]
        yield (_unpacked(np.rint(totals), base, together)[:k] if whole else totals).T


_EXACT = 2.0**-5  # error of a transform up to which rounding finds the whole number for certain


def _digits(columns: Floats) -> tuple[float, int]:
    """How many columns (k, n) of whole numbers fit into one as digits, and the base of these: a power of two
    above any total of n picks. One column where some are negative."""
    n, largest = columns.shape[1], float(columns.max(initial=1.0))
    base = 2.0 ** math.ceil(math.log2(n * largest + 1))
    error = np.finfo(np.float64).eps * math.log2(2 * n) * 2 * n * largest  # of one digit
    if columns.min(initial=0.0) < 0 or error > _EXACT:
        return base, 1
    return base, 1 + int(math.log(_EXACT / error, base))


def _packed(digits: Floats, base: float) -> Floats:
    """One column (n,) of some whole ones (d, n)."""
    return np.asarray(base ** np.arange(len(digits)) @ digits)


def _unpacked(totals: Floats, base: float, together: int) -> Floats:
    """The columns (at least k, m) that were packed into fewer."""
    if together == 1:
        return totals
    found = np.empty((len(totals), together, totals.shape[1]))
    for digit in range(together - 1):
        above = np.floor(totals * (1 / base))  # exact, as base is a power of two
        np.subtract(totals, base * above, out=found[:, digit])
        totals = above
    found[:, -1] = totals
    return found.reshape(-1, totals.shape[1])


def _transform_length(n: int) -> int:
    """Length at which circular sums over n rows are transformed: n itself where its factors are small, else
    enough for the rows twice, since a transform of a prime length costs several of twice that."""
    return n if _has_small_factors(n) else next(m for m in count(2 * n - 1) if _has_small_factors(m))


def _has_small_factors(n: int) -> bool:
    for factor in (2, 3, 5, 7):
        while n % factor == 0:
            n //= factor
    return n == 1
