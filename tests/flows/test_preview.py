"""What a dry run shows before anything is paid for, and what stops a run that is known to fail."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Evaluate = Callable[..., Any]
ITEMS = [
    {"question": "1 + 1?", "answer": "2"},
    {"question": "2 + 2?", "answer": None},
    {"question": "3 + 3?", "answer": "6"},
    {"question": "4 + 4?", "answer": ""},
]
BENCH = """\
name: sums
dataset: items.jsonl
prompt_templates:
  - {name: plain, template: "Question: {{question}}"}
  - name: chat
    messages: [{role: system, content: "Answer {{id}}."}, {role: user, content: "{{question}}"}]
target: "{{answer}}"
sample_params: {temperature: 0.5, max_tokens: 16, num_samples: 2, stop: ["\\n\\n"], seed: 3}
models:
  - {name: demo, type: demo}
prices: {currency: EUR, demo: {prompt: 1000000, completion: 1000000}}
metric_list: [exact_match]
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    lines = [json.dumps({"id": str(place), **item}) for place, item in enumerate(ITEMS)]
    (tmp_path / "items.jsonl").write_text("\n".join([lines[0], "", *lines[1:]]) + "\n")
    (tmp_path / "bench.yaml").write_text(BENCH)
    (tmp_path / "own.py").write_text(
        "def too_hard(references, predictions):\n    raise ZeroDivisionError('too hard')\n"
        "def fine(references, predictions):\n    return 1.0\n"
    )
    return tmp_path / "bench.yaml"


def test_the_first_item_is_shown_as_each_template_asks_it(bench: Path, evaluate: Evaluate) -> None:
    document = evaluate(bench, "--dry-run", "--json").document
    plain, chat = document["prompts"]
    about = {"prompt": "plain", "item": "0", "place": "items.jsonl:1"}
    assert plain == {**about, "text": "Question: 1 + 1?", "references": ["2"]}
    assert chat["messages"] == [
        {"role": "system", "content": "Answer 0."},
        {"role": "user", "content": "1 + 1?"},
    ]
    asked = {"temperature": 0.5, "max_tokens": 16, "stop": ["\n\n"], "num_samples": 2, "seed": 3}
    assert document["expected"]["demo"]["parameters"] == asked
    printed = evaluate(bench, "--dry-run").out
    assert "prompt plain, items.jsonl:1:\n    Question: 1 + 1?" in printed
    assert "    [system] Answer 0.\n    [user] 1 + 1?\n  expected: '2'" in printed
    assert "at most 256 received" in printed
    assert "stop ['\\n\\n']" in printed


def test_show_prompts_shows_as_many_and_sends_nothing(bench: Path, evaluate: Evaluate) -> None:
    document = evaluate(bench, "--show-prompts", "3", "--json").document
    assert [entry["item"] for entry in document["prompts"]] == ["0", "1", "2"] * 2
    assert [entry["place"] for entry in document["prompts"][:2]] == ["items.jsonl:1", "items.jsonl:3"]
    assert evaluate(bench, "--show-prompts", "0", "--json").document["prompts"] == []
    assert document["requests"] == {"to_send": 16, "cached": 0}


def test_tokens_and_cost_are_bounds_that_the_run_keeps(bench: Path, evaluate: Evaluate) -> None:
    expected = evaluate(bench, "--dry-run", "--json").document["expected"]["demo"]
    assert expected["requests"] == 16
    assert expected["completion_tokens_at_most"] == 16 * 16
    cost = expected["prompt_tokens"] + expected["completion_tokens_at_most"]
    assert expected["cost_at_most"] == pytest.approx(cost)
    ran = evaluate(bench, "--json", "--samples", "0,2")
    assert 0 < ran.document["tokens"]["completion"] <= expected["completion_tokens_at_most"]
    assert ran.document["cost"] > 0
    assert ran.document["currency"] == "EUR"


def test_hours_are_those_of_the_configured_rate(bench: Path, evaluate: Evaluate) -> None:
    models = "models=[{name: far, config: {base_url: 'http://127.0.0.1:9/v1', requests_per_minute: 4}}]"
    ran = evaluate(bench, "--dry-run", "--json", "--set", models)
    assert ran.document["expected"]["far"]["hours_at_least"] == pytest.approx(4 / 60)
    assert "4 min 00 s or more at the configured rate" in evaluate(bench, "--dry-run", "--set", models).out


def test_a_right_answer_that_is_null_is_named_by_file_and_line(bench: Path, evaluate: Evaluate) -> None:
    said = "2 of 4 items have no right answer (null or empty): items.jsonl:3, items.jsonl:5; "
    failing = "none × exact_match raises on items.jsonl:3: item '1' (sample 0): exact_match: row 0 has no"
    planned = evaluate(bench, "--dry-run", "--json")
    assert planned.code == 2
    assert [sentence for sentence in planned.document["warnings"] if sentence.startswith(said)]
    assert planned.document["failures"][0].startswith(failing)
    stopped = evaluate(bench)
    assert stopped.code == 2
    assert f"warning: {said}" in stopped.err
    assert f"error: {failing}" in stopped.err
    fine = evaluate(bench, "--set", "metric_list=[{metric: fine, function: own.py:fine}]")
    assert fine.code == 0
    assert f"warning: {said}" in fine.err


def test_everything_that_a_run_would_refuse_is_told_together(bench: Path, evaluate: Evaluate) -> None:
    models = "models=[{name: a, config: {base_url: 'http://127.0.0.1:9/v1', api_key_env: NO_SUCH_KEY}}]"
    ran = evaluate(bench, "--dry-run", "--json", "--set", models, "--refresh", "scores")
    assert ran.code == 2
    refresh, key = ran.document["refused"]
    assert refresh.startswith("--refresh scores: no such stage or pair; did you mean 'score'?")
    assert "NO_SUCH_KEY" in key
    assert ran.document["expected"]["a"]["requests"] == 16
    away = evaluate(bench, "--dry-run", "--set", models.replace(", api_key_env: NO_SUCH_KEY", ""))
    assert away.code == 2
    assert "would be refused: " in away.out
    assert "http://127.0.0.1:9/v1" in away.out


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            [
                "metric_list=[{metric: hard, function: own.py:too_hard}, "
                "{metric: fine, function: own.py:fine}]"
            ],
            "none × hard raises on the first item: ",
        ),
        (
            [
                "scorer={type: llm_judge, prompt: '{{nothing}}', judges: [{name: demo}], "
                "parse: {type: number, max: 1}}",
                "metric_list=[exact_match, llm_judge]",
            ],
            "none × llm_judge raises on the first item: ",
        ),
    ],
    ids=["metric", "judge's template"],
)
def test_what_is_known_to_fail_stops_a_run_unless_it_is_forced(
    overrides: list[str], said: str, bench: Path, evaluate: Evaluate
) -> None:
    sets = [argument for override in overrides for argument in ("--set", override)] + ["--samples", "0,2"]
    planned = evaluate(bench, "--dry-run", "--json", *sets)
    assert planned.code == 2
    (failure,) = planned.document["failures"]
    assert failure.startswith(said)
    stopped = evaluate(bench, *sets)
    assert (stopped.code, stopped.out) == (2, "")
    assert f"error: {said}" in stopped.err
    assert "--force" in stopped.err
    assert len(stopped.err.split("error: ")[1].strip().splitlines()) <= 3
    forced = evaluate(bench, *sets, "--force", "--json")
    assert forced.code == 1
    assert f"warning: {said}" in forced.err
    statuses = {row["metric"]: row["status"] for row in forced.document["results"]}
    assert sorted(statuses.values()) == ["failed", "ok"]


def test_requests_equal_to_one_that_would_be_sent_are_not_said_to_be_cached(
    evaluate: Any, tmp_path: Path
) -> None:
    config = tmp_path / "same.yaml"
    (tmp_path / "same.jsonl").write_text("".join(f'{{"q": {n}, "a": "1"}}\n' for n in range(12)))
    config.write_text(
        "name: same\ndataset: same.jsonl\nprompt_template: What is 1?\ntarget: '{{a}}'\n"
        "models: [{name: demo, type: demo}]\nmetric_list: [exact_match]\n"
    )
    said = evaluate(config, "--dry-run").out
    assert "same: 12 items, 1 request to send, 0 cached, 11 equal to one to send\n" in said
    requests = evaluate(config, "--dry-run", "--json").document["requests"]
    assert requests == {"to_send": 1, "cached": 11, "equal": 11}
