"""A user's ``process_results(doc, results)``: run once per filter, its dictionary fanned out into pairs."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.aliases import nearest
from metrics.errors import MetricError, described, users_code
from metrics.metric import Metric
from metrics.types import NO_PREDICTION, Scores, number_of
from scorers.base import (
    BaseScorer,
    Batch,
    ModelReply,
    SampleScores,
    ScorerError,
    prediction_codes,
    scatter,
)
from scorers.config import split_result_name
from scorers.user_functions import as_json


def _cure(metric: Metric, value: Any) -> str:
    """What to write where the function computed the number that the metric's aggregation would."""
    if number_of(value) is None:
        return ""
    return f". A number for each sample is averaged: write {{metric: {metric.name}, aggregation: mean}}"


_FOR_SOME = (
    ". If only some samples have it, return None for the others (unscored), or NaN and write "
    "aggregation: nanmean (left out)"
)
"""What to return where a metric is not of all samples: a name that is not there may have been forgotten."""

ResultValues = dict[str, Any]
"""What ``process_results`` returned for one sample: metric → value."""


@dataclass(frozen=True)
class ProcessResultsScorer(BaseScorer):
    """Fans the dictionary of a user's function out into pairs.

    ``function(doc, results)`` is given the item's row and the sample's prediction in a list; for multiple
    choice one ``(log-likelihood, is_greedy)`` per choice, then those without context (greediness that is not
    known is None); for a whole document
    its log-likelihood. ``metrics`` are the named metrics of each filter; names may hold a filter of their own
    after a comma.
    """

    function: Callable[..., Any]
    metrics: Mapping[str, tuple[Metric, ...]]
    rolling: bool = False

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """The metrics whose columns a filter's results hold.

        A name such as ``exact_match,strict-match`` belongs to the filter it names where there is one, and to
        every filter otherwise.
        """
        return tuple(
            metric
            for metric in self.metrics.get(filter_name, ())
            if (own := split_result_name(metric.name, filter_name)[1]) == filter_name
            or own not in self.metrics
        )

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function."""
        return (self.function,)

    def process(self, batch: Batch) -> list[ResultValues | None]:
        """The function's result for every scored row, as JSON-able values; None for the others.

        Raises ScorerError naming the item where the function raised or returned something that is not a
        dictionary, and warns about names that no metric list has.
        """
        processed = [
            self._process_row(batch, row) if ok else None for row, ok in enumerate(batch.scored.tolist())
        ]
        self.warn_of_undeclared(processed)
        return processed

    def column(self, processed: Sequence[ResultValues | None], metric: Metric, batch: Batch) -> SampleScores:
        """One metric's column of what ``process`` returned for ``batch``.

        A value of None leaves its sample unscored. Raises ScorerError naming the item whose result lacks the
        metric, or has a value that its aggregation cannot take.
        """
        scored = np.array([entry is not None for entry in processed], dtype=np.bool_)
        errors: list[str | None] = [None] * len(processed)
        values: list[Any] = []
        details: list[dict[str, Any] | None] = []
        for row in np.flatnonzero(scored).tolist():
            value, rest = self._metric_value(processed[row] or {}, metric, batch, row)
            if value is None:
                scored[row] = False
                errors[row] = f"process_results gave no value for {metric.name!r}"
            else:
                values.append(value)
                details.append(rest)
        rows = np.flatnonzero(scored)
        try:
            scores = metric.scores_of(values)
        except MetricError as error:
            where = "" if error.index is None else f"{batch.name(int(rows[error.index]))}: "
            cure = _cure(metric, values[error.index]) if error.index is not None else ""
            raise ScorerError(f"{where}metric {metric.name!r}: {error}{cure}") from error
        any_details = details if any(details) else None
        kept = scores.values
        if kept is None and any(number_of(value) is None for value in values):
            kept = values  # statistics are made of them; sample logs show what the function gave
        scores = scatter(Scores(scores.statistics, kept, scores.score, any_details), rows, len(processed))
        return SampleScores(scores, scored, self._codes(batch, scored), errors)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """``process`` and ``column`` in one, for a single metric."""
        return self.column(self.process(batch), metric, batch)

    def undeclared(self, processed: Sequence[ResultValues | None]) -> tuple[str, ...]:
        """Names in the results that no metric list has, sorted."""
        known = self._declared()
        return tuple(sorted({name for entry in processed if entry for name in entry if name not in known}))

    def warn_of_undeclared(self, processed: Sequence[ResultValues | None]) -> None:
        """Warns about names in the results that no metric list has."""
        unknown = self.undeclared(processed)
        if unknown:
            missing = self._declared() - {name for entry in processed if entry for name in entry}
            hints = [nearest(name, missing).removeprefix("; ") for name in unknown]
            names = ", ".join(
                f"{name!r} ({hint})" if hint else repr(name)
                for name, hint in zip(unknown, hints, strict=True)
            )
            warnings.warn(
                f"process_results returned {names}: not in metric_list, so not reported", stacklevel=2
            )

    def _declared(self) -> set[str]:
        names = {metric.name for metrics in self.metrics.values() for metric in metrics}
        return names | {metric.entry for metrics in self.metrics.values() for metric in metrics}

    def _process_row(self, batch: Batch, row: int) -> ResultValues:
        try:
            with users_code():
                result = self.function(dict(batch.docs[row]), self._results(batch, row))
        except Exception as error:
            raise ScorerError(f"{batch.name(row)}: process_results raised {described(error)}") from error
        if not isinstance(result, Mapping):
            names = sorted({metric.name for metrics in self.metrics.values() for metric in metrics})
            if len(names) != 1:
                raise ScorerError(
                    f"{batch.name(row)}: process_results returned {type(result).__name__}; expected a "
                    f"dictionary with an entry for each of {', '.join(names)}"
                )
            result = {names[0]: result}
        try:
            return {str(name): as_json(value) for name, value in result.items()}
        except TypeError as error:
            raise ScorerError(f"{batch.name(row)}: process_results returned {error}") from error

    def _results(self, batch: Batch, row: int) -> list[Any]:
        choices = batch.choices
        if choices is None:
            return ["" if batch.lacks_answer(row) else batch.predictions[row]]
        of_row = slice(int(choices.offsets[row]), int(choices.offsets[row + 1]))
        lls = choices.lls[of_row].tolist()
        if self.rolling:
            return list(lls)
        unknown = choices.greedy_unknown is not None and choices.greedy_unknown[row]
        flags = [None] * len(lls) if unknown else choices.is_greedy[of_row].tolist()
        results: list[tuple[float, bool | None]] = list(zip(lls, flags, strict=True))
        if choices.unconditional is not None:
            alone = choices.unconditional[of_row].tolist()
            known = choices.unconditional_greedy
            flags = [-1] * len(alone) if known is None else known[of_row].tolist()
            results += [(ll, None if flag < 0 else bool(flag)) for ll, flag in zip(alone, flags, strict=True)]
        return results

    def _metric_value(
        self, entry: ResultValues, metric: Metric, batch: Batch, row: int
    ) -> tuple[Any, dict[str, Any] | None]:
        """The metric's value; of a dictionary the entry named like the metric, else the first, the rest as
        details."""
        key = metric.name if metric.name in entry else metric.entry
        if key not in entry:
            hint = nearest(metric.name, entry.keys() - self._declared())
            raise ScorerError(
                f"{batch.name(row)}: process_results returned no {metric.name!r}{hint} (it returned "
                f"{', '.join(map(repr, entry)) or 'nothing'}){'' if hint else _FOR_SOME}"
            )
        value = entry[key]
        if not isinstance(value, Mapping):
            return value, None
        if not value:
            raise ScorerError(
                f"{batch.name(row)}: process_results returned an empty dictionary for {metric.name!r}"
            )
        chosen = key if key in value else next(iter(value))
        if chosen != key:
            warnings.warn(
                f"process_results: {key!r} is a dictionary without {key!r}; {chosen!r} counts", stacklevel=3
            )
        return value[chosen], {name: other for name, other in value.items() if name != chosen}

    def _codes(
        self, batch: Batch, scored: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        if batch.choices is not None:
            return np.full(len(batch), NO_PREDICTION, dtype=np.int64)
        predictions = [
            prediction if ok else None
            for prediction, ok in zip(batch.predictions, scored.tolist(), strict=True)
        ]
        return prediction_codes(predictions)
