"""A user's scorer class behind the interface of the built-in ones."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.aliases import nearest
from metrics.errors import ConfigError, described, users_code
from metrics.instances import FilteredAnswers, Instance, scores_of_item
from metrics.metric import Metric
from scorers.agreement import combined
from scorers.base import (
    ALL_FILTERS,
    BaseScorer,
    Batch,
    ModelReply,
    SampleScores,
    ScorerError,
    ScorerRequest,
    score_values,
)
from scorers.user_functions import as_json

USER = "user"


LOOK_ACROSS = (
    'give the class across_filters = True and get_metrics(filter_name), which names the metrics of "*"'
)
"""What to do where a class reads the answers of other filters than its own."""


def _instance(batch: Batch, number: int, rows: Sequence[int], filter_name: str, remedy: str) -> Instance:
    """One item's rows as an instance; across filters a prediction is {filter: prediction}. ``remedy`` is told
    where one filter's instance is asked for another's answers."""
    predictions = [batch.predictions[row] for row in rows]
    if filter_name == ALL_FILTERS:
        answers = {name: [one.get(name) for one in predictions] for name in predictions[0]}
    else:
        answers = FilteredAnswers({filter_name: predictions}, remedy)
    for name, found in answers.items():  # no prediction is the empty text, as for users' metrics
        answers[name] = ["" if one is None else one for one in found]
    references = list(batch.references[rows[0]])
    return Instance(
        doc_id=number,
        doc=batch.docs[rows[0]],
        target=references[0] if len(references) == 1 else references,
        resps=[batch.responses[row] for row in rows],
        filtered_resps=answers,
    )


@dataclass(frozen=True)
class UserScorer(BaseScorer):
    """Adapts an object with ``score(batch)``, and optionally ``requests(batch)``.

    ``score`` returns a number per row (None: unscored), a dictionary of such columns by metric, or
    ``SampleScores``; it is also given ``metric`` and ``replies`` if it takes them. ``requests`` returns
    ``ScorerRequest`` records. A class with ``across_filters = True`` looks at all filters at once, for the
    metrics that its ``get_metrics("*")`` names: a prediction then is {filter: prediction}, and nothing is
    asked.
    """

    name: str
    instance: Any
    metrics: Mapping[str, tuple[Metric, ...]]

    def __post_init__(self) -> None:
        if not self.by_instances and not callable(getattr(self.instance, "score", None)):
            raise ConfigError(
                f"scorer {self.name!r} has no method score(batch), and no score_instances(instances, filter)"
            )

    @property
    def by_instances(self) -> bool:
        """Whether the class is written for the instances of one item at a time."""
        return callable(getattr(self.instance, "score_instances", None))

    def needs(self, metric: Metric) -> str | None:
        """One set of requests for all metrics, if the class asks anything."""
        asks = callable(getattr(self.instance, "requests", None))
        return USER if asks and not self._is_of(metric, ALL_FILTERS) else None

    def _is_of(self, metric: Metric, filter_name: str) -> bool:
        """Whether it is the filter's own: those of several filters may be equal."""
        return any(own is metric for own in self.metrics.get(filter_name, ()))

    def combine(self, batches: Mapping[str, Batch]) -> Batch:
        """The batch of a metric over all filters."""
        return combined([name for name in self.metrics if name != ALL_FILTERS], batches)

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """What the class wants to ask; raises ScorerError if that is not a list of ScorerRequest."""
        if self.needs(metric) is None:
            return ()
        requests = list(self._call(self.instance.requests, batch, metric=metric) or ())
        for request in requests:
            if not isinstance(request, ScorerRequest):
                raise ScorerError(
                    f"scorer {self.name!r}: requests(batch) returned {type(request).__name__}, not "
                    "ScorerRequest"
                )
            if not 0 <= request.row < len(batch):
                raise ScorerError(
                    f"scorer {self.name!r}: requests(batch) asks about row {request.row} of {len(batch)}"
                )
        return requests

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """What the class's own ``unreadable(batch, replies)`` says, if it has one."""
        own = getattr(self.instance, "unreadable", None)
        if own is None:
            return [False] * len(replies)
        return [bool(flag) for flag in self._call(own, batch, metric=metric, replies=replies)]

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's class."""
        return (type(self.instance),)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """The class's numbers for ``metric``; raises ScorerError naming the scorer where they do not fit the
        batch."""
        if self.by_instances:
            result: Any = self._scores_by_item(batch.for_user(), metric)
        else:
            result = self._call(self.instance.score, batch, metric=metric, replies=replies)
        if isinstance(result, SampleScores):
            return self._checked(result, batch)
        if isinstance(result, Mapping):
            if metric.name not in result:
                raise ScorerError(
                    f"scorer {self.name!r} returned no {metric.name!r}{nearest(metric.name, result)} (it "
                    f"returned {', '.join(map(repr, result)) or 'nothing'})"
                )
            result = result[metric.name]
        try:
            values = as_json(list(result))
        except TypeError as error:
            raise ScorerError(
                f"scorer {self.name!r} returned {error}; expected a number per sample"
            ) from error
        if len(values) != len(batch):
            raise ScorerError(f"scorer {self.name!r} returned {len(values)} numbers for {len(batch)} samples")
        return score_values(batch, metric, values, [f"scorer {self.name!r} gave no number"] * len(batch))

    def _scores_by_item(self, batch: Batch, metric: Metric) -> list[Any]:
        """What ``score_instances`` says of each item's scored rows; None for the others."""
        rows_of: dict[str, list[int]] = {}
        for row in np.flatnonzero(batch.scored).tolist():
            rows_of.setdefault(batch.item_ids[row], []).append(row)
        place = next((name for name in self.metrics if self._is_of(metric, name)), ALL_FILTERS)
        named = f'let get_metrics name {metric.name!r} for "*" alone: it names it for {place!r} as well'
        remedy = named if ALL_FILTERS in self.metrics else LOOK_ACROSS
        values: list[Any] = [None] * len(batch)
        for number, rows in enumerate(rows_of.values()):
            try:
                with users_code():
                    instance = _instance(batch, number, rows, place, remedy)
                    returned = self.instance.score_instances([instance], place)
                    found = scores_of_item(returned, metric.name, len(rows))
            except Exception as error:
                raise ScorerError(
                    f"{batch.name(rows[0])}: scorer {self.name!r} raised {described(error)}"
                ) from error
            for row, value in zip(rows, found, strict=True):
                values[row] = value
        return values

    def _call(self, method: Callable[..., Any], batch: Batch, **offered: Any) -> Any:
        batch = batch.for_user()
        parameters = inspect.signature(method).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        try:
            with users_code():
                returned = method(
                    batch, **{key: value for key, value in offered.items() if takes_any or key in parameters}
                )
                return list(returned) if isinstance(returned, Iterator) else returned
        except Exception as error:
            raise ScorerError(f"scorer {self.name!r} raised {described(error)}") from error

    def _checked(self, result: SampleScores, batch: Batch) -> SampleScores:
        lengths = {len(result.scored), len(result.scores), len(result.codes), len(result.errors)}
        if lengths != {len(batch)}:
            raise ScorerError(
                f"scorer {self.name!r} returned columns of {sorted(lengths)} rows for {len(batch)} samples"
            )
        return result
