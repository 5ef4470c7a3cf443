"""Filters over samples of which some have no response: who is kept, and what stays unscored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorers.filters.custom import UserStep
from scorers.filters.pipeline import FilterPipeline, FilterStep
from scorers.filters.registry import Docs, Responses


@dataclass(frozen=True)
class ItemPredictions:
    """One item's predictions. ``positions`` says which of its samples each stands for; ``scored`` is False where that
    sample has no response, and the prediction then is None."""

    predictions: tuple[Any, ...]
    positions: tuple[int, ...]
    scored: tuple[bool, ...]


@dataclass(frozen=True)
class _Item:
    """An item on its way: all sample positions still in play, and the values of those that have a response."""

    positions: tuple[int, ...]
    values: Mapping[int, Any]


def filter_samples(
    pipeline: FilterPipeline, resps: Responses, answered: Sequence[Sequence[bool]], docs: Docs
) -> list[ItemPredictions]:
    """Applies ``pipeline`` to items of which some samples failed (``answered`` False, beside ``resps``).

    Steps see answered samples only, so a failure is never mistaken for an answer. Choosing the first k means the
    first k samples asked for, failed or not: a failed first sample leaves its item unscored and does not promote the
    second. A vote is among the answers there are. An item without any answer keeps one unscored row, or one per
    sample where all repeats are kept. Raises FilterError.
    """
    items = [
        _Item(tuple(range(len(item))), {i: resp for i, resp in enumerate(item) if ok[i]})
        for item, ok in zip(resps, answered, strict=True)
    ]
    for step in pipeline.steps:
        items = _apply(step, items, docs)
    return [
        ItemPredictions(
            tuple(item.values.get(position) for position in item.positions),
            item.positions,
            tuple(position in item.values for position in item.positions),
        )
        for item in items
    ]


def _apply(step: FilterStep, items: list[_Item], docs: Docs) -> list[_Item]:
    if step.keeps == "first" and not isinstance(step.run, UserStep):
        return [_first(item, step) for item in items]
    live = [row for row, item in enumerate(items) if item.values]
    outcome = step.run([list(items[row].values.values()) for row in live], [docs[row] for row in live])
    after = dict(zip(live, outcome, strict=True))
    return [_merge(item, after.get(row), step) for row, item in enumerate(items)]


def _first(item: _Item, step: FilterStep) -> _Item:
    """Positions are chosen before it is known who answered; the step itself checks that there are enough."""
    step.run([item.positions], [{}])
    kept = item.positions[: step.first()]
    return _Item(kept, {position: item.values[position] for position in kept if position in item.values})


def _merge(item: _Item, predictions: list[Any] | None, step: FilterStep) -> _Item:
    if predictions is None:
        return _Item(item.positions[:1], {}) if step.keeps == "one" else item
    answered = tuple(item.values)
    if len(predictions) == len(answered) and step.keeps != "one":
        return _Item(item.positions, dict(zip(answered, predictions, strict=True)))
    kept = answered[: len(predictions)]
    return _Item(kept, dict(zip(kept, predictions, strict=True)))
