"""Two runs on the same items: by how much they differ, and whether that could be chance."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import MetricError
from metrics.statistics.clusters import (
    UNEVEN,
    Crossed,
    alike_variance,
    counts,
    numbered,
    sizes,
    too_few_for_a_tail,
    too_few_to_pass,
)
from metrics.statistics.differences import (
    Chance,
    Difference,
    Ends,
    ItemColumn,
    Shift,
    changes,
    few_units,
    score_column,
    that_count,
    undetectable,
    with_zero,
)
from metrics.statistics.intervals import PairedShares, Shape, effective_units, residuals, standard_error
from metrics.statistics.power import (
    FORESEEN_DEGREES,
    Alike,
    larger,
    mcnemar,
    mcnemar_mde,
    shift_mde,
    smoothed,
    units_needed,
    unseen_mde,
)
from metrics.statistics.resampled import Tabled, by_bootstrap, equal_units
from metrics.statistics.significance import sign_flip
from metrics.statistics.tied import CLOSE, Tied, mean_square
from metrics.types import Floats, Ints

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


Method = Literal["auto", "mcnemar", "permutation", "bootstrap", "unpaired"]
Remedy = Callable[[float, float], str | None]  # of a margin and a level: what would decide it


@dataclass(frozen=True)
class Comparison:
    """``difference`` is candidate minus base, in the metric's own units, with its error bar and its test.

    ``p_value`` is two-sided, for no difference at all. Wins are items on which the candidate is better.
    ``mde`` is the true loss that such a comparison finds with a chance of 80 %. The interval excludes no
    difference if and only if the test finds one. Everything is NaN that cannot be said, and ``warning`` says
    why. ``ends`` gives the interval of any other level, ``chance`` the two-sided p-value of any other
    difference: what a gate with a margin asks for. ``too_few`` says why no gate passes on it, where the
    clusters are too few to rule out a loss. ``falls``: the number falls where an item's own rises.
    """

    base: float
    candidate: float
    difference: float
    stderr: float
    ci_low: float
    ci_high: float
    test: str
    p_value: float
    correlation: float
    wins: int
    losses: int
    ties: int
    mde: float
    n_items: int
    n_clusters: int | None
    warning: str | None = None
    ends: Ends | None = field(default=None, repr=False, compare=False)
    chance: Chance | None = field(default=None, repr=False, compare=False)
    remedy: Remedy | None = field(default=None, repr=False, compare=False)
    too_few: str | None = None
    falls: bool = field(default=False, repr=False, compare=False)

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of another level, with 0 in it unless the test finds a difference at that level."""
        if self.ends is None:
            return self.ci_low, self.ci_high
        return with_zero(self.ends(level), self.p_value, level)

    def chance_beyond(self, value: float, above: bool) -> float:
        """Two-sided p-value of the difference ``value`` against one beyond it, ``above`` or below: the level
        from which on the interval lies there. 1 where the difference itself does not."""
        beyond = self.difference > value if above else self.difference < value
        if not beyond or math.isnan(self.p_value):
            return self.p_value if math.isnan(self.p_value) else 1.0
        return max(self.p_value, self.chance(value) if self.chance is not None else self.p_value)


@np.errstate(over="ignore", invalid="ignore")  # infinities: the warning says what they leave unsaid
def compare_items(
    aggregation: Aggregation,
    base: ItemColumn,
    candidate: ItemColumn,
    clusters: Ints | None,
    options: "StatisticsConfig",
    *,
    method: Method = "auto",
    higher_is_better: bool = True,
) -> Comparison:
    """Compare two runs item by item; ``clusters`` (n,) are any integers, equal ones belonging together, or
    (n, 2) where two fields cross.

    ``auto``: exact McNemar test for 0/1 means without clusters, sign-flip permutation for other means, paired
    bootstrap of the statistics for everything else. With clusters, a cluster's items flip, or are drawn,
    together. Raises ``MetricError`` if the columns differ in length, or ``method`` does not fit.
    """
    if len(base) != len(candidate):
        raise MetricError(f"the runs have {len(base)} and {len(candidate)} items; compare those they share")
    groups = numbered(clusters)
    candidate = candidate.beside(base)
    (one, other), own = that_count(aggregation, (base, candidate), clusters)
    tables, units = (Tabled.of(aggregation, one), Tabled.of(aggregation, other)), numbered(own)
    first, second = tables[0].value, tables[1].value
    found = _difference((one, other), tables, units, options, method)
    low, high = found.interval(options.ci_level)
    up = aggregation.items_better_up(higher_is_better)
    better = candidate.value - base.value if up else base.value - candidate.value
    return Comparison(
        base=first,
        candidate=second,
        difference=second - first,
        stderr=found.stderr,
        ci_low=low,
        ci_high=high,
        test=found.test,
        p_value=found.p_value,
        correlation=_correlation(base.value, candidate.value),
        wins=int((better > 0).sum()),
        losses=int((better < 0).sum()),
        ties=int((better == 0).sum()),
        mde=found.mde,
        n_items=len(base),
        n_clusters=None if groups is None else min(counts(groups)),
        warning=found.warning,
        ends=found.ends,
        chance=found.chance,
        too_few=too_few_units(aggregation, (one, other), (units, units)),
        falls=aggregation.falls,
    )


def _difference(
    runs: tuple[ItemColumn, ItemColumn],
    tables: tuple[Tabled, Tabled],
    groups: Ints | None,
    options: "StatisticsConfig",
    method: Method,
) -> Difference:
    aggregation = tables[0].aggregation
    n, units = len(runs[0]), len(runs[0]) if groups is None else min(counts(groups))
    if n == 0 or units < 2:
        return Difference.unsaid(
            "no items in common" if n == 0 else f"one {'item' if groups is None else 'cluster'} has no spread"
        )
    if method == "unpaired":
        raise MetricError("an unpaired comparison is that of compare_unpaired")
    averaged = aggregation.averages
    if not averaged or method == "bootstrap":
        if method in ("mcnemar", "permutation"):
            raise MetricError(f"a {method} test is for means; {aggregation.name} is compared by bootstrap")
        return by_bootstrap(aggregation, tables, groups, options)
    first, second = (score_column(run) for run in runs)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return Difference.unsaid("some items have a value that is not finite")
    low, high = range_of(aggregation, first, second)
    width = high - low
    binary = width == 1 and all(bool(((column == 0) | (column == 1)).all()) for column in (first, second))
    if method == "mcnemar" and not (binary and groups is None):
        raise MetricError("a McNemar test takes scores of 0 and 1 without clusters; use permutation")
    if binary and groups is None and method != "permutation":
        return _by_mcnemar(first, second, options)
    if groups is not None and groups.ndim == 2:
        return _by_crossed(changes(first, second), groups, options, width)
    return _by_permutation(changes(first, second), groups, options, width)


def too_few_units(
    aggregation: Aggregation, runs: tuple[ItemColumn, ItemColumn], groups: tuple[Ints | None, Ints | None]
) -> str | None:
    """Why no gate passes on items, or clusters, that are so few in one of the runs."""
    few = next(filter(None, map(too_few_to_pass, groups)), None)
    ordered = aggregation.rule is not None and aggregation.rule.ordered
    if few is not None or ordered or not all(map(len, runs)):
        return few
    ends = range_of(aggregation, *map(score_column, runs)) if aggregation.averages else aggregation.bounds
    ranged = all(map(math.isfinite, ends))
    kind, remedy = "numbers without a range", ", or a metric that declares its range"
    if ranged:
        kind, remedy = "items of unequal weight" if aggregation.even else "texts of a corpus score", ""
    for run, own in zip(runs, groups, strict=True):
        count = len(run) if own is None else min(counts(own))
        units = equal_units(aggregation, run.statistics, np.arange(len(run)) if own is None else own)
        if ranged and aggregation.even and (aggregation.weight is None or units >= UNEVEN * count):
            continue
        if few := too_few_for_a_tail(units, count, kind if own is None else f"clusters of {kind}", remedy):
            return few
    return None


def range_of(aggregation: Aggregation, first: Floats, second: Floats) -> tuple[float, float]:
    """Between what an item's numbers lie: the metric's range, or 0 and 1 where all numbers are one of these
    and both occur; infinite where nothing is known."""
    low, high = aggregation.bounds
    lowest, highest = min(first.min(), second.min()), max(first.max(), second.max())
    if math.isfinite(low) and math.isfinite(high) and low <= lowest and highest <= high:
        return low, high
    both = np.concatenate([first, second])
    known = lowest < highest and bool(((both == 0) | (both == 1)).all())
    return (0.0, 1.0) if known else (-math.inf, math.inf)


def _by_mcnemar(first: Floats, second: Floats, options: "StatisticsConfig") -> Difference:
    n, (gained, lost) = len(first), discordant(first, second)
    shares = PairedShares(gained, lost, n)
    alpha, p_value = 1 - options.ci_level, mcnemar(gained, lost)
    mde = _either_way(n, gained, lost, alpha)
    return Difference(
        standard_error(residuals(second - first, np.ones(n))),
        "McNemar, exact",
        p_value,
        mde,
        shares.ends,
        shares.chance,
        undetectable(mde, n, "items", p_value < alpha),
    )


def _either_way(n: int, gained: int, lost: int, alpha: float) -> float:
    """The larger of the losses of either run that are found; NaN where any loss of one is missed."""
    found = [mcnemar_mde(n, better, alpha) for better in (gained, lost)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def _by_permutation(
    differences: Floats,
    groups: Ints | None,
    options: "StatisticsConfig",
    width: float,
) -> Difference:
    n, kind = len(differences), "items" if groups is None else "clusters"
    own = np.ones(n) if groups is None else sizes(groups)
    units = differences if groups is None else np.bincount(groups, weights=differences)
    sums = np.asarray(units, dtype=np.float64)
    count, alpha = len(sums), 1 - options.ci_level
    test = "sign-flip permutation" if groups is None else "sign-flip permutation, clustered"
    mean = float(differences.mean())
    differing = int((sums != 0).sum())
    if not differing and not math.isfinite(width):
        said = "the runs do not differ on any item, and the metric's range is not known"
        return Difference(0.0, test, 1.0, math.nan, warning=said)
    near = width * CLOSE if groups is None and math.isfinite(width) else 0.0
    tied, still = Tied.of(sums, own, width, near), Tied.of(sums, own, width, 0.0)
    influence = residuals(sums, own) * (count / n)
    stderr = standard_error(influence, None if groups is None else own)
    # What a unit differs by, where it does; units that tie hide how many more may differ (Agresti and Min).
    hidden = tied.ties * tied.typical
    if groups is not None:  # few clusters say little of the others' size
        hidden += mean_square(sums, tied.largest)
    varied = max(stderr**2, alike_variance(differences, groups))
    spread = math.sqrt(varied + hidden / n**2)
    shape = Shape.of(influence) if groups is None else Shape.of_unequal(influence, own)
    straight = tied.straight(shape, max(effective_units(own) - 1.0, 1.0))
    shift = Shift(mean, spread, straight, tied.growth / n, width, tied.change)
    flipped = sign_flip(sums, options.bootstrap_iters, np.random.default_rng(options.seed))
    p_value = max(flipped, shift.chance(0.0))
    needed, warning = units_needed(alpha), None
    if count < needed:
        warning = f"{count} {kind} can't reach p < {alpha:g} whatever they say; it takes {needed}"
        mde = math.nan
    elif groups is not None and shape.degrees < FORESEEN_DEGREES:
        warning = (
            f"only {differing} of {count} clusters differ, or a few far more than the rest: what such a "
        )
        warning += "comparison would find is not known"
        mde = math.nan
    else:
        mde, loss_of, unseen = math.nan, still, 0.0
        if groups is None and tied.sparse and (tied.differing > 1 or still.sparse):
            gained, lost = int((tied.moved > 0).sum()), int((tied.moved < 0).sum())
            mde, loss_of = _either_way(count, gained, lost, alpha) * math.sqrt(tied.typical), tied
        elif groups is None and tied.sparse:
            unseen = unseen_mde(count, alpha, width)
        # What gained by a part of the range may lose too, unlike what gained all of it.
        if math.isnan(mde) and (loss_of is still or tied.typical < width**2):
            # The loss of some is of units that did not change at all, or, of counted ones, of those that tie.
            size = float(np.abs(loss_of.moved).sum()) / n
            clusters = math.inf if groups is None else effective_units(own)
            mde = larger(shift_mde(spread, shape.degrees, loss_of.ties, size, alpha, width, clusters), unseen)
    if near > 0:
        alike = Alike(count, stderr, smoothed(tied.differing, count), tied.typical, width)
        mde = larger(mde, alike.mde(straight.degrees, alpha))
    if warning is None:
        warning = undetectable(mde, count, kind, p_value < alpha)
    return Difference(
        stderr,
        test,
        p_value,
        mde,
        shift.ends,
        shift.chance,
        warning or few_units(groups, count, width),
    )


def _by_crossed(differences: Floats, ways: Ints, options: "StatisticsConfig", width: float) -> Difference:
    """Clusters of two fields that cross: the largest p-value of the two sign-flip permutations, by either
    field alone, and of the interval, whose variance has both."""
    test, alpha, n = "sign-flip permutation, clustered two ways", 1 - options.ci_level, len(differences)
    mean = float(differences.mean())
    sums = [np.bincount(column, weights=differences) for column in ways.T]
    differing = int((differences != 0).sum())
    if not differing and not math.isfinite(width):
        said = "the runs do not differ on any item, and the metric's range is not known"
        return Difference(0.0, test, 1.0, math.nan, warning=said)
    crossed = Crossed.of(residuals(differences, np.ones(n)), ways)
    own = sums[crossed.way].astype(np.float64)
    tied = Tied.of(own, sizes(ways[:, crossed.way]), width, 0.0)
    varied = max(crossed.variance, alike_variance(differences, ways))
    spread = math.sqrt(varied + (tied.ties * tied.typical + mean_square(own, tied.largest)) / n**2)
    rng = np.random.default_rng(options.seed)
    flipped = [sign_flip(np.asarray(own), options.bootstrap_iters, rng) for own in sums]
    shift = Shift(mean, spread, crossed.shape, tied.growth / n, width, tied.change)
    p_value = max(*flipped, shift.chance(0.0))
    fewest, needed, warning = min(counts(ways)), units_needed(alpha), None
    mde = math.nan
    if fewest < needed:
        warning = f"{fewest} clusters can't reach p < {alpha:g} whatever they say; it takes {needed}"
    elif crossed.shape.degrees < FORESEEN_DEGREES:
        warning = "few clusters make most of the difference: what such a comparison would find is not known"
    else:
        size = float(np.abs(tied.moved).sum()) / n
        mde = shift_mde(spread, crossed.shape.degrees, tied.ties, size, alpha, width)
        warning = undetectable(mde, fewest, "clusters", p_value < alpha)
    return Difference(
        crossed.stderr,
        test,
        p_value,
        mde,
        shift.ends,
        shift.chance,
        warning or few_units(ways, fewest, width),
    )


def _correlation(first: Floats, second: Floats) -> float:
    both = np.isfinite(first) & np.isfinite(second)
    a, b = first[both], second[both]
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def discordant(first: Floats, second: Floats) -> tuple[int, int]:
    """How many 0/1 items went from wrong to right, and from right to wrong."""
    return int(((first == 0) & (second == 1)).sum()), int(((first == 1) & (second == 0)).sum())
