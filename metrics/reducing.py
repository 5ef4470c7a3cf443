"""Applying a reduction to the repeats of all items at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from metrics.errors import MetricError, described
from metrics.outcomes import NUMBER, warn_once
from metrics.ragged import offsets_of, segment_counts, segment_sum
from metrics.reductions import Reduced, Reduction, Repeats
from metrics.types import Bools, Floats, Ints


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
    if int(scored.counts.max(initial=0)) > 1 and reduction.aggregation is not None:
        warn_once(
            f"aggregation {reduction.aggregation.name!r} got several repeats of an item and takes their "
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
        result = reduction.function(references=references, predictions=own)
    except Exception as error:
        raise MetricError(
            f"reduction {reduction.name!r} failed on item {item}: {described(error)}", item
        ) from error
    entries = result if isinstance(result, Mapping) else {reduction.name: result}
    for entry, number in entries.items():
        if not isinstance(number, NUMBER):
            raise MetricError(
                f"reduction {reduction.name!r} returned {type(number).__name__}, not a number, "
                f"as {entry!r} of item {item}",
                item,
            )
    return {str(entry): float(number) for entry, number in entries.items()}
