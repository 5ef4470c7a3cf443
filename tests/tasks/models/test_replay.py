"""Recorded responses: joined on what they answer, never made up."""

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrics.errors import DataError
from tasks.models.config import ModelConfig


def recorded(name="demo", **config) -> ModelConfig:
    return ModelConfig.model_validate({"name": name, "type": "replay", "config": config})


def row(item: int, sample: int = 0, **fields):
    return {"item_id": f"item-{item}", "sample_index": sample, "response": f"{item}/{sample}"} | fields


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_join_in_any_order(bench, problems, jsonl, tmp_path, suffix):
    rows = [row(item, sample) for sample in (1, 0) for item in (2, 0, 1)]
    path = jsonl("r.jsonl", rows)
    if suffix == ".parquet":
        path = tmp_path / "r.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    outcome = bench.ask(recorded(path=path.name), problems(3), base_dir=tmp_path, sampling={"num_samples": 2})
    assert outcome.column("response") == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]
    assert (outcome.tally.sent, outcome.tally.cached, outcome.tally.failed) == (0, 6, 0)


def test_model_and_prompt_count_where_the_file_has_them(bench, problems, jsonl, tmp_path):
    rows = [
        row(0, model_name="a", prompt_template="plain", response="a plain"),
        row(0, model_name="b", prompt_template="plain", response="b plain"),
        row(0, model_name="a", prompt_template="other", response="a other"),
    ]
    jsonl("r.jsonl", rows)
    for name in ("a", "b"):
        outcome = bench.ask(recorded(name, path="r.jsonl"), problems(1), base_dir=tmp_path)
        assert outcome.column("response") == [f"{name} plain"]
    assert bench.ask(recorded("c", path="r.jsonl"), problems(1), base_dir=tmp_path).tally.failed == 1


def test_samples_without_numbers_count_in_order(bench, problems, jsonl, tmp_path):
    jsonl("r.jsonl", [{"item_id": "item-0", "response": text} for text in ("first", "second")])
    outcome = bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path, sampling={"num_samples": 3})
    assert outcome.column("response") == ["first", "second", None]


def test_what_is_missing_is_unscored_and_says_so(bench, problems, jsonl, tmp_path):
    jsonl(
        "r.jsonl",
        [row(0), row(1, response=None), row(2, response="x", status="infra_error", error="timed out")],
    )
    outcome = bench.ask(recorded(path="r.jsonl"), problems(4), base_dir=tmp_path)
    assert outcome.column("status") == ["ok", *["infra_error"] * 3]
    assert outcome.column("response") == ["0/0", None, None, None]
    errors = outcome.column("error")
    assert "has no response" in errors[1]
    assert errors[2] == "timed out"
    assert "no recorded response to item 'item-3'" in errors[3]
    assert outcome.tally.failed == 3
    assert outcome.tally.errors == {"has no response": 1, "timed out": 1, "not recorded": 1}
    assert outcome.tally.without_absent().errors == {"has no response": 1, "timed out": 1}


def test_reasons_that_are_all_distinct_are_counted_up_to_a_number(bench, problems, jsonl, tmp_path):
    rows = [row(item, status="infra_error", error=f"request {item} failed") for item in range(200)]
    jsonl("r.jsonl", [*rows, row(200, error="request 7 failed")])
    tally = bench.ask(recorded(path="r.jsonl"), problems(201), base_dir=tmp_path).tally
    assert (tally.failed, len(tally.errors), tally.errors["request 7 failed"]) == (201, 100, 2)


def test_half_a_character_is_a_question_mark_as_in_the_same_reply(bench, problems, tmp_path):
    whole, half = "\\ud83d\\ude00", "\\ud83d"  # as Python's json.dumps writes an emoji, and its first half
    text = f'{{"item_id": "item-0", "response": "{whole} 1 {half}", "metadata": {{"{half}": {2**70}}}}}\n'
    (tmp_path / "r.jsonl").write_text(text)
    (found,) = bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path).rows
    assert (found["status"], found["response"]) == ("ok", "\N{GRINNING FACE} 1 ?")
    assert orjson.loads(found["metadata_json"]) == {"?": float(2**70)}


def test_metadata_comes_along(bench, problems, jsonl, tmp_path):
    jsonl(
        "r.jsonl",
        [row(0, metadata={"finish_reason": "length", "model_id": "m"}, mood="good", completion_tokens=4)],
    )
    (kept,) = bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path).rows
    assert (kept["finish_reason"], kept["completion_tokens"]) == ("length", 4)
    assert orjson.loads(kept["metadata_json"]) == {"finish_reason": "length", "model_id": "m", "mood": "good"}


def test_recorded_likelihoods_are_taken(bench, pairs, jsonl, tmp_path):
    jsonl("r.jsonl", [row(0) | {"response": None, "lls": [-1.0, -2.0], "is_greedy": [True, False]}])
    (kept,) = bench.ask(recorded(path="r.jsonl"), pairs(["a"], [" b", " c"]), base_dir=tmp_path).rows
    assert (kept["status"], kept["lls"], kept["is_greedy"]) == ("ok", [-1.0, -2.0], [True, False])


@pytest.mark.parametrize(
    ("field", "texts"),
    [("m.solution", ["one", None]), ("many", ["a", "b"]), ("absent", [None, None]), ("number", ["5", None])],
)
def test_a_field_of_the_item_is_its_response(bench, batch_of, field, texts):
    doc = {"m": {"solution": "one"}, "many": ["a", "b"], "number": 5}
    outcome = bench.ask(
        recorded(field=field),
        batch_of([{"doc_json": orjson.dumps(doc).decode()}]),
        sampling={"num_samples": 2},
    )
    assert outcome.column("response") == texts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"item_id": "a", "response": "x"}\n{"item_id"\n', "line 2: malformed JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"response": "x"}\n', "line 1 has no item_id"),
        ('{"item_id": "a", "sample_index": 0}\n' * 2, "line 1 and line 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_line(bench, problems, tmp_path, content, said):
    (tmp_path / "bad.jsonl").write_text(content)
    with pytest.raises(DataError, match=said):
        bench.ask(recorded(path="bad.jsonl"), problems(1), base_dir=tmp_path)


def test_a_missing_file_is_refused_by_name(bench, problems, tmp_path):
    with pytest.raises(DataError, match=r"gone\.parquet"):
        bench.ask(recorded(path="gone.parquet"), problems(1), base_dir=tmp_path)


def test_rows_of_the_two_phase_framework_are_taken_as_they_are(bench, problems, jsonl, tmp_path):
    """Times are seconds there, and every field but item_id may be missing."""
    whole = row(
        0, timestamp=1000.25, total_samples=84, tokens_per_second=3.0, prompt="asked", sample_id="s-0"
    )
    jsonl("r.jsonl", [whole | {"metadata": {"tier": "gold"}}, {"item_id": "item-1", "response": "bare"}])
    first, second = bench.ask(recorded(path="r.jsonl"), problems(2), base_dir=tmp_path).rows
    assert (first["timestamp"], first["prompt"], first["sample_id"]) == (
        "1970-01-01T00:16:40.250000Z", "asked", "s-0",
    )  # fmt: skip
    assert orjson.loads(first["metadata_json"]) == {
        "tier": "gold",
        "total_samples": 84,
        "tokens_per_second": 3.0,
    }
    assert (first["recorded_row"], second["recorded_row"]) == (1, 2)
    assert (second["status"], second["response"], second["timestamp"]) == ("ok", "bare", None)


def test_a_field_of_another_type_is_kept_and_named(bench, problems, jsonl, tmp_path, caplog):
    fields = {"inference_time": "fast", "total_tokens": [3], "timestamp": True, "finish_reason": {"a": 1}}
    jsonl("r.jsonl", [row(0), row(1, **fields, attempts="two", metadata=[1, 2])])
    _, kept = bench.ask(recorded(path="r.jsonl"), problems(2), base_dir=tmp_path).rows
    assert kept["status"] == "ok"
    assert {name: kept[name] for name in fields} == dict.fromkeys(fields)
    assert orjson.loads(kept["metadata_json"]) == {**fields, "attempts": "two", "metadata": [1, 2]}
    for name, said in {"inference_time": '"fast"', "total_tokens": "[3]", "timestamp": "true"}.items():
        assert f"r.jsonl: line 2: {name} is {said}; expected" in caplog.text


def test_a_sample_without_a_number_is_numbered_by_its_sample_id_or_its_place(
    bench, problems, jsonl, tmp_path
):
    rows = [
        {"item_id": "item-0", "sample_id": "item-0_sample_1", "response": "second"},
        {"item_id": "item-0", "sample_index": "0", "response": "first"},
        {"item_id": "item-0", "sample_index": 2.0, "response": "third"},
    ]
    jsonl("r.jsonl", rows)
    outcome = bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path, sampling={"num_samples": 3})
    assert outcome.column("response") == ["first", "second", "third"]
    assert outcome.column("recorded_row") == [2, 1, 3]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"response": "", "finish_reason": "length"}, "cut_off"),
        ({"response": " \n", "finish_reason": "max_tokens"}, "cut_off"),
        ({"response": "", "metadata": {"finish_reason": "length"}}, "cut_off"),
        ({"response": None, "finish_reason": "max_tokens"}, "cut_off"),
        ({"response": "4", "finish_reason": "length"}, "ok"),
        ({"response": "", "finish_reason": "stop"}, "ok"),
        ({"response": " ", "finish_reason": "length", "status": "ok"}, "ok"),  # a first token says it so
        ({"response": "", "finish_reason": "length", "tool_calls": [{"name": "f"}]}, "ok"),
        ({"response": "I", "finish_reason": "refusal"}, "refused"),
        ({"response": "The answer is 1", "finish_reason": "abort", "status": "ok"}, "infra_error"),
    ],
)
def test_a_recorded_response_counts_as_the_same_reply_does(bench, problems, jsonl, tmp_path, fields, status):
    jsonl("r.jsonl", [row(0, **fields)])
    (found,) = bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path).rows
    assert found["status"] == status, found["error"]
    assert (found["response"] is None) == (status != "ok")


def test_what_came_with_a_failed_request_is_kept(bench, problems, jsonl, tmp_path):
    jsonl("r.jsonl", [row(0, response="half", error={"code": 500}), row(1, status="lost")])
    failed, odd = bench.ask(recorded(path="r.jsonl"), problems(2), base_dir=tmp_path).rows
    assert (failed["status"], failed["error"], failed["response"]) == ("infra_error", '{"code":500}', None)
    assert orjson.loads(failed["metadata_json"]) == {"response": "half"}
    assert 'r.jsonl: line 2: status is "lost"; expected ok' in odd["error"]


def test_top_level_fields_and_metadata_that_differ_are_both_kept(bench, problems, jsonl, tmp_path):
    jsonl(
        "r.jsonl",
        [row(0, tier="top", finish_reason="stop", metadata={"tier": "in", "finish_reason": "length"})],
    )
    (kept,) = bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path).rows
    assert orjson.loads(kept["metadata_json"]) == {
        "tier": "in", "finish_reason": "length", "recorded": {"tier": "top", "finish_reason": "stop"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"item_id": [1]}], r"line 1: item_id is \[1\]; expected text or a number"),
        ([{"item_id": "a"}, {"item_id": "b", "sample_index": -1}], "line 2: sample_index is -1; expected"),
        ([{"item_id": "a", "sample_index": "x"}], 'line 1: sample_index is "x"; expected a whole number'),
        ([{"item_id": "a", "model_name": True}], "line 1: model_name is true; expected text"),
        ([{"item_id": "a", "model_name": "m"}, {"item_id": "b"}], "line 2 has no model_name, and line 1 has"),
    ],
)
def test_fields_that_rows_join_on_are_refused_by_line(bench, problems, jsonl, tmp_path, rows, said):
    jsonl("r.jsonl", rows)
    with pytest.raises(DataError, match=said):
        bench.ask(recorded(path="r.jsonl"), problems(1), base_dir=tmp_path)


def test_samples_that_nobody_asks_for_are_told(bench, problems, jsonl, tmp_path, caplog):
    jsonl("r.jsonl", [row(item, sample) for item in (0, 1) for sample in (0, 1, 2)])
    bench.ask(recorded(path="r.jsonl"), problems(2), base_dir=tmp_path, sampling={"num_samples": 2})
    assert "r.jsonl holds more than num_samples: 2 samples of item 'item-0' and 1 others" in caplog.text


def test_a_file_of_other_models_names_them(bench, problems, jsonl, tmp_path):
    jsonl("r.jsonl", [row(0, model_name="a"), row(1, model_name="b")])
    (lost, _) = bench.ask(recorded("c", path="r.jsonl"), problems(2), base_dir=tmp_path).rows
    assert "its rows are of model_name a, b, and this model is called 'c'" in lost["error"]
