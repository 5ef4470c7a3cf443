"""Asking a model again where its reply could not be read."""

from collections.abc import Sequence
from dataclasses import replace

from metrics.metric import Metric
from scorers.base import Scorer
from scorers.records import Batch, Reply, ScorerRequest


def ask_again(
    scorer: Scorer,
    batch: Batch,
    metric: Metric,
    requests: Sequence[ScorerRequest],
    replies: Sequence[Reply | None],
) -> list[ScorerRequest | None]:
    """The next attempt beside each request whose reply could not be read; None beside all others.

    A request that failed has no reply yet and is not a new attempt: it is sent again as it is.
    """
    flags = scorer.unreadable(batch, metric, replies)
    return [next_attempt(request) if flag else None for request, flag in zip(requests, flags, strict=True)]


def next_attempt(request: ScorerRequest) -> ScorerRequest:
    """The same request once more: a new attempt has a sample index of its own, hence its own seed and cache
    key."""
    return replace(request, attempt=request.attempt + 1, sample_index=request.sample_index + request.repeats)
