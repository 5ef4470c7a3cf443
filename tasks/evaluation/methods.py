"""Evaluation methods of a config: what judges one response and gives it labels, built in or a user's."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tasks.evaluation.asked import Asked
from tasks.evaluation.built_in import JUDGES, Judge, as_text, build_params, needs_truth, normaliser
from tasks.evaluation.config import EvaluationMethodConfig
from tasks.evaluation.judgement import EvaluationMethod, JudgeBatch, Judgement
from tasks.evaluation.labels import Verdict, details_json
from tasks.evaluation.params import ExactMatchParams
from tasks.evaluation.user_method import user_method
from tasks.reduction.records import Origin

Resolve = Callable[[str], Callable[..., Any]]


def build_method(config: EvaluationMethodConfig, resolve: Resolve) -> EvaluationMethod:
    """The method that ``config`` describes; ``resolve`` turns ``file.py:fn`` into the function.

    Raises ConfigError where the function does not take ``response`` or one of the arguments given to it.
    """
    if config.type is None:
        return user_method(config, resolve(str(config.function)))
    params = build_params(config.type, config.params)
    if isinstance(params, ExactMatchParams):
        judge = _exact_match(config.name, params)
    else:
        judge = _row_by_row(config.name, JUDGES[config.type](params), needs_truth(config.type, params))
    return EvaluationMethod(name=config.name, judge=judge)


def _exact_match(name: str, params: ExactMatchParams) -> JudgeBatch:
    """The same verdicts as the judge of built_in.exact_match, with no object made for each response."""
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


def _row_by_row(name: str, judge: Judge, wants_truth: bool) -> JudgeBatch:
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
