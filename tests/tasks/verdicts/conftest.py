"""Requests, responses and verdicts in memory, built from a few words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tasks.rows.parts import Origin, Part, from_batches
from tasks.store.schemas import REQUESTS, RESPONSES
from tasks.verdicts.config import EvaluationMethodConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import evaluate

Rows = Sequence[Mapping[str, Any]]


def filled(rows: Rows, schema: pa.Schema, defaults: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{**dict.fromkeys(schema.names), **defaults, **row} for row in rows], schema
    )


class Asking:
    """Items in order, each with its truths and, as further fields, its document.

    ``references`` are those of a target.
    """

    def __init__(
        self,
        truths: Mapping[str, Any],
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        references: Mapping[str, Sequence[Any]] | None = None,
    ):
        self.ids = list(truths)
        fields = fields or {}
        rows = [
            {
                "item_id": item_id,
                "doc_id": number,
                "item_digest": f"digest-{item_id}",
                "cluster": fields.get(item_id, {}).get("cluster"),
                "references_json": orjson.dumps((references or {}).get(item_id, _references(truth))).decode(),
                "ground_truth_json": None if truth is None else orjson.dumps(truth).decode(),
                "doc_json": orjson.dumps({"question": item_id, **fields.get(item_id, {})}).decode(),
            }
            for number, (item_id, truth) in enumerate(truths.items())
        ]
        defaults = {
            "prompt_template": "plain",
            "kind": "generate",
            "chat": False,
            "prompts": ["?"],
            "continuations": [""],
            "unconditional": [],
            "gold": [],
            "choices": [],
            "first_sample": 0,
        }
        self.requests = filled(rows, REQUESTS, defaults)

    def answered(self, responses: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
        """``item → responses``; a response may be a text, None (the request failed) or further columns."""
        rows = [
            {
                "item_id": item_id,
                "doc_id": self.ids.index(item_id),
                "sample_index": index,
                "sample_id": f"{item_id}_sample_{index}",
                "request_key": f"{item_id}{index}",
                **_response(response),
            }
            for item_id, samples in responses.items()
            for index, response in enumerate(samples)
        ]
        defaults = {"prompt": "?", "attempts": 1, "timestamp": "2026-01-01T00:00:00+00:00"}
        return filled(rows, RESPONSES, defaults)


def _references(truth: Any) -> list[Any]:
    """The acceptable answers as a benchmark without a target has them."""
    values = truth if isinstance(truth, list) else [truth]
    return [str(value) if isinstance(value, int | float) else value for value in values]


def _response(response: Any) -> dict[str, Any]:
    if response is None:
        return {"status": "infra_error", "error": "timed out"}
    if isinstance(response, dict):
        return {"status": "ok", **response}
    return {"status": "ok", "response": response}


def _judged(
    config: Mapping[str, Any] | str,
    asking: Asking,
    responses: Mapping[str, Sequence[Any]],
    origin: Origin = Origin("model", "plain"),  # noqa: B008
    function: Callable[..., Any] | None = None,
) -> Part:
    """One part of one evaluation method, its verdicts computed."""
    method = build_method(EvaluationMethodConfig.model_validate(config), lambda reference: function)
    answered = asking.answered(responses)
    requests, answers = from_batches([asking.requests]), from_batches([answered])
    verdicts = list(evaluate(method, origin, requests, answers))
    return Part(origin, from_batches(verdicts), requests, answers, method=method.name)


@pytest.fixture
def asking() -> type[Asking]:
    return Asking


@pytest.fixture
def judged() -> Callable[..., Part]:
    return _judged
