"""Answers whose tokens were used up before they began, from the endpoint to the exit code: what each kind of
metric makes of them, and that two runs are not compared without a word about them."""

import io
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.compare.__main__ import main as compare_main
from tasks.reporting.terminal import results_table

Reply = dict[str, Any]
THINKING: Reply = {"content": None, "reasoning_content": "let me see"}


@pytest.fixture
def config(numbers: Callable[..., Path]) -> Callable[..., Path]:
    return partial(numbers, name="cut")


def two_of_four(prompt: str, sample: int) -> tuple[Reply, str]:
    """Right for the first two questions, cut off while thinking at the others."""
    number = int(prompt[1:])
    return ({"content": str(number)}, "stop") if number < 2 else (THINKING, "length")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exited:
        compare_main([str(argument) for argument in arguments])
    return int(exited.value.code or 0)


def row_of(folder: Path, metric: str = "exact_match") -> dict[str, Any]:
    rows = [row for row in pq.read_table(folder / "results.parquet").to_pylist() if row["metric"] == metric]
    assert len(rows) == 1, rows
    return rows[0]


def test_two_right_and_two_cut_off_while_thinking_are_a_half(begin, config, endpoint, tmp_path):
    endpoint.script = two_of_four
    ran = begin("half", config(), "--json")
    assert (ran.code, ran.value("exact_match,none")) == (0, 0.5)
    row = row_of(tmp_path / "out")
    assert (row["n_samples"], row["n_scored"], row["n_unscored"], row["n_cut_off"]) == (4, 4, 0, 2)
    screen = Console(file=io.StringIO(), width=160)
    screen.print(results_table(pq.read_table(tmp_path / "out/results.parquet")))
    printed = screen.file.getvalue()
    assert re.search(r"exact_match\s+↑\s+0\.5000\s+± 0\.2\d+", printed), printed
    assert "Cut off" in printed
    assert "50 %" in printed
    responses = lines_of(tmp_path / "out/responses.jsonl")
    assert [line["status"] for line in responses] == ["ok", "ok", "cut_off", "cut_off"]
    assert responses[2]["response"] is None
    assert responses[2]["reasoning"] == "let me see"
    (finding,) = [entry for entry in ran.document["diagnostics"] if entry["kind"] == "cut_off"]
    assert finding["severity"] == "warning"
    assert "2 of 4 answers" in finding["message"]


def test_unscored_is_a_choice_of_the_score_and_asks_nothing_again(
    evaluate, begin, config, endpoint, tmp_path
):
    endpoint.script = two_of_four
    assert begin("half", config(), "--json").value("exact_match,none") == 0.5
    ran = evaluate(config(cut_off="unscored"), "--json")
    assert (ran.code, ran.value("exact_match,none")) == (0, 1.0)
    assert ran.document["requests"]["sent"] == 0
    assert ran.steps("infer") == (0, 1)
    assert ran.steps("filter") == (0, 1)
    assert ran.steps("score") == (1, 0)
    row = row_of(tmp_path / "out")
    assert (row["n_scored"], row["n_unscored"], row["n_cut_off"]) == (2, 2, 2)


def test_a_run_of_which_every_answer_was_cut_off_has_failed(evaluate, config, endpoint):
    endpoint.script = lambda prompt, sample: (THINKING, "length")
    ran = evaluate(config(), "--json")
    assert ran.code == 1
    assert "4 of 4 answers" in ran.document["message"]
    assert "never began" in ran.document["message"]
    (finding,) = [entry for entry in ran.document["diagnostics"] if entry["kind"] == "all_cut_off"]
    assert finding["severity"] == "error"


def test_what_was_cut_off_is_outside_the_error_budget_and_asked_once(evaluate, config, endpoint):
    endpoint.script = two_of_four
    first = evaluate(config(errors={"max_rate": 0.0}), "--json")
    assert (first.code, first.document["requests"]["failed"]) == (0, 0)
    again = evaluate(config(errors={"max_rate": 0.0}), "--json")
    assert (again.document["requests"]["sent"], len(endpoint.asked)) == (0, 4)


def cut_every_third(prompt: str, sample: int) -> tuple[Reply, str]:
    """Of the samples 0 to 5 the third and sixth are cut off; of the others the first two are right, the rest
    of a kind and wrong."""
    if sample % 3 == 2:
        return THINKING, "length"
    return {"content": prompt[1:] if sample < 2 else "wrong"}, "stop"


def test_unscored_repeats_leave_too_few_for_a_majority_and_no_vote(evaluate, config, endpoint, tmp_path):
    endpoint.script = cut_every_third
    sampling = {"num_samples": 6, "seed": 0, "temperature": 1.0}
    made = partial(config, sample_params=sampling, cut_off="unscored")
    metrics = [{"metric": "exact_match", "reduction": ["mean", "maj@3"]}]
    assert evaluate(made(n=2, metric_list=metrics), "--json").code == 1
    rows = pq.read_table(tmp_path / "out/results.parquet").to_pylist()
    found = {row["reduction"]: (row["value"], row["status"]) for row in rows}
    assert found["mean"] == (0.5, "ok")
    assert found["maj@3"] == (None, "failed")  # no item has three repeats any more
    votes = {"name": "vote", "filter": [{"function": "majority_vote"}], "metric_list": ["exact_match"]}
    assert evaluate(made(n=1, filter_list=[votes], metric_list=None), "--json").code == 1


EMPTY_TAKERS = ("exact_match", "rouge1", "token_f1", "edit_similarity", "contains", "wer", "regex_match")


def test_a_text_metric_takes_an_empty_hypothesis(evaluate, config, endpoint):
    endpoint.script = two_of_four
    metrics = [*EMPTY_TAKERS[:-1], {"metric": EMPTY_TAKERS[-1], "pattern": ".*"}]
    ran = evaluate(config(metric_list=metrics), "--json")
    assert ran.code == 0, ran.err
    for metric in EMPTY_TAKERS:
        assert ran.value(f"{metric},none") in (pytest.approx(0.5), pytest.approx(50.0)), metric


HARNESS = """
task: cut_harness
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list:
  - name: number
    filter: [{function: regex, regex_pattern: "([0-9]+)"}, {function: take_first}]
"""


def test_a_harness_benchmark_scores_the_empty_text_as_the_harness_does(evaluate, config, endpoint, tmp_path):
    endpoint.script = two_of_four
    config()
    path = tmp_path / "harness.yaml"
    path.write_text(HARNESS)
    models = json.dumps([{"name": "m", "config": {"base_url": endpoint.url}}])
    ran = evaluate(path, "--set", f"models={models}", "--json")
    assert ran.code == 0, ran.err
    assert ran.value("exact_match,number") == 0.5
    (samples,) = (tmp_path / "out").glob("samples_*.jsonl")
    lines = lines_of(samples)
    assert [line["filtered_resps"] for line in lines] == [["0"], ["1"], ["[invalid]"], ["[invalid]"]]
    unscored = evaluate(path, "--set", f"models={models}", "--set", "cut_off=unscored", "--json")
    assert unscored.value("exact_match,number") == 1.0


def test_recorded_answers_keep_that_they_were_cut_off(evaluate, begin, config, endpoint, tmp_path):
    endpoint.script = two_of_four
    assert begin("half", config(), "--json").code == 0
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_bytes((tmp_path / "out/responses.jsonl").read_bytes())
    again = config(models=[{"name": "m", "type": "replay", "config": {"path": "recorded.jsonl"}}])
    ran = evaluate(again, "--json")
    assert (ran.code, ran.value("exact_match,none")) == (0, 0.5)
    assert row_of(tmp_path / "out")["n_cut_off"] == 2


def test_a_model_that_stops_answering_is_found_between_two_runs(evaluate, config, endpoint, tmp_path, capsys):
    """The score hardly moves: what is cut off now was wrong before."""

    def before(prompt: str, sample: int) -> tuple[Reply, str]:
        number = int(prompt[1:])
        return {"content": str(number if number % 2 else -1)}, "stop"

    def after(prompt: str, sample: int) -> tuple[Reply, str]:
        number = int(prompt[1:])
        return before(prompt, sample) if number % 2 or number > 20 else (THINKING, "length")

    made = config(
        n=40,
        sample_params={"num_samples": 3, "seed": 0},
        metric_list=[{"metric": "exact_match", "reduction": ["mean", "maj@3"]}],
    )
    endpoint.script = before
    assert evaluate(made, "--output", tmp_path / "base").code == 0
    endpoint.script = after
    assert evaluate(made, "--output", tmp_path / "new", "--refresh", "infer").code == 0
    gate = tmp_path / "gate.yaml"
    gate.write_text("margin: 0.2\n")
    runs = [tmp_path / "base", tmp_path / "new"]
    assert compare(*runs, "--gate", gate, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {pair["verdict"] for pair in document["pairs"]} == {"pass"}
    (change,) = document["outcomes"]
    assert (change["outcome"], change["base"], change["candidate"]) == ("cut_off", 0.0, 11 / 40)
    assert change["risen"]
    assert change["p_value"] < 0.01
    gate.write_text("margin: 0.2\noutcomes: fail\n")
    assert compare(*runs, "--gate", gate) == 1
    assert "answers cut off" in capsys.readouterr().out
    assert compare(*reversed(runs), "--gate", gate) == 0  # a fall is good news
