"""Answers that a provider's filter or the model itself refused, from the endpoint to the exit code: the
metric ``refusal`` counts them, all others score them as no answer."""

import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.compare.__main__ import main as compare_main
from tasks.models.demo.options import DemoOptions, Faults
from tasks.models.demo.server import serve
from tests.flows.endpoints import ScriptedChat

Reply = tuple[dict[str, Any], str]
FILTERED: Reply = ({"content": "It is"}, "content_filter")
REFUSED: Reply = ({"content": None, "refusal": "I can't help with that."}, "stop")


def two_of_four(prompt: str, sample: int) -> Reply:
    """Right for the first two questions; one of the others is filtered, one refused."""
    number = int(prompt[1:])
    return ({"content": str(number)}, "stop") if number < 2 else (FILTERED, REFUSED)[number % 2]


@pytest.fixture
def config(numbers: Callable[..., Path], endpoint: ScriptedChat) -> Callable[..., Path]:
    """Of its four questions two are refused."""
    endpoint.script = two_of_four
    return partial(numbers, name="refused", errors={"max_rate": 0.0})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in pq.read_table(folder / "results.parquet").to_pylist()}


def test_refusals_are_counted_by_refusal_and_wrong_for_others(begin, config, endpoint, tmp_path):
    lower = {"metric": "exact_match", "alias": "missed", "higher_is_better": False}
    ran = begin("refused", config(metric_list=["exact_match", "refusal", "wer", lower]), "--json")
    assert ran.code == 0, ran.document
    assert ran.value("exact_match,none") == 0.5
    assert ran.value("refusal,none") == 0.5
    assert ran.value("wer,none") == 0.5, "an empty hypothesis"
    assert ran.value("missed,none") == 1.0, "2 right ones, and the worst value for the others"
    for row in rows_of(tmp_path / "out").values():
        assert (row["n_scored"], row["n_unscored"], row["n_refused"], row["n_cut_off"]) == (4, 0, 2, 0)
    responses = lines_of(tmp_path / "out/responses.jsonl")
    assert [line["status"] for line in responses] == ["ok", "ok", "refused", "refused"]
    assert [line["response"] for line in responses[2:]] == [None, None]
    assert "I can't help with that." in responses[3]["error"]
    counted = {line["refused_sample_count"] for line in lines_of(tmp_path / "out/metrics.jsonl")}
    assert counted == {2}
    (finding,) = [entry for entry in ran.document["diagnostics"] if entry["kind"] == "refused"]
    assert "2 of 4 answers" in finding["message"]
    assert not [entry for entry in ran.document["diagnostics"] if entry["kind"] == "requests_failed"]
    assert ran.document["requests"]["failed"] == 0
    assert ran.document["requests"]["refused"] == 2
    page = (tmp_path / "out/report.html").read_text()
    assert "Refused" in page


def test_a_run_of_which_every_answer_was_refused_measures_just_that(evaluate, config, endpoint):
    endpoint.script = lambda prompt, sample: FILTERED
    ran = evaluate(config(metric_list=["refusal"]), "--json")
    assert (ran.code, ran.value("refusal,none")) == (0, 1.0)


def test_refusals_are_asked_once_and_again_with_those_that_failed(evaluate, config, endpoint):
    assert evaluate(config(), "--json").document["requests"]["sent"] == 4
    assert evaluate(config(), "--json").document["requests"]["sent"] == 0
    assert evaluate(config(), "--refresh", "failed", "--json").document["requests"]["sent"] == 2


def test_a_vote_of_refusals_alone_is_one(evaluate, config, endpoint, tmp_path):
    endpoint.script = lambda prompt, sample: REFUSED
    votes = {"name": "vote", "filter": [{"function": "majority_vote"}], "metric_list": ["exact_match"]}
    sampling = {"num_samples": 6, "seed": 0, "temperature": 1.0}
    ran = evaluate(config(n=1, filter_list=[votes], metric_list=None, sample_params=sampling), "--json")
    assert ran.value("exact_match,vote") == 0.0
    assert rows_of(tmp_path / "out")["exact_match"]["n_refused"] == 1


def test_cut_off_unscored_says_nothing_of_refusals(evaluate, config, endpoint):
    assert evaluate(config(cut_off="unscored"), "--json").value("exact_match,none") == 0.5


def test_a_judge_that_refuses_leaves_the_sample_unscored(evaluate, config, endpoint, tmp_path):
    def script(prompt: str, sample: int) -> Reply:
        if prompt.startswith("Grade"):
            return REFUSED if prompt.endswith("1") else ({"content": "5"}, "stop")
        return {"content": prompt[1:]}, "stop"

    endpoint.script = script
    judge = {
        "type": "llm_judge",
        "parse": {"type": "number", "min": 1, "max": 5},
        "judges": [{"name": "j", "type": "openai", "config": {"base_url": endpoint.url}}],
        "prompt": "Grade from 1 to 5: {{ response }}",
    }
    ran = evaluate(config(scorer=judge, errors={"max_rate": 0.5}), "--json")
    assert ran.code == 0, ran.err
    row = rows_of(tmp_path / "out")["llm_judge"]
    assert (row["value"], row["n_scored"], row["n_unscored"], row["n_refused"]) == (5.0, 3, 1, 0)
    refused = evaluate(config(scorer=judge), "--json")
    assert refused.code == 1, "a judge's refusals count against errors.max_rate"
    assert "1 of 4 requests failed" in json.dumps(refused.document)


def test_recorded_answers_keep_that_they_were_refused(evaluate, begin, config, endpoint, tmp_path):
    metrics = ["exact_match", "refusal"]
    assert evaluate(config(metric_list=metrics), "--json").code == 0
    lines = lines_of(tmp_path / "out/responses.jsonl")
    lines[2]["status"] = "model_error"  # as it was called before
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = [{"name": "m", "type": "replay", "config": {"path": "recorded.jsonl"}}]
    ran = evaluate(config(models=replayed, metric_list=metrics), "--json")
    assert (ran.code, ran.value("exact_match,none"), ran.value("refusal,none")) == (0, 0.5, 0.5)
    assert rows_of(tmp_path / "out")["refusal"]["n_refused"] == 2


def test_a_model_that_begins_to_refuse_is_found_between_two_runs(
    evaluate, config, endpoint, tmp_path, capsys
):
    def before(prompt: str, sample: int) -> Reply:
        number = int(prompt[1:])
        return {"content": str(number if number % 2 else -1)}, "stop"

    def after(prompt: str, sample: int) -> Reply:
        number = int(prompt[1:])
        return before(prompt, sample) if number % 2 or number > 20 else REFUSED

    made = config(n=40)
    endpoint.script = before
    assert evaluate(made, "--output", tmp_path / "base").code == 0
    endpoint.script = after
    assert evaluate(made, "--output", tmp_path / "new", "--refresh", "infer").code == 0
    gate = tmp_path / "gate.yaml"
    gate.write_text("margin: 0.2\noutcomes: fail\n")
    with pytest.raises(SystemExit) as exited:
        compare_main([str(tmp_path / "base"), str(tmp_path / "new"), "--gate", str(gate), "--json"])
    assert exited.value.code == 1
    document = json.loads(capsys.readouterr().out)
    (change,) = document["outcomes"]
    assert (change["outcome"], change["base"], change["candidate"]) == ("refused", 0.0, 11 / 40)
    assert {pair["difference"] for pair in document["pairs"]} == {0.0}, "wrong before and wrong now"


CHOICES = """
task: refused_choices
dataset_path: json
dataset_kwargs: {data_files: {test: choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: [" yes", " no"]
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
NATIVE = """
name: refused_choices
output_type: multiple_choice
dataset: choices.jsonl
prompt_template: "{{question}}"
choices: [" yes", " no"]
target: "0"
metric_list: [acc]
"""


@pytest.mark.parametrize("text", [CHOICES, NATIVE], ids=["harness", "native"])
@pytest.mark.parametrize("poisoned", [1, 3])
def test_log_likelihoods_that_were_refused_are_unscored_and_told(evaluate, tmp_path, text, poisoned):
    lines = [{"id": f"i{i}", "question": f"{'poison' if i < poisoned else 'fine'} {i}"} for i in range(3)]
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with serve(DemoOptions(faults=Faults(filter_prompts="poison"))) as serving:
        config = {"base_url": serving.base_url, "model": "demo", "api": "completions"}
        models = json.dumps([{"name": "m", "config": config}])
        ran = evaluate(path, "--set", f"models={models}", "--json")
    row = rows_of(tmp_path / "out")["acc"]
    assert (row["n_scored"], row["n_unscored"], row["n_refused"]) == (3 - poisoned, poisoned, poisoned)
    assert (ran.code == 0) is (poisoned < 3), "a pair of which nothing could be scored has failed"


def test_a_reward_model_that_refuses_leaves_the_sample_unscored(evaluate, config, endpoint, tmp_path):
    def script(prompt: str, sample: int) -> Reply:
        if prompt.startswith("Rate"):
            return REFUSED if prompt.endswith("1") else ({"content": "0.5"}, "stop")
        return {"content": prompt[1:]}, "stop"

    endpoint.script = script
    rates = {"name": "r", "config": {"base_url": endpoint.url, "model": "m"}}
    reward = {"type": "reward_model", "model": rates, "prompt": "Rate {{ response }}"}
    ran = evaluate(config(scorer=reward, errors={"max_rate": 0.5}), "--json")
    assert ran.code == 0, ran.err
    row = rows_of(tmp_path / "out")["reward"]
    assert (row["value"], row["n_scored"], row["n_unscored"], row["n_refused"]) == (0.5, 3, 1, 0)
    assert evaluate(config(scorer=reward), "--json").code == 1


def test_a_simulated_user_that_refuses_leaves_the_conversation_unscored(evaluate, config, endpoint, tmp_path):
    """It is the user's fault and not the model's, which answered."""

    def script(prompt: str, sample: int) -> Reply:
        if prompt.startswith("As the user"):
            return REFUSED if prompt.endswith("1") else ({"content": "again: " + prompt[-2:]}, "stop")
        return {"content": prompt[-1]}, "stop"

    endpoint.script = script
    user = {"name": "u", "config": {"base_url": endpoint.url, "model": "m"}}
    turns = {"model": user, "prompt": "As the user of {{ question }}", "max_turns": 2}
    ran = evaluate(config(turns=turns, metric_list=["exact_match"], errors={"max_rate": 0.5}), "--json")
    assert ran.code == 0, ran.err
    row = rows_of(tmp_path / "out")["exact_match"]
    assert (row["value"], row["n_scored"], row["n_unscored"], row["n_refused"]) == (1.0, 3, 1, 0)
    (failed,) = [line for line in lines_of(tmp_path / "out/responses.jsonl") if line["status"] != "ok"]
    assert (failed["status"], failed["response"]) == ("infra_error", None)
    assert failed["error"].startswith("the simulated user gave no reply in turn 2: ")


AWAY = {"response": None, "status": "infra_error", "error": "away"}
NOTHING_SAID = {"response": None, "status": "refused", "metadata": {"finish_reason": "content_filter"}}


@pytest.mark.parametrize("lost", [NOTHING_SAID, AWAY], ids=["refused", "failed"])
def test_scores_stand_beside_their_own_sample_where_the_first_was_lost(evaluate, tmp_path, lost):
    items = [{"id": name, "question": "q", "answer": "1"} for name in "xy"]
    rows = [
        {"item_id": item["id"], "sample_index": index, **answer}
        for item in items
        for index, answer in enumerate([lost, *({"response": text} for text in "100")])
    ]
    for name, lines in (("items", items), ("rows", rows)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = {
        "name": "al",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "sample_params": {"num_samples": 4},
        "models": [{"name": "A", "type": "replay", "config": {"path": "rows.jsonl"}}],
        "metric_list": ["exact_match"],
        "export": ["inspect"],
        "errors": {"max_rate": 1.0},
    }
    (tmp_path / "al.yaml").write_text(json.dumps(document))
    ran = evaluate(tmp_path / "al.yaml", "--json")
    of_lost = 0.0 if lost is NOTHING_SAID else None
    assert not [entry for entry in ran.document["diagnostics"] if entry["kind"] == "filter_empty"]
    for line in lines_of(tmp_path / "out/samples_al.jsonl"):
        assert line["resps"] == line["filtered_resps"] == [[None, "1", "0", "0"]]
        assert line["exact_match_repeats"] == [of_lost, 1.0, 0.0, 0.0]
    (log,) = (tmp_path / "out/inspect").glob("*.eval")
    with zipfile.ZipFile(log) as archive:
        samples = [json.loads(archive.read(name)) for name in archive.namelist() if "samples/" in name]
    told = {sample["epoch"]: sample["scores"].get("exact_match", {}).get("value") for sample in samples}
    assert told == {1: of_lost, 2: 1.0, 3: 0.0, 4: 0.0}
