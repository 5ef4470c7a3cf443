"""Weighted combination of other scorers, sample by sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics.metric import Metric
from scorers.base import (
    AddedMetricScorer,
    Batch,
    ModelReply,
    SampleScores,
    Scorer,
    ScorerError,
    ScorerRequest,
    score_values,
)

ENSEMBLE = "ensemble"
"""The metric of an ensemble."""


@dataclass(frozen=True)
class WeightedScorer:
    """One part of an ensemble: a scorer, the metric it gives for a sample, and its weight."""

    scorer: Scorer
    metric: Metric
    weight: float


@dataclass(frozen=True)
class EnsembleScorer(AddedMetricScorer):
    """Adds the metric ``ensemble`` to those of a benchmark: Σ weight · number / Σ weight, or without the
    division.

    ``base`` scores all other metrics, and knows the metrics of each filter. A sample that one member leaves
    unscored is unscored: leaving the member out would compare unlike with like.
    """

    added = ENSEMBLE

    members: tuple[WeightedScorer, ...]
    normalize: bool = True

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """The benchmark's metrics of the filter, and ``ensemble``."""
        return self.base.get_metrics(filter_name)

    def needs(self, metric: Metric) -> str | None:
        """Name of the set of requests that the members wait for together; None if none does."""
        if metric.entry != self.added:
            return super().needs(metric)
        return ENSEMBLE if any(member.scorer.needs(member.metric) for member in self.members) else None

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """The members' requests, one member after the other."""
        if metric.entry != self.added:
            return super().requests(batch, metric)
        return [
            request for member in self.members for request in member.scorer.requests(batch, member.metric)
        ]

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """Those of all members."""
        if metric.entry != self.added:
            return super().count_requests(batch, metric)
        return sum(member.scorer.count_requests(batch, member.metric) for member in self.members)

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """What the members cannot read, one member after the other."""
        if metric.entry != self.added:
            return super().unreadable(batch, metric, replies)
        return [
            flag
            for member, own in zip(self.members, self._member_replies(batch, replies), strict=True)
            for flag in member.scorer.unreadable(batch, member.metric, own)
        ]

    def takes_answer(self, metric: Metric) -> bool:
        """Whether one of the members does."""
        if metric.entry != self.added:
            return super().takes_answer(metric)
        return any(member.scorer.takes_answer(member.metric) for member in self.members)

    def bounded(self, batch: Batch, metric: Metric) -> bool:
        """Whether all members are."""
        if metric.entry != self.added:
            return super().bounded(batch, metric)
        return all(member.scorer.bounded(batch, member.metric) for member in self.members)

    def code(self) -> tuple[Callable[..., Any], ...]:
        """Those of the members and of their metrics."""
        members = [code for member in self.members for code in (*member.scorer.code(), *member.metric.code())]
        return (*self.base.code(), *members)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """The weighted combination; the members' own numbers are its details."""
        if metric.entry != self.added:
            return self.base.score(batch, metric, replies)
        parts = self._member_scores(batch, replies)
        weights = np.array([member.weight for member in self.members])
        columns = np.column_stack([part.scores.score for part in parts])
        total = columns @ weights / (weights.sum() if self.normalize else 1.0)
        errors = [self._problem(parts, row) for row in range(len(batch))]
        values = [None if error else value for error, value in zip(errors, total.tolist(), strict=True)]
        return score_values(batch, metric, values, errors, self._details(columns))

    def _member_scores(self, batch: Batch, replies: Sequence[ModelReply | None]) -> list[SampleScores]:
        shares = zip(self.members, self._member_replies(batch, replies), strict=True)
        return [member.scorer.score(batch, member.metric, own) for member, own in shares]

    def _member_replies(
        self, batch: Batch, replies: Sequence[ModelReply | None]
    ) -> list[Sequence[ModelReply | None]]:
        """Each member's replies, in the order in which ``requests`` asked for them."""
        shares, start = [], 0
        for member in self.members:
            end = start + member.scorer.count_requests(batch, member.metric)
            shares.append(replies[start:end])
            start = end
        if start != len(replies):
            raise ScorerError(
                f"{len(replies)} replies for the {start} requests of an ensemble; expected one each"
            )
        return shares

    def _problem(self, parts: Sequence[SampleScores], row: int) -> str | None:
        for member, part in zip(self.members, parts, strict=True):
            if not part.scored[row] or np.isnan(part.scores.score[row]):
                return f"{member.metric.name}: {part.errors[row] or 'no number for this sample'}"
        return None

    def _details(self, columns: NDArray[np.float64]) -> list[dict[str, Any] | None]:
        names = [member.metric.name for member in self.members]
        return [
            dict(zip(names, row, strict=True)) if not np.isnan(row).any() else None
            for row in columns.tolist()
        ]
