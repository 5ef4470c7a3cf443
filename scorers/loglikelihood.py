"""The default scorer of output types with log-likelihoods: choices, continuations, whole documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrics.metric import Metric
from metrics.ragged import segment_argmax
from metrics.types import NO_PREDICTION, ChoiceBatch, Scores, likelihood_results
from scorers.base import Batch, ModelReply, SampleScores, ScorerError, evaluate_rows
from scorers.choices import take_items
from scorers.generation import GenerationScorer


@dataclass(frozen=True)
class LoglikelihoodScorer(GenerationScorer):
    """The default for ``multiple_choice``, ``loglikelihood`` and ``loglikelihood_rolling``.

    Metrics of log-likelihoods see the batch's ``choices``. A user's metric of texts sees the index of the
    most likely choice as the prediction and the indices of the right choices as the references.
    """

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Scores of ``metric`` for every scored row, all rows at once over flat arrays."""
        choices = batch.choices
        if choices is None or len(choices) != len(batch):
            raise ScorerError(
                f"metric {metric.name!r} needs log-likelihoods, one entry per sample, and the batch has none"
            )
        rows = np.flatnonzero(batch.scored)
        if len(rows) < len(batch):
            choices = take_items(choices, rows)
        best = segment_argmax(choices.lls, choices.offsets)
        codes = np.full(len(batch), NO_PREDICTION, dtype=np.int64)
        codes[rows] = best
        scores = evaluate_rows(batch, rows, lambda: _evaluate(metric, choices, best))
        return SampleScores(scores, batch.scored, codes, [None] * len(batch))


def _evaluate(metric: Metric, choices: ChoiceBatch, best: NDArray[np.int64]) -> Scores:
    if metric.input == "choices":
        return metric.evaluate_choices(choices)
    gold = np.split(choices.gold, choices.gold_offsets[1:-1])
    wanted = metric.takes_result or metric.takes_ll_results
    results = likelihood_results(choices, best) if wanted else None
    return metric.evaluate([right.tolist() for right in gold], best.tolist(), results)
