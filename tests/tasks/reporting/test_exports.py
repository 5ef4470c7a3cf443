import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.states import Failed

from metrics.build import build_column
from metrics.config import MetricConfig, StatisticsConfig
from metrics.errors import NightjarError
from tasks.caching import is_transient
from tasks.publish import publish
from tasks.reduction.aggregate import aggregate_pair
from tasks.reduction.reduce import reduce_pair
from tasks.reduction.verdict_metrics import aggregate_metric, build_evaluation_metric, reduce_metric
from tasks.reporting.exports import (
    AnswerPart,
    JudgedPart,
    RunInfo,
    SamplePart,
    _indented,
    results_document,
    write_evaluation_results,
    write_items_table,
    write_lines,
    write_metrics,
    write_responses,
    write_results,
    write_results_table,
    write_samples,
)
from tasks.rows.parts import FailedPart, Origin, PairIdentity, Part, from_batches
from tasks.store.schemas import PREDICTIONS, REQUESTS, RESPONSES, RESULTS, STATISTICS
from tasks.verdicts.config import EvaluationMethodConfig, EvaluationMetricConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import evaluate

OPTIONS = StatisticsConfig()
ORIGIN = Origin("qwen", "plain", {"model_id": "Qwen/Qwen3-8B", "sampling": {"temperature": 0.5}})
ANSWERS = {"a": ["grün", "grün", "grün"], "b": ["2", "2", "nein"]}
TRUTHS = {"a": "grün", "b": "2"}


def batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema)


def requests() -> pa.RecordBatch:
    return batch(
        [
            {
                "item_id": item, "doc_id": n, "item_digest": f"d{item}", "prompt_template": "plain",
                "kind": "generate", "chat": False, "prompts": [f"Frage {item}?"], "continuations": [""],
                "unconditional": [], "gold": [], "choices": [], "first_sample": 0,
                "references_json": json.dumps([TRUTHS[item]]), "doc_json": json.dumps({"question": item}),
            }
            for n, item in enumerate(TRUTHS)
        ],
        REQUESTS,
    )  # fmt: skip


def samples() -> Iterator[tuple[str, int, int, str | None]]:
    for n, item in enumerate(ANSWERS):
        for index, text in enumerate(ANSWERS[item]):
            yield item, n, index, text


def responses(recorded: str | None = None) -> pa.RecordBatch:
    return batch(
        [
            {
                "item_id": item, "doc_id": n, "sample_id": f"{item}_sample_{index}", "sample_index": index,
                "request_key": "k", "prompt": f"Frage {item}?", "response": text, "status": "ok",
                "finish_reason": "stop", "response_id": f"r{n}{index}", "attempts": 1,
                "inference_time": 0.5, "total_tokens": 30,
                "prompt_tokens": 10, "completion_tokens": 20, "timestamp": "2026-01-01T00:00:00+00:00",
                "metadata_json": recorded,
            }
            for item, n, index, text in samples()
        ],
        RESPONSES,
    )  # fmt: skip


def answer_part(origin: Origin = ORIGIN, recorded: str | None = None) -> AnswerPart:
    return AnswerPart(origin, from_batches([requests()]), from_batches([responses(recorded)]))


def judged_part(origin: Origin = ORIGIN, recorded: str | None = None) -> Part:
    method = build_method(EvaluationMethodConfig.model_validate("exact_match"), lambda _: None)
    answers = answer_part(origin, recorded)
    verdicts = list(evaluate(method, origin, answers.requests, answers.responses))
    return Part(origin, from_batches(verdicts), answers.requests, answers.responses, method=method.name)


def metric_rows(parts: Sequence[Part], config: Mapping[str, Any] | str = "mean") -> list[pa.RecordBatch]:
    built = build_evaluation_metric(
        EvaluationMetricConfig.model_validate(config), lambda _: None, ["model_name"]
    )
    return list(aggregate_metric(built, "demo", reduce_metric(built, "demo", parts), OPTIONS))


def identity(*reductions: str) -> PairIdentity:
    config = MetricConfig.model_validate({"metric": "exact_match", "reduction": list(reductions) or ["mean"]})
    return PairIdentity("demo", "strict-match", build_column(config, lambda _: None))


def pair_results(
    pair: PairIdentity, parts: Sequence[Part], facets: Sequence[str], failed: Any = ()
) -> list[pa.RecordBatch]:
    return list(aggregate_pair(pair, reduce_pair(pair, parts, facets), OPTIONS, failed, facets))


def run(models: Sequence[str] = ("qwen",), prompts: Sequence[str] = ("plain",)) -> RunInfo:
    return RunInfo(
        run_id="run-1", benchmark="demo", models=models, prompts=prompts, date=1.5e9, n_items=40, n_used=2,
        config={"models": [{"name": "qwen"}], "target": "{{answer}}", "sample_params": {"temperature": 0.5}},
        num_fewshot=5,
    )  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_responses_have_exactly_the_fields_of_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    assert write_responses(path, [answer_part()]) == 6

    assert list(lines(path)[0].items()) == [
        ("item_id", "a"), ("sample_id", "a_sample_0"), ("sample_index", 0), ("total_samples", 3),
        ("model_name", "qwen"), ("prompt_template", "plain"), ("prompt", "Frage a?"), ("response", "grün"),
        ("inference_time", 0.5), ("timestamp", "2026-01-01T00:00:00+00:00"),
            ("timestamp_unix", 1767225600.0),
        ("metadata", {
            "model_id": "Qwen/Qwen3-8B", "prompt_template": "plain", "sampling": {"temperature": 0.5},
            "finish_reason": "stop", "response_id": "r00", "attempts": 1,
        }),
        ("error", None), ("status", "ok"), ("tokens_per_second", 40.0),
        ("total_tokens", 30), ("prompt_tokens", 10), ("completion_tokens", 20),
    ]  # fmt: skip
    assert "grün".encode() in path.read_bytes()  # and no \u00fc


def test_evaluation_results_are_one_line_a_sample_and_label(tmp_path: Path) -> None:
    path = tmp_path / "evaluation_results.jsonl"
    assert write_evaluation_results(path, [JudgedPart(judged_part(), ["exact_match"])]) == 6

    last = lines(path)[-1]
    assert (last["item_id"], last["sample_id"], last["label"]) == ("b", "b_sample_2", "exact_match")
    assert (last["passed"], last["score"], last["status"]) == (False, 0.0, "ok")
    assert last["metadata"]["response_id"] == "r12"


def test_the_worked_example_s_metric_line_is_shaped_as_the_contract_says(tmp_path: Path) -> None:
    config = {
        "name": "pass@1", "type": "pass_at_k", "facets": ["metadata.model_id", "prompt_template"],
        "params": {"k": 1, "num_trials": 3, "aggregation": "mean"},
    }  # fmt: skip
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, metric_rows([judged_part()], config))

    [line] = lines(path)
    assert line["metric_name"] == "pass@1"
    assert line["facets"] == ["metadata.model_id", "prompt_template"]
    assert (line["metadata.model_id"], line["prompt_template"], line["label"]) == (
        "Qwen/Qwen3-8B",
        "plain",
        "exact_match",
    )
    assert line["pass_at_k"] == line["value"] == pytest.approx(0.8333333333)
    assert line["stderr"] == pytest.approx(1 / 6)
    counts = ("average_sample_count", "total_sample_count", "total_item_count")
    assert [line[name] for name in counts] == [3.0, 6, 2]


@pytest.mark.parametrize("facet", ["status", "error", "value", "stderr", "metric_name", "facets"])
def test_a_facet_called_like_a_field_of_a_metric_line_keeps_its_value(tmp_path: Path, facet: str) -> None:
    (batch,) = metric_rows([judged_part()], {"name": "rate", "type": "pass_rate", "facets": []})
    rows = [batch.to_pylist()[0] | {"facets": json.dumps({facet: value})} for value in ("open", "closed")]
    write_metrics(tmp_path / "metrics.jsonl", [pa.RecordBatch.from_pylist(rows, schema=batch.schema)])

    first, second = lines(tmp_path / "metrics.jsonl")
    assert [line[name] for line in (first, second) for name in line["facets"]] == ["open", "closed"]
    assert (first["metric_name"], first["status"], first["error"]) == ("rate", "ok", None)
    assert first["value"] == second["value"] == pytest.approx(first["pass_rate"])


def test_scoring_recorded_responses_gives_the_same_bytes_in_metrics(tmp_path: Path) -> None:
    facets = ["metadata.model_id", "metadata.sampling.temperature", "prompt_template"]
    config = {"name": "mean", "type": "mean", "facets": facets}
    write_metrics(tmp_path / "first.jsonl", metric_rows([judged_part()], config))
    write_responses(tmp_path / "responses.jsonl", [answer_part()])

    # What a replay knows: the metadata that the file holds, and a model of its own that names nothing.
    recorded = orjson.dumps(lines(tmp_path / "responses.jsonl")[0]["metadata"]).decode()
    replay = Origin("qwen", "plain", {"model_id": "recorded"})
    write_metrics(tmp_path / "second.jsonl", metric_rows([judged_part(replay, recorded)], config))

    assert (tmp_path / "second.jsonl").read_bytes() == (tmp_path / "first.jsonl").read_bytes()


def test_pairs_have_metric_lines_named_by_reduction_metric_and_filter(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, pair_results(identity("mean", "pass@2"), [judged_part()], ["model_name"]))

    assert [line["metric_name"] for line in lines(path)] == [
        "exact_match,strict-match",
        "pass@2(exact_match),strict-match",
    ]
    assert lines(path)[1]["pass@2(exact_match)"] == lines(path)[1]["value"] == 1.0


def test_results_json_has_the_harness_s_shape(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(
        path,
        pair_results(identity("mean", "pass@2"), [judged_part()], ["model_name", "prompt_template"]),
        run(),
        {},
    )

    document = json.loads(path.read_text(encoding="utf-8"))
    entry = document["results"]["demo"]
    assert (entry["alias"], entry["sample_len"]) == ("demo", 2)
    assert entry["exact_match:exact_match,strict-match"] == pytest.approx(5 / 6)
    assert document["n-samples"] == {"demo": {"original": 40, "effective": 2}}
    assert (document["n-shot"], document["versions"]) == ({"demo": 5}, {"demo": 1})
    assert document["configs"]["demo"]["target"] == "{{answer}}"
    assert (document["config"]["model"], document["config"]["limit"], document["date"]) == ("qwen", 2, 1.5e9)
    assert document["higher_is_better"]["demo"]["exact_match:exact_match"] is True


@pytest.mark.parametrize(("of_items", "limit"), [(40, None), (8, 8)], ids=["without", "within a limit"])
def test_what_a_gate_ended_early_is_no_limit(tmp_path: Path, of_items: int, limit: int | None) -> None:
    path, stopped = tmp_path / "results.json", {"asked_items": 2, "of_items": of_items, "why": "decided"}
    write_results(
        path, pair_results(identity("mean"), [judged_part()], []), replace(run(), stopped=stopped), {}
    )

    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["config"]["limit"], document["stopped"]) == (limit, stopped)


def plain_results(*rows: Mapping[str, Any]) -> list[pa.RecordBatch]:
    base = {
        "benchmark": "demo", "filter": "strict", "metric": "acc", "reduction": "mean", "facets": "{}",
        "value": 0.5, "stderr": 0.1,
        "n_items": 4, "n_samples": 4, "n_scored": 4, "n_unscored": 0, "status": "ok",
        "higher_is_better": True, "stderr_method": "wilson",
    }  # fmt: skip
    return [batch([{**base, **row} for row in rows], RESULTS)]


def test_keys_of_results_json_name_metric_reduction_and_filter() -> None:
    entry = results_document(plain_results({}, {"reduction": "pass@8", "stderr": None}), run())["results"][
        "demo"
    ]
    assert entry == {
        "alias": "demo", "sample_len": 4, "acc,strict": 0.5, "acc_stderr,strict": 0.1,
        "pass@8(acc),strict": 0.5, "pass@8(acc)_stderr,strict": "N/A",
    }  # fmt: skip


def test_several_models_or_prompts_have_keys_of_their_own() -> None:
    facets = [{"model_name": model, "prompt_template": "plain", "item.x": "y"} for model in ("m/1", "m2")]
    rows = plain_results(*({"facets": json.dumps(values)} for values in facets))
    assert list(results_document(rows, run(["m/1", "m2"]))["results"]) == [
        "demo/m/1/plain/item.x=y",
        "demo/m2/plain/item.x=y",
    ]


def test_groups_whose_names_join_to_the_same_key_have_keys_of_their_own() -> None:
    cells = [(model, prompt) for model in ("m", "m/think") for prompt in ("plain", "think/plain")]
    rows = plain_results(
        *(
            {"facets": json.dumps({"model_name": model, "prompt_template": prompt}), "value": value / 4}
            for value, (model, prompt) in enumerate(cells)
        ),
        # A row over all facets is of the same group as a row of its model and prompt.
        {"facets": "{}", "model_name": "m/think", "prompt_template": "plain", "metric": "f1", "value": 0.9},
    )
    document = results_document(rows, run(["m", "m/think"]))
    found = {key: entry["acc,strict"] for key, entry in document["results"].items()}
    plain, first, second, last = found
    assert [plain, first, last] == ["demo/m/plain", "demo/m/think/plain", "demo/m/think/think/plain"]
    assert re.fullmatch(r"demo/m/think/plain_[0-9a-f]{8}", second)
    assert list(found.values()) == [0.0, 0.25, 0.5, 0.75]
    assert document["results"][second]["f1,strict"] == 0.9
    assert list(document["n-samples"]) == list(document["higher_is_better"]) == list(found)


def test_facet_values_that_look_alike_as_text_have_keys_of_their_own() -> None:
    values = [True, "True", "true", 1, "1", 1.5, "1.5", "plain", 'a "b"', [1], "[1]", "NaN"]
    rows = plain_results(*({"facets": json.dumps({"item.x": value})} for value in values))
    names = ("true", "True", '"true"', "1", '"1"', "1.5", '"1.5"', "plain", 'a "b"', "[1]", '"[1]"', "NaN")
    assert list(results_document(rows, run())["results"]) == [f"demo/item.x={name}" for name in names]


def test_failed_and_unscored_pairs_are_null_and_listed() -> None:
    rows = plain_results(
        {"status": "failed", "value": None, "stderr": None, "error": "boom"},
        {"metric": "f1", "status": "unscored", "value": None, "stderr": None},
    )
    document = results_document(rows, run())
    assert document["results"]["demo"]["acc,strict"] is None
    assert document["failed"] == {"demo: acc,strict": "boom"}
    assert document["unscored"] == {"demo: f1,strict": "unscored"}


def test_numbers_without_a_finite_value_are_null_in_json(tmp_path: Path) -> None:
    write_metrics(tmp_path / "m.jsonl", plain_results({"value": float("inf"), "stderr": float("nan")}))
    assert (lines(tmp_path / "m.jsonl")[0]["value"], lines(tmp_path / "m.jsonl")[0]["stderr"]) == (None, None)


def sample_part(predictions: Sequence[Mapping[str, Any]], scores: Sequence[float | None]) -> SamplePart:
    rows = [{"item_id": item, "doc_id": n, "sample_index": index} for item, n, index, _ in samples()][
        : len(predictions)
    ]
    predicted = [
        {**row, "scored": True, "is_json": False, **own} for row, own in zip(rows, predictions, strict=True)
    ]
    statistics = [
        {**row, "scored": score is not None, "score": score, "code": -1}
        for row, score in zip(rows, scores, strict=True)
    ]
    sources = from_batches([batch(predicted, PREDICTIONS)]), from_batches([batch(statistics, STATISTICS)])
    return SamplePart(answer_part(), "strict", sources[0], {"acc": sources[1]})


def test_sample_lines_have_the_harness_s_fields(tmp_path: Path) -> None:
    predictions = [{"prediction": text} for text in ("grün", "grün", None)]
    path = tmp_path / "samples_demo.jsonl"
    assert write_samples(path, [sample_part(predictions, [1.0, 1.0, None])], run()) == 2

    first, second = lines(path)
    assert first == {
        "doc_id": 0, "item_id": "a", "doc": {"question": "a"}, "target": "grün",
        "arguments": {"gen_args_0": {"arg_0": "Frage a?", "arg_1": {"temperature": 0.5}}},
        "resps": [["grün", "grün", "grün"]], "filtered_resps": [["grün", "grün", None]], "filter": "strict",
        "metrics": ["acc"],
        "doc_hash": hashlib.sha256(json.dumps({"question": "a"}, indent=2).encode()).hexdigest(),
        "prompt_hash": hashlib.sha256(b"Frage a?").hexdigest(),
        "target_hash": hashlib.sha256("grün".encode()).hexdigest(),
        "acc": 1.0, "acc_repeats": [1.0, 1.0, None],
    }  # fmt: skip
    assert (second["doc_id"], second["filtered_resps"], second["acc"]) == (1, [[]], None)


def test_a_value_that_is_no_number_is_shown_as_it_is(tmp_path: Path) -> None:
    rows = [{"item_id": item, "doc_id": n, "sample_index": at} for item, n, at, _ in samples()][:3]
    given = [{**row, "scored": True, "is_json": False, "prediction": "x"} for row in rows]
    texts = ["[true,false]", None, "[1,0]"]
    made = [
        {**row, "scored": text is not None, "score": None, "value_json": text, "code": -1}
        for row, text in zip(rows, texts, strict=True)
    ]
    statistics = {"f1": from_batches([batch(made, STATISTICS)])}
    part = SamplePart(answer_part(), "strict", from_batches([batch(given, PREDICTIONS)]), statistics)
    write_samples(tmp_path / "s.jsonl", [part], run())
    first = lines(tmp_path / "s.jsonl")[0]
    assert (first["f1"], first["f1_repeats"]) == ([True, False], [[True, False], None, [1, 0]])


def test_sample_lines_name_model_and_prompt_where_there_are_several(tmp_path: Path) -> None:
    write_samples(tmp_path / "s.jsonl", [sample_part([{"prediction": "x"}], [1.0])], run(["qwen", "other"]))
    first = lines(tmp_path / "s.jsonl")[0]
    assert (first["model_name"], first["prompt_template"]) == ("qwen", "plain")
    assert first["filtered_resps"] == ["x"]
    assert "acc_repeats" not in first


def likelihood_part(likely: Mapping[str, Any], **asked: Any) -> SamplePart:
    """One item of log-likelihoods."""
    request = {
        "item_id": "a", "doc_id": 0, "item_digest": "d", "prompt_template": "plain", "kind": "loglikelihood",
        "chat": False, "unconditional": [], "references_json": "[]", "doc_json": "{}", **asked,
    }  # fmt: skip
    row = {"item_id": "a", "doc_id": 0, "sample_index": 0, **likely}
    answered = {**row, "sample_id": "s", "request_key": "k", "prompt": "Q", "status": "ok", "attempts": 1}
    sources = [from_batches([batch([request], REQUESTS)]), from_batches([batch([answered], RESPONSES)])]
    predicted = from_batches([batch([{**row, "scored": True, "is_json": False}], PREDICTIONS)])
    return SamplePart(AnswerPart(ORIGIN, *sources), "none", predicted, {})


CHOICE = {"prompts": ["Q", "Q"], "continuations": [" A", " B"], "gold": [1], "choices": ["A", "B"]}
LIKELY = {"lls": [-1.5, -0.5], "is_greedy": [False, True]}


def test_log_likelihoods_are_pairs_of_texts_a_choice(tmp_path: Path) -> None:
    write_samples(tmp_path / "s.jsonl", [likelihood_part(LIKELY, **CHOICE)], run())
    [line] = lines(tmp_path / "s.jsonl")
    assert line["resps"] == [[["-1.5", "False"]], [["-0.5", "True"]]]
    assert line["filtered_resps"] == [["-1.5", "False"], ["-0.5", "True"]]
    assert (line["target"], line["arguments"]["gen_args_1"]) == ("1", {"arg_0": "Q", "arg_1": " B"})


@pytest.mark.parametrize(
    ("asked", "said", "hashed"),
    [
        ({"references_json": '[" C red"]', "gold": [0], "choices": [" C red"]}, " C red", " C red"),
        ({"references_json": '["B"]'}, "B", "B"),
        ({"references_json": '["D"]', "gold": [-100]}, "D", "D"),
        ({"references_json": "[1]"}, "1", "1"),
        ({"references_json": "[[0, 1]]", "gold": [0, 1]}, [0, 1], "[0, 1]"),
    ],
)
def test_the_target_of_a_harness_benchmark_is_its_definition_s(
    tmp_path: Path, asked: dict[str, Any], said: Any, hashed: str
) -> None:
    harness = replace(run(), config={"harness": {"task": "t"}})
    write_samples(tmp_path / "s.jsonl", [likelihood_part(LIKELY, **CHOICE | asked)], harness)
    [line] = lines(tmp_path / "s.jsonl")
    assert (line["target"], line["target_hash"]) == (said, hashlib.sha256(hashed.encode()).hexdigest())


def test_those_without_context_stand_behind_the_others(tmp_path: Path) -> None:
    alone = {"unconditional_lls": [-4.0, -5.0], "unconditional_greedy": [True, False]}
    part = likelihood_part({**LIKELY, **alone}, **CHOICE, unconditional=[" A", " B"])
    write_samples(tmp_path / "s.jsonl", [part], run())
    [line] = lines(tmp_path / "s.jsonl")
    assert line["resps"][2:] == [[["-4.0", "True"]], [["-5.0", "False"]]]
    assert line["filtered_resps"][2:] == [["-4.0", "True"], ["-5.0", "False"]]
    assert line["arguments"]["gen_args_3"] == {"arg_0": "", "arg_1": " B"}


def test_a_document_s_log_likelihood_is_one_text(tmp_path: Path) -> None:
    asked = {"kind": "rolling", "prompts": [""], "continuations": ["The page"], "gold": [], "choices": []}
    part = likelihood_part({"lls": [-7.25], "is_greedy": [None]}, **asked)
    write_samples(tmp_path / "s.jsonl", [part], run())
    [line] = lines(tmp_path / "s.jsonl")
    assert (line["resps"], line["filtered_resps"]) == ([["-7.25"]], ["-7.25"])
    assert line["arguments"] == {"gen_args_0": {"arg_0": "The page"}}


def test_results_parquet_has_the_schema(tmp_path: Path) -> None:
    results = pa.Table.from_batches(pair_results(identity(), [judged_part()], ["model_name"]))
    assert write_results_table(tmp_path / "results.parquet", results) == 1
    table = pq.read_table(tmp_path / "results.parquet")
    assert table.schema.equals(RESULTS)
    assert table.to_pylist() == results.to_pylist()


def test_items_parquet_has_a_column_a_facet(tmp_path: Path) -> None:
    facets = ["model_name", "metadata.sampling.temperature", "item.none"]
    pair = identity()
    batches = list(reduce_pair(pair, [judged_part()], facets[:2]))
    assert write_items_table(tmp_path / "items.parquet", batches, facets) == 2

    table = pq.read_table(tmp_path / "items.parquet")
    assert json.loads(table["facets"][0].as_py()) == {
        "model_name": "qwen",
        "metadata.sampling.temperature": 0.5,
    }
    first = table.to_pylist()[0]
    assert [first[facet] for facet in facets] == ["qwen", "0.5", None]
    assert (first["item_id"], first["value"], first["statistics"]) == ("a", 1.0, [1.0])


def test_the_columns_of_items_parquet_tell_values_apart_that_look_alike_as_text(tmp_path: Path) -> None:
    (batch,) = reduce_pair(identity(), [judged_part()], ["item.lv"])
    texts = [json.dumps({"item.lv": value}) for value in (1, "1", "one")]
    rows = [row | {"facets": text} for row in batch.to_pylist()[:1] for text in texts]
    batches = [pa.RecordBatch.from_pylist(rows, schema=batch.schema)]
    write_items_table(tmp_path / "items.parquet", batches, ["item.lv"])
    assert pq.read_table(tmp_path / "items.parquet")["item.lv"].to_pylist() == ["1", '"1"', "one"]


def test_a_failure_while_writing_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [{"old": True}])

    def rows() -> Iterator[dict[str, Any]]:
        yield {"new": True}
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write_lines(path, rows())
    assert lines(path) == [{"old": True}]
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NightjarError, match=r"can't write .*responses\.jsonl"):
        write_lines(tmp_path / "file" / "responses.jsonl", [{}])


def test_a_file_that_cannot_be_written_is_tried_once_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NightjarError) as failed:
        write_lines(tmp_path / "file" / "responses.jsonl", [{}])
    assert is_transient(publish, TaskRun.model_construct(), Failed(data=failed.value))


def test_a_reader_never_meets_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    write_lines(path, [{"n": -1}])
    done = threading.Event()
    torn: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            torn.extend(
                line for line in path.read_bytes().splitlines(keepends=True) if not line.endswith(b"}\n")
            )

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(8):
            write_lines(path, ({"n": n, "text": "ü" * 5000} for n in range(300)))
    finally:
        done.set()
        reader.join()
    assert torn == []
    assert len(lines(path)) == 300


def test_failed_parts_reach_every_file(tmp_path: Path) -> None:
    failed = [FailedPart(Origin("other", "plain"), "boom")]
    rows = pair_results(identity(), [judged_part()], ["model_name"], failed)
    write_metrics(tmp_path / "metrics.jsonl", rows)
    written = lines(tmp_path / "metrics.jsonl")
    assert [(line["model_name"], line["status"], line["error"]) for line in written] == [
        ("qwen", "ok", None), ("other", "failed", "boom"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "doc",
    [
        {"a": 'é\u2028\x1f\x7f"\\\b', "b": -(2**63), "c": True, "": None},
        {"a": 2**64, "b": "x"},
        {"a": "\ud800"},
        {"a": 1e16, "b": float("nan"), "c": [], "d": {"e": [1.0, {}]}},
        {},
    ],
)
def test_a_documents_digest_is_of_the_text_that_the_harness_digests(doc: dict[str, Any]) -> None:
    assert _indented(doc) == json.dumps(doc, indent=2, ensure_ascii=False)
