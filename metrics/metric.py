"""The metric record: a function with its arguments, the aggregation and the reductions that follow it.

It calls the function in the function's own style, checks what comes back and gives ``Scores``. Scorers hold
such records; ``metrics.build`` makes them.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import ConfigError, MetricError, described, users_code
from metrics.instances import LLResults, takes_ll_results
from metrics.patterns import bounded
from metrics.reductions.reduction import Reduction
from metrics.registry import CallStyle, Patterns, RightAnswers
from metrics.types import (
    OUTPUT_TYPES,
    Answer,
    ChoiceBatch,
    Floats,
    Kind,
    LikelihoodResult,
    OutputType,
    Scores,
)
from metrics.user_results import read_user_results

NOT_INSTALLED = "not installed"


@cache
def installed_version(library: str) -> str:
    """The installed version of a distribution; looking it up reads folders, so it is looked up once."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return NOT_INSTALLED


@dataclass(frozen=True)
class Metric:
    """One metric as a config asks for it.

    ``name`` is unique within a filter. ``function`` is None where the samples' values come from elsewhere
    (``process_results``, a judge, a reward model): then ``scores_of`` takes them. ``entry`` is the key under
    which a dictionary that the function returns holds the number. ``arguments`` are all keywords of the
    config, ``kwargs`` those that the function takes, and the aggregation has the rest. ``worst`` is the end
    of the range of a metric that is better when lower, which a sample without a prediction has at least;
    ``refused`` the score of a refused answer. None: that of the empty text.
    """

    name: str
    function: Callable[..., Any] | None
    aggregation: Aggregation
    reductions: tuple[Reduction, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    higher_is_better: bool = True
    output_types: tuple[OutputType, ...] = OUTPUT_TYPES
    style: CallStyle = "item"
    version: int = 1
    libraries: tuple[str, ...] = ()
    entry: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    patterns: Patterns | None = None
    endless: bool = False
    right_answers: RightAnswers | None = None
    best: float = 1.0
    worst: float | None = None
    refused: float | None = None
    depends_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a metric needs a name that is not empty")
        if self.function is not None and not callable(self.function):
            raise ConfigError(f"metric {self.name!r}: {self.function!r} is not a function")
        if not isinstance(self.aggregation, Aggregation):
            raise ConfigError(f"metric {self.name!r} has no aggregation; name one, such as mean")
        if not self.reductions:
            raise ConfigError(f"metric {self.name!r} has no reduction; name one, such as mean")

    @property
    def kind(self) -> Kind:
        """ "sums" if items add up, "values" if they are kept."""
        return self.aggregation.kind

    @property
    def input(self) -> Literal["text", "choices"]:
        """What the metric is given: texts, or log-likelihoods of choices."""
        return "choices" if self.style == "choices" else "text"

    def within(self, bounds: tuple[float, float]) -> "Metric":
        """The same metric, known to give numbers within ``bounds``: their mean lies there too, and so does
        what is said about its error.

        Not where the aggregation is no mean, or a user's reduction makes other numbers of them.
        """
        made_anew = any(reduction.function is not None for reduction in self.reductions)
        if self.aggregation.name != "mean" or made_anew:
            return self
        return replace(self, aggregation=replace(self.aggregation, bounds=bounds))

    @property
    def takes_result(self) -> bool:
        """Whether the function wants all that is known of an item's log-likelihoods, as ``result``."""
        return self._takes("result")

    @property
    def takes_ll_results(self) -> bool:
        """Whether the function is written for ``LLResults`` as its predictions."""
        given = self.style == "item" and self.function is not None and not self.takes_result
        return given and takes_ll_results(self.function)  # type: ignore[arg-type]  # it is not None

    @property
    def takes_answer(self) -> bool:
        """Whether the function wants the sample's whole ``answer``: its calls of tools, the transcript."""
        return self._takes("answer")

    def _takes(self, name: str) -> bool:
        if self.style != "item" or self.function is None:
            return False
        try:
            return name in inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # a compiled function may have no signature
            return False

    def bounded(self, references: Sequence[Sequence[Any]], predictions: Sequence[Any]) -> bool:
        """Whether ``evaluate`` is sure to end soon: else it has to be called where it can be stopped."""
        if self.patterns is None:
            return not self.endless
        found = set(self.patterns(references, **self.kwargs))
        if not found:
            return True
        golds = (gold for own in references for gold in own)
        texts = [text for text in (*predictions, *golds) if isinstance(text, str)]
        return all(bounded(pattern, texts, flags) for pattern, flags in found)

    def evaluate(
        self,
        references: Sequence[Sequence[Any]],
        predictions: Sequence[Any],
        results: Sequence[LikelihoodResult] | None = None,
        answers: Sequence[Answer | None] | None = None,
    ) -> Scores:
        """Scores of n samples; ``references[i]`` are the acceptable answers, prediction None means there is
        none. ``results`` are handed to a function that ``takes_result``, ``answers`` to one that
        ``takes_answer``.

        Raises ``MetricError`` with the row in ``index``.
        """
        if self.style == "choices" or self.function is None:
            raise MetricError(f"metric {self.name!r} is not computed from texts")
        if len(references) != len(predictions):
            raise MetricError(
                f"metric {self.name!r} got {len(references)} references for {len(predictions)} predictions"
            )
        if self.style == "batched":
            return self._as_scores(self._column(references, predictions), len(predictions))
        known: list[dict[str, Any]] = [{}] * len(predictions)
        if results is not None and self.takes_ll_results:
            returned = [self._ll_result(i, result) for i, result in enumerate(results)]
            return read_user_results(returned, self.name, self.entry, self.aggregation)
        if results is not None:
            known = [{"result": result} for result in results]
        elif answers is not None:
            known = [{"answer": answer} for answer in answers]
        returned = [
            self._item_result(i, references[i], predictions[i], known[i]) for i in range(len(predictions))
        ]
        return read_user_results(returned, self.name, self.entry, self.aggregation)

    def of_no_answer(self, score: float, refused: bool) -> float | None:
        """The score of a sample without a prediction, ``score`` being that of the empty text; None: just
        that."""
        if refused and self.refused is not None:
            return self.refused
        return None if self.worst is None else max(self.worst, score)

    def evaluate_choices(self, batch: ChoiceBatch) -> Scores:
        """Scores of the n items of a batch of log-likelihoods."""
        if self.style != "choices" or self.function is None:
            raise MetricError(f"metric {self.name!r} is not computed from log-likelihoods")
        return self._as_scores(self._column(batch), len(batch))

    def scores_of(self, values: Sequence[Any]) -> Scores:
        """Scores of per-sample values that something else computed."""
        return self.aggregation.scores(values)

    def code(self) -> tuple[Callable[..., Any], ...]:
        """All functions whose source decides the numbers: the metric's, the reductions', the
        aggregation's."""
        return (*self.scoring_code(), *self.reduction_code(), *self.aggregation.code())

    def scoring_code(self) -> tuple[Callable[..., Any], ...]:
        """The functions that decide a sample's scores: the metric's, and those that make statistics of its
        values."""
        return _given(self.function, self.aggregation.encode, self.aggregation.read)

    def reduction_code(self) -> tuple[Callable[..., Any], ...]:
        """The functions that make one row of an item's samples."""
        chosen = (code for one in self.reductions for code in (one.pick, one.compute, one.function))
        return _given(*chosen, self.aggregation.merge)

    def signature(self) -> str:
        """Says exactly how the number was computed: name, arguments, aggregation, versions."""
        parts = [self.entry or self.name, f"agg:{self.aggregation.name}"]
        parts += [f"{key}:{value}" for key, value in sorted(self.arguments.items())]
        parts += [
            f"version:{self.version}",
            *(f"{name}:{installed_version(name)}" for name in self.libraries),
        ]
        return "|".join(parts)

    def _column(self, *given: Any) -> Any:
        """What a function of whole columns returns."""
        assert self.function is not None
        with users_code():  # of a plugin
            return self.function(*given, **self.kwargs)

    def _item_result(
        self, index: int, references: Sequence[Any], prediction: Any, known: Mapping[str, Any]
    ) -> Any:
        assert self.function is not None
        try:
            with users_code():
                return self.function(
                    references=list(references),
                    predictions=["" if prediction is None else prediction],
                    **known,
                    **self.kwargs,
                )
        except Exception as error:
            raise MetricError(
                f"metric {self.name!r} failed on row {index}: {described(error)}", index
            ) from error

    def _ll_result(self, index: int, result: LikelihoodResult) -> Any:
        assert self.function is not None
        try:
            with users_code():
                return self.function(**LLResults.of(result).to_metric_inputs(), **self.kwargs)
        except Exception as error:
            raise MetricError(
                f"metric {self.name!r} failed on row {index}: {described(error)}", index
            ) from error

    def _as_scores(self, result: Any, n: int) -> Scores:
        if isinstance(result, list):  # per-sample values, as process_results would give them
            result = self.aggregation.scores(result)
        given = isinstance(result, Scores)
        scores: Scores = result if given else self._from_array(np.asarray(result, dtype=np.float64))
        if len(scores) != n:
            raise MetricError(f"metric {self.name!r} returned {len(scores)} rows for {n} samples")
        return self._for_aggregation(scores)

    def _for_aggregation(self, scores: Scores) -> Scores:
        """The same scores with the statistics that the aggregation takes, which need not be the metric's
        own."""
        if self.aggregation.tabulate is not None and scores.values is None:
            raise MetricError(
                f"aggregation {self.aggregation.name!r} takes pairs of labels; "
                f"metric {self.name!r} gives numbers"
            )
        if scores.statistics is None:
            return scores
        if self.aggregation.encode is not None:  # of numbers: each sample's own
            own = self.aggregation.encode(scores.score) if self.kind == "sums" else None
            return replace(scores, statistics=own)
        self._check_width(scores.statistics)
        return scores

    def _check_width(self, statistics: Floats) -> None:
        if statistics.shape[1] != self.aggregation.k:
            raise MetricError(
                f"metric {self.name!r} returned {statistics.shape[1]} statistics a sample; "
                f"aggregation {self.aggregation.name!r} takes {self.aggregation.k}"
            )

    def _from_array(self, array: Floats) -> Scores:
        if array.ndim == 1 and self.aggregation.encode is not None:
            return self.aggregation.scores(array.tolist())
        statistics = array.reshape(len(array), -1)
        self._check_width(statistics)
        if self.aggregation.encode is not None and statistics.shape[1] == 1:
            return self.aggregation.scores(statistics[:, 0].tolist())
        score = (
            self.aggregation.of_totals(statistics, 1.0)
            if self.kind == "sums"
            else np.full(len(array), math.nan)
        )
        return Scores(statistics=statistics, values=None, score=score)


def _given(*functions: Callable[..., Any] | None) -> tuple[Callable[..., Any], ...]:
    return tuple(function for function in functions if function is not None)
