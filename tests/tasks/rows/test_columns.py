"""What is computed in whole columns is what is computed row by row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from scorers.config import FilterConfig
from scorers.filters import FilterPipeline
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers import recorded_content
from tasks.models.providers.provider import provider_of
from tasks.models.records import InferenceOptions
from tasks.reporting import exports
from tasks.reporting.exports import AnswerPart, RunInfo, SamplePart, write_samples
from tasks.rows import predictions
from tasks.rows.parts import Origin, from_batches
from tasks.rows.predictions import LimitedPipeline, prediction_batches
from tasks.store.schemas import PREDICTIONS, REQUESTS, RESPONSES, STATISTICS, row_batch

CALLS = orjson.dumps([{"name": "f", "arguments": "{}"}]).decode()
ANSWERS: list[list[dict[str, Any]]] = [
    [{"response": "The answer is 4."}, {"response": "#### 5"}],
    [{"response": ""}, {"response": " \x1f\u2003", "finish_reason": "length"}],
    [{"response": None, "tool_calls_json": CALLS, "finish_reason": "tool_calls"}, {"response": "grün 😀"}],
    [{"response": "", "finish_reason": "tool_calls"}, {"response": "7"}],
]
LOST = [{"status": "infra_error", "error": "away"}, {"status": "cut_off", "finish_reason": "length"}]
PIPELINES: dict[str, list[Any]] = {
    "none": [],
    "regex": [{"function": "regex", "regex_pattern": r"(\d)", "fallback": None}],
    "first": [{"function": "take_first"}],
    "vote": [{"function": "majority_vote"}],
}


def requests(count: int) -> pa.RecordBatch:
    rows = [
        {
            "item_id": f"item-{n}", "doc_id": n, "item_digest": "d", "prompt_template": "plain",
            "kind": "generate", "chat": False, "prompts": [f"What is {n}?"], "continuations": [""],
            "unconditional": [], "references_json": '["4"]' if n % 2 else '["4","vier"]', "gold": [],
            "choices": [], "first_sample": 0,
            "doc_json": orjson.dumps({"question": n, "of": 1.5 if n == 1 else None}).decode(),
        }
        for n in range(count)
    ]  # fmt: skip
    return row_batch(rows, REQUESTS)


def responses(answers: Sequence[Sequence[Mapping[str, Any]]]) -> pa.RecordBatch:
    rows = [
        {
            "item_id": f"item-{n}", "doc_id": n, "sample_id": f"item-{n}_sample_{index}",
            "sample_index": index, "request_key": "k", "prompt": "?", "status": "ok",
            "finish_reason": "stop", "attempts": 1, **answer,
        }
        for n, item in enumerate(answers)
        for index, answer in enumerate(item)
    ]  # fmt: skip
    return row_batch(rows, RESPONSES)


def filtered(steps: list[Any], answers: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    config = FilterConfig.model_validate({"name": "f", "filter": steps})
    with LimitedPipeline(FilterPipeline.build(config, None), config, 5.0) as limited:  # type: ignore[arg-type]
        answered = responses(answers)
        cut = [answered.slice(start, 3) for start in range(0, answered.num_rows, 3)]
        asked = requests(len(answers))
        batches = prediction_batches(limited, [asked.slice(0, 3), asked.slice(3)], cut)
        return pa.Table.from_batches(list(batches), PREDICTIONS).to_pylist()


@pytest.mark.parametrize("steps", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("lost", [False, True], ids=["all answered", "some lost"])
def test_predictions(monkeypatch: pytest.MonkeyPatch, steps: list[Any], kept: int, lost: bool) -> None:
    answers = [item[:kept] for item in ANSWERS] + [LOST[:kept]] * lost
    by_columns = filtered(steps, answers)
    monkeypatch.setattr(predictions, "_all_answered", lambda *_: False)
    assert by_columns == filtered(steps, answers)
    assert any(row["outcome"] == "empty" for row in by_columns)


@pytest.mark.parametrize("lost", [*LOST, {"status": "refused", "finish_reason": "content_filter"}])
@pytest.mark.parametrize("name", ["none", "regex"])
def test_an_items_rows_are_in_the_order_of_its_samples(name: str, lost: Mapping[str, Any]) -> None:
    item = [lost, {"response": "4"}, {"response": "5"}]
    found = filtered(PIPELINES[name], [item])
    assert [(row["sample_index"], row["prediction"]) for row in found] == [(0, None), (1, "4"), (2, "5")]


def test_responses_of_other_items_are_refused() -> None:
    config = FilterConfig.model_validate({"name": "f", "filter": []})
    with LimitedPipeline(FilterPipeline.build(config, None), config, 5.0) as limited:  # type: ignore[arg-type]
        for count in (1, 3):
            with pytest.raises(ValueError, match="item"):
                list(prediction_batches(limited, [requests(2)], [responses(ANSWERS[:count])]))


def sample_file(path: Path, steps: list[Any], answers: Sequence[Sequence[Mapping[str, Any]]]) -> bytes:
    rows = filtered(steps, answers)
    scores = [
        {
            **row, "score": value, "scored": row["scored"] and value is not None, "code": -1,
            "value_json": text, "is_json": None,
        }
        for row, value, text in zip(
            rows, [0.5, None, float("nan"), 1.0] * 2, [None, "[true,2]", None, "NaN"] * 2, strict=False
        )
    ]  # fmt: skip
    plain = [{**row, "value_json": None} for row in scores]
    part = SamplePart(
        AnswerPart(
            Origin("qwen", "plain", {"sampling": {"temperature": 0, "num_samples": 2}}),
            from_batches([requests(len(answers))]),
            from_batches([responses(answers)]),
        ),
        "f",
        from_batches([row_batch(rows, PREDICTIONS)]),
        {name: from_batches([row_batch(own, STATISTICS)]) for name, own in (("a", scores), ("b", plain))},
    )
    run = RunInfo("r", "b", ("qwen",), ("plain",), 0.0, len(answers), len(answers), {})
    write_samples(path, [part], run)
    return path.read_bytes()


@pytest.mark.parametrize("kept", [1, 2])
def test_sample_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: int) -> None:
    answers = [item[:kept] for item in ANSWERS]
    by_columns = sample_file(tmp_path / "s.jsonl", PIPELINES["regex"], answers)
    monkeypatch.setattr(exports, "_has_one_a_text", lambda *_: False)
    assert by_columns == sample_file(tmp_path / "s.jsonl", PIPELINES["regex"], answers)
    assert by_columns.count(b"\n") == len(answers)


def test_recorded_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        {"item_id": "item-0", "response": "four"},
        {"item_id": "item-1", "sample_index": 0, "model_name": "demo", "response": ""},
        {"item_id": "item-2", "response": None},
        {"item_id": "item-3", "response": {"said": 4}},
    ]
    rows = [{"model_name": "demo", **row} for row in rows]
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    model = ModelConfig.model_validate({"name": "demo", "type": "replay", "config": {"path": "r.jsonl"}})

    def replayed() -> list[dict[str, Any]]:
        options = InferenceOptions(sampling=SampleParams(), journal_dir=tmp_path, base_dir=tmp_path)
        return [
            row
            for batch in provider_of(model, options.base_dir).responses([requests(4)], options).batches
            for row in batch.to_pylist()
        ]

    found = replayed()
    monkeypatch.setattr(recorded_content, "PLAIN_FIELDS", frozenset())
    assert found == replayed()
    assert [row["status"] for row in found] == ["ok", "ok", "infra_error", "ok"]
