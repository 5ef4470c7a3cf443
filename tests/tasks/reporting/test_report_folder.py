"""A run's folder, read back as what people look at."""

import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrics.errors import DataError
from tasks.reporting.compare import folder_view
from tasks.reporting.view import LabelView, ResponseView, SampleView
from tasks.store.schemas import RESULTS


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def response(
    item: str, index: int, model: str = "m", text: str | None = "A: 4", **fields: Any
) -> dict[str, Any]:
    row = {
        "item_id": item, "sample_id": f"{item}_sample_{index}", "sample_index": index, "model_name": model,
        "prompt_template": "p", "prompt": f"{item}?", "response": text, "status": "ok", "error": None,
        "metadata": {"finish_reason": "stop"}, "inference_time": 0.5, "prompt_tokens": 3,
        "completion_tokens": 2,
    }  # fmt: skip
    return row | fields


def logged(item: str, name: str, found: list[Any], score: float | None, **fields: Any) -> dict[str, Any]:
    row = {
        "doc_id": 0, "item_id": item, "doc": {}, "target": "4", "filter": name, "filtered_resps": found,
        "metrics": ["em"], "em": score, "doc_hash": f"hash {item}",
        "arguments": {"gen_args_0": {"arg_0": "2 + 2?"}}, "resps": [["A: 4"]],
    }  # fmt: skip
    return row | fields


def judged(
    item: str, index: int, method: str, label: str, passed: bool | None, **fields: Any
) -> dict[str, Any]:
    row = {
        "item_id": item, "sample_index": index, "label": label, "model_name": "m", "prompt_template": "p",
        "passed": passed, "score": None if passed is None else float(passed), "error": None,
        "status": "unscored" if passed is None else "ok", "evaluation_time": 0.1, "detailed_results": {},
        "metadata": {"evaluation_method": {"name": method}}, "item": {"topic": f"topic {item}"},
    }  # fmt: skip
    return row | fields


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(RESULTS.empty_table(), tmp_path / "results.parquet")
    (tmp_path / "manifest.json").write_text('{"benchmark": "b"}')
    lines(tmp_path / "responses.jsonl", [response("1", 0), response("2", 0)])
    lines(
        tmp_path / "samples_b.jsonl", [logged("1", "strict", ["4"], 1.0), logged("2", "strict", [None], 0.0)]
    )
    return tmp_path


def test_a_sample_is_read_with_all_that_came_of_it(folder: Path) -> None:
    view = folder_view(folder)
    first, second = view.samples()
    assert first == SampleView(
        item_id="1",
        model_name="m",
        prompt_template="p",
        prompt="1?",
        references=["4"],
        responses=[
            ResponseView(
                "A: 4", finish_reason="stop", prompt_tokens=3, completion_tokens=2, seconds=0.5, lls=[]
            )
        ],
        filters={"strict": ["4"]},
        scores={"em,strict": [1.0]},
        labels=[],
        choices=[],
        item_digest="hash 1",
        doc_id=0,
    )
    assert second.filters == {"strict": [None]}
    assert view.manifest == {"benchmark": "b"}
    assert view.results.schema.equals(pa.schema(RESULTS))


def test_models_and_partitions_and_filters_find_each_other(folder: Path) -> None:
    places = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("a", "3"), ("b", "3")]
    lines(folder / "responses.jsonl", [response(item, 0, model, f"{model}{item}") for model, item in places])
    cells = [("a", "12"), ("b", "12"), ("a", "3"), ("b", "3")]
    rows = [
        logged(item, name, [f"{model}{item}{name}"], 1.0, model_name=model, prompt_template="p")
        for model, items in cells
        for name in ("x", "y")
        for item in items
    ]
    lines(folder / "samples_b.jsonl", rows)
    samples = list(folder_view(folder).samples())
    assert [(sample.model_name, sample.item_id) for sample in samples] == [
        ("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2"), ("b", "3")
    ]  # fmt: skip
    for sample in samples:
        text = f"{sample.model_name}{sample.item_id}"
        assert sample.filters == {"x": [f"{text}x"], "y": [f"{text}y"]}
        assert sample.responses[0].text == text


def test_repeats_and_failures_stay_what_they_are(folder: Path) -> None:
    failed = response("1", 1, text=None, status="infra_error", error="HTTP 503")
    lines(folder / "responses.jsonl", [response("1", 0), failed])
    lines(folder / "samples_b.jsonl", [logged("1", "strict", [["4", None]], 1.0, em_repeats=[1.0, None])])
    (sample,) = folder_view(folder).samples()
    assert sample.filters == {"strict": ["4", None]}
    assert sample.scores == {"em,strict": [1.0, None]}
    assert [(each.status, each.error) for each in sample.responses] == [
        ("ok", None),
        ("infra_error", "HTTP 503"),
    ]
    assert sample.failed


def test_a_sample_has_the_runs_own_facets(folder: Path) -> None:
    config = {"facets": ["model_name", "item.topic", "step"]}
    (folder / "manifest.json").write_bytes(orjson.dumps({"benchmark": "b", "config": config}))
    lines(folder / "responses.jsonl", [response("1", 0, metadata={"step": 7})])
    lines(folder / "samples_b.jsonl", [logged("1", "strict", ["4"], 1.0, doc={"topic": "a", "step": 1})])
    (sample,) = folder_view(folder).samples()
    assert sample.facets == {"item.topic": "a", "step": 7}


def test_log_likelihoods_and_chats(folder: Path) -> None:
    chat = [{"role": "user", "content": "2 + 2?"}]
    lines(folder / "responses.jsonl", [response("1", 0, text=None, prompt=chat)])
    asked = {"gen_args_0": {"arg_0": "q", "arg_1": " five"}, "gen_args_1": {"arg_0": "q", "arg_1": " four"}}
    answers = [[["-3.5", "False"]], [["-0.25", "True"]]]
    lines(folder / "samples_b.jsonl", [logged("1", "none", [], 1.0, arguments=asked, resps=answers)])
    (sample,) = folder_view(folder).samples()
    assert sample.choices == ["five", "four"]
    assert sample.responses[0].lls == [-3.5, -0.25]
    assert sample.chat
    assert orjson.loads(sample.prompt) == chat


def test_thoughts_calls_and_conversations_are_read(folder: Path) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("hello", "bye")]
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}]
    rows = [
        response("1", 0, text="", prompt=chats[0], tool_calls=calls, reasoning="hm"),
        response("1", 1, prompt=chats[1]),
    ]
    lines(folder / "responses.jsonl", rows)
    lines(folder / "samples_b.jsonl", [logged("1", "strict", [[None, "4"]], 1.0)])
    (sample,) = folder_view(folder).samples()
    first, second = sample.responses
    assert (first.reasoning, first.tool_calls) == ("hm", calls)
    assert orjson.loads(sample.prompt) == chats[0]
    assert first.transcript is None
    assert second.transcript is not None
    assert orjson.loads(second.transcript) == chats[1]


def test_a_run_whose_scoring_failed_still_shows_its_responses(folder: Path) -> None:
    (folder / "samples_b.jsonl").unlink()
    first, _ = folder_view(folder).samples()
    assert first == dataclasses.replace(first, filters={}, scores={}, references=[])


def test_what_evaluation_methods_said_is_read_with_each_sample(folder: Path) -> None:
    (folder / "samples_b.jsonl").unlink()
    config = {"facets": ["item.topic"]}
    (folder / "manifest.json").write_bytes(orjson.dumps({"benchmark": "b", "config": config}))
    lines(folder / "responses.jsonl", [response("1", 0), response("1", 1), response("2", 0)])
    said = {"detailed_results": {"why": "polite"}}
    lines(
        folder / "evaluation_results.jsonl",
        [
            judged("1", 0, "tone", "polite", True, **said),
            judged("1", 0, "tone", "short", False),
            judged("1", 1, "tone", "polite", None, error="no reply"),
            judged("2", 0, "tone", "polite", False),
            judged("2", 0, "sum", "right", True),
        ],
    )
    first, second = folder_view(folder).samples()
    assert first.labels == [
        LabelView("polite", 0, True, 1.0, details=said, method="tone"),
        LabelView("short", 0, False, 0.0, method="tone"),
        LabelView("polite", 1, None, None, "unscored", {"error": "no reply"}, method="tone"),
    ]
    assert first.failed
    assert second.labels == [
        LabelView("polite", 0, False, 0.0, method="tone"),
        LabelView("right", 0, True, 1.0, method="sum"),
    ]
    assert (first.facets, second.facets) == ({"item.topic": "topic 1"}, {"item.topic": "topic 2"})


def test_what_is_missing_or_broken_is_named(folder: Path) -> None:
    (folder / "responses.jsonl").write_text('{"item_id": "1"}\n{broken\n')
    with pytest.raises(DataError, match=r"responses\.jsonl:2: no JSON object"):
        list(folder_view(folder).samples())
    rows = [{"benchmark": "b", "label": label, "value": 1.0} for label in (None, "polite")]
    pq.write_table(pa.Table.from_pylist(rows), folder / "results.parquet")
    (folder / "samples_b.jsonl").unlink()
    with pytest.raises(DataError, match=r"it lacks samples_b\.jsonl, evaluation_results\.jsonl"):
        folder_view(folder)
    (folder / "responses.jsonl").unlink()
    with pytest.raises(DataError, match=r"it lacks responses\.jsonl"):
        folder_view(folder)
