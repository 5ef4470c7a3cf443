"""Value, standard error and interval of an aggregate.

The unit is the item, or the cluster where items belong together: statistics are added up within clusters
first, and the rest is the same. Unless the config names a method, each aggregation has its own rule
(``metrics.statistics.rules``).

A standard error that no sample could have is not printed: beyond half of the value's range, negative, or NaN
without a reason. The value then stands without an error bar, and a warning says which rule gave what.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import ConfigError
from metrics.statistics.clusters import counts, few_clusters, numbered
from metrics.statistics.formulas import Sampled, Spread
from metrics.statistics.rules import METHODS, rule_of
from metrics.types import Estimate, Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

_ROUNDING = 1e-9
_POINT = 1e-12  # of an end: an interval that rounding alone makes


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
    if table is not None and adding.leaves_out is not None:
        return _of_those_that_count(adding, table, clusters, options)
    groups = numbered(clusters)
    if table is not None:
        return _of_sums(Sampled.of(adding, table, groups, options, samples), table, groups)
    return _of_values(aggregation, values if values is not None else [], groups, options)


def _of_those_that_count(
    aggregation: Aggregation, table: Floats, clusters: Ints | None, options: "StatisticsConfig"
) -> Estimate:
    """Items that do not count are no units of the error bar: it is that of the others alone."""
    assert aggregation.leaves_out is not None
    n, odd = len(table), aggregation.leaves_out(table)
    if odd.all():
        return _without_error(math.nan, n, f"none of {n} items counts")
    groups = numbered(None if clusters is None else np.asarray(clusters)[~odd])
    made = _of_sums(Sampled.of(aggregation, table[~odd], groups, options), table[~odd], groups)
    said = f"{odd.sum()} of {n} items have no finite number and are left out" if odd.any() else None
    return replace(made, n_items=n, warning="; ".join(filter(None, (said, made.warning))) or None)


def _of_sums(sampled: Sampled, table: Floats, groups: Ints | None) -> Estimate:
    aggregation, options = sampled.aggregation, sampled.options
    bad = int((~np.isfinite(table)).any(axis=1).sum())
    if bad:
        return _without_error(
            sampled.value, len(table), f"{bad} of {len(table)} items have a value that is not finite"
        )
    if not math.isfinite(sampled.value):
        said = "the value is not finite" if table.any() else f"none of {len(table)} items counts"
        return _without_error(sampled.value, len(table), said)
    if options.bootstrap_iters <= 0:
        return _without_error(sampled.value, len(table), None)
    if aggregation.averages and not _within(table, aggregation.bounds):
        # Numbers that come from elsewhere, on another scale than the metric of that name.
        aggregation = replace(aggregation, bounds=(-math.inf, math.inf))
        sampled = replace(sampled, aggregation=aggregation)
    own = not aggregation.has_error_bar or options.method not in METHODS
    rule = rule_of(aggregation) if own else METHODS[options.method]
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity's spread may be beyond all numbers
        spread = rule.of_sums(sampled)
    if math.isfinite(spread.stderr):
        doubts = filter(None, (rule_of(aggregation).doubt(sampled), spread.warning))
        spread = replace(spread, warning="; ".join(doubts) or None)
    return _estimate(sampled.value, spread, len(table), aggregation, groups)


def _within(table: Floats, bounds: tuple[float, float]) -> bool:
    return bool(table[:, 0].min() >= bounds[0] and table[:, 0].max() <= bounds[1])


def _of_values(
    aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
) -> Estimate:
    n = len(values)
    value = aggregation.of_values(values)
    bad = sum(isinstance(item, Real) and not math.isfinite(item) for item in values)
    if bad:
        return _without_error(value, n, f"{bad} of {n} items have a value that is not finite")
    if not math.isfinite(value):
        return _without_error(value, n, "the value is not finite")
    if options.bootstrap_iters <= 0 or not aggregation.has_error_bar:
        warning = f"no error bar for {aggregation.name}" if options.bootstrap_iters > 0 else None
        return _without_error(value, n, warning)
    if n == 1 or (groups is not None and min(counts(groups)) == 1):
        return _without_error(value, n, _single(groups))
    spread = rule_of(aggregation).of_values(aggregation, values, groups, options)
    return _estimate(value, spread, n, aggregation, groups)


def _estimate(
    value: float, spread: Spread, n: int, aggregation: Aggregation, groups: Ints | None
) -> Estimate:
    spread = _no_point(spread, aggregation)
    if not any(map(math.isfinite, (spread.stderr, spread.low, spread.high))):
        return _without_error(value, n, spread.warning or f"no error bar for {aggregation.name}")
    lowest, highest = aggregation.bounds  # rounding may carry the value itself a hair beyond
    low, high = max(spread.low, min(lowest, value)), min(spread.high, max(highest, value))
    method = spread.method if groups is None else f"{spread.method}, {clustered(groups)}"
    wide = "the spread is too wide for a standard error" if math.isinf(spread.stderr) else None
    said = "; ".join(sentence for sentence in (wide, spread.warning, few_clusters(groups)) if sentence)
    stderr = math.nan if wide else spread.stderr
    made = Estimate(value, stderr, method, low, high, n, said or None)
    return possible(made, aggregation.bounds)


def _no_point(spread: Spread, aggregation: Aggregation) -> Spread:
    """The spread without an interval of no width: items that are all alike, or so many of which are that a
    median is theirs whichever are drawn, say nothing of others."""
    apart = abs(spread.high - spread.low)
    nothing = math.isfinite(apart) and apart <= _POINT * max(abs(spread.low), abs(spread.high))
    if not nothing or aggregation.bounds[0] == aggregation.bounds[1]:
        return spread
    said = "nothing varies where the number lies, and no interval of other items is known"
    return replace(
        spread, low=math.nan, high=math.nan, warning="; ".join(filter(None, (spread.warning, said)))
    )


def possible(made: Estimate, bounds: tuple[float, float]) -> Estimate:
    """The estimate, without an error bar if no sample of numbers within ``bounds`` could have this one; the
    warning then says what was refused."""
    said = _impossible(made, bounds)
    if said is None:
        return made
    refused = f"no error bar: the method '{made.stderr_method}' gave {said}"
    return _without_error(made.value, made.n_items, "; ".join(filter(None, (refused, made.warning))))


def _impossible(made: Estimate, bounds: tuple[float, float]) -> str | None:
    low, high = bounds
    half = (high - low) / 2
    if made.stderr < 0:
        return f"a negative standard error, {made.stderr:g}"
    if made.ci_low > made.ci_high:
        return f"an interval from {made.ci_low:g} down to {made.ci_high:g}"
    if math.isnan(made.stderr) and made.warning is None and not math.isnan(made.ci_low):
        return "no number for a standard error, and no reason"
    if low <= made.value <= high and math.isfinite(half) and made.stderr > half * (1 + _ROUNDING):
        return f"a standard error of {made.stderr:.3g}; between {low:g} and {high:g} it is {half:g} at most"
    return None


def clustered(groups: Ints) -> str:
    """How ``stderr_method`` and the name of a test end."""
    return "clustered" if groups.ndim == 1 else "clustered two ways"


def _without_error(value: float, n: int, warning: str | None) -> Estimate:
    return Estimate(value, math.nan, "none", math.nan, math.nan, n, warning)


def _single(groups: Ints | None) -> str:
    return "one item has no spread" if groups is None else "one cluster has no spread"


def group_aggregate(estimates: Sequence[Estimate], weight_by_size: bool = True) -> Estimate:
    """The mean of independent benchmarks' values, weighted by their items or not, with its standard error.

    The weights w add up to 1, and the error is √Σ (w · stderr)² for either kind of weight; a member without
    an error bar leaves the group without one. There is no interval: how well a member's own error is known,
    its clusters and its range are not in an estimate. A member without a value leaves the group without a
    value: nothing is dropped. What the members warn of is said once.
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
    said = "; ".join(dict.fromkeys(member.warning for member in estimates if member.warning))
    return Estimate(value, stderr, "weighted sum of variances", math.nan, math.nan, n_items, said or None)
