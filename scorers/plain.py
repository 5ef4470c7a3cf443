"""Scores of generated text: predictions × references through the pair's metric."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrics.errors import MetricError
from metrics.metric import Metric
from metrics.ragged import segment_argmax
from metrics.types import ChoiceBatch, Estimate, Floats, Ints, Scores, likelihood_results
from scorers.base import (
    NO_PREDICTION,
    Batch,
    ModelReply,
    SampleScores,
    ScorerError,
    ScorerRequest,
    prediction_codes,
)
from scorers.choices import take_items

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

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """No reply is waited for, so that none is unreadable."""
        return [False] * len(replies)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
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
    results = likelihood_results(choices, best) if metric.takes_result else None
    return metric.evaluate([right.tolist() for right in gold], best.tolist(), results)


RowIndices = NDArray[np.intp]


def scatter(scores: Scores, rows: RowIndices, n: int) -> Scores:
    """``scores`` of the batch's ``rows`` as scores of all its ``n`` rows: NaN and None in the others."""
    if len(rows) == n:
        return scores
    score = np.full(n, np.nan)
    score[rows] = scores.score
    statistics = None
    if scores.statistics is not None:
        statistics = np.full((n, scores.statistics.shape[1]), np.nan)
        statistics[rows] = scores.statistics
    return Scores(statistics, _spread(scores.values, rows, n), score, _spread(scores.details, rows, n))


def evaluate_rows(batch: Batch, rows: RowIndices, evaluate: Callable[[], Scores]) -> Scores:
    """``evaluate()`` of the batch's ``rows``, over all rows; an error about one of them names its item."""
    try:
        scores = evaluate()
    except MetricError as error:
        if error.index is None or error.index >= len(rows):
            raise
        raise ScorerError(f"{batch.name(int(rows[error.index]))}: {error}") from error
    return scatter(scores, rows, len(batch))


def _spread(column: list[Any] | None, rows: RowIndices, n: int) -> list[Any] | None:
    if column is None:
        return None
    spread: list[Any] = [None] * n
    for row, value in zip(rows.tolist(), column, strict=True):
        spread[row] = value
    return spread


def score_values(
    batch: Batch,
    metric: Metric,
    values: Sequence[Any],
    errors: Sequence[str | None],
    details: Sequence[dict[str, Any] | None] | None = None,
) -> SampleScores:
    """The scores of one value per row; a value of None leaves its row unscored, ``errors`` then says why.

    Raises ScorerError naming the item whose value the metric's aggregation cannot take.
    """
    scored = batch.scored & np.array([value is not None for value in values], dtype=np.bool_)
    rows = np.flatnonzero(scored)
    kept = [values[row] for row in rows.tolist()]
    scores = evaluate_rows(batch, rows, lambda: metric.scores_of(kept))
    if details is not None and any(details):
        scores = Scores(scores.statistics, scores.values, scores.score, list(details))
    said = [
        None if ok or not was else error for ok, was, error in zip(scored, batch.scored, errors, strict=True)
    ]
    codes = np.where(batch.scored, prediction_codes(batch.predictions), NO_PREDICTION)
    return SampleScores(scores, scored, codes, said)
