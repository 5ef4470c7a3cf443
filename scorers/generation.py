"""Scores of generated text: predictions × references through the pair's metric."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metrics.metric import Metric
from metrics.types import Estimate, Floats, Ints
from scorers.codes import NO_PREDICTION, prediction_codes
from scorers.records import Batch, Reply, SampleScores, ScorerRequest
from scorers.rows import evaluate_rows

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


@dataclass(frozen=True)
class GenerationScorer:
    """The default for ``generate_until``: each metric sees the predictions and references of all scored rows.

    ``metrics`` holds the metrics of each filter by the filter's name.
    """

    metrics: Mapping[str, tuple[Metric, ...]]

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """The metrics of a filter; empty for a filter that the benchmark does not have."""
        return self.metrics.get(filter_name, ())

    def needs(self, metric: Metric) -> str | None:
        """Nothing: comparing texts needs no model."""
        return None

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """Nothing, as ``needs`` says."""
        return ()

    def unreadable(self, batch: Batch, metric: Metric, replies: Sequence[Reply | None]) -> Sequence[bool]:
        """No reply is waited for, so that none is unreadable."""
        return [False] * len(replies)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[Reply | None] = ()) -> SampleScores:
        """Scores of ``metric`` for every scored row; raises ScorerError naming the item that the metric
        failed on."""
        rows = np.flatnonzero(batch.scored)
        chosen = rows.tolist()
        predictions = [batch.predictions[row] for row in chosen]
        every = list(batch.references)  # a lazy column is read faster at once
        references = every if len(chosen) == len(batch) else [every[row] for row in chosen]
        scores = evaluate_rows(batch, rows, lambda: metric.evaluate(references, predictions))
        codes = np.full(len(batch), NO_PREDICTION, dtype=np.int64)
        codes[rows] = prediction_codes(predictions)
        return SampleScores(scores, batch.scored, codes, [None] * len(batch))

    def estimate(
        self, metric: Metric, statistics: Floats | None, clusters: Ints | None, options: "StatisticsConfig"
    ) -> Estimate | None:
        """None: the metric's error bar is its aggregation's."""
        return None

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The scorer's class; subclasses add their user functions."""
        return (type(self),)
