"""How far the filters of a benchmark agree about the same responses."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.aliases import nearest
from metrics.errors import ConfigError
from metrics.metric import Metric
from scorers.base import (
    ALL_FILTERS,
    AddedMetricScorer,
    Batch,
    ModelReply,
    SampleScores,
    ScorerError,
    prediction_codes,
    score_values,
)

FILTER_AGREEMENT = "filter_agreement"
"""The metric that looks across filters, under the filter name ``*``."""


@dataclass(frozen=True)
class AgreementScorer(AddedMetricScorer):
    """Adds the metric ``filter_agreement`` of the filter ``*`` to another scorer's metrics.

    It is the share of pairs of filters with the same prediction, from 0 to 1; finding nothing is an outcome
    like any other, so that two filters that both find nothing agree. ``filters`` are the names that are
    compared.
    """

    added = FILTER_AGREEMENT

    filters: tuple[str, ...]
    metric: Metric

    def __post_init__(self) -> None:
        if len(self.filters) < 2:
            raise ConfigError(
                f"scorer 'agreement' compares filters and has {len(self.filters)} "
                f"({', '.join(self.filters)}); give filter_list two or more"
            )

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """``filter_agreement`` for ``*``; for a filter by name the metrics it has anyway."""
        return (self.metric,) if filter_name == ALL_FILTERS else self.base.get_metrics(filter_name)

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The other scorer's."""
        return self.base.code()

    def combine(self, batches: Mapping[str, Batch]) -> Batch:
        """One batch of the samples that any filter kept; a prediction is {filter: prediction} of those that
        kept it.

        A sample is scored if all its filters' rows are.
        """
        return combined(self.filters, batches)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Agreement of a combined batch; any other metric as the other scorer does it.

        A sample that only one filter kept has nothing to agree with and is unscored.
        """
        if metric.entry != self.added:
            return self.base.score(batch, metric, replies)
        values = [
            _agreement(prediction) if ok else None
            for prediction, ok in zip(batch.predictions, batch.scored.tolist(), strict=True)
        ]
        return score_values(batch, metric, values, ["only one filter kept this sample"] * len(batch))


def _agreement(predictions: Mapping[str, Any]) -> float | None:
    n = len(predictions)
    if n < 2:
        return None
    same = Counter(prediction_codes(list(predictions.values())).tolist())
    return sum(count * (count - 1) for count in same.values()) / (n * (n - 1))


def combined(filters: Sequence[str], batches: Mapping[str, Batch]) -> Batch:
    """One batch of the samples that any of the filters kept; a prediction is {filter: prediction} of those
    that kept it. A sample is scored if all its filters' rows are."""
    missing = [name for name in filters if name not in batches]
    if missing:
        raise ScorerError(f"filter {missing[0]!r} has no predictions{nearest(missing[0], batches)}")
    found: dict[tuple[str, int], dict[str, Any]] = {}
    first: dict[tuple[str, int], tuple[Batch, int]] = {}
    failed: set[tuple[str, int]] = set()
    for name in filters:
        batch = batches[name]
        for row, key in enumerate(zip(batch.item_ids, batch.sample_index.tolist(), strict=True)):
            first.setdefault(key, (batch, row))
            found.setdefault(key, {})[name] = batch.predictions[row]
            if not batch.scored[row]:
                failed.add(key)
    rows = list(first.values())
    return Batch(
        item_ids=[key[0] for key in found],
        sample_index=np.array([key[1] for key in found], dtype=np.int32),
        scored=np.array([key not in failed for key in found], dtype=np.bool_),
        predictions=list(found.values()),
        references=[batch.references[row] for batch, row in rows],
        docs=[batch.docs[row] for batch, row in rows],
        responses=[batch.responses[row] for batch, row in rows],
        lacking=[
            batch.lacking[row] if batch.lacking is not None and batch.lacks_answer(row) else None
            for batch, row in rows
        ],
    )
