"""The difference of numbers that are no plain means, on the same items: by paired bootstrap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metrics.aggregation import Aggregation, total_of
from metrics.errors import MetricError
from metrics.statistics.bounded import largest_move
from metrics.statistics.clusters import (
    FEW_NUMBERS,
    UNEVEN,
    Crossed,
    Members,
    alike_variance,
    cluster_sums,
    counts,
    effective,
    sizes,
    wider,
)
from metrics.statistics.differences import (
    SAME_TO,
    Difference,
    ItemColumn,
    Shift,
    aggregated_values,
    few_units,
    undetectable,
)
from metrics.statistics.estimate import estimate
from metrics.statistics.formulas import FEW_UNITS, Sampled, influences
from metrics.statistics.intervals import Shape, effective_units, standard_error
from metrics.statistics.power import shift_mde
from metrics.statistics.resampling import (
    MAX_BLOCKS,
    crossed_picks,
    item_draws,
    resampled_totals,
    taken,
    value_or_nan,
)
from metrics.statistics.rules import ConfusionRule
from metrics.statistics.significance import sign_flip
from metrics.statistics.tied import Tied
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


@dataclass(frozen=True)
class Tabled:
    """One run's statistics, or its values, and the table that they make, once."""

    aggregation: Aggregation
    statistics: Floats | None
    values: Values | None

    @cached_property
    def tabled(self) -> tuple[Aggregation, Floats | None]:
        """An aggregation of sums and the run's rows of these (n, k), wherever there is one; else its own and
        None."""
        return self.aggregation.tabled(self.statistics, self.values)

    @classmethod
    def of(cls, aggregation: Aggregation, run: ItemColumn) -> "Tabled":
        """From a run's rows."""
        return cls(aggregation, run.statistics, aggregated_values(aggregation, run))

    @property
    def value(self) -> float:
        """The aggregate; NaN of no items."""
        adding, table = self.tabled
        return self.aggregation.of_values(self.column) if table is None else adding.value(table, None)

    @property
    def column(self) -> Values:
        """Its values, of a function of them."""
        return self.values if self.values is not None else []

    def __len__(self) -> int:
        return len(self.statistics if self.statistics is not None else self.column)


def by_bootstrap(
    aggregation: Aggregation,
    tables: tuple[Tabled, Tabled],
    groups: Ints | None,
    options: "StatisticsConfig",
) -> Difference:
    """The difference of what is no plain mean; clusters are drawn together."""
    test = "paired bootstrap" if groups is None else "paired bootstrap, clustered"
    ways = groups if groups is not None and groups.ndim == 2 else None
    if options.bootstrap_iters <= 0 or not aggregation.has_error_bar:
        return Difference.unsaid(f"no test for {aggregation.name}")
    if ways is not None and (found := _by_crossed_jackknife(tables, ways, options)) is not None:
        return found
    observed, draws, size = _resampled(tables, groups, options)
    draws = draws[np.isfinite(draws)]
    if not math.isfinite(observed) or len(draws) < 2:
        return Difference.unsaid("the difference is not finite")
    if ways is not None:
        groups, test = wider(ways), f"{test} two ways"
    units = len(tables[0]) if groups is None else int(groups.max()) + 1
    widening = math.sqrt(units / (units - 1))  # resamples spread less than samples by this factor
    stderr = float(draws.std(ddof=1)) * widening
    if stderr <= SAME_TO * size:
        seen = observed, stderr, _differing(tables, groups), len(draws)
        return _without_spread(tables[0], groups, options, seen)
    influence = _influence_of_difference(tables, groups, units, options)
    shape = Shape(0.0, units - 1.0) if influence is None else Shape.of(influence)
    if groups is not None:
        shape, stderr = _of_unequal(influence, sizes(groups), stderr)
    swapped = _Swapped.of(aggregation, tables, groups, options)
    drawn = _Units.of(tables, groups, units, options)
    return swapped.difference(test, (observed, stderr, shape), drawn, options)


def _differing(tables: Sequence[Tabled], groups: Ints | None) -> int:
    """How many units differ in any of their numbers."""
    (first, second), (base, candidate) = (run.statistics for run in tables), (run.values for run in tables)
    if first is not None and second is not None:
        differ = (first != second).any(axis=1)
    else:
        pairs = zip(base if base is not None else (), candidate if candidate is not None else (), strict=True)
        differ = np.array([not _same(one, other) for one, other in pairs])
    return int(differ.sum()) if groups is None else len(np.unique(groups[differ]))


def _same(one: Any, other: Any) -> bool:
    """Whether two items' values are equal, whatever they are."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    try:
        return bool(one == other)
    except ValueError:  # lists of arrays
        return False


def _without_spread(
    run: Tabled,
    groups: Ints | None,
    options: "StatisticsConfig",
    found: tuple[float, float, int, int],
) -> Difference:
    """Runs whose resamples all differ by the same: by nothing, as a rule.

    One that differs otherwise may be among those not seen: it moves the number by what one can at most. Where
    that is not known it may not change at all or, where no unit differs, by as much as two unrelated answers
    to one item do.
    """
    observed, stderr, differing, draws = found
    units, kind = (len(run), "items") if groups is None else (int(groups.max()) + 1, "clusters")
    test = "paired bootstrap" if groups is None else "paired bootstrap, clustered"
    p_value = 1.0 if observed == 0 else max(1 / (1 + draws), 2.0 ** (1 - differing))  # as sign flips say
    said = f"{differing} of {units} {kind} differ, and every resample differs by the same"
    if differing and observed == 0:
        return Difference(stderr, test, p_value, math.nan, warning=said)
    largest = _largest((run, run), groups, options)
    if largest <= 0 and differing:
        largest = abs(observed) / units
    elif largest <= 0:
        own = estimate(run.aggregation, run.statistics, run.values, groups, options)
        largest = math.sqrt(2 / units) * own.stderr if own.stderr > 0 else 0.0
    if largest <= 0:
        said = f"the runs do not differ on any item, and what {kind} differ by is not known"
        return Difference(0.0, test, 1.0, math.nan, warning=said)
    swapped = _Swapped(p_value, Tied(np.zeros(units), observed / units, largest))
    drawn = replace(_Units.of((run, run), groups, units, options), largest=largest)
    made = swapped.difference(test, (observed, 0.0, Shape(0.0, drawn.degrees)), drawn, options)
    return replace(made, stderr=stderr, mde=math.nan, warning=said) if differing else made


def _largest(tables: Sequence[Tabled], groups: Ints | None, options: "StatisticsConfig") -> float:
    """By how much one unit moves the number at most; 0 where that is not known."""
    one_field = groups if groups is None or groups.ndim == 1 else wider(groups)
    return max(
        0.0 if table is None else largest_move(
            Sampled.of(adding, table, one_field, options), isinstance(adding.rule, ConfusionRule)
        )
        for adding, table in (run.tabled for run in tables)
    )  # fmt: skip


def _of_unequal(influence: Floats | None, items: Floats, stderr: float) -> tuple[Shape, float]:
    """Shape and standard error of clusters of so many items: resamples know as little as residuals do how
    much of the estimate a large one made."""
    if influence is None or len(influence) != len(items):
        return Shape(0.0, max(effective_units(items) - 1.0, 1.0)), stderr
    plain = standard_error(influence)
    ratio = standard_error(influence, items) / plain if plain > 0 else 1.0
    return Shape.of_unequal(influence, items), stderr * max(ratio, 1.0)


def _by_crossed_jackknife(
    runs: Sequence[Tabled], ways: Ints, options: "StatisticsConfig"
) -> Difference | None:
    """A difference of sums' aggregates by what leaving out each item does to it; None for what has no sums,
    or no value without some item."""
    aggregation = runs[0].aggregation
    if aggregation.kind == "values" and aggregation.tabulate is None:
        return None
    influence = _influence_of_difference(runs, ways, len(ways), options)
    if influence is None:
        return None
    observed, crossed = runs[1].value - runs[0].value, Crossed.of(influence, ways)
    if not math.isfinite(observed) or crossed.variance <= 0:
        return None
    fewest, swapped = min(counts(ways)), _Swapped.of(aggregation, runs, ways, options)
    drawn = _Units.of(runs, ways, fewest, options)
    found = observed, crossed.stderr, crossed.shape
    return swapped.difference("paired jackknife, clustered two ways", found, drawn, options)


def width_of(runs: Sequence[Tabled]) -> float:
    """The most that two numbers can differ by: the width of the range that the aggregation says; infinite
    where it says none, or an item's own number lies beyond."""
    for adding, table in (run.tabled for run in runs):
        low, high = adding.bounds
        if table is None or not math.isfinite(high - low):
            return math.inf
        own = adding.of_totals(table, np.ones(len(table)))
        known, slack = own[np.isfinite(own)], SAME_TO * (high - low)
        if known.min(initial=low) < low - slack or known.max(initial=high) > high + slack:
            return math.inf
    return high - low


def equal_units(aggregation: Aggregation, statistics: Floats | None, ways: Ints) -> float:
    """As how many equal ones a run's items, or clusters, count by what they weigh in the number."""
    weights = [] if statistics is None else [statistics[:, at] for at in aggregation.weight or ()]
    return min((effective(ways, own) for own in weights if own.any()), default=effective(ways))


@dataclass(frozen=True)
class _Units:
    """What is drawn, or changes places: so many items or clusters, which count as ``equal`` ones by what they
    weigh. One moves the number by ``largest`` at most (0: not known), and all together by ``width``."""

    groups: Ints | None
    count: int
    largest: float
    width: float
    even: bool  # none of them weighs more than another
    equal: float

    @classmethod
    def of(
        cls, runs: Sequence[Tabled], groups: Ints | None, count: int, options: "StatisticsConfig"
    ) -> "_Units":
        """From both runs' rows."""
        even, ways = runs[0].aggregation.even, np.arange(len(runs[0])) if groups is None else groups
        equal = min(equal_units(run.aggregation, run.statistics, ways) for run in runs)
        equal = equal if runs[0].aggregation.weight is not None else math.inf
        return cls(groups, count, _largest(runs, groups, options), width_of(runs), even, equal)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of units of these sizes."""
        return max((self.count if self.groups is None else effective(self.groups)) - 1.0, 1.0)

    def doubt(self, mde: float, differs: bool) -> str | None:
        """A doubt where so few say little of others, or nothing of what they would find. Of a ratio's items
        one that weighs much may be unseen, whatever the range."""
        kind = "items" if self.groups is None else "clusters"
        tail = (self.width, FEW_UNITS) if self.even else (math.inf, FEW_NUMBERS)
        few = few_units(self.groups, self.count, *tail)
        if few is None and self.equal < min(FEW_NUMBERS, UNEVEN * self.count):
            few = (
                f"{self.count} {kind} of unequal weight count as {self.equal:.3g} equal ones: the test holds "
                f"for differences without rare large ones; {FEW_NUMBERS} and more are safer"
            )
        return few or undetectable(mde, self.count, kind, differs)


@dataclass(frozen=True)
class _Swapped:
    """The difference where each unit's two runs change places at random.

    ``p_value`` is the larger one of two fields, and 0 for what has no sums; ``tied`` is what the units differ
    by, in units of the value. ``alike`` is the difference's variance if clusters are alike whatever their
    size.
    """

    p_value: float = 0.0
    tied: Tied | None = None
    alike: float = 0.0

    def difference(
        self,
        test: str,
        found: tuple[float, float, Shape],
        drawn: _Units,
        options: "StatisticsConfig",
    ) -> Difference:
        """The difference found, with its standard error and shape. Units that tie hide how many more may
        differ, and one of those by up to ``largest``: they add the spread of one that differs."""
        (observed, stderr, shape), alpha = found, 1 - options.ci_level
        variance, ties, size, growth, change = max(stderr**2, self.alike), 0.0, 1.0, 0.0, 0.0
        if self.tied is not None:
            tied = replace(self.tied, largest=drawn.largest)
            ties, size = tied.ties, float(np.abs(tied.moved).sum()) or drawn.largest * drawn.count
            if drawn.largest > 0:
                variance, growth = variance + ties * tied.typical, tied.growth
                shape, change = tied.straight(shape, drawn.degrees), tied.change * len(tied.moved)
        shift = Shift(observed, math.sqrt(variance), shape, growth, drawn.width, change)
        p_value = max(self.p_value, shift.chance(0.0))
        mde = shift_mde(shift.spread, shape.degrees, ties, size, alpha, drawn.width)
        doubt = drawn.doubt(mde, p_value < alpha)
        return Difference(stderr, test, p_value, mde, shift.ends, shift.chance, doubt)

    @classmethod
    def of(
        cls,
        aggregation: Aggregation,
        runs: Sequence[Tabled],
        groups: Ints | None,
        options: "StatisticsConfig",
    ) -> "_Swapped":
        """What a unit adds is measured at both runs' sums together, which no swap changes: the test is exact
        where runs differ by chance alone, however few units make the difference (approximate randomisation,
        Noreen 1989, linearised)."""
        (first, second), (base, candidate) = (run.statistics for run in runs), (run.values for run in runs)
        adding, table = aggregation.tabled(
            None if first is None or second is None else np.concatenate([first, second]),
            None if base is None or candidate is None else [*base, *candidate],
        )
        if table is None:
            return cls(_swapped_values(aggregation, runs, groups, options))
        n = len(table) // 2
        effect = table @ adding.gradient(total_of(table), float(len(table)))
        moved = effect[n:] - effect[:n]
        if not np.isfinite(moved).all():
            return cls()
        moved[np.abs(moved) <= 1e-12 * np.abs(effect).max(initial=0.0)] = 0.0  # rows that are alike
        rng = np.random.default_rng(options.seed)
        ways = [np.arange(n)] if groups is None else list(groups.reshape(n, -1).T)
        sums = [np.bincount(way, weights=moved).astype(np.float64) for way in ways]
        fewest = 2 * min(sums, key=len)  # of a run's sums the gradient is twice that of both
        fewest[np.abs(fewest) <= 1e-9 * np.abs(fewest).max(initial=0.0)] = 0.0
        near = 1e-9 * float(np.abs(fewest).max(initial=0.0))
        return cls(
            max(sign_flip(own, options.bootstrap_iters, rng) for own in sums),
            Tied.of(fewest, np.ones(len(fewest)), math.inf, near),
            alike_variance(2 * n * moved, groups),
        )


def _swapped_values(
    aggregation: Aggregation,
    runs: Sequence[Tabled],
    groups: Ints | None,
    options: "StatisticsConfig",
) -> float:
    """The p-value of a function of few values where each unit's runs change places at random: resamples of
    few items know too little of a percentile. 0 of many, and where the function has no such number.

    It ends as soon as ``_ENOUGH`` draws move the number by as much: their share is a p-value all the same
    (Besag and Clifford 1991, Sequential Monte Carlo p-values), and runs that do not differ cost little.
    """
    base, candidate = (run.values for run in runs)
    n = len(runs[0])
    units = np.arange(n) if groups is None else wider(groups)
    if base is None or candidate is None or int(units.max()) >= _FEW_VALUES:
        return 0.0
    rng = np.random.default_rng(options.seed)
    plain = isinstance(base, np.ndarray) and isinstance(candidate, np.ndarray)
    both = aggregation.drawable(np.concatenate([base, candidate]) if plain else [*base, *candidate])
    rows, observed, as_much = np.arange(n), 0.0, 0
    for draw in range(_MOST_SWAPS + 1):
        turned = (rng.random(int(units.max()) + 1) < 0.5)[units] if draw else np.zeros(n, dtype=bool)
        try:
            first, second = (
                aggregation.of_values(taken(both, np.where(turned == other, rows, rows + n)))
                for other in (False, True)
            )
        except MetricError:
            return 0.0
        moved = abs(second - first)
        if draw == 0:
            rounding = 4 * np.finfo(np.float64).eps * math.sqrt(n) * abs(first)
            observed = moved - max(1e-9 * moved, rounding)  # equal but for rounding is equal
        elif moved >= observed:
            as_much += 1
        if as_much == _ENOUGH:
            return as_much / draw
    return (1 + as_much) / (1 + _MOST_SWAPS)


def _influence_of_difference(
    runs: Sequence[Tabled],
    groups: Ints | None,
    units: int,
    options: "StatisticsConfig",
) -> Floats | None:
    """What leaving out each unit does to the difference; of functions of many values, each of a hundred
    interleaved blocks. None where it can't be said."""
    tabled = [run.tabled for run in runs]
    if all(table is not None for _, table in tabled):
        own = [influences(Sampled.of(adding, table, groups, options)) for adding, table in tabled]  # type: ignore[arg-type]
        return None if own[0] is None or own[1] is None else own[1] - own[0]
    columns = [run.aggregation.drawable(run.column) for run in runs]
    blocks = min(units, MAX_BLOCKS)
    member = (np.arange(len(runs[0])) if groups is None else groups) % blocks
    left_out = []
    for place in range(blocks):
        kept = np.flatnonzero(member != place)
        try:
            first, second = (runs[0].aggregation.of_values(taken(column, kept)) for column in columns)
        except MetricError:
            return None
        left_out.append(second - first)
    found = np.array(left_out)
    return found.mean() - found if len(found) > 2 and np.isfinite(found).all() else None


_ENOUGH = 20  # of draws that move a number by as much: what is below a level of .025 takes all draws
_MOST_SWAPS = 4_000  # that are tried: p below .05 among 200 pairs that are corrected for each other
_FEW_VALUES = 200  # units up to which runs change places in a function of values, one after the other


def _resampled(
    runs: Sequence[Tabled], groups: Ints | None, options: "StatisticsConfig"
) -> tuple[float, Floats, float]:
    """The observed difference of the second run from the first, that of each resample, and how large the
    numbers are that these are of."""
    rng = np.random.default_rng(options.seed)
    tabled = [run.tabled for run in runs]
    if any(table is None for _, table in tabled):
        columns = [run.column for run in runs]
        return _of_values(runs[0].aggregation, columns, groups, options.bootstrap_iters, rng)
    (first, base), (second, candidate) = tabled
    assert base is not None
    assert candidate is not None
    n = len(base)
    observed = second.of_total(candidate.sum(axis=0), float(n)) - first.of_total(base.sum(axis=0), float(n))
    sign = 1
    if groups is not None and groups.ndim == 2:
        groups = wider(groups)  # where no jackknife can tell
    if base.tobytes() > candidate.tobytes():  # both directions are of the same resamples
        (first, base), (second, candidate), sign = (second, candidate), (first, base), -1
    width, joint = base.shape[1], _joined(base, candidate, groups)
    parts, size = [], 0.0
    for totals in resampled_totals(joint, options.bootstrap_iters, rng):
        before = first.of_totals(totals[:, :width], totals[:, -1])
        parts.append(second.of_totals(totals[:, width:-1], totals[:, -1]) - before)
        size = max(size, _size(before))
    return observed, sign * np.concatenate(parts), size


def _size(numbers: Floats) -> float:
    """The largest of the finite ones."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _joined(base: Floats, candidate: Floats, groups: Ints | None) -> Floats:
    """Both runs' rows and a column of ones (n, …), added up within clusters."""
    joint = np.column_stack([base, candidate, np.ones(len(base))])
    if groups is None:
        return joint
    return cluster_sums(joint, groups)


def _of_values(
    aggregation: Aggregation,
    columns: Sequence[Values],
    groups: Ints | None,
    draws: int,
    rng: np.random.Generator,
) -> tuple[float, Floats, float]:
    n, crossed = len(columns[0]), groups is not None and groups.ndim == 2
    units = n if groups is None or crossed else int(groups.max()) + 1
    members = None if groups is None or crossed else Members.of(groups)
    drawable = [aggregation.drawable(column) for column in columns]
    found = np.empty((2, item_draws(n, draws)))
    for draw in range(found.shape[1]):
        if groups is not None and crossed:
            rows = crossed_picks(groups, rng)
        else:
            picks = rng.integers(0, units, size=units)
            rows = picks if members is None else members.rows(picks)
        found[:, draw] = [value_or_nan(aggregation, taken(column, rows)) for column in drawable]
    base, candidate = (aggregation.of_values(column) for column in columns)
    return candidate - base, found[1] - found[0], _size(found)
