"""Evaluation methods: what judges one response and gives it labels, built in or a user's function."""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from metrics.errors import ConfigError, nearest
from tasks.evaluation import asked
from tasks.evaluation.asked import Asked
from tasks.evaluation.built_in import JUDGES, Judge, as_text, build_params, needs_truth, normaliser
from tasks.evaluation.config import EvaluationMethodConfig
from tasks.evaluation.labels import Verdict, details_json, read_verdicts
from tasks.evaluation.params import ExactMatchParams
from tasks.evaluation.response_rows import COLUMNS as ROW_COLUMNS
from tasks.evaluation.response_rows import response_rows
from tasks.reduction.records import Origin

Resolve = Callable[[str], Callable[..., Any]]
Judgement = tuple[list[Verdict], float]
"""What a method says of one response, and how many seconds it took."""

_GIVEN = ("response", "ground_truth", "inference_result")


@dataclass(frozen=True)
class EvaluationMethod:
    """One evaluation method of a config.

    ``judge(batch, requests, origin)`` yields one judgement for each response of a RESPONSES batch that holds
    ``response_columns``; ``requests`` stand beside the rows. It is only called for responses that succeeded.
    """

    name: str
    config: EvaluationMethodConfig
    judge: Callable[[pa.RecordBatch, Sequence[Asked], Origin], Iterator[Judgement]]
    response_columns: Sequence[str] = ("response",)
    request_columns: Sequence[str] = asked.COLUMNS
    function: Callable[..., Any] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def default_label(self) -> str | None:
        """The label of every response, judged or not; None where only the function knows its labels."""
        return self.name if self.function is None else None

    @property
    def looks_at_origin(self) -> bool:
        """Whether the model's display name can change a verdict, and belongs into the cache key therefore."""
        return self.function is not None

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, for the fingerprint; nothing for a built-in, which this package's code decides."""
        return () if self.function is None else (self.function,)


def build_method(config: EvaluationMethodConfig, resolve: Resolve) -> EvaluationMethod:
    """The method that ``config`` describes; ``resolve`` turns ``file.py:fn`` into the function.

    Raises ConfigError where the function does not take ``response`` or one of the arguments given to it.
    """
    if config.type is None:
        return _user_method(config, resolve(str(config.function)))
    params = build_params(config.type, config.params)
    shown = params.model_dump(mode="json", exclude_unset=True)
    if isinstance(params, ExactMatchParams):
        judge = _exact_match(config.name, params)
    else:
        judge = _row_by_row(config.name, JUDGES[config.type](params), needs_truth(config.type, params))
    return EvaluationMethod(name=config.name, config=config, judge=judge, parameters=shown)


def _exact_match(name: str, params: ExactMatchParams) -> Callable[..., Iterator[Judgement]]:
    """The same verdicts as the judge of built_in.exact_match, with one object a verdict and not one a response."""
    normalise = normaliser(params)
    right = [Verdict(name, passed=True, score=1.0)]
    wrong = [Verdict(name, passed=False, score=0.0)]

    def judge(batch: pa.RecordBatch, requests: Sequence[Asked], _: Origin) -> Iterator[Judgement]:
        started, judged = time.perf_counter(), []
        last: Asked | None = None
        answers: set[str] = set()
        for response, request in zip(batch.column("response").to_pylist(), requests, strict=True):
            if request is not last:
                last, texts = request, map(as_text, request.references)
                answers = set(map(normalise, texts) if normalise else texts)
            if not answers or response is None:
                judged.append([_nothing_to_compare(name, response)])
            else:
                judged.append(right if (normalise(response) if normalise else response) in answers else wrong)
        seconds = (time.perf_counter() - started) / max(len(judged), 1)
        return iter([(verdicts, seconds) for verdicts in judged])

    return judge


def _row_by_row(name: str, judge: Judge, wants_truth: bool) -> Callable[..., Iterator[Judgement]]:
    def judge_all(batch: pa.RecordBatch, requests: Sequence[Asked], _: Origin) -> Iterator[Judgement]:
        for response, request in zip(batch.column("response").to_pylist(), requests, strict=True):
            started = time.perf_counter()
            truths = request.references if wants_truth else [None]
            verdict = _any_truth(name, judge, response, truths)
            yield [verdict], time.perf_counter() - started

    return judge_all


def _any_truth(name: str, judge: Judge, response: str | None, truths: Sequence[Any]) -> Verdict:
    """The verdict against the first ground truth that the response meets, else against the first of them."""
    if response is None or not truths:
        return _nothing_to_compare(name, response)
    first: Verdict | None = None
    for truth in truths:
        try:
            passed, said = judge(response, truth)
        except ValueError as error:
            return Verdict(name, error=f"{error}")
        details = details_json({"detailed_results": said}) if said else None
        verdict = Verdict(name, passed=passed, score=float(passed), details=details)
        if passed:
            return verdict
        first = first or verdict
    assert first is not None
    return first


def _nothing_to_compare(name: str, response: str | None) -> Verdict:
    missing = "the response has no text" if response is None else "the item has no ground truth"
    return Verdict(name, error=f"{missing} to compare")


def _user_method(config: EvaluationMethodConfig, function: Callable[..., Any]) -> EvaluationMethod:
    given = _accepted(config, function)

    def judge(batch: pa.RecordBatch, requests: Sequence[Asked], origin: Origin) -> Iterator[Judgement]:
        for row, request in zip(response_rows(batch, origin), requests, strict=True):
            row["item"] = orjson.loads(request.document) if request.document else {}
            offered = {
                "response": row["response"],
                "ground_truth": request.ground_truth,
                "inference_result": row,
            }
            started = time.perf_counter()
            verdicts = _called(config, function, {name: offered[name] for name in given})
            yield verdicts, time.perf_counter() - started

    return EvaluationMethod(
        name=config.name,
        config=config,
        judge=judge,
        response_columns=ROW_COLUMNS,
        request_columns=asked.COLUMNS_WITH_DOCUMENTS,
        function=function,
        parameters=config.params,
    )


def _called(
    config: EvaluationMethodConfig, function: Callable[..., Any], given: Mapping[str, Any]
) -> list[Verdict]:
    """What the user's function says; a response that it fails on is unscored with the reason, the others go on."""
    try:
        return read_verdicts(function(**given, **config.params), config.name)
    except Exception as error:
        return [
            Verdict(label=None, error=f"evaluation method {config.name!r}: {type(error).__name__}: {error}")
        ]


def _accepted(config: EvaluationMethodConfig, function: Callable[..., Any]) -> list[str]:
    """Which of response, ground_truth and inference_result the function takes, by keyword."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return list(_GIVEN)
    names = [
        name
        for name, parameter in known.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    where = f"evaluation method {config.name!r}: {config.function}"
    for name in config.params:
        if name not in names and not anything:
            raise ConfigError(f"{where} does not take the argument {name!r}{nearest(name, names)}")
    given = [name for name in _GIVEN if anything or name in names]
    if "response" not in given:
        raise ConfigError(f"{where} must take response, ground_truth and inference_result by these names")
    open_names = [
        name
        for name in names
        if known[name].default is inspect.Parameter.empty and name not in (*given, *config.params)
    ]
    if open_names:
        raise ConfigError(f"{where} needs the argument {open_names[0]!r}; give it under params:")
    return given
