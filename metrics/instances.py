"""Results and scorers in the form of lm-evaluation-harness's documents: what a user's function or class is
given that is written for it. A door: the numbers are those of ``Metric``.

``LLResults`` is the ``predictions`` of a metric on log-likelihoods, ``Instance`` one item with its filtered
answers, ``GenResult`` their scores, ``GenerationScorer`` the class whose ``score_instances`` makes them.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, Protocol

import numpy as np

from metrics.errors import MetricError
from metrics.types import Floats, LikelihoodResult, Scores

_ATTRIBUTES: Final = frozenset({"lls", "is_greedy", "lls_mutual_info", "char_len", "byte_len", "word_len"})
"""What only ``LLResults`` has: a function that uses one of them is written for it."""


@dataclass(frozen=True)
class LLResults:
    """One item's log-likelihoods (natural logarithm) beside its choices; lengths are 1 without choices."""

    lls: Floats
    is_greedy: Sequence[bool]
    targets: int | list[int]
    choices: Sequence[str] = ()
    lls_mutual_info: Floats = field(default_factory=lambda: np.empty(0))
    results: Sequence[Any] = ()
    ctx: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    lengths: Mapping[str, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, result: LikelihoodResult) -> "LLResults":
        """The same item; raises MetricError where it is not known what greedy decoding would have given."""
        if result.is_greedy is None:
            raise MetricError("the metric needs is_greedy, and the recorded response has none; add it")
        lls, alone = np.asarray(result.lls), result.unconditional_lls
        counts = {"char": result.char_lengths, "byte": result.byte_lengths, "word": result.word_lengths}
        return cls(
            lls=lls,
            is_greedy=result.is_greedy,
            targets=result.targets[0] if len(result.targets) == 1 else list(result.targets),
            choices=result.choices,
            lls_mutual_info=np.empty(0) if alone is None else lls - np.asarray(alone),
            results=list(zip(result.lls, result.is_greedy, strict=True)),
            lengths={name: np.asarray(values, dtype=np.float64) for name, values in counts.items()},
        )

    @classmethod
    def from_instances(cls, results: Sequence[Any], filter_name: str = "none") -> "LLResults":
        """One item's requests, one a choice and, for mutual information, one a choice without the context.

        Each has ``args`` (context, choice), ``target``, ``metadata`` and ``filtered_resps``, which hold a
        pair (log-likelihood, greedy) a repeat. Raises ValueError where the choices are not the same twice.
        """
        halves: tuple[list[Any], list[Any]] = ([], [])
        for one in sorted(results, key=lambda one: int(one.doc_id)):
            halves[bool(one.metadata.get("acc_mutual_info", False))].append(one)
        asked, alone = halves
        choices = tuple(one.args[1] for one in asked)
        if alone and tuple(one.args[1] for one in alone) != choices:
            raise ValueError("acc_mutual_info: choices with and without the context differ")
        pairs = [[pair for one in half for pair in one.filtered_resps[filter_name]] for half in halves]
        lls, unconditional = (np.array([ll for ll, _ in own], dtype=np.float64) for own in pairs)
        return cls(
            lls=lls,
            is_greedy=[greedy for _, greedy in pairs[0]],
            targets=asked[0].target,
            choices=choices,
            lls_mutual_info=lls - unconditional if alone else np.empty(0),
            results=[one.filtered_resps[filter_name] for one in (*asked, *alone)],
            ctx=asked[0].args[0],
        )

    def char_len(self) -> Floats:
        """Characters of each choice."""
        return self._lengths("char", len)

    def byte_len(self, count_bytes: Callable[[str], float] | None = None) -> Floats:
        """UTF-8 bytes of each choice, or what ``count_bytes`` says."""
        return self._lengths("byte", lambda text: len(text.encode()), count_bytes)

    def word_len(self, count_words: Callable[[str], float] | None = None) -> Floats:
        """Words of each choice, or of the document, or what ``count_words`` says."""
        return self._lengths("word", lambda text: len(text.split()), count_words)

    def _lengths(
        self, unit: str, count: Callable[[str], float], own: Callable[[str], float] | None = None
    ) -> Floats:
        if own is None and unit in self.lengths:
            return self.lengths[unit]
        counted = map(own or count, self.choices) if self.choices else [1.0] * len(self.lls)
        return np.array([*counted], dtype=np.float64)

    def to_metric_inputs(self) -> dict[str, Any]:
        """What a metric is called with."""
        return {"references": self.targets, "predictions": self}


def takes_ll_results(function: Callable[..., Any]) -> bool:
    """Whether a metric's ``predictions`` are meant to be LLResults: by annotation, or by what it reads."""
    call = function if inspect.isroutine(function) else type(function).__call__
    annotation = str(getattr(call, "__annotations__", {}).get("predictions", ""))
    code = getattr(inspect.unwrap(call), "__code__", None)
    return "LLResults" in annotation or (code is not None and not _ATTRIBUTES.isdisjoint(_names(code)))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class FilteredAnswers(dict[str, list[Any]]):
    """An item's answers after one filter; who looks at the others' is told ``remedy``."""

    def __init__(self, answers: Mapping[str, list[Any]], remedy: str) -> None:
        super().__init__(answers)
        self._remedy = remedy

    def __missing__(self, name: str) -> list[Any]:
        raise KeyError(self._cure(name))

    def keys(self) -> Any:
        """The filters' names, where the scorer looks across filters."""
        if len(self) == 1:
            raise MetricError(self._cure("*"))
        return super().keys()

    def _cure(self, name: str) -> str:
        return (
            f"filter {name!r}: a scorer is given one filter's answers at a time; to see all of them, "
            f"{self._remedy}"
        )


@dataclass(frozen=True)
class Instance:
    """One item: its row, its right answer, and its repeats before and after each filter."""

    doc_id: int
    doc: Mapping[str, Any]
    target: Any
    resps: list[Any]
    filtered_resps: dict[str, list[Any]]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class GenResult:
    """The answers of one item after a filter, beside the right one; ``scores`` holds a list a metric."""

    results: list[Any]
    target: Any
    instances: Sequence[Instance] = ()
    scores: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def from_instances(cls, instances: Sequence[Instance], filter_name: str) -> "GenResult":
        """The answers of all instances, of one item, in their order."""
        results = [answer for one in instances for answer in one.filtered_resps[filter_name]]
        return cls(results, instances[0].target, instances)


class ScoringMetric(Protocol):
    """What a scorer needs of a metric (``metrics.metric.Metric``)."""

    @property
    def name(self) -> str:
        """Its name among the filter's metrics."""
        ...

    def evaluate(self, references: Sequence[Sequence[Any]], predictions: Sequence[Any]) -> Scores:
        """The scores of some answers."""
        ...


class GenerationScorer:
    """The scorer of generated text as its document has it; subclasses add to ``_compute_metrics``."""

    def __init__(self, task_config: Any = None) -> None:
        self.task_config = task_config
        self.metrics: Mapping[str, Sequence[ScoringMetric]] = {}

    def metrics_of(self, filter_name: str) -> Sequence[ScoringMetric]:
        """The metrics of a filter."""
        return self.metrics.get(filter_name, ())

    def score_instances(self, instances: Sequence[Instance], filter_name: str) -> GenResult:
        """The answers of one item with their scores."""
        result = GenResult.from_instances(instances, filter_name)
        result.scores = self._compute_metrics(result, self.metrics_of(filter_name))
        return result

    def _compute_metrics(
        self, gen_result: GenResult, metrics: Sequence[ScoringMetric]
    ) -> dict[str, list[float]]:
        """Each metric's scores, one an answer."""
        target = gen_result.target
        references = [target if isinstance(target, list) else [target]] * len(gen_result.results)
        return {
            metric.name: metric.evaluate(references, gen_result.results).score.tolist() for metric in metrics
        }


def scores_of_item(returned: Any, name: str, repeats: int) -> list[Any]:
    """A metric's numbers for the repeats of one item: of a GenResult or a dictionary the entry ``name``; one
    number is that of every repeat. Raises ValueError for anything else."""
    scores = getattr(returned, "scores", returned)
    if not isinstance(scores, Mapping) or name not in scores:
        there = ", ".join(map(repr, scores)) if isinstance(scores, Mapping) else type(returned).__name__
        raise ValueError(f"score_instances returned no {name!r} (it returned {there})")
    value = scores[name]
    values = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value] * repeats
    if len(values) != repeats:
        raise ValueError(f"score_instances returned {len(values)} numbers of {name!r} for {repeats} answers")
    return values
