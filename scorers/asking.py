"""Scorers that have to ask a model first: which pairs share their requests, and what is asked again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metrics.metric import Metric
from scorers.records import Batch, Reply, ScorerRequest


def needs(scorer: Any, metric: Metric) -> str | None:
    """Name of the set of requests that ``metric`` waits for; None if it asks nothing.

    Metrics of one scorer and filter with the same name share their requests, so that they are asked once.
    """
    answer = getattr(scorer, "needs", None)
    return answer(metric) if answer is not None else None


def ask_again(
    scorer: Any,
    batch: Batch,
    metric: Metric,
    requests: Sequence[ScorerRequest],
    replies: Sequence[Reply | None],
) -> list[ScorerRequest | None]:
    """The next attempt beside each request whose reply could not be read; None beside those that could.

    A failed request has no reply yet and is not a new attempt: it is sent again as it is.
    """
    unreadable = getattr(scorer, "unreadable", None)
    if unreadable is None:
        return [None] * len(requests)
    flags = unreadable(batch, metric, requests, replies)
    return [
        next_attempt(request, int(getattr(scorer, "repeats", 1))) if flag else None
        for request, flag in zip(requests, flags, strict=True)
    ]


def next_attempt(request: ScorerRequest, repeats: int) -> ScorerRequest:
    """The same request once more: a new attempt has a sample index of its own, hence its own seed and cache
    key."""
    return replace(request, attempt=request.attempt + 1, sample_index=request.sample_index + repeats)
