"""Scores of some rows of a batch, laid out over all its rows; errors of such rows, naming their items."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics.errors import MetricError
from metrics.types import Scores
from scorers.errors import ScorerError
from scorers.records import Batch

Rows = NDArray[np.intp]


def scatter(scores: Scores, rows: Rows, n: int) -> Scores:
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


def evaluate_rows(batch: Batch, rows: Rows, evaluate: Callable[[], Scores]) -> Scores:
    """``evaluate()`` of the batch's ``rows``, over all rows; an error about one of them names its item."""
    try:
        scores = evaluate()
    except MetricError as error:
        if error.index is None or error.index >= len(rows):
            raise
        raise ScorerError(f"{batch.name(int(rows[error.index]))}: {error}") from error
    return scatter(scores, rows, len(batch))


def _spread(column: list[Any] | None, rows: Rows, n: int) -> list[Any] | None:
    if column is None:
        return None
    spread: list[Any] = [None] * n
    for row, value in zip(rows.tolist(), column, strict=True):
        spread[row] = value
    return spread
