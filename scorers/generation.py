"""The default scorer of ``generate_until``: predictions × references through the pair's metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metrics.metric import Metric
from metrics.types import NO_PREDICTION, Scores
from scorers.base import (
    BaseScorer,
    Batch,
    ModelReply,
    SampleScores,
    evaluate_rows,
    prediction_codes,
    replaced_rows,
)


def _with_lacking(scores: Scores, batch: Batch, metric: Metric) -> Scores:
    """The scores with those of samples without a prediction as the metric has them, where that is not the
    empty text's."""
    found: dict[int, float] = {}
    for row in np.flatnonzero(batch.scored).tolist():
        refused = batch.lacking is not None and batch.lacking[row] == "refused"
        if batch.predictions[row] is not None and not refused:
            continue
        value = metric.of_no_answer(float(scores.score[row]), refused)
        if value is not None:
            found[row] = value
    return replaced_rows(scores, list(found), metric.scores_of(list(found.values()))) if found else scores


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
        scores = _with_lacking(scores, batch, metric)
        codes = np.full(len(batch), NO_PREDICTION, dtype=np.int64)
        votes = batch.votes()
        codes[rows] = prediction_codes([votes[row] for row in chosen])
        return SampleScores(scores, batch.scored, codes, [None] * len(batch))
