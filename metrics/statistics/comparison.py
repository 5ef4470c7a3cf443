"""Two runs on the same items: by how much they differ, and whether that could be chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from metrics.aggregations.aggregation import Aggregation
from metrics.errors import MetricError
from metrics.statistics.bootstrap import MAX_ITEM_DRAWS, resampled_totals
from metrics.statistics.intervals import normal_quantile, student_quantile
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


Method = Literal["auto", "mcnemar", "permutation", "bootstrap"]
POWER = 0.8
"""Chance of seeing a true difference as large as the minimum detectable effect."""


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
    ``mde`` is the true difference that such a comparison finds with a chance of 80 %. Everything is NaN that
    cannot be said, and ``warning`` says why.
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


@dataclass(frozen=True)
class _Difference:
    """A difference's standard error, interval, test and smallest effect."""

    stderr: float
    low: float
    high: float
    test: str
    p_value: float
    mde: float
    warning: str | None = None


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
    """Compare two runs item by item; ``clusters`` (n,) are any integers, equal ones belonging together.

    ``auto``: exact McNemar test for 0/1 means without clusters, sign-flip permutation for other means, paired
    bootstrap of the statistics for everything else. With clusters, a cluster's items flip, or are drawn,
    together. Raises ``MetricError`` if the columns differ in length, or ``method`` does not fit.
    """
    if len(base) != len(candidate):
        raise MetricError(f"the runs have {len(base)} and {len(candidate)} items; compare those they share")
    groups = None if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1)
    first, second = (
        aggregation.value(run.statistics, _values(aggregation, run)) for run in (base, candidate)
    )
    found = _difference(aggregation, (base, candidate), groups, options, method)
    better = candidate.value - base.value if higher_is_better else base.value - candidate.value
    return Comparison(
        base=first,
        candidate=second,
        difference=second - first,
        stderr=found.stderr,
        ci_low=found.low,
        ci_high=found.high,
        test=found.test,
        p_value=found.p_value,
        correlation=_correlation(base.value, candidate.value),
        wins=int((better > 0).sum()),
        losses=int((better < 0).sum()),
        ties=int((better == 0).sum()),
        mde=found.mde,
        n_items=len(base),
        n_clusters=None if groups is None else int(groups.max(initial=-1)) + 1,
        warning=found.warning,
    )


def _difference(
    aggregation: Aggregation,
    runs: tuple[ItemColumn, ItemColumn],
    groups: Ints | None,
    options: "StatisticsConfig",
    method: Method,
) -> _Difference:
    n, units = len(runs[0]), len(runs[0]) if groups is None else int(groups.max(initial=-1)) + 1
    if n == 0 or units < 2:
        said = (
            "no items in common" if n == 0 else f"one {'item' if groups is None else 'cluster'} has no spread"
        )
        return _Difference(*(math.nan,) * 3, "none", math.nan, math.nan, said)
    averaged = aggregation.rule == "mean"
    if not averaged or method == "bootstrap":
        if method in ("mcnemar", "permutation"):
            raise MetricError(f"a {method} test is for means; {aggregation.name} is compared by bootstrap")
        return _by_bootstrap(aggregation, runs, groups, options)
    first, second = (_column(run) for run in runs)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return _Difference(
            *(math.nan,) * 3, "none", math.nan, math.nan, "some items have a value that is not finite"
        )
    binary = all(bool(((column == 0) | (column == 1)).all()) for column in (first, second))
    if method == "mcnemar" and not (binary and groups is None):
        raise MetricError("a McNemar test takes scores of 0 and 1 without clusters; use permutation")
    if binary and groups is None and method != "permutation":
        return _by_mcnemar(first, second, options)
    return _by_permutation(second - first, groups, options, binary)


def _by_mcnemar(first: Floats, second: Floats, options: "StatisticsConfig") -> _Difference:
    """Exact McNemar test, and the interval of Agresti and Min 2005, which has a width without discordant
    items."""
    n = len(first)
    gained, lost = discordant(first, second)
    stderr = _standard_error(second - first, None)
    low, high = _agresti_min(gained, lost, n, options.ci_level)
    reach = normal_quantile(options.ci_level) + normal_quantile(2 * POWER - 1)
    return _Difference(stderr, low, high, "McNemar, exact", mcnemar(gained, lost), reach * stderr + 1 / n)


def _by_permutation(
    differences: Floats, groups: Ints | None, options: "StatisticsConfig", binary: bool
) -> _Difference:
    n = len(differences)
    units = (
        differences if groups is None else np.asarray(np.bincount(groups, weights=differences), np.float64)
    )
    mean, stderr = float(differences.mean()), _standard_error(differences, groups)
    reach = student_quantile(options.ci_level, len(units) - 1)
    low, high = mean - reach * stderr, mean + reach * stderr
    if binary and stderr == 0:
        low, high = _agresti_min(0, 0, len(units), options.ci_level)
    p_value = sign_flip(units, options.bootstrap_iters, np.random.default_rng(options.seed))
    test = "sign-flip permutation" if groups is None else "sign-flip permutation, clustered"
    mde = (reach + normal_quantile(2 * POWER - 1)) * stderr
    warning = None if stderr > 0 or n == 0 else "the runs do not differ on any item"
    return _Difference(stderr, low, high, test, p_value, mde, warning)


def _by_bootstrap(
    aggregation: Aggregation,
    runs: tuple[ItemColumn, ItemColumn],
    groups: Ints | None,
    options: "StatisticsConfig",
) -> _Difference:
    test = "paired bootstrap" if groups is None else "paired bootstrap, clustered"
    if options.bootstrap_iters <= 0 or aggregation.rule == "none":
        return _Difference(*(math.nan,) * 3, "none", math.nan, math.nan, f"no test for {aggregation.name}")
    tables = [(run.statistics, _values(aggregation, run)) for run in runs]
    observed, draws = resampled_differences(aggregation, tables, groups, options)
    draws = draws[np.isfinite(draws)]
    if not math.isfinite(observed) or len(draws) < 2:
        return _Difference(*(math.nan,) * 3, "none", math.nan, math.nan, "the difference is not finite")
    units = len(runs[0]) if groups is None else int(groups.max()) + 1
    widening = math.sqrt(units / (units - 1))  # resamples spread less than samples by this factor
    stderr = float(draws.std(ddof=1)) * widening
    tail = (1 - options.ci_level) / 2
    low, high = (
        observed + widening * (float(end) - observed) for end in np.quantile(draws, [tail, 1 - tail])
    )
    extreme = np.abs(draws - draws.mean()) * widening >= abs(observed) - 1e-12 * max(1.0, abs(observed))
    p_value = (1 + int(extreme.sum())) / (1 + len(draws))
    reach = normal_quantile(options.ci_level) + normal_quantile(2 * POWER - 1)
    return _Difference(stderr, low, high, test, min(p_value, 1.0), reach * stderr)


def _standard_error(differences: Floats, groups: Ints | None) -> float:
    residual = differences - differences.mean()
    units = residual if groups is None else np.bincount(groups, weights=residual)
    return math.sqrt(len(units) / (len(units) - 1) * float(units @ units)) / len(differences)


def _agresti_min(gained: int, lost: int, n: int, level: float) -> tuple[float, float]:
    """Interval of a difference of paired proportions: half an item added to each of the four cells."""
    size, difference = n + 2, (gained - lost) / (n + 2)
    reach = normal_quantile(level) * math.sqrt(max((gained + lost + 1) / size - difference**2, 0.0) / size)
    return max(difference - reach, -1.0), min(difference + reach, 1.0)


def _correlation(first: Floats, second: Floats) -> float:
    both = np.isfinite(first) & np.isfinite(second)
    a, b = first[both], second[both]
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def _column(run: ItemColumn) -> Floats:
    return run.value if run.statistics is None else np.asarray(run.statistics[:, 0])


def _values(aggregation: Aggregation, run: ItemColumn) -> Values | None:
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
    n = len(columns[0])
    units = n if groups is None else int(groups.max()) + 1
    members = None if groups is None else [np.flatnonzero(groups == unit) for unit in range(units)]
    differences = np.empty(min(draws, MAX_ITEM_DRAWS))
    for draw in range(len(differences)):
        picks = rng.integers(0, units, size=units)
        rows = picks if members is None else np.concatenate([members[pick] for pick in picks])
        base, candidate = (aggregation.of_values(_taken(column, rows)) for column in columns)
        differences[draw] = candidate - base
    base, candidate = (aggregation.of_values(column) for column in columns)
    return candidate - base, differences


def _taken(column: Values, rows: Ints) -> Values:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


_EXACT_UNITS = 16  # up to here all sign patterns are tried
_FEW_SIZES = 64


def discordant(first: Floats, second: Floats) -> tuple[int, int]:
    """How many 0/1 items went from wrong to right, and from right to wrong."""
    return int(((first == 0) & (second == 1)).sum()), int(((first == 1) & (second == 0)).sum())


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value: the discordant items as tosses of a fair coin; 1 without any.

    >>> round(mcnemar(2, 8), 6)
    0.109375
    """
    n, fewer = gained + lost, min(gained, lost)
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def sign_flip(units: Floats, draws: int, rng: np.random.Generator) -> float:
    """Two-sided p-value of the sum of ``units`` under random signs; 1 if all are 0, NaN for no draws.

    All patterns for few units; else random ones, the observed pattern counted as one of them. A unit is an
    item's difference, or the sum of a cluster's.
    """
    sizes = np.abs(units[units != 0])
    observed = abs(float(units.sum()))
    if len(sizes) == 0:
        return 1.0
    slack = 1e-9 * float(sizes.sum())  # sums that are equal but for rounding count as equal
    if len(sizes) <= _EXACT_UNITS:
        signs = 1 - 2 * ((np.arange(1 << len(sizes))[:, None] >> np.arange(len(sizes))) & 1)
        return float((np.abs(signs @ sizes) >= observed - slack).mean())
    if draws <= 0:
        return math.nan
    distinct, counts = np.unique(sizes, return_counts=True)
    if len(distinct) <= _FEW_SIZES:
        positive = rng.binomial(counts, 0.5, size=(draws, len(distinct)))
        sums = (2 * positive - counts) @ distinct
    else:
        sums = _signed_sums(sizes, draws, rng)
    return (1 + int((np.abs(sums) >= observed - slack).sum())) / (1 + draws)


def _signed_sums(sizes: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Sums of ``sizes`` under ``draws`` random sign vectors: the 256 sums of every eight sizes, picked by a
    byte."""
    signs = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    padded = np.concatenate([sizes, np.zeros(-len(sizes) % 8)]).reshape(-1, 8)
    sums = np.zeros(draws)
    for block in padded:
        sums += (signs @ block)[rng.integers(0, 256, size=draws, dtype=np.uint8)]
    return sums
