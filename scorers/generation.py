"""The default scorer of ``generate_until``: predictions × references through the pair's metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metrics.metric import Metric
from metrics.types import NO_PREDICTION
from scorers.base import BaseScorer, Batch, ModelReply, SampleScores, evaluate_rows, prediction_codes


@dataclass(frozen=True)
class GenerationScorer(BaseScorer):
    """The default for ``generate_until``: each metric sees the predictions and references of all scored rows.

    ``metrics`` holds the metrics of each filter by the filter's name.
    """

    metrics: Mapping[str, tuple[Metric, ...]]

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Scores of ``metric`` for every scored row; raises ScorerError naming the item that the metric
        failed on."""
        rows = np.flatnonzero(batch.scored)
        chosen = rows.tolist()
        predictions = [batch.predictions[row] for row in chosen]
        every = list(batch.references)  # a lazy column is read faster at once
        references = every if len(chosen) == len(batch) else [every[row] for row in chosen]
        whole = [batch.answers[row] for row in chosen] if batch.answers is not None else None
        scores = evaluate_rows(batch, rows, lambda: metric.evaluate(references, predictions, answers=whole))
        codes = np.full(len(batch), NO_PREDICTION, dtype=np.int64)
        codes[rows] = prediction_codes(predictions)
        return SampleScores(scores, batch.scored, codes, [None] * len(batch))
