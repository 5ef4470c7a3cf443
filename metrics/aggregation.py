"""How all items become one number: aggregations as functions of added-up statistics, or of all values.

Kind "sums": each item is a row of k numbers; the value is ``compute(total, n)`` of the rows' sum, so that
partitions merge by adding, facets add within their group, and a resample is a matrix product. Kind "values":
everything else (median, extremes, a user's function); items are kept, and merge by concatenation.

This module holds the record and the aggregations of plain numbers; those of BLEU, F1 and the like stand
beside their metrics.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from metrics.aliases import nearest
from metrics.errors import ConfigError, MetricError, described, users_code
from metrics.registry import AGGREGATIONS, NamedFunction, parameters
from metrics.types import Bools, Floats, Kind, Resolve, Scores, Values, number_of

SUMMED_IN_ORDER = 2
"""Columns of statistics up to which the order of adding is kept; wider ones are whole numbers, as a rule."""
Total = Floats  # (..., k)
Count = Floats | float  # (...)


class ErrorRule(ABC):
    """How the error bar of an aggregate is found, as an object that knows what it needs. Those that there
    are stand in ``metrics.statistics.rules``.

    ``averages``: the value is the mean of the items' numbers, so that tests of means apply. ``ordered``: it
    lies where their order says, and one number far away does not move it. ``silent``: nothing sound is known,
    and there is no error bar.
    """

    averages: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    silent: ClassVar[bool] = False

    @abstractmethod
    def check(self, aggregation: "Aggregation") -> None:
        """Raises ConfigError for an aggregation that lacks what the rule needs; called where one is made."""


@dataclass(frozen=True)
class Aggregation:
    """All items → one number, with what error bars need to know.

    ``compute(total, n)`` takes totals (..., k) and counts (...) and is vectorised over the leading axes;
    ``point``, where given, computes a single value exactly as the reference library does. ``combine(values)``
    is the kind "values" counterpart. ``encode`` turns scores (n,) into statistics (n, k): it exists where one
    number a sample is all that is needed, so that any reduction may produce that number. ``read`` turns the
    per-sample values of a ``process_results`` function into ``Scores`` where those are not plain numbers.
    ``tabulate`` turns values into statistics after all, once all are known, with the aggregation of those;
    ``merge`` averages the values of repeats. ``rule`` is the way to the standard error (None: the jackknife
    of sums, the bootstrap of values), ``bounds`` are the ends of the value's range, ``weight`` the columns
    that items weigh by in a ratio of sums, ``proportional`` says that the value lies among the items' own
    numbers, as a weighted mean does, ``function`` a user's own. ``steps`` (p, k) is what one
    item of each kind adds to the sums, where that is more than one of them. ``higher_is_better`` is the
    direction of a number that has one whatever it is made of; None: that of the metric.
    """

    name: str
    kind: Kind = "sums"
    k: int = 1
    compute: Callable[[Total, Count], Floats] | None = None
    point: Callable[[Floats, float], float] | None = None
    combine: Callable[[Values], float] | None = None
    encode: Callable[[Floats], Floats] | None = None
    read: Callable[[Sequence[Any]], Scores] | None = None
    tabulate: Callable[[Values], "tuple[Aggregation, Floats]"] | None = None
    merge: Callable[[Sequence[Any]], Any] | None = None
    rule: ErrorRule | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    leaves_out: Callable[[Floats], Bools] | None = None  # which items (n, k) do not count
    weight: tuple[int, ...] | None = None
    proportional: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None  # the user's own, for keys
    steps: Floats | None = None
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.weight, int):  # a user's aggregation names the one column as it did before
            object.__setattr__(self, "weight", (self.weight,))
        if not self.bounds[0] <= self.bounds[1]:
            raise ConfigError(f"aggregation '{self.name}': bounds must be (low, high), not {self.bounds!r}")
        if self.rule is not None:
            self.rule.check(self)

    @property
    def averages(self) -> bool:
        """Whether the value is the mean of the items' numbers."""
        return self.rule is not None and self.rule.averages

    @property
    def even(self) -> bool:
        """Whether an item is no more of the number than its own number says: not of corpus scores and ratios
        of sums, which a long text may decide."""
        return self.weight is None or self.proportional

    @property
    def has_error_bar(self) -> bool:
        """Whether a sound error bar is known."""
        return self.rule is None or not self.rule.silent

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The functions whose source decides the number of all items."""
        functions = (self.compute, self.point, self.combine, self.tabulate, self.function)
        return tuple(function for function in functions if function is not None)

    @property
    def scalar(self) -> bool:
        """One number per item is all it takes: any reduction fits."""
        return self.encode is not None

    @property
    def falls(self) -> bool:
        """Whether the number falls where an item's own rises, as perplexity does with log-likelihoods."""
        if self.encode is None or self.compute is None:
            return False
        lower, higher = self.of_totals(self.encode(np.array([0.0, 1.0])), np.ones(2))
        return bool(higher < lower)

    def better_up(self, declared: bool | None) -> bool:
        """Whether the number is better when higher, given what its metric or config ``declared``."""
        return next((said for said in (declared, self.higher_is_better) if said is not None), True)

    def items_better_up(self, higher_is_better: bool) -> bool:
        """Whether an item's own number is better when higher, given that of all items."""
        return higher_is_better != self.falls

    def value(self, statistics: Floats | None, values: Values | None) -> float:
        """The aggregate of n items; NaN for none."""
        adding, table = self.tabled(statistics, values)
        if table is not None:
            return adding.of_total(total_of(table), float(len(table)))
        return self.of_values(values if values is not None else [])

    def tabled(self, statistics: Floats | None, values: Values | None) -> "tuple[Aggregation, Floats | None]":
        """An aggregation of kind "sums" and its (n, k) table, wherever there is one; else this one and
        None."""
        if self.tabulate is not None:
            return self.tabulate(values if values is not None else [])
        if self.kind == "values":
            return self, None
        if statistics is None:
            raise MetricError(f"aggregation {self.name!r} adds up statistics, and got none")
        return self, statistics

    def of_values(self, values: Values) -> float:
        """The aggregate of n values, kind "values"; NaN for none."""
        assert self.combine is not None
        if len(values) == 0:
            return math.nan
        result = self.combine(values)
        number = number_of(result)
        if number is None:
            raise MetricError(f"aggregation {self.name!r} must return a number, not {type(result).__name__}")
        return number

    def drawable(self, values: Values) -> Values:
        """The values as draws pick rows of them. A user's function takes a list: its objects are made once
        here, and not in every draw."""
        if self.function is None:
            return values
        return np.fromiter(values, dtype=object, count=len(values))

    def of_total(self, total: Floats, n: float) -> float:
        """The aggregate of n items whose statistics sum to ``total`` (k,); NaN for none."""
        if n == 0:
            return math.nan
        if self.point is not None:
            return self.point(total, n)
        return float(self.of_totals(total, n))

    def of_totals(self, totals: Total, n: Count) -> Floats:
        """The aggregates of many sums at once: (..., k) and (...) → (...)."""
        assert self.compute is not None
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.asarray(self.compute(totals, n), dtype=np.float64)

    @property
    def kinds(self) -> Floats:
        """What one item of each kind adds to the sums (p, k): one to one of them, if nothing is said."""
        return np.eye(self.k) if self.steps is None else self.steps

    def gradient(self, total: Floats, n: float) -> Floats:
        """Derivative of the value by the total (k,), by central differences."""
        step = np.diag(1e-6 * np.maximum(np.abs(total), 1.0))
        high, low = self.of_totals(total + step, n), self.of_totals(total - step, n)
        return np.asarray((high - low) / (2 * np.diag(step)), dtype=np.float64)

    def scores(self, values: Sequence[Any]) -> Scores:
        """Statistics of per-sample values that come from elsewhere (``process_results``, a judge, a user)."""
        if self.read is not None:
            return self.read(values)
        if self.kind == "sums" and self.encode is None:
            return self._scores_of_rows(values)
        column = number_column(values, self.name)
        statistics = None if self.encode is None or self.kind == "values" else self.encode(column)
        return Scores(statistics=statistics, values=None, score=column)

    def _scores_of_rows(self, values: Sequence[Any]) -> Scores:
        """Of values that are rows of the statistics themselves."""
        for index, value in enumerate(values):
            if np.shape(value) != (self.k,):
                raise MetricError(
                    f"{self.name} takes {self.k} numbers a sample, and sample {index} has {value!r}", index
                )
        statistics = np.asarray(values, dtype=np.float64).reshape(-1, self.k)
        return Scores(statistics=statistics, values=None, score=self.of_totals(statistics, 1.0))


def total_of(table: Floats) -> Floats:
    """The columns' sums (k,), added one after the other as Python's ``sum`` does, and the harness with it: a
    perplexity shows the last bit of a mean log-likelihood.
    """
    if table.shape[1] > SUMMED_IN_ORDER:
        return np.asarray(table.sum(axis=0))
    return np.array([sum(column) for column in table.T.tolist()], dtype=np.float64)


def statistics_of(aggregation: str | Aggregation, values: Sequence[Any]) -> Scores:
    """Statistics of n per-sample values as ``process_results`` returns them for this aggregation: numbers for
    most, for others what their registration says (``takes``; docs/aggregations.md lists it)."""
    built = aggregation if isinstance(aggregation, Aggregation) else build_aggregation(aggregation)
    return built.scores(values)


def aggregation_factory(
    name: str, **about: Any
) -> Callable[[Callable[..., Aggregation]], Callable[..., Aggregation]]:
    """Register a function that builds an aggregation; its keywords are the aggregation's parameters.

    Further keywords are the fields of ``NamedFunction``: ``source``; ``takes`` and ``example``, where a
    sample is more than a number; ``span``, where the bounds do not say it.
    """

    def register(make: Callable[..., Aggregation]) -> Callable[..., Aggregation]:
        AGGREGATIONS.add(name, NamedFunction(name, make, builds=True, **about))
        return make

    return register


def build_aggregation(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    resolve: Resolve | None = None,
) -> Aggregation:
    """The aggregation called ``name`` (``percentile@90`` too), or the user's function ``file.py:fn``."""
    arguments = dict(arguments or {})
    if name not in AGGREGATIONS and ":" in name and resolve is not None:
        return user_aggregation(resolve(name), arguments)
    base, at, level = name.partition("@")
    if at and base == "percentile":
        try:
            arguments["q"] = float(level)
        except ValueError:
            raise ConfigError(
                f"aggregation {name!r}: what follows @ must be a number from 0 to 100"
            ) from None
    definition = AGGREGATIONS[base if at and base == "percentile" else name]
    if not definition.builds:
        return user_aggregation(definition.function, arguments, definition.name)
    accepted = parameters(definition.function) or frozenset()
    for key in arguments:
        if key not in accepted:
            raise ConfigError(f"aggregation {name!r} takes no argument {key!r}{nearest(key, accepted)}")
    built: Aggregation = definition.function(**arguments)
    return built


def user_aggregation(
    function: Callable[..., Any], arguments: Mapping[str, Any], name: str | None = None
) -> Aggregation:
    """An aggregation of a user's ``fn(values) -> float``; values are whatever the metric returned."""
    if not callable(function):
        raise ConfigError(f"aggregation {name or function!r} is not a function")
    called = name or str(getattr(function, "__name__", type(function).__name__))
    bound = dict(arguments)

    def combine(values: Values) -> float:
        try:
            with users_code():
                result: float = function(_as_list(values), **bound)
        except Exception as error:
            raise MetricError(f"aggregation {called!r} failed: {described(error)}") from error
        return result

    return Aggregation(
        name=called,
        kind="values",
        combine=combine,
        read=_read_anything,
        merge=mean_value,
        encode=as_column,
        parameters=bound,
        function=function,
    )


def _as_list(values: Values) -> list[Any]:
    """A list of its own for each call; of numbers those of numpy, which divide by zero without an error."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        own: list[Any] = values.tolist()
        return own
    return list(values)


def number_column(values: Sequence[Any], name: str) -> Floats:
    """Per-sample values as floats; a value that is not a number raises ``MetricError`` with its index."""
    numbers = [number_of(value) for value in values]
    if None in numbers:
        index = numbers.index(None)
        raise MetricError(
            f"{name} takes one number a sample, and sample {index} has {type(values[index]).__name__}", index
        )
    return np.asarray(numbers, dtype=np.float64)


def require_pairs(values: Sequence[Any], name: str, parts: str) -> None:
    """Raises ``MetricError`` with the index of a per-sample value that is not a sequence of two; ``parts``
    names the two."""
    for index, value in enumerate(values):
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise MetricError(
                f"{name} takes a pair {parts} a sample, and sample {index} has {value!r}", index
            )


def as_column(score: Floats) -> Floats:
    """Scores (n,) as statistics (n, 1)."""
    return np.asarray(score, dtype=np.float64).reshape(-1, 1)


def mean_value(values: Sequence[Any]) -> Any:
    """Mean of repeats' values, element by element; the first where they are not numbers."""
    try:
        averaged = np.mean(np.asarray(values, dtype=np.float64), axis=0)
    except (TypeError, ValueError):
        return values[0]
    return averaged.tolist()


def _read_anything(values: Sequence[Any]) -> Scores:
    numbers = [number_of(value) for value in values]
    all_numbers = None not in numbers
    score = np.asarray(numbers, dtype=np.float64) if all_numbers else np.full(len(values), math.nan)
    return Scores(statistics=None, values=None if all_numbers else list(values), score=score)
