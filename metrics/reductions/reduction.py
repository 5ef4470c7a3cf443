"""From the repeats of an item to one row: the reduction record, its lookup by name (``pass@8``), and its
use on all items at once.

A reduction *picks* one of an item's repeats (take_first, max, maj@k …), *computes* a number from their scores
(pass@k, median …), or averages (mean). Picking and averaging work for every metric; computing needs an
aggregation that takes one number a sample.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metrics.errors import ConfigError, MetricError, described, users_code
from metrics.ragged import offsets_of, row_of, segment_counts, segment_sum
from metrics.registry import REDUCTIONS, NamedFunction, parameters
from metrics.types import Bools, Floats, Ints, Resolve, number_of
from metrics.user_results import warn_once

if TYPE_CHECKING:
    from metrics.aggregation import Aggregation


@dataclass(frozen=True)
class Repeats:
    """The samples of n items, item by item: item i owns the rows ``offsets[i]:offsets[i + 1]`` of m.

    ``scored`` is False where the request failed or nothing could be scored: such a row is never looked at.
    ``codes`` are hashes of the predictions (-1: no prediction), for majorities.
    """

    score: Floats  # (m,)
    scored: Bools  # (m,)
    codes: Ints  # (m,)
    offsets: Ints  # (n + 1,)
    statistics: Floats | None = None  # (m, k)
    values: list[Any] | None = None  # m objects
    references: Sequence[Sequence[Any]] | None = None  # n lists; only a user's reduction looks at them

    @property
    def counts(self) -> Ints:
        """Repeats of each item (n,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Reduced:
    """One row an item: ``value`` is NaN for an item that is unscored under this reduction (n_scored
    stays)."""

    name: str
    value: Floats  # (n,)
    statistics: Floats | None  # (n, k)
    values: list[Any] | None
    n_samples: Ints  # (n,)
    n_scored: Ints  # (n,)
    valid: Bools  # (n,) False: the item is unscored; a value may be NaN although the item is scored


@dataclass(frozen=True)
class Reduction:
    """A named way to make one row of an item's repeats.

    ``pick(repeats) -> rows`` gives the row of each item's chosen repeat (-1: unscored); ``compute(repeats) ->
    values`` gives numbers (NaN: unscored); with neither, the mean. ``requires`` is the least number of
    repeats.
    """

    name: str
    requires: int = 1
    pick: Callable[[Repeats], Ints] | None = None
    compute: Callable[[Repeats], Floats] | None = None
    function: Callable[..., Any] | None = None  # a user's own
    aggregation: "Aggregation | None" = None  # what comes next: how a computed number becomes statistics

    def bound(self, aggregation: "Aggregation") -> "Reduction":
        """This reduction for metrics of that aggregation; refused where it computes what cannot be
        aggregated."""
        if (self.compute is not None or self.function is not None) and not aggregation.scalar:
            raise ConfigError(
                f"reduction {self.name!r} computes one number, and aggregation {aggregation.name!r} needs a "
                "sample's statistics; use mean, take_first, max or min"
            )
        return replace(self, aggregation=aggregation)


def reduction_key(name: str, reduced_name: str) -> str:
    """How a result of the metric ``name`` is called: ``exact_match`` for the mean, else
    ``pass@8(exact_match)``."""
    return name if reduced_name == "mean" else f"{reduced_name}({name})"


_LEVEL = re.compile(r"(?P<base>[A-Za-z_]+[@^]|at_least_)(?P<k>\d+)(?:@(?P<threshold>\d*\.?\d+))?$")


def build_reduction(name: str, resolve: Resolve | None = None) -> Reduction:
    """The reduction called ``name``: registered, a family with its k (``maj@8``, ``g_pass@8@0.75``), or
    file.py:fn."""
    if name in REDUCTIONS and not is_family(name):
        definition = REDUCTIONS[name]
        return definition.function() if definition.builds else user_reduction(definition.function, name)
    if ":" in name and resolve is not None:
        return user_reduction(resolve(name))
    match = _LEVEL.match(name)
    family = f"{match['base']}k" if match else name
    if family not in REDUCTIONS:
        raise ConfigError(REDUCTIONS.unknown(name))
    if match is None:
        raise ConfigError(
            f"reduction {name!r} needs a number in place of k, as in {name[:-1]}4, or k: [1, 8] beside it"
        )
    k, keywords = int(match["k"]), parameters(REDUCTIONS[family].function) or frozenset()
    if k < 1:
        raise ConfigError(f"reduction {name!r}: k must be at least 1")
    if match["threshold"] is not None and "threshold" not in keywords:
        raise ConfigError(f"reduction {name!r}: {family} takes no threshold")
    extra = {} if match["threshold"] is None else {"threshold": float(match["threshold"])}
    built: Reduction = REDUCTIONS[family].function(k=k, **extra)
    return built


def user_reduction(function: Callable[..., Any], name: str | None = None) -> Reduction:
    """A reduction of a user's ``fn(references, predictions)``, the predictions being one item's scores."""
    if not callable(function):
        raise ConfigError(f"reduction {name or function!r} is not a function")
    called = name or str(getattr(function, "__name__", type(function).__name__))
    return Reduction(name=called, function=function)


def reduction_factory(
    name: str, *, source: str = "", span: str = ""
) -> Callable[[Callable[..., Reduction]], Callable[..., Reduction]]:
    """Register a function that builds a reduction; a name that ends in k is a family with that parameter.
    ``span`` is the range of its value, where that is not the metric's."""

    def register(make: Callable[..., Reduction]) -> Callable[..., Reduction]:
        REDUCTIONS.add(name, NamedFunction(name, make, source, builds=True, span=span))
        return make

    return register


def require_binary(name: str, repeats: Repeats) -> Bools:
    """Which samples passed; ``MetricError``, with the item, if a scored sample is neither 0 nor 1."""
    score = np.where(repeats.scored, repeats.score, 0.0)
    wrong = np.flatnonzero((score != 0) & (score != 1))
    if len(wrong):
        raise MetricError(
            f"{name} counts right and wrong answers, and a sample has the score {score[wrong[0]]:g}; "
            "use a metric that gives 0 or 1, or avg@k",
            int(row_of(repeats.offsets)[wrong[0]]),
        )
    return np.asarray(score == 1)


def is_family(name: str) -> bool:
    """Whether a reduction's name is a family's, such as ``pass@k``: a number goes in place of the k."""
    return (
        name in REDUCTIONS
        and "k" in (parameters(REDUCTIONS[name].function) or ())
        and REDUCTIONS[name].builds
    )


def reduce_repeats(reduction: Reduction, repeats: Repeats) -> tuple[Reduced, ...]:
    """One row an item, for each result of the reduction; an item that lacks scored repeats is unscored, not
    0."""
    if len(repeats) and int(repeats.counts.max()) < reduction.requires:
        raise MetricError(
            f"{reduction.name} needs {reduction.requires} repeats of an item, and no item has more than "
            f"{int(repeats.counts.max())}; ask for more samples (num_samples) or a smaller k"
        )
    if reduction.function is not None:
        return _user_defined(reduction, repeats)
    if reduction.compute is not None:
        return (_computed(reduction, repeats, reduction.compute(repeats)),)
    if reduction.pick is not None:
        return (_picked(reduction, repeats, reduction.pick(repeats)),)
    return (_averaged(reduction, repeats),)


def scored_only(repeats: Repeats) -> Repeats:
    """The scored rows alone; items keep their places, with fewer rows or none."""
    if repeats.scored.all():
        return repeats
    keep = np.flatnonzero(repeats.scored)
    return Repeats(
        score=repeats.score[keep],
        scored=np.ones(len(keep), dtype=np.bool_),
        codes=repeats.codes[keep],
        offsets=offsets_of(segment_counts(repeats.scored, repeats.offsets)),
        statistics=None if repeats.statistics is None else repeats.statistics[keep],
        values=None if repeats.values is None else [repeats.values[row] for row in keep],
        references=repeats.references,
    )


def _averaged(reduction: Reduction, repeats: Repeats) -> Reduced:
    scored = scored_only(repeats)
    counts = scored.counts
    valid = counts > 0
    divisor = np.where(valid, counts, 1)
    value = np.where(valid, segment_sum(scored.score, scored.offsets) / divisor, np.nan)
    statistics = None
    if scored.statistics is not None:
        statistics = segment_sum(scored.statistics, scored.offsets) / divisor[:, None]
    values = None if scored.values is None else _merged_values(reduction, scored)
    return _reduced(reduction.name, repeats, valid, value, statistics, values)


def _merged_values(reduction: Reduction, scored: Repeats) -> list[Any]:
    assert scored.values is not None
    merge = reduction.aggregation.merge if reduction.aggregation is not None else None
    aggregation = reduction.aggregation
    averaged = aggregation is not None and (merge is None or aggregation.function is not None)
    if averaged and aggregation is not None and int(scored.counts.max(initial=0)) > 1:
        warn_once(
            f"aggregation {aggregation.name!r} got several repeats of an item and takes their "
            "mean, or the first where they are not numbers"
        )
    merged: list[Any] = []
    for start, stop in zip(scored.offsets[:-1], scored.offsets[1:], strict=True):
        own = scored.values[start:stop]
        several = len(own) > 1 and merge is not None
        merged.append(merge(own) if several and merge is not None else (own[0] if own else None))
    return merged


def _picked(reduction: Reduction, repeats: Repeats, rows: Ints) -> Reduced:
    valid = rows >= 0
    safe = np.where(valid, rows, 0)
    empty = len(repeats.score) == 0
    value = np.where(valid, np.nan if empty else repeats.score[safe], np.nan)
    statistics = None
    if repeats.statistics is not None and not empty:
        statistics = repeats.statistics[safe]
    values = None
    if repeats.values is not None:
        values = [repeats.values[row] if row >= 0 else None for row in rows]
    return _reduced(reduction.name, repeats, valid, value, statistics, values)


def _computed(reduction: Reduction, repeats: Repeats, value: Floats, name: str | None = None) -> Reduced:
    aggregation = reduction.aggregation
    statistics = None
    if aggregation is not None and aggregation.kind == "sums" and aggregation.encode is not None:
        statistics = aggregation.encode(value)
    return _reduced(name or reduction.name, repeats, ~np.isnan(value), value, statistics, None)


def _reduced(
    name: str,
    repeats: Repeats,
    valid: Bools,
    value: Floats,
    statistics: Floats | None,
    values: list[Any] | None,
) -> Reduced:
    if statistics is not None and not valid.all():
        statistics = np.where(valid[:, None], statistics, np.nan)
    n_scored = segment_counts(repeats.scored, repeats.offsets)
    return Reduced(name, value, statistics, values, repeats.counts, n_scored, valid)


def _user_defined(reduction: Reduction, repeats: Repeats) -> tuple[Reduced, ...]:
    scored = scored_only(repeats)
    columns: dict[str, Floats] = {}
    for item in range(len(scored)):
        own = scored.score[scored.offsets[item] : scored.offsets[item + 1]].tolist()
        if not own:
            continue
        for entry, number in _call(reduction, scored, item, own).items():
            columns.setdefault(entry, np.full(len(scored), np.nan))[item] = number
    return tuple(_computed(reduction, repeats, column, entry) for entry, column in columns.items())


def _call(reduction: Reduction, repeats: Repeats, item: int, own: list[float]) -> Mapping[str, float]:
    assert reduction.function is not None
    references = [] if repeats.references is None else list(repeats.references[item])
    try:
        with users_code():
            result = reduction.function(references=references, predictions=own)
    except Exception as error:
        raise MetricError(
            f"reduction {reduction.name!r} failed on item {item}: {described(error)}", item
        ) from error
    entries = result if isinstance(result, Mapping) else {reduction.name: result}
    numbers: dict[str, float] = {}
    for entry, value in entries.items():
        number = number_of(value)
        if number is None:
            raise MetricError(
                f"reduction {reduction.name!r} returned {type(value).__name__}, not a number, "
                f"as {entry!r} of item {item}",
                item,
            )
        numbers[str(entry)] = number
    return numbers
