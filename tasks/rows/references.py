"""Whether a metric scores a reference best that is given as the answer.

A reference that fails itself is one that no answer can match: a right answer to its item counts as wrong. It
is looked for before a run, in a bounded time: of a large dataset, or with a slow metric, in a sample. A
metric says itself which answers must pass (``right_answers``).
"""

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metrics.errors import NightjarError
from metrics.metric import Metric
from scorers.base import Batch
from tasks.rows.limited import LimitedScorer
from tasks.rows.parts import PairSetup
from tasks.store.thresholds import Threshold

SECONDS: Final = 3.0
"""That all metrics of a run may take together; reading the dataset, a third of it at most."""
NAMED: Final = 5
"""Items that a sentence names."""
_ROWS: Final = Threshold("references_tried", 32)
_SLACK: Final = 1e-9


@dataclass(frozen=True)
class Referenced:
    """An item with what is right for it."""

    item_id: str
    references: Sequence[Any]
    doc: Mapping[str, Any]


@dataclass(frozen=True)
class Tried:
    """What came of a metric: items whose references fail themselves, by id in the dataset's order, and how
    many were tried."""

    failed: Sequence[str]
    items: int


def reference_warnings(
    pairs: Iterable[PairSetup], items: Iterable[Referenced], seconds: float = SECONDS
) -> list[str]:
    """A sentence for every metric that does not score some reference best; raises what the scorer refuses."""
    checked = _distinct(pairs)
    if not checked:
        return []
    ends = time.monotonic() + seconds
    found, whole = _read(items, time.monotonic() + seconds / 3)
    order = list(range(len(found)))
    random.Random(0).shuffle(order)  # a sample is of the whole, whatever the dataset is sorted by
    said = []
    for left, names in zip(range(len(checked), 0, -1), checked, strict=True):
        now = time.monotonic()
        tried = _try(checked[names], found, order, now + (ends - now) / left)
        if tried.failed:
            said.append(_sentence(names, tried, None if whole else len(found), len(found)))
    return said


def _distinct(pairs: Iterable[PairSetup]) -> dict[tuple[str, ...], PairSetup]:
    """One pair of each metric with arguments, by the names of all that share it: what a filter makes of
    responses is another matter."""
    same: dict[str, list[PairSetup]] = {}
    for pair in pairs:
        metric = pair.metric_record()
        if metric.right_answers is not None and not metric.takes_answer:
            same.setdefault(metric.signature(), []).append(pair)
    return {tuple(f"{one.filter} × {one.metric}" for one in group): group[0] for group in same.values()}


def _read(items: Iterable[Referenced], until: float) -> tuple[list[Referenced], bool]:
    """The items that have a reference, as far as the time goes, and whether these are all."""
    found = []
    for item in items:
        if item.references:
            found.append(item)
        if time.monotonic() > until:
            return found, False
    return found, True


def _try(pair: PairSetup, items: Sequence[Referenced], order: Sequence[int], until: float) -> Tried:
    """Tries items in this order until the time is over; the first ones in any case."""
    failed: list[int] = []
    done = 0
    metric = pair.metric_record()
    with LimitedScorer(pair) as scorer:
        while done < len(order) and (not done or time.monotonic() < until):
            places = order[done : done + _ROWS]
            batch, rows = _batch(metric, [items[place] for place in places])
            if scorer.requests(batch):
                return Tried((), 0)  # a model decides
            wrong = {rows[row] for row in _not_best(scorer, metric, batch)}
            failed += [places[index] for index in wrong]
            done += len(places)
    return Tried([items[place].item_id for place in sorted(failed)], done)


def _batch(metric: Metric, items: Sequence[Referenced]) -> tuple[Batch, list[int]]:
    """The right answers of items as samples, and the index of each one's item."""
    assert metric.right_answers is not None
    answers = [
        (index, answer)
        for index, item in enumerate(items)
        for answer in metric.right_answers(item.references, **metric.kwargs)
    ]
    rows = [index for index, _ in answers]
    given = [answer for _, answer in answers]
    batch = Batch(
        item_ids=[items[index].item_id for index in rows],
        sample_index=np.zeros(len(rows), dtype=np.int32),
        scored=np.ones(len(rows), dtype=np.bool_),
        predictions=given,
        references=[list(items[index].references) for index in rows],
        docs=[dict(items[index].doc) for index in rows],
        responses=[answer if isinstance(answer, str) else None for answer in given],
    )
    return batch, rows


def _not_best(scorer: LimitedScorer, metric: Metric, batch: Batch) -> Iterator[int]:
    """Rows without the best score: another one, none at all, or an error."""
    try:
        scores = scorer.score(batch)
    except NightjarError:
        if len(batch) == 1:
            yield 0
            return
        for row in range(len(batch)):
            yield from (row for _ in _not_best(scorer, metric, batch.only(row)))
        return
    slack = _SLACK * max(1.0, abs(metric.best))
    for row, (score, scored) in enumerate(zip(scores.scores.score, scores.scored, strict=True)):
        if not scored or abs(score - metric.best) > slack:  # NaN: the value is no number of its own
            yield row


def _sentence(names: Sequence[str], tried: Tried, read: int | None, known: int) -> str:
    shown = ", ".join(f"'{name}'" for name in tried.failed[:NAMED]) + (", …" if tried.failed[NAMED:] else "")
    sampled = ""
    if read is not None:
        sampled = f" (tried: {tried.items:,} of the first {read:,} items)"
    elif tried.items < known:
        sampled = f" (tried: a sample of {tried.items:,} of {known:,} items)"
    return (
        f"{', '.join(names)}: the reference of {len(tried.failed):,} of {tried.items:,} items{sampled} is "
        f"wrong as its own answer: {shown}; a right answer to them counts as wrong. Fix the references, or "
        "choose another metric or other arguments"
    )
