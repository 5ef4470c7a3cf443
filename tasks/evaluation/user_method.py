"""A user's function as an evaluation method: called response by response, by keyword."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from tasks.evaluation import asked
from tasks.evaluation.asked import Asked
from tasks.evaluation.config import EvaluationMethodConfig
from tasks.evaluation.judgement import EvaluationMethod, Judgement
from tasks.evaluation.keywords import accepted_keywords
from tasks.evaluation.labels import Verdict, read_verdicts
from tasks.evaluation.response_rows import COLUMNS, response_rows
from tasks.reduction.records import Origin

_GIVEN = ("response", "ground_truth", "inference_result")


def user_method(config: EvaluationMethodConfig, function: Callable[..., Any]) -> EvaluationMethod:
    """The method that calls ``function``; raises ConfigError where it does not take what it is given."""
    where = f"evaluation method {config.name!r}: {config.function}"
    given = accepted_keywords(where, function, _GIVEN, config.params)

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
        judge=judge,
        response_columns=COLUMNS,
        request_columns=asked.COLUMNS_WITH_DOCUMENTS,
        function=function,
    )


def _called(
    config: EvaluationMethodConfig, function: Callable[..., Any], given: Mapping[str, Any]
) -> list[Verdict]:
    """What the user's function says; a response that it fails on is unscored, with the reason."""
    try:
        return read_verdicts(function(**given, **config.params), config.name)
    except Exception as error:
        return [
            Verdict(label=None, error=f"evaluation method {config.name!r}: {type(error).__name__}: {error}")
        ]
