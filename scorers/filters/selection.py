"""Steps that choose among the repeats of an item; they work on any kind of response."""

import json
from collections import Counter
from typing import Any

from scorers.base import FilterError
from scorers.filters.pipeline import Docs, ItemResponses, filter_step

_HARNESS = "lm-evaluation-harness 0.4.13, lm_eval/filters/selection.py"


@filter_step("noop", keeps="all", text=False, source="this project")
def noop(resps: ItemResponses, docs: Docs) -> list[list[Any]]:
    """The responses as they are."""
    return [list(item) for item in resps]


@filter_step("take_first", keeps="first", text=False, source=_HARNESS)
def take_first(resps: ItemResponses, docs: Docs) -> list[list[Any]]:
    """The first response of each item.

    >>> take_first([["a", "b"], ["c"]], [{}, {}])
    [['a'], ['c']]
    """
    return [list(item[:1]) for item in resps]


@filter_step("take_first_k", keeps="first", text=False, source=_HARNESS)
def take_first_k(resps: ItemResponses, docs: Docs, k: int) -> list[list[Any]]:
    """The first ``k`` responses of each item; an item that has fewer is an error.

    >>> take_first_k([["a", "b", "c"]], [{}], k=2)
    [['a', 'b']]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    for position, item in enumerate(resps):
        if len(item) < k:
            raise FilterError(
                f"filter 'take_first_k' needs {k} responses per item, but item {position} of the batch has "
                f"{len(item)}; raise num_samples (repeats) to {k}"
            )
    return [list(item[:k]) for item in resps]


@filter_step("majority_vote", keeps="one", text=False, source=_HARNESS)
def majority_vote(resps: ItemResponses, docs: Docs) -> list[list[Any]]:
    """The most frequent prediction of each item; of equally frequent ones the earliest. None has no vote.

    >>> majority_vote([["4", "5", "4"], ["1", "2"], [None, None, "7"], [None]], [{}] * 4)
    [['4'], ['1'], ['7'], [None]]
    """
    return [[_majority(item)] for item in resps]


@filter_step("collect", keeps="one", text=False, source="this project")
def collect(resps: ItemResponses, docs: Docs) -> list[list[Any]]:
    """All repeats of an item as one prediction, a list: for metrics that look at repeats together.

    This is what a lm-evaluation-harness pipeline without ``take_first`` hands to its metrics.

    >>> collect([["a", "b"], ["c"]], [{}, {}])
    [[['a', 'b']], [['c']]]
    """
    return [[list(item)] for item in resps]


def _majority(item: Any) -> Any:
    votes = [resp for resp in item if resp is not None]
    if not votes:
        return None
    winner = Counter(_ballot(vote) for vote in votes).most_common(1)[0][0]
    return next(vote for vote in votes if _ballot(vote) == winner)


def _ballot(vote: Any) -> Any:
    """Something hashable that tells predictions apart: 1 and True, 1 and "1" are different answers."""
    if isinstance(vote, str):
        return vote
    if isinstance(vote, tuple):
        return (tuple, vote)
    return (type(vote), json.dumps(vote, sort_keys=True, default=repr))
