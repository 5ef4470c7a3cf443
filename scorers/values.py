"""Numbers that a scorer found itself (a reward, a verdict, an agreement) as the scores of a metric."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.metric import Metric
from metrics.types import Scores
from scorers.codes import NO_PREDICTION, prediction_codes
from scorers.records import Batch, SampleScores
from scorers.rows import evaluate_rows


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
