"""What every scorer is to the pipeline."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metrics.errors import NightjarError
from metrics.metric import Metric
from metrics.types import ChoiceBatch, Estimate, Floats, Ints, Scores

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


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
class ModelReply:
    """A model's answer to a ``ScorerRequest``: its text, or the error that came instead."""

    text: str | None
    error: str | None = None


ALL_FILTERS = "*"
"""Filter name of a score that looks at the predictions of all filters at once."""


@runtime_checkable
class AcrossFilters(Protocol):
    """A scorer that looks at the predictions of several filters at once."""

    def combine(self, batches: Mapping[str, Batch]) -> Batch:
        """One batch of the filters' batches; a prediction is {filter: prediction}."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Where filters and metrics meet: what is needed from a model, and how predictions become statistics.

    A scorer never filters and never calls a model; it works on one batch at a time and keeps nothing in
    between.
    """

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """The metrics of a filter's predictions, their names unique; empty where it has none."""
        ...

    def needs(self, metric: Metric) -> str | None:
        """Name of the set of requests that ``metric`` waits for, None if it waits for none.

        Metrics of one filter that name the same set have the same ``requests``, to be asked once.
        """
        ...

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """What a model has to be asked before ``score`` can be called; usually nothing."""
        ...

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """Beside each of the ``requests``: it was answered, and the answer could not be read."""
        ...

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """The scores of ``metric``. ``replies`` stand beside the ``requests`` of the same batch and metric.

        Raises ScorerError or MetricError naming the item where the metric failed.
        """
        ...

    def estimate(
        self, metric: Metric, statistics: Floats | None, clusters: Ints | None, options: "StatisticsConfig"
    ) -> Estimate | None:
        """The number of ``metric`` with its uncertainty where the scorer knows more of it than the statistics
        of the items (n, k) say; usually None, and the metric's aggregation says it all."""
        ...

    def code(self) -> tuple[Callable[..., Any], ...]:
        """Classes and user functions whose source decides the scores, beside the metric's own."""
        ...


class FilterError(NightjarError):
    """A filter met a response it is not made for, or returned something that is not a list per item."""


class ScorerError(NightjarError):
    """A scorer, or the user's function inside it, failed on an item that the message names."""


NO_PREDICTION = -1
_POSITIVE = (1 << 63) - 1


def prediction_codes(predictions: Sequence[Any]) -> NDArray[np.int64]:
    """63-bit hashes of the predictions, -1 for None.

    Text "4" and the number 4 differ; mappings are equal whatever the order of their keys.

    >>> codes = prediction_codes(["a", None, "a", 4, "4"])
    >>> codes[0] == codes[2], codes[3] == codes[4], int(codes[1])
    (np.True_, np.False_, -1)
    """
    seen: dict[str, int] = {}
    codes = np.empty(len(predictions), dtype=np.int64)
    for row, prediction in enumerate(predictions):
        if prediction is None:
            codes[row] = NO_PREDICTION
            continue
        # A prefix keeps text apart from JSON, whose own texts begin with a quotation mark.
        text = "t" + prediction if isinstance(prediction, str) else "j" + _canonical(prediction)
        code = seen.get(text)
        if code is None:
            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            code = seen[text] = int.from_bytes(digest, "big") & _POSITIVE
        codes[row] = code
    return codes


def _canonical(prediction: Any) -> str:
    return json.dumps(prediction, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)
