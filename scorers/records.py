"""The records that scorers take and give: columns in, columns out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics.types import ChoiceBatch, Scores


@dataclass(frozen=True)
class Batch:
    """Samples side by side in columns; row i is one sample of one item, and everything a scorer may look at.

    ``scored`` is False where the request failed: there is nothing to look at in that row, and it stays
    unscored. ``predictions`` hold what the filter made of the response: text, another JSON value, or None
    where it found nothing. ``references`` are the acceptable answers, ``docs`` the items' rows, ``responses``
    the unfiltered texts. ``choices`` has one item per row where the output type has log-likelihoods, and none
    otherwise.
    """

    item_ids: Sequence[str]
    sample_index: NDArray[np.int32]
    scored: NDArray[np.bool_]
    predictions: Sequence[Any]
    references: Sequence[Sequence[Any]]
    docs: Sequence[Mapping[str, Any]]
    responses: Sequence[str | None]
    choices: ChoiceBatch | None = None

    def __len__(self) -> int:
        return len(self.item_ids)

    def name(self, row: int) -> str:
        """The row's sample in words, for messages."""
        return f"item {self.item_ids[row]!r} (sample {int(self.sample_index[row])})"

    def with_predictions(
        self, predictions: Sequence[Any], scored: NDArray[np.bool_] | None = None
    ) -> "Batch":
        """The same samples with other predictions (and, if given, other rows scored)."""
        return replace(self, predictions=predictions, scored=self.scored if scored is None else scored)


@dataclass(frozen=True)
class SampleScores:
    """The scores of a batch, row for row.

    ``scores`` has a row for every sample: NaN (statistics too) and None (values) where ``scored`` is False.
    ``codes`` are stable hashes of the predictions, by which majorities are found; -1 is no prediction.
    ``errors`` say why a sample is unscored although its request succeeded.
    """

    scores: Scores
    scored: NDArray[np.bool_]
    codes: NDArray[np.int64]
    errors: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.scored)


@dataclass(frozen=True)
class ScorerRequest:
    """What a scorer wants to ask a model about the batch's row ``row``.

    ``judge`` names the model, ``prompt`` is text or a list of chat messages, ``sampling`` holds sampling
    parameters over the model's own. ``repeat`` counts the ``repeats`` verdicts asked of a judge, ``swapped``
    says that the two answers of a pairwise grading changed places, ``attempt`` counts how often an unreadable
    verdict was asked for again. ``sample_index`` is unique among the requests of one judge with one prompt,
    for the request's seed and cache key.
    """

    row: int
    judge: str
    repeat: int
    prompt: str | list[dict[str, str]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    swapped: bool = False
    attempt: int = 0
    sample_index: int = 0
    repeats: int = 1


@dataclass(frozen=True)
class Reply:
    """A model's answer to a ``ScorerRequest``: its text, or the error that came instead."""

    text: str | None
    error: str | None = None
