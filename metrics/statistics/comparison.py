"""Two runs on the same items: by how much they differ, and whether that could be chance."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import MetricError
from metrics.statistics.clusters import Crossed, Members, counts, few_clusters, numbered, sizes, wider
from metrics.statistics.formulas import FEW_UNITS, Sampled, influences
from metrics.statistics.intervals import PairedShares, Shape, effective_units, skewed, standard_error
from metrics.statistics.power import mcnemar, mcnemar_mde, shift_mde, units_needed
from metrics.statistics.resampling import MAX_BLOCKS, MAX_ITEM_DRAWS, crossed_picks, resampled_totals
from metrics.statistics.significance import sign_flip
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


Method = Literal["auto", "mcnemar", "permutation", "bootstrap", "unpaired"]
Ends = Callable[[float], tuple[float, float]]
Chance = Callable[[float], float]
Remedy = Callable[[float, float], str | None]  # of a margin and a level: what would decide it


@dataclass(frozen=True)
class ItemColumn:
    """One run's rows of n items, all scored, in the same order as the other run's."""

    value: Floats  # (n,)
    statistics: Floats | None = None  # (n, k)
    values: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Comparison:
    """``difference`` is candidate minus base, in the metric's own units, with its error bar and its test.

    ``p_value`` is two-sided, for no difference at all. Wins are items on which the candidate is better.
    ``mde`` is the true loss that such a comparison finds with a chance of 80 %. The interval excludes no
    difference if and only if the test finds one. Everything is NaN that cannot be said, and ``warning`` says
    why. ``ends`` gives the interval of any other level, ``chance`` the two-sided p-value of any other
    difference: what a gate with a margin asks for.
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

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of another level, with 0 in it unless the test finds a difference at that level."""
        if self.ends is None:
            return self.ci_low, self.ci_high
        return _with_zero(self.ends(level), self.p_value, level)

    def chance_beyond(self, value: float, above: bool) -> float:
        """Two-sided p-value of the difference ``value`` against one beyond it, ``above`` or below: the level
        from which on the interval lies there. 1 where the difference itself does not."""
        beyond = self.difference > value if above else self.difference < value
        if not beyond or math.isnan(self.p_value):
            return self.p_value if math.isnan(self.p_value) else 1.0
        return max(self.p_value, self.chance(value) if self.chance is not None else self.p_value)


def _with_zero(ends: tuple[float, float], p_value: float, level: float) -> tuple[float, float]:
    if p_value < 1 - level:
        return ends
    return min(ends[0], 0.0), max(ends[1], 0.0)


@dataclass(frozen=True)
class Difference:
    """A difference's standard error, test and smallest effect, its interval of any level and the p-value of
    any other difference."""

    stderr: float
    test: str
    p_value: float
    mde: float
    ends: Ends | None = None
    chance: Chance | None = None
    warning: str | None = None

    @classmethod
    def unsaid(cls, warning: str) -> "Difference":
        """What there is to say where nothing can be tested."""
        return cls(math.nan, "none", math.nan, math.nan, warning=warning)

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of a level, with 0 in it unless the test finds a difference; NaN where there is
        none."""
        if self.ends is None:
            return math.nan, math.nan
        return _with_zero(self.ends(level), self.p_value, level)


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
    first, second = (
        aggregation.value(run.statistics, aggregated_values(aggregation, run)) for run in (base, candidate)
    )
    found = _difference(aggregation, (base, candidate), groups, options, method)
    low, high = found.interval(options.ci_level)
    better = candidate.value - base.value if higher_is_better else base.value - candidate.value
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
    )


def _difference(
    aggregation: Aggregation,
    runs: tuple[ItemColumn, ItemColumn],
    groups: Ints | None,
    options: "StatisticsConfig",
    method: Method,
) -> Difference:
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
        return _by_bootstrap(aggregation, runs, groups, options)
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
        return _by_crossed(second - first, groups, options, width)
    return _by_permutation(second - first, groups, options, width)


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
        _standard_error(second - first, None),
        "McNemar, exact",
        p_value,
        mde,
        shares.ends,
        shares.chance,
        _undetectable(mde, n, "items", p_value < alpha),
    )


def _either_way(n: int, gained: int, lost: int, alpha: float) -> float:
    """The larger of the losses of either run that are found; NaN where any loss of one is missed."""
    found = [mcnemar_mde(n, better, alpha) for better in (gained, lost)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def _undetectable(mde: float, units: int, kind: str, differs: bool) -> str | None:
    if not math.isnan(mde):
        return None
    if differs:
        return f"{units} {kind} find this difference; of others it is not known which they find"
    return f"{units} {kind} are too few to find any difference four times of five"


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
    influence = (sums - own * mean) * (count / n)
    stderr = standard_error(influence, None if groups is None else own)
    # What a unit differs by, where it does; units that tie hide how many more may differ (Agresti and Min).
    typical = float((sums * sums).sum()) / differing if differing else (width * n / count) ** 2
    ties = 1 - differing / count
    hidden = ties if groups is None else 1 + ties  # few clusters say little of the others' size
    spread = math.sqrt(stderr**2 + hidden * typical / n**2)
    shape = Shape.of(influence) if groups is None else Shape.of_unequal(influence, own)
    largest = (width * n / count) if math.isfinite(width) else 0.0
    shift = _Shift(mean, spread, shape, ties * _size_of_change(sums, largest) / n, width)
    flipped = sign_flip(sums, options.bootstrap_iters, np.random.default_rng(options.seed))
    p_value = max(flipped, shift.chance(0.0))
    needed, warning = units_needed(alpha), None
    if count < needed:
        warning = f"{count} {kind} can't reach p < {alpha:g} whatever they say; it takes {needed}"
        mde = math.nan
    elif groups is not None and shape.degrees < _UNEVEN:
        warning = (
            f"only {differing} of {count} clusters differ, or a few far more than the rest: what such a "
        )
        warning += "comparison would find is not known"
        mde = math.nan
    elif groups is None and differing < _SPARSE and ties > 0.5:
        gained, lost = int((sums > 0).sum()), int((sums < 0).sum())
        mde = _either_way(count, gained, lost, alpha) * math.sqrt(typical)
        warning = _undetectable(mde, count, kind, p_value < alpha)
    else:
        size = float(np.abs(sums).sum()) / n
        mde = shift_mde(spread, shape.degrees, ties, size, alpha)
    return Difference(
        stderr,
        test,
        p_value,
        mde,
        shift.ends,
        shift.chance,
        warning or _few_units(groups, count, width),
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
    crossed = Crossed.of(differences - mean, ways)
    own, units = sums[crossed.way], len(sums[crossed.way])
    moved = int((own != 0).sum())
    typical = float((own * own).sum()) / moved if moved else (width * n / units) ** 2
    spread = math.sqrt(crossed.variance + (2 - moved / units) * typical / n**2)
    rng = np.random.default_rng(options.seed)
    flipped = [sign_flip(np.asarray(own), options.bootstrap_iters, rng) for own in sums]
    largest = (width * n / units) if math.isfinite(width) else 0.0
    growth = (1 - moved / units) * _size_of_change(own.astype(np.float64), largest) / n
    shift = _Shift(mean, spread, crossed.shape, growth, width)
    p_value = max(*flipped, shift.chance(0.0))
    fewest, needed, warning = min(counts(ways)), units_needed(alpha), None
    mde = math.nan
    if fewest < needed:
        warning = f"{fewest} clusters can't reach p < {alpha:g} whatever they say; it takes {needed}"
    elif crossed.shape.degrees < _UNEVEN:
        warning = "few clusters make most of the difference: what such a comparison would find is not known"
    else:
        size = float(np.abs(own).sum()) / n
        mde = shift_mde(spread, crossed.shape.degrees, 1 - moved / units, size, alpha)
    return Difference(
        crossed.stderr,
        test,
        p_value,
        mde,
        shift.ends,
        shift.chance,
        warning or _few_units(ways, fewest, width),
    )


@dataclass(frozen=True)
class _Shift:
    """A mean difference and what it would spread by: ``spread`` is its own standard error, ``growth`` the
    variance that a difference of 1 has at least, if it is made of units that tied here.

    Without the second, runs that differ on no unit, or on few, would exclude losses of which the sample just
    has none: the score test's idea, for differences of any size.
    """

    mean: float
    spread: float
    shape: Shape
    growth: float
    width: float

    def chance(self, value: float) -> float:
        """Two-sided p-value of the difference ``value``."""
        spread = max(self.spread, math.sqrt(self.growth * abs(value)))
        return self.shape.chance(_apart(self.mean - value, spread))

    def ends(self, level: float) -> tuple[float, float]:
        """The interval of a level, within what the range of the numbers lets be."""
        below, above = self.shape.ends(level)
        low, high = skewed(self.mean, self.spread, self.shape, level)
        low, high = min(low, -self._reached(below, self.mean)), max(high, self._reached(above, -self.mean))
        return max(low, -self.width), min(high, self.width)

    def _reached(self, reach: float, mean: float) -> float:
        """The largest loss m of which the mean is at most ``reach`` of its own standard errors, √(growth m),
        away; minus infinity for none."""
        most = reach**2 * self.growth
        if most <= 0 or most < 4 * mean or not math.isfinite(most):
            return -math.inf
        return (most - 2 * mean + math.sqrt(most * (most - 4 * mean))) / 2


def _size_of_change(sums: Floats, largest: float) -> float:
    """By how much a unit differs that ties here: as those that do not, and one that differs by all it can."""
    differing = int((sums != 0).sum())
    squares, known = float((sums * sums).sum()), largest > 0
    return math.sqrt((squares + largest**2) / (differing + known)) if differing + known else 0.0


def _apart(difference: float, stderr: float) -> float:
    """How many standard errors a difference is from 0; infinitely many where all differ by the same."""
    return difference / stderr if stderr > 0 else math.copysign(math.inf, difference) if difference else 0.0


def _few_units(groups: Ints | None, count: int, width: float) -> str | None:
    if groups is not None:
        return few_clusters(groups)
    if count < FEW_UNITS and not math.isfinite(width):
        return f"only {count} items: the test holds for differences without rare large ones"
    return None


def _by_bootstrap(
    aggregation: Aggregation,
    runs: tuple[ItemColumn, ItemColumn],
    groups: Ints | None,
    options: "StatisticsConfig",
) -> Difference:
    test = "paired bootstrap" if groups is None else "paired bootstrap, clustered"
    ways = groups if groups is not None and groups.ndim == 2 else None
    if options.bootstrap_iters <= 0 or not aggregation.has_error_bar:
        return Difference.unsaid(f"no test for {aggregation.name}")
    tables = [(run.statistics, aggregated_values(aggregation, run)) for run in runs]
    if ways is not None and (found := _by_crossed_jackknife(aggregation, tables, ways, options)) is not None:
        return found
    observed, draws = resampled_differences(aggregation, tables, groups, options)
    draws = draws[np.isfinite(draws)]
    if not math.isfinite(observed) or len(draws) < 2:
        return Difference.unsaid("the difference is not finite")
    if ways is not None:
        groups, test = wider(ways), f"{test} two ways"
    units = len(runs[0]) if groups is None else int(groups.max()) + 1
    widening = math.sqrt(units / (units - 1))  # resamples spread less than samples by this factor
    stderr = float(draws.std(ddof=1)) * widening
    if stderr <= 1e-12 * max(1.0, abs(observed)):
        same = observed == 0
        said = "the runs do not differ on any item" if same else "every resample differs by the same"
        p_value = 1.0 if same else max(1 / (1 + len(draws)), 2.0 ** (1 - units))  # as sign flips say
        ends = None if same else (lambda level: (observed, observed))
        return Difference(stderr, test, p_value, math.nan, ends, lambda value: p_value, said)
    influence = _influence_of_difference(aggregation, tables, groups, units, options)
    shape = Shape(0.0, units - 1.0) if influence is None else Shape.of(influence)
    if groups is not None:
        shape, stderr = _of_unequal(influence, sizes(groups), stderr)
    swapped = _Swapped.of(aggregation, tables, groups, options)
    return Difference(
        stderr,
        test,
        max(swapped.p_value, shape.chance(observed / stderr)),
        shift_mde(stderr, shape.degrees, swapped.ties, swapped.size, 1 - options.ci_level),
        lambda level: skewed(observed, stderr, shape, level),
        lambda value: shape.chance((observed - value) / stderr),
        _few_units(groups, units, math.inf),
    )


def _of_unequal(influence: Floats | None, items: Floats, stderr: float) -> tuple[Shape, float]:
    """Shape and standard error of clusters of so many items: resamples know as little as residuals do how
    much of the estimate a large one made."""
    if influence is None or len(influence) != len(items):
        return Shape(0.0, max(effective_units(items) - 1.0, 1.0)), stderr
    plain = standard_error(influence)
    ratio = standard_error(influence, items) / plain if plain > 0 else 1.0
    return Shape.of_unequal(influence, items), stderr * max(ratio, 1.0)


def _by_crossed_jackknife(
    aggregation: Aggregation, runs: "Sequence[RunColumn]", ways: Ints, options: "StatisticsConfig"
) -> Difference | None:
    """A difference of sums' aggregates by what leaving out each item does to it; None for what has no sums,
    or no value without some item."""
    if aggregation.kind == "values" and aggregation.tabulate is None:
        return None
    influence = _influence_of_difference(aggregation, runs, ways, len(ways), options)
    if influence is None:
        return None
    first, second = (aggregation.value(*run) for run in runs)
    observed, crossed = second - first, Crossed.of(influence, ways)
    if not math.isfinite(observed) or crossed.variance <= 0:
        return None
    fewest, swapped = min(counts(ways)), _Swapped.of(aggregation, runs, ways, options)
    return Difference(
        crossed.stderr,
        "paired jackknife, clustered two ways",
        max(swapped.p_value, crossed.shape.chance(observed / crossed.stderr)),
        shift_mde(crossed.stderr, crossed.shape.degrees, swapped.ties, swapped.size, 1 - options.ci_level),
        lambda level: skewed(observed, crossed.stderr, crossed.shape, level),
        lambda value: crossed.shape.chance((observed - value) / crossed.stderr),
        _few_units(ways, fewest, math.inf),
    )


@dataclass(frozen=True)
class _Swapped:
    """The difference where each unit's two runs change places at random.

    ``p_value`` is the larger one of two fields, and 0 for what has no sums; ``ties`` is the share of units
    that do not differ, ``size`` the mean absolute difference of all, in units of the value.
    """

    p_value: float = 0.0
    ties: float = 0.0
    size: float = 1.0

    @classmethod
    def of(
        cls,
        aggregation: Aggregation,
        runs: "Sequence[RunColumn]",
        groups: Ints | None,
        options: "StatisticsConfig",
    ) -> "_Swapped":
        """What a unit adds is measured at both runs' sums together, which no swap changes: the test is exact
        where runs differ by chance alone, however few units make the difference (approximate randomisation,
        Noreen 1989, linearised)."""
        (first, base), (second, candidate) = runs
        adding, table = aggregation.tabled(
            None if first is None or second is None else np.concatenate([first, second]),
            None if base is None or candidate is None else [*base, *candidate],
        )
        if table is None:
            return cls()
        n = len(table) // 2
        moved = (table[n:] - table[:n]) @ adding.gradient(table.sum(axis=0), float(len(table)))
        if not np.isfinite(moved).all():
            return cls()
        rng = np.random.default_rng(options.seed)
        ways = [np.arange(n)] if groups is None else list(groups.reshape(n, -1).T)
        sums = [np.bincount(way, weights=moved).astype(np.float64) for way in ways]
        fewest = np.abs(min(sums, key=len))
        return cls(
            max(sign_flip(own, options.bootstrap_iters, rng) for own in sums),
            float((fewest <= 1e-9 * fewest.max(initial=0.0)).mean()),
            2 * float(fewest.sum()),  # of a run's sums the gradient is twice that of both
        )


def _influence_of_difference(
    aggregation: Aggregation,
    runs: "Sequence[RunColumn]",
    groups: Ints | None,
    units: int,
    options: "StatisticsConfig",
) -> Floats | None:
    """What leaving out each unit does to the difference; of functions of many values, each of a hundred
    interleaved blocks. None where it can't be said."""
    tabled = [aggregation.tabled(*run) for run in runs]
    if all(table is not None for _, table in tabled):
        own = [influences(Sampled.of(adding, table, groups, options)) for adding, table in tabled]  # type: ignore[arg-type]
        return None if own[0] is None or own[1] is None else own[1] - own[0]
    blocks = min(units, MAX_BLOCKS)
    member = (np.arange(_length(runs)) if groups is None else groups) % blocks
    left_out = []
    for place in range(blocks):
        kept = np.flatnonzero(member != place)
        try:
            first, second = (
                aggregation.of_values(_taken(values if values is not None else [], kept))
                for _, values in runs
            )
        except MetricError:
            return None
        left_out.append(second - first)
    found = np.array(left_out)
    return found.mean() - found if len(found) > 2 and np.isfinite(found).all() else None


def _length(runs: "Sequence[RunColumn]") -> int:
    statistics, values = runs[0]
    return len(statistics) if statistics is not None else len(values if values is not None else ())


def _standard_error(differences: Floats, groups: Ints | None) -> float:
    residual = differences - differences.mean()
    units = residual if groups is None else np.bincount(groups, weights=residual)
    return math.sqrt(len(units) / (len(units) - 1) * float(units @ units)) / len(differences)


def _correlation(first: Floats, second: Floats) -> float:
    both = np.isfinite(first) & np.isfinite(second)
    a, b = first[both], second[both]
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def score_column(run: ItemColumn) -> Floats:
    """The number of each item that a mean is of (n,)."""
    return run.value if run.statistics is None else np.asarray(run.statistics[:, 0])


def aggregated_values(aggregation: Aggregation, run: ItemColumn) -> Values | None:
    """What an aggregation of kind "values" takes of a run; None for sums."""
    if aggregation.kind == "sums":
        return None
    return run.values if run.values is not None else run.value


RunColumn = tuple[Floats | None, Values | None]  # statistics, values


def resampled_differences(
    aggregation: Aggregation, runs: Sequence[RunColumn], groups: Ints | None, options: "StatisticsConfig"
) -> tuple[float, Floats]:
    """The observed difference of the second run from the first, and that of each resample."""
    rng = np.random.default_rng(options.seed)
    tabled = [aggregation.tabled(*run) for run in runs]
    if any(table is None for _, table in tabled):
        columns = [values if values is not None else [] for _, values in runs]
        return _of_values(aggregation, columns, groups, options.bootstrap_iters, rng)
    (first, base), (second, candidate) = tabled
    assert base is not None
    assert candidate is not None
    n, width = len(base), base.shape[1]
    joint = np.column_stack([base, candidate, np.ones(n)])
    if groups is not None and groups.ndim == 2:
        groups = wider(groups)  # where no jackknife can tell
    if groups is not None:
        joint = np.column_stack([np.bincount(groups, weights=column) for column in joint.T])
    parts = [
        second.of_totals(totals[:, width:-1], totals[:, -1])
        - first.of_totals(totals[:, :width], totals[:, -1])
        for totals in resampled_totals(joint, options.bootstrap_iters, rng)
    ]
    observed = second.of_total(candidate.sum(axis=0), float(n)) - first.of_total(base.sum(axis=0), float(n))
    return observed, np.concatenate(parts)


def _of_values(
    aggregation: Aggregation,
    columns: Sequence[Values],
    groups: Ints | None,
    draws: int,
    rng: np.random.Generator,
) -> tuple[float, Floats]:
    n, crossed = len(columns[0]), groups is not None and groups.ndim == 2
    units = n if groups is None or crossed else int(groups.max()) + 1
    members = None if groups is None or crossed else Members.of(groups)
    differences = np.empty(min(draws, MAX_ITEM_DRAWS))
    for draw in range(len(differences)):
        if groups is not None and crossed:
            rows = crossed_picks(groups, rng)
        else:
            picks = rng.integers(0, units, size=units)
            rows = picks if members is None else members.rows(picks)
        base, candidate = (aggregation.of_values(_taken(column, rows)) for column in columns)
        differences[draw] = candidate - base
    base, candidate = (aggregation.of_values(column) for column in columns)
    return candidate - base, differences


def _taken(column: Values, rows: Ints) -> Values:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


_SPARSE = 30  # units that differ, up to which they are counted and not averaged
_UNEVEN = 12  # degrees of freedom below which clusters are too uneven to foresee others


def discordant(first: Floats, second: Floats) -> tuple[int, int]:
    """How many 0/1 items went from wrong to right, and from right to wrong."""
    return int(((first == 0) & (second == 1)).sum()), int(((first == 1) & (second == 0)).sum())
