"""The interface between scorers and the pipeline: the protocol, the records that scorers take and give, and
their errors.

::

    NightjarError (ValueError)
    ├── FilterError      a filter could not work on a response, or gave back another shape than it may
    └── ScorerError      a scorer could not score an item: the message names it
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metrics.errors import MetricError, NightjarError
from metrics.metric import Metric
from metrics.types import NO_PREDICTION, Answer, ChoiceBatch, Estimate, Floats, Ints, Scores

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

T = TypeVar("T")


class FilterError(NightjarError):
    """A filter met a response it is not made for, or returned something that is not a list per item."""


class ScorerError(NightjarError):
    """A scorer, or the user's function inside it, failed on an item that the message names."""


@dataclass(frozen=True)
class Batch:
    """Samples side by side in columns; row i is one sample of one item, and everything a scorer may look at.

    ``scored`` is False where the request failed: there is nothing to look at in that row, and it stays
    unscored. ``predictions`` hold what the filter made of the response: text, another JSON value, or None
    where it found nothing. ``references`` are the acceptable answers, ``docs`` the items' rows, ``responses``
    the unfiltered texts, ``answers`` all that is known of them (where the metric asks for it; None: a filter
    chose among several). ``choices`` has one item per row where the output type has log-likelihoods, and none
    otherwise. Where choices are asked for by their letters, ``gold`` holds the indices of the right ones, a
    prediction is an index, and ``readings`` say how each was read. ``lacking`` says why a row holds no answer
    (None: it does, or none of the rows lacks one): "cut_off", the tokens were used up before it began, or
    "refused". Such a row is scored as one without a prediction, unless a filter chose one of several answers.
    """

    item_ids: Sequence[str]
    sample_index: NDArray[np.int32]
    scored: NDArray[np.bool_]
    predictions: Sequence[Any]
    references: Sequence[Sequence[Any]]
    docs: Sequence[Mapping[str, Any]]
    responses: Sequence[str | None]
    choices: ChoiceBatch | None = None
    answers: Sequence[Answer | None] | None = None
    gold: Sequence[Sequence[int]] | None = None
    readings: Sequence[Mapping[str, Any] | None] | None = None
    lacking: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.item_ids)

    def lacks_answer(self, row: int) -> bool:
        """Whether the row's answer was cut off before it began, or refused, and no other answer stands in for
        it."""
        return self.lacking is not None and self.lacking[row] is not None and self.predictions[row] is None

    def votes(self) -> Sequence[Any]:
        """What samples vote for in a majority: their predictions, with the calls of tools beside them where
        the metric looks at whole answers."""
        if self.answers is None:
            return self.predictions
        beside = zip(self.predictions, self.answers, strict=True)
        return [
            [said, answer.tool_calls] if answer and answer.tool_calls else said for said, answer in beside
        ]

    def only(self, row: int) -> "Batch":
        """The row alone, of a batch of texts: ``choices`` belong to others."""

        def alone(column: Sequence[T] | None) -> list[T] | None:
            return None if column is None else [column[row]]

        return Batch(
            item_ids=[self.item_ids[row]],
            sample_index=self.sample_index[row : row + 1],
            scored=self.scored[row : row + 1],
            predictions=[self.predictions[row]],
            references=[self.references[row]],
            docs=[self.docs[row]],
            responses=[self.responses[row]],
            answers=alone(self.answers),
            gold=alone(self.gold),
            readings=alone(self.readings),
            lacking=alone(self.lacking),
        )

    def for_user(self) -> "Batch":
        """The batch as users' functions see it: an answer that was cut off or refused is the empty text."""
        lacking = [row for row in range(len(self)) if self.lacks_answer(row)]
        if not lacking:
            return self
        predictions, responses = list(self.predictions), list(self.responses)
        for row in lacking:
            predictions[row] = ""
            responses[row] = responses[row] or ""
        return replace(self, predictions=predictions, responses=responses)

    def name(self, row: int) -> str:
        """The row's sample in words, for messages."""
        return f"item {self.item_ids[row]!r} (sample {int(self.sample_index[row])})"


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
    """A model's answer to a ``ScorerRequest``: its text, or the error that came instead. ``cut``: the limit
    of tokens ended the text, which may not have said yet what it was to say."""

    text: str | None
    error: str | None = None
    cut: bool = False


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

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """How many ``requests`` there are, without rendering a prompt where that is not needed."""
        ...

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """Beside each of the ``requests``: it was answered, and the answer could not be read."""
        ...

    def takes_answer(self, metric: Metric) -> bool:
        """Whether ``score`` looks at the batch's ``answers``, all that is known of each response."""
        ...

    def bounded(self, batch: Batch, metric: Metric) -> bool:
        """Whether ``score`` is sure to end soon on the batch; else it is called where it can be stopped."""
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
        """Functions and classes of users that decide the scores, beside the metric's own."""
        ...


class BaseScorer:
    """A scorer that asks no model, and whose metrics' aggregations say all about their error bars.

    Scorers inherit it and add ``score``; one that asks a model says so in ``needs``, ``requests`` and
    ``unreadable``.
    """

    metrics: Mapping[str, tuple[Metric, ...]]
    """The metrics of each filter by the filter's name."""

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """The metrics of a filter; empty for a filter that the benchmark does not have."""
        return self.metrics.get(filter_name, ())

    def needs(self, metric: Metric) -> str | None:
        """None: no request is waited for."""
        return None

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """None at all, as ``needs`` says."""
        return ()

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """As many as ``requests`` gives."""
        return len(self.requests(batch, metric))

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """All False: no reply is waited for, so that none is unreadable."""
        return [False] * len(replies)

    def takes_answer(self, metric: Metric) -> bool:
        """Whether the metric's own function does."""
        return metric.takes_answer

    def bounded(self, batch: Batch, metric: Metric) -> bool:
        """Whether the metric's own function is; one whose values come from elsewhere has none."""
        return metric.bounded(batch.references, batch.predictions)

    def estimate(
        self, metric: Metric, statistics: Floats | None, clusters: Ints | None, options: "StatisticsConfig"
    ) -> Estimate | None:
        """None: the metric's error bar is its aggregation's."""
        return None

    def code(self) -> tuple[Callable[..., Any], ...]:
        """None; a scorer that calls users' functions names them."""
        return ()


@dataclass(frozen=True)
class AddedMetricScorer:
    """A scorer that adds the metric ``added`` to those of ``base``, which answers for all others.

    The added metric asks no model unless the subclass says so; the subclass adds ``get_metrics``, ``score``
    and ``code``.
    """

    added: ClassVar[str]
    base: Scorer

    def needs(self, metric: Metric) -> str | None:
        """What ``base`` needs; None for the added metric."""
        return None if metric.entry == self.added else self.base.needs(metric)

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """What ``base`` asks for; nothing for the added metric."""
        return () if metric.entry == self.added else self.base.requests(batch, metric)

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """As many as ``base`` asks for; none for the added metric."""
        return 0 if metric.entry == self.added else self.base.count_requests(batch, metric)

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """What ``base`` cannot read; all False for the added metric."""
        if metric.entry == self.added:
            return [False] * len(replies)
        return self.base.unreadable(batch, metric, replies)

    def takes_answer(self, metric: Metric) -> bool:
        """Whether ``base`` does; not for the added metric."""
        return metric.entry != self.added and self.base.takes_answer(metric)

    def bounded(self, batch: Batch, metric: Metric) -> bool:
        """Whether ``base`` is; the added metric always is."""
        return metric.entry == self.added or self.base.bounded(batch, metric)

    def estimate(
        self, metric: Metric, statistics: Floats | None, clusters: Ints | None, options: "StatisticsConfig"
    ) -> Estimate | None:
        """What ``base`` knows; None for the added metric, whose error bar is its aggregation's."""
        if metric.entry == self.added:
            return None
        return self.base.estimate(metric, statistics, clusters, options)


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
    return Scores(
        statistics,
        _scattered_column(scores.values, rows, n),
        score,
        _scattered_column(scores.details, rows, n),
    )


def replaced_rows(scores: Scores, rows: Sequence[int], given: Scores) -> Scores:
    """``scores`` with those of some rows from ``given``, which stand there one after the other."""
    score, at = scores.score.copy(), list(rows)
    score[at] = given.score
    statistics, values = scores.statistics, scores.values
    if statistics is not None and given.statistics is not None:
        statistics = statistics.copy()
        statistics[at] = given.statistics
    if values is not None:
        values = list(values)
        for place, row in enumerate(at):
            values[row] = float(given.score[place]) if given.values is None else given.values[place]
    return replace(scores, score=score, statistics=statistics, values=values)


def evaluate_rows(batch: Batch, rows: RowIndices, evaluate: Callable[[], Scores]) -> Scores:
    """``evaluate()`` of the batch's ``rows``, over all rows; an error about one of them names its item."""
    try:
        scores = evaluate()
    except MetricError as error:
        if error.index is None or error.index >= len(rows):
            raise
        raise ScorerError(f"{batch.name(int(rows[error.index]))}: {error}") from error
    return scatter(scores, rows, len(batch))


def _scattered_column(column: list[Any] | None, rows: RowIndices, n: int) -> list[Any] | None:
    if column is None:
        return None
    scattered: list[Any] = [None] * n
    for row, value in zip(rows.tolist(), column, strict=True):
        scattered[row] = value
    return scattered


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
    given = [values[row] for row in rows.tolist()]
    scores = evaluate_rows(batch, rows, lambda: metric.scores_of(given))
    if details is not None and any(details):
        scores = Scores(scores.statistics, scores.values, scores.score, list(details))
    reasons = [
        None if ok or not was else error for ok, was, error in zip(scored, batch.scored, errors, strict=True)
    ]
    codes = np.where(batch.scored, prediction_codes(batch.votes()), NO_PREDICTION)
    return SampleScores(scores, scored, codes, reasons)
