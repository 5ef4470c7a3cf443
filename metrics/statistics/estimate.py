"""Value, standard error and interval of an aggregate.

The unit is the item, or the cluster where items belong together: statistics are added up within clusters
first, and the rest is the same. Unless the config names a method, each aggregation has its own:

========================================  ==============================================================
mean, pass_rate                           closed form; Wilson's interval at an effective size where the range
                                          is known, else Student's, bent by the numbers' skewness
sum                                       closed form, the same interval
perplexity                                exact bootstrap moments; interval of the mean log-likelihood, exp'd
median, percentile                        exact bootstrap variance; interval between order statistics
f1, matthews_corrcoef                     bootstrap of the confusion cells, BCa interval
bleu, chrf, ter, wer, ratios, nanmean     jackknife; Student's interval, bent by the influences' skewness
a user's function of the values           bootstrap of the items, at most 800 draws; the same interval
min, max, count                           none: nothing sound is known
========================================  ==============================================================

Bootstrap intervals are percentile or BCa (Efron 1987).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import ConfigError, MetricError
from metrics.statistics.clusters import Members, counts, numbered, wider
from metrics.statistics.formulas import (
    FEW_CLUSTERS,
    FEW_UNITS,
    NOTHING,
    Sampled,
    Spread,
    delta,
    jackknife,
    leave_one_out,
    maritz_jarrett,
    mean_error,
    order_statistic_interval,
    perplexity_error,
    sum_error,
    woodruff,
)
from metrics.statistics.intervals import Shape, normal_quantile, skewed, student_quantile, wilson
from metrics.types import Estimate, Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


MAX_ITEM_DRAWS = 800
"""Draws for a user's function of the values, each of which calls it once."""

MAX_BLOCKS = 100
"""Blocks left out in turn of more units, for the skewness of a user's function."""

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

    def of_units(picks: Ints) -> float:
        return aggregation.of_values(_taken(values, picks if members is None else members.rows(picks)))

    def drawn_value() -> float:
        if crossed is not None:
            return aggregation.of_values(_taken(values, crossed_picks(crossed, rng)))
        return of_units(rng.integers(0, units, size=units))

    draws = [drawn_value() for _ in range(min(options.bootstrap_iters, MAX_ITEM_DRAWS))]
    finite = _finite(np.asarray(draws, dtype=np.float64))
    if len(finite) < 2:
        return Spread(math.nan, "none", math.nan, math.nan, "no resample has a finite value")
    widening = math.sqrt(units / (units - 1))
    stderr = float(finite.std(ddof=1)) * widening
    influence = _influence(of_units, units)
    if influence is not None:
        low, high = skewed(aggregation.of_values(values), stderr, Shape.of(influence), options.ci_level)
    else:
        tail = _NORMAL.cdf(-widening * student_quantile(options.ci_level, units - 1))
        low, high = map(float, np.quantile(finite, [tail, 1 - tail]))
    few = f"only {units} items: the error bar is a rough guide" if units < FEW_UNITS else None
    return Spread(stderr, "bootstrap", low, high, few if groups is None else None)


def crossed_picks(ways: Ints, rng: np.random.Generator) -> Ints:
    """Rows of a resample of both fields' clusters (n, 2): each as often as both its clusters were drawn."""
    times = np.ones(len(ways), dtype=np.int64)
    while True:
        for column, units in zip(ways.T, counts(ways), strict=True):
            times = times * np.bincount(rng.integers(0, units, size=units), minlength=units)[column]
        if times.any():  # of crossings that are not all there, none may be left
            return np.repeat(np.arange(len(ways)), times)
        times = np.ones(len(ways), dtype=np.int64)


def _taken(values: Values, rows: Ints) -> Values:
    if isinstance(values, np.ndarray):
        return np.asarray(values[rows], dtype=np.float64)
    return [values[row] for row in rows]


def _influence(of_units: Callable[[Ints], float], units: int) -> Floats | None:
    """What leaving out each unit does, or, of many, each of a hundred interleaved blocks; None where the
    function can't say."""
    blocks = min(units, MAX_BLOCKS)
    if units < 3:
        return None
    every = np.arange(units)
    try:
        left_out = np.array([of_units(every[every % blocks != block]) for block in range(blocks)])
    except MetricError:
        return None  # a function may ask for more values than a resample without one has
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


def _rare(sampled: Sampled) -> str | None:
    """A doubt where a handful of items decides: fewer than ten that are not of the commonest kind, or that
    have the rarest label."""
    if sampled.aggregation.rule != "multinomial":
        return None
    events, kind = sampled.n - float(sampled.total.max()), "are not of the commonest kind"
    rarest = sampled.aggregation.rarest
    if rarest is not None and rarest(sampled.total) < events:
        events, kind = rarest(sampled.total), "have the rarest label"
    if events < _FEW_EVENTS:
        return f"only {events:g} items {kind}: the error bar is not to be relied on; {_FEW_EVENTS} are safer"
    return None


_FEW_ROWS = 64
_FEW_ITEMS = 32
_CHUNK = 1 << 21  # floats held at once
_COUNTS = 1 << 15  # counts of distinct rows held at once: what stays in a core's cache


def resampled_totals(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Totals (d, k) of resamples of the rows of ``table`` (n, k), chunk by chunk; at least ``draws``
    altogether."""
    rows, counts = distinct_rows(table)
    if rows is not None and counts is not None:
        yield from _multinomial(rows, counts, draws, rng)
    elif len(table) < _FEW_ITEMS:
        yield from _gathered(table, draws, rng)
    else:
        yield from _circulant(table, 2 * draws, rng)


def distinct_rows(table: Floats) -> tuple[Floats | None, Floats | None]:
    """The distinct rows and how often each occurs, or (None, None) if there are many."""
    probe = table[:: max(1, len(table) // 256)]
    if _one_hot(table):  # the columns are the distinct rows
        if np.count_nonzero(probe.any(axis=0)) > _FEW_ROWS:
            return None, None
        counts = table.sum(axis=0)
        used = counts > 0
        return np.eye(table.shape[1])[used], counts[used]
    if len(np.unique(probe, axis=0)) > _FEW_ROWS:
        return None, None
    rows, counts = np.unique(table, axis=0, return_counts=True)
    return (rows, counts.astype(np.float64)) if len(rows) <= _FEW_ROWS else (None, None)


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
    vectors, length = -(-draws // n), _transform_length(n)
    step = max(1, _CHUNK // (n * k))
    for start in range(0, vectors, step):
        rounds = min(step, vectors - start)
        picks = rng.integers(0, n, size=(rounds, n)) + n * np.arange(rounds)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rounds * n).reshape(rounds, n).astype(np.float64)
        order = rng.permuted(np.broadcast_to(np.arange(n), (rounds, n)), axis=1)
        if length > n:
            order = np.concatenate([order, order[:, :-1]], axis=1)  # round once: what wraps around is cut off
        spectrum = np.conj(np.fft.rfft(weights, n=length, axis=1)) * np.fft.rfft(columns[:, order], n=length)
        totals = np.fft.irfft(spectrum, n=length)[:, :, :n].reshape(k, rounds * n)[:, : draws - start * n].T
        yield np.rint(totals) if whole else totals


def _transform_length(n: int) -> int:
    """Length at which circular sums over n rows are transformed: n itself where its factors are small, else
    enough for the rows twice, since a transform of a prime length costs several of twice that."""
    return n if _has_small_factors(n) else next(m for m in count(2 * n - 1) if _has_small_factors(m))


def _has_small_factors(n: int) -> bool:
    for factor in (2, 3, 5, 7):
        while n % factor == 0:
            n //= factor
    return n == 1


Method = Callable[[Sampled], Spread]

_BY_RULE: dict[str, Method] = {
    "mean": mean_error,
    "sum": sum_error,
    "moments": perplexity_error,
    "jackknife": jackknife,
    "multinomial": lambda sampled: _resampled(sampled, accelerated=True),
    "bootstrap": lambda sampled: _resampled(sampled, accelerated=False),
    "none": lambda sampled: NOTHING,
}
_BY_NAME: dict[str, Method] = {
    "delta": delta,
    "jackknife": jackknife,
    "bootstrap": lambda sampled: _resampled(sampled, accelerated=False),
    "bca": lambda sampled: _resampled(sampled, accelerated=True),
}


def _resampled(sampled: Sampled, accelerated: bool) -> Spread:
    """The bootstrap; where clusters of two fields cross no resample is like the sample, and it is the
    jackknife."""
    return bootstrap_sums(sampled, accelerated) if sampled.ways is None else jackknife(sampled)


def estimate(
    aggregation: Aggregation,
    statistics: Floats | None,
    values: Values | None,
    clusters: Ints | None,
    options: "StatisticsConfig",
    samples: int | None = None,
) -> Estimate:
    """The aggregate of n items with its error bar.

    ``statistics`` (n, k) for kind "sums", ``values`` (n) for kind "values"; ``clusters`` (n) are any
    integers, equal ones belonging together, or None; ``samples`` is the number of scored samples that the
    items were reduced from, if it is known. No items give NaN; one item, or one cluster, gives a
    value without error bar; a value that is not finite gives what arithmetic gives, without error bar, and a
    warning.
    """
    adding, table = aggregation.tabled(statistics, values)
    n = len(table) if table is not None else len(values if values is not None else [])
    if n == 0:
        return Estimate(math.nan, math.nan, "none", math.nan, math.nan, 0, "no scored items")
    groups = numbered(clusters)
    if table is not None:
        return _of_sums(Sampled.of(adding, table, groups, options, samples), table, groups)
    return _of_values(aggregation, values if values is not None else [], groups, options)


def _of_sums(sampled: Sampled, table: Floats, groups: Ints | None) -> Estimate:
    aggregation, options = sampled.aggregation, sampled.options
    bad = int((~np.isfinite(table)).any(axis=1).sum())
    if bad:
        return _without_error(
            sampled.value, len(table), f"{bad} of {len(table)} items have a value that is not finite"
        )
    if not math.isfinite(sampled.value):
        return _without_error(sampled.value, len(table), "the value is not finite")
    if options.bootstrap_iters <= 0:
        return _without_error(sampled.value, len(table), None)
    if aggregation.rule == "mean" and not _within(table, aggregation.bounds):
        # Numbers that come from elsewhere, on another scale than the metric of that name.
        aggregation = replace(aggregation, bounds=(-math.inf, math.inf))
        sampled = replace(sampled, aggregation=aggregation)
    own = aggregation.rule == "none" or options.method not in _BY_NAME
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity's spread may be beyond all numbers
        spread = (_BY_RULE[aggregation.rule] if own else _BY_NAME[options.method])(sampled)
    made = _estimate(sampled.value, spread, len(table), aggregation, groups)
    left_out = aggregation.leaves_out(table) if aggregation.leaves_out is not None else 0
    if not left_out:
        return made
    said = f"{left_out} of {len(table)} items have no finite number and are left out"
    return replace(made, warning="; ".join(filter(None, (said, made.warning))))


def _within(table: Floats, bounds: tuple[float, float]) -> bool:
    return bool(table[:, 0].min() >= bounds[0] and table[:, 0].max() <= bounds[1])


def _of_values(
    aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
) -> Estimate:
    n = len(values)
    value = aggregation.of_values(values)
    if not math.isfinite(value):
        return _without_error(value, n, "the value is not finite")
    if options.bootstrap_iters <= 0 or aggregation.rule == "none":
        warning = f"no error bar for {aggregation.name}" if options.bootstrap_iters > 0 else None
        return _without_error(value, n, warning)
    if n == 1 or (groups is not None and min(counts(groups)) == 1):
        return _without_error(value, n, _single(groups))
    if aggregation.q is not None:
        spread = _quantile(np.asarray(values, dtype=np.float64), aggregation.q, groups, options.ci_level)
    else:
        spread = bootstrap_items(aggregation, values, groups, options)
    return _estimate(value, spread, n, aggregation, groups)


def _quantile(values: Floats, q: float, groups: Ints | None, level: float) -> Spread:
    if groups is not None:
        stderr, low, high = woodruff(values, groups, q, level)
        return Spread(stderr, "woodruff", low, high)
    ordered = np.sort(values)
    low, high, reached = order_statistic_interval(ordered, q, level)
    warning = None if reached else f"{len(values)} items are too few for an interval of this level"
    return Spread(maritz_jarrett(ordered, q), "order statistics", low, high, warning)


def _estimate(
    value: float, spread: Spread, n: int, aggregation: Aggregation, groups: Ints | None
) -> Estimate:
    if not math.isfinite(spread.stderr) and not math.isfinite(spread.low):
        return _without_error(value, n, spread.warning or f"no error bar for {aggregation.name}")
    lowest, highest = aggregation.bounds  # rounding may carry the value itself a hair beyond
    low, high = max(spread.low, min(lowest, value)), min(spread.high, max(highest, value))
    method = spread.method if groups is None else f"{spread.method}, {clustered(groups)}"
    finite = math.isfinite(spread.stderr)
    wide = None if finite or n == 1 else "the spread is too wide for a standard error"
    said = "; ".join(sentence for sentence in (wide, spread.warning, _few(groups)) if sentence)
    return Estimate(value, spread.stderr if finite else math.nan, method, low, high, n, said or None)


def clustered(groups: Ints) -> str:
    """How ``stderr_method`` and the name of a test end."""
    return "clustered" if groups.ndim == 1 else "clustered two ways"


def _few(groups: Ints | None) -> str | None:
    clusters = 0 if groups is None else min(counts(groups))
    if not 1 < clusters < FEW_CLUSTERS:
        return None
    return f"only {clusters} clusters: the error bar is a rough guide"


def _without_error(value: float, n: int, warning: str | None) -> Estimate:
    return Estimate(value, math.nan, "none", math.nan, math.nan, n, warning)


def _single(groups: Ints | None) -> str:
    return "one item has no spread" if groups is None else "one cluster has no spread"


def group_aggregate(
    estimates: Sequence[Estimate], weight_by_size: bool = True, ci_level: float = 0.95
) -> Estimate:
    """The mean of independent benchmarks' values, weighted by their items or not, with its standard error.

    The weights w add up to 1, and the error is √Σ (w · stderr)² for either kind of weight; a member without
    an error bar leaves the group without one. The interval comes from the members' intervals, so that it
    stays where they stay and has a width where all of a member's items are alike. A member without a value
    leaves the group without a value: nothing is dropped.
    """
    if not estimates:
        raise ConfigError("a group needs at least one benchmark")
    n_items = sum(member.n_items for member in estimates)
    empty = sum(math.isnan(member.value) for member in estimates)
    if empty or (weight_by_size and n_items == 0):
        said = f"{empty} of {len(estimates)} benchmarks have no value"
        return Estimate(math.nan, math.nan, "none", math.nan, math.nan, n_items, said)
    sizes = [member.n_items if weight_by_size else 1 for member in estimates]
    weights = [size / sum(sizes) for size in sizes]
    value = math.fsum(weight * member.value for weight, member in zip(weights, estimates, strict=True))
    bare = sum(math.isnan(member.stderr) for member in estimates)
    if bare:
        said = f"{bare} of {len(estimates)} benchmarks have no error bar"
        return Estimate(value, math.nan, "none", math.nan, math.nan, n_items, said)
    stderr = math.sqrt(
        math.fsum((w * member.stderr) ** 2 for w, member in zip(weights, estimates, strict=True))
    )
    shares = all(
        member.stderr_method.startswith("wilson") and 0 <= member.ci_low <= member.ci_high <= 1
        for member in estimates
    )
    recovered = _share if shares else _recovered
    low, high = recovered(value, estimates, weights, ci_level)
    return Estimate(value, stderr, "weighted sum of variances", low, high, n_items)


def _share(
    value: float, members: Sequence[Estimate], weights: Sequence[float], level: float
) -> tuple[float, float]:
    """Wilson's interval of a mean of shares, at the size that their own intervals amount to: these have a
    width where the standard error is 0. Of members that are all right, or all wrong, as many items as there
    are, allowing for the weights."""
    z = normal_quantile(level)
    pairs = list(zip(weights, members, strict=True))
    variance = math.fsum((w * (member.ci_high - member.ci_low) / (2 * z)) ** 2 for w, member in pairs)
    items = 1 / math.fsum(w * w / member.n_items for w, member in pairs)
    spread = value * (1 - value)
    return wilson(value, spread / variance if 0 < value < 1 else items, level)


def _recovered(
    value: float, members: Sequence[Estimate], weights: Sequence[float], level: float
) -> tuple[float, float]:
    """The interval of a weighted sum from its members' own, which have a width where their standard error is
    0 and end where their range ends.

    Source: Zou and Donner 2008, Construction of confidence limits about effect measures (MOVER). A member
    without an interval has Student's.
    """
    below, above = 0.0, 0.0
    for weight, member in zip(weights, members, strict=True):
        reach = student_quantile(level, max(member.n_items - 1, 1)) * member.stderr
        ends = (member.value - member.ci_low, member.ci_high - member.value)
        down, up = ends if all(map(math.isfinite, ends)) else (reach, reach)
        below, above = below + (weight * down) ** 2, above + (weight * up) ** 2
    return value - math.sqrt(below), value + math.sqrt(above)
