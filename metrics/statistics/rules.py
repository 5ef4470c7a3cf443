"""Error rules: how the standard error and the interval of an aggregate are found.

A rule is an object that knows what it needs. An aggregation names its own where it is made, and the rule
refuses there what it does not fit: the moments of exp(-mean) are no error of a ratio. An aggregation that
names none has the jackknife of its sums, or the bootstrap of its values. ``docs/aggregations.md`` is made of
what the rules say of themselves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from metrics.aggregation import Aggregation, ErrorRule
from metrics.errors import ConfigError
from metrics.ragged import pooled
from metrics.statistics.bounded import bounded_interval
from metrics.statistics.clusters import counts
from metrics.statistics.formulas import (
    NOTHING,
    Sampled,
    Spread,
    delta,
    jackknife,
    maritz_jarrett,
    mean_error,
    order_statistic_interval,
    perplexity_error,
    sum_error,
    woodruff,
)
from metrics.statistics.resampling import bootstrap_items, bootstrap_sums
from metrics.types import Floats, Ints, Values

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

_TOTALS: Final = np.array([[0.3], [1.5], [-2.0]])
_COUNTS: Final = np.array([1.0, 4.0, 5.0])
"""Sums and numbers of items that a rule for one formula is tried on."""
_VALUES: Final = np.array([0.0, 1.0, 4.0, 4.5])
_FEW_EVENTS: Final = 10


class Rule(ErrorRule):
    """A rule that can be asked: ``of_sums`` for added-up statistics, ``of_values`` for a function of all
    values. ``stderr`` and ``interval`` say in words what it does."""

    stderr: ClassVar[str]
    interval: ClassVar[str]

    def of_sums(self, sampled: Sampled) -> Spread:
        """The spread of an aggregate of sums."""
        raise self._unfit(sampled.aggregation, "statistics that are added up")

    def of_values(
        self, aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
    ) -> Spread:
        """The spread of a function of the values of two or more units."""
        raise self._unfit(aggregation, "a function of all values")

    def doubt(self, sampled: Sampled) -> str | None:
        """What speaks against any error bar of these items, whatever the method."""
        return None

    def _unfit(self, aggregation: Aggregation, what: str) -> ConfigError:
        return ConfigError(
            f"aggregation '{aggregation.name}': its error rule {type(self).__name__} is not for {what}; name "
            "another of metrics.statistics.rules, or none"
        )

    def _require_sums(self, aggregation: Aggregation) -> None:
        if aggregation.kind != "sums" and aggregation.tabulate is None:
            raise self._unfit(aggregation, "a function of all values")

    def _require_formula(
        self, aggregation: Aggregation, formula: Callable[[Floats, Floats], Floats], said: str
    ) -> None:
        """Refuses an aggregation whose value is not this formula of one sum and the number of items."""
        self._require_sums(aggregation)
        fits = aggregation.k == 1 and aggregation.compute is not None
        if fits:
            found = aggregation.of_totals(_TOTALS, _COUNTS)
            fits = bool(np.allclose(found, formula(_TOTALS[:, 0], _COUNTS), rtol=1e-9, atol=0))
        if not fits:
            raise self._unfit(aggregation, f"a value other than {said}")


@dataclass(frozen=True)
class MeanRule(Rule):
    """Of a mean of the items' numbers."""

    averages: ClassVar[bool] = True
    stderr = "s / √n; clustered: CR2"
    interval = "Wilson's at an effective size where the metric's range is known; else Student's, bent"

    def check(self, aggregation: Aggregation) -> None:
        """Needs the mean of one number an item."""
        self._require_formula(aggregation, lambda total, n: total / n, "the mean of the items' numbers")

    def of_sums(self, sampled: Sampled) -> Spread:
        """The closed form."""
        return mean_error(sampled)


@dataclass(frozen=True)
class SumRule(Rule):
    """Of a sum of the items' numbers."""

    stderr = "n times that of the mean"
    interval = "Student's, bent"

    def check(self, aggregation: Aggregation) -> None:
        """Needs the sum of one number an item."""
        self._require_formula(aggregation, lambda total, n: total, "the sum of the items' numbers")

    def of_sums(self, sampled: Sampled) -> Spread:
        """The closed form."""
        return sum_error(sampled)


@dataclass(frozen=True)
class ExpOfMeanRule(Rule):
    """Of exp(-mean), as perplexity is: by the moments that endless bootstrap draws would have."""

    stderr = "the exact moments of the bootstrap, times √(n / (n − 1)); clustered: jackknife"
    interval = "that of the mean log-likelihood, exponentiated"

    def check(self, aggregation: Aggregation) -> None:
        """Needs exp(-mean) of one number an item."""
        self._require_formula(aggregation, lambda total, n: np.exp(-total / n), "exp(-mean)")

    def of_sums(self, sampled: Sampled) -> Spread:
        """The moments, by formula."""
        return perplexity_error(sampled)


@dataclass(frozen=True)
class JackknifeRule(Rule):
    """Of any function of sums, by leaving out each unit in turn."""

    stderr = "jackknife"
    interval = "Student's, bent"

    def check(self, aggregation: Aggregation) -> None:
        """Needs sums, of which a unit can be taken away."""
        self._require_sums(aggregation)

    def of_sums(self, sampled: Sampled) -> Spread:
        """The jackknife."""
        return jackknife(sampled)


@dataclass(frozen=True)
class SumsRule(JackknifeRule):
    """Of any function of sums that names no rule: the jackknife, and an interval within the range."""

    interval = "Wilson's at an effective size where the range is known; else Student's, bent"

    def of_sums(self, sampled: Sampled) -> Spread:
        """The jackknife; its interval where the number has no ends."""
        return _within_range(jackknife(sampled), sampled)


def _within_range(spread: Spread, sampled: Sampled, by_cells: bool = False) -> Spread:
    if not math.isfinite(spread.stderr) or sampled.independent < 2:
        return spread
    ends = bounded_interval(sampled, spread.stderr, by_cells)
    return spread if ends is None else replace(spread, low=ends[0], high=ends[1])


@dataclass(frozen=True)
class DeltaRule(Rule):
    """Of a smooth function of sums, by its gradient."""

    stderr = "delta method"
    interval = "Student's, bent"

    def check(self, aggregation: Aggregation) -> None:
        """Needs sums, by which the value has a gradient."""
        self._require_sums(aggregation)

    def of_sums(self, sampled: Sampled) -> Spread:
        """The delta method; the jackknife where there is no finite gradient."""
        return delta(sampled)


@dataclass(frozen=True)
class BootstrapRule(Rule):
    """Of anything, by resamples of the units."""

    accelerated: bool = False
    stderr = "bootstrap of the items, of values at most 800 draws"
    interval = "of sums percentile; of values Student's, bent by what leaving out items shows"

    def check(self, aggregation: Aggregation) -> None:
        """Needs nothing."""

    def of_sums(self, sampled: Sampled) -> Spread:
        """The bootstrap; where clusters of two fields cross no resample is like the sample, and it is the
        jackknife."""
        if sampled.ways is not None:
            return jackknife(sampled)
        return bootstrap_sums(sampled, self.accelerated)

    def of_values(
        self, aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
    ) -> Spread:
        """The bootstrap of the items."""
        return bootstrap_items(aggregation, values, groups, options)


@dataclass(frozen=True)
class ConfusionRule(Rule):
    """Of a function of confusion cells, one-hot rows that are counted; ``rarest(total)`` is how many items
    have the rarest of the labels that decide, ``strangest(total)`` how many predictions are the rarest of the
    labels that no item has."""

    rarest: Callable[[Floats], float] | None = None
    strangest: Callable[[Floats], float] | None = None
    stderr = "bootstrap of the confusion cells"
    interval = "Wilson's at an effective size"

    def check(self, aggregation: Aggregation) -> None:
        """Needs counts of cells."""
        self._require_sums(aggregation)

    def of_sums(self, sampled: Sampled) -> Spread:
        """The bootstrap's error, and an interval that has a width where no cell but one is filled."""
        spread = BootstrapRule(accelerated=True).of_sums(sampled)
        made = _within_range(spread, sampled, by_cells=True)
        if made is spread or sampled.ways is not None:
            return made
        return replace(made, method="bootstrap")

    def doubt(self, sampled: Sampled) -> str | None:
        """A doubt where a handful of items decides: fewer than ten that are not of the commonest kind, or
        that have the rarest label, or predictions of one that no item has."""
        strange = math.inf if self.strangest is None else self.strangest(sampled.total)
        if strange < _FEW_EVENTS:
            what = "1 prediction is a label" if strange == 1 else f"{strange:g} predictions are a label"
            return f"{what} that no item has: it counts as a class of F1 0, and such answers decide the value"
        events, kind = sampled.n - float(sampled.total.max()), "are not of the commonest kind"
        if self.rarest is not None and self.rarest(sampled.total) < events:
            events, kind = self.rarest(sampled.total), "have the rarest label"
        return few_events(events, kind)


def few_events(events: float, kind: str) -> str | None:
    """A doubt where fewer than ten items decide: so many of a ``kind``."""
    if events >= _FEW_EVENTS:
        return None
    return f"only {events:g} items {kind}: the error bar is unreliable; {_FEW_EVENTS} and more are safer"


@dataclass(frozen=True)
class QuantileRule(Rule):
    """Of the q-quantile of the items' numbers, q from 0 to 1."""

    q: float
    ordered: ClassVar[bool] = True
    stderr = "Maritz–Jarrett (the bootstrap's variance, exactly); clustered: Woodruff"
    interval = "between order statistics; clustered: Woodruff, at an effective size"

    def check(self, aggregation: Aggregation) -> None:
        """Needs that very quantile."""
        fits = aggregation.kind == "values" and aggregation.combine is not None and 0 <= self.q <= 1
        if not fits or not math.isclose(
            aggregation.of_values(_VALUES), float(np.quantile(_VALUES, self.q)), abs_tol=1e-12
        ):
            raise self._unfit(aggregation, f"a value other than the {self.q:g}-quantile")

    def of_values(
        self, aggregation: Aggregation, values: Values, groups: Ints | None, options: "StatisticsConfig"
    ) -> Spread:
        """By order statistics. An item's value may be a row of samples, of which all are taken together:
        they belong together as those of a cluster do."""
        samples, owners = pooled(values)
        kind, units = ("items", len(values)) if groups is None else ("clusters", min(counts(groups)))
        if groups is not None:
            groups = groups[owners]
        elif len(samples) > len(values):
            groups = owners
        ordered, level = np.sort(samples), options.ci_level
        if groups is None or self.q in (0.0, 1.0):
            method, stderr = "order statistics", self._maritz_jarrett(ordered)
            low, high, reached = order_statistic_interval(ordered, self.q, level)
        else:
            method = "woodruff"
            stderr, low, high, reached = woodruff(samples, groups, self.q, level)
        warning = None if reached else f"{units} {kind} are too few for an interval of this level"
        return Spread(stderr, method, low, high, warning)

    def _maritz_jarrett(self, ordered: Floats) -> float:
        """NaN of the smallest and of the largest value: no resample knows what is beyond them."""
        return math.nan if self.q in (0.0, 1.0) else maritz_jarrett(ordered, self.q)


@dataclass(frozen=True)
class NoErrorBar(Rule):
    """Of what no sound rule is known for."""

    silent: ClassVar[bool] = True
    stderr = "none: nothing sound is known"
    interval = "none"

    def check(self, aggregation: Aggregation) -> None:
        """Needs nothing."""

    def of_sums(self, sampled: Sampled) -> Spread:
        """Nothing."""
        return NOTHING


METHODS: Final[dict[str, Rule]] = {
    "delta": DeltaRule(),
    "jackknife": JackknifeRule(),
    "bootstrap": BootstrapRule(),
    "bca": BootstrapRule(accelerated=True),
}
"""What ``statistics.method`` puts in place of the rule of an aggregation of sums."""

_OF_SUMS, _OF_VALUES = SumsRule(), BootstrapRule()


def rule_of(aggregation: Aggregation) -> Rule:
    """An aggregation's own rule, or the one that any of its kind has."""
    if aggregation.rule is None:
        return _OF_SUMS if aggregation.kind == "sums" else _OF_VALUES
    if not isinstance(aggregation.rule, Rule):
        raise ConfigError(
            f"aggregation '{aggregation.name}': its rule must be one of metrics.statistics.rules, not "
            f"{aggregation.rule!r}"
        )
    return aggregation.rule
