"""What a run tries before it asks anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Evaluate = Callable[..., Any]
ITEMS = [{"id": str(place), "question": f"{place} + 1?", "answer": str(place + 1)} for place in range(3)]
SELF_CONSISTENCY = """\
task: gsm8k_cot_self_consistency
tag: [chain_of_thought, self_consistency]
dataset_path: json
dataset_kwargs: {data_files: {test: items.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
generation_kwargs: {until: ["Q:", "\\n\\n"], do_sample: true, temperature: 0.2}
repeats: 64
filter_list:
  - name: score-first
    filter:
      - {function: regex, regex_pattern: "(-?[0-9]+)"}
      - {function: take_first}
  - name: "maj@64"
    filter:
      - {function: regex, regex_pattern: "(-?[0-9]+)"}
      - {function: majority_vote}
      - {function: take_first}
  - name: "maj@8"
    filter:
      - {function: take_first_k, k: 8}
      - {function: regex, regex_pattern: "(-?[0-9]+)"}
      - {function: majority_vote}
      - {function: take_first}
metadata: {version: 3.0}
"""
NATIVE = """\
name: sums
dataset: items.jsonl
prompt_templates: [{name: plain, template: "{{question}}"}]
target: "{{answer}}"
sample_params: {temperature: 0.5, num_samples: 4}
models: [{name: demo, type: demo}]
filter_list:
  - {name: own, filter: [{function: "own.py:STEP"}], metric_list: [exact_match]}
  - {name: plain, filter: [{function: take_first}], metric_list: [exact_match]}
"""
STEPS = """\
def third(resps, docs):
    return [[item[2]] for item in resps]

def fifth(resps, docs):
    return [[item[4]] for item in resps]

def never_the_right_answer(resps, docs):
    if any(resp == doc["answer"] for item, doc in zip(resps, docs) for resp in item):
        raise ValueError("the answer leaked")
    return [list(item) for item in resps]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    (tmp_path / "own.py").write_text(STEPS)
    return tmp_path


def native(folder: Path, step: str) -> Path:
    (folder / "bench.yaml").write_text(NATIVE.replace("STEP", step))
    return folder / "bench.yaml"


def test_the_harness_own_self_consistency_runs(folder: Path, evaluate: Evaluate) -> None:
    (folder / "gsm8k.yaml").write_text(SELF_CONSISTENCY)
    ran = evaluate(folder / "gsm8k.yaml", "--set", "models=[{name: demo, type: demo}]", "--json")
    assert ran.code == 0, ran.err
    rows = {row["filter"]: row for row in ran.document["results"]}
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(rows, "ok")
    assert set(rows) == {"score-first", "maj@64", "maj@8"}


def test_a_users_step_is_tried_on_as_many_responses_as_an_item_has(folder: Path, evaluate: Evaluate) -> None:
    assert evaluate(native(folder, "third")).code == 0


def test_a_users_step_that_wants_more_responses_than_there_are_is_refused(
    folder: Path, evaluate: Evaluate
) -> None:
    ran = evaluate(native(folder, "fifth"))
    assert ran.code == 2
    assert "list index out of range" in ran.err


def test_models_with_unequal_repeats_are_both_tried(folder: Path, evaluate: Evaluate) -> None:
    models = "models=[{name: a, type: demo}, {name: b, type: demo, sample_params: {num_samples: 2}}]"
    ran = evaluate(native(folder, "third"), "--set", models)
    assert ran.code == 2
    assert "list index out of range" in ran.err
    assert "2 responses" in ran.err


def test_what_force_promises_is_true(folder: Path, evaluate: Evaluate) -> None:
    """A step that raises on the right answer alone raises on no other response: its pair is not lost."""
    refused = evaluate(native(folder, "never_the_right_answer"))
    assert refused.code == 2
    assert "the answer leaked" in refused.err
    assert "these pairs alone fail" not in refused.err
    models = "models=[{name: recorded, type: replay, config: {path: recorded.jsonl}}]"
    lines = [{"item_id": item["id"], "response": "no idea"} for item in ITEMS for _ in range(4)]
    (folder / "recorded.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    forced = evaluate(folder / "bench.yaml", "--force", "--json", "--set", models)
    assert forced.code == 0, forced.err
    assert {row["status"] for row in forced.document["results"]} == {"ok"}


UNEQUAL = """\
name: sums
dataset: items.jsonl
prompt_templates: [{name: plain, template: "{{question}}"}]
target: "{{answer}}"
models: [{name: demo, type: demo}]
metric_list: [exact_match, numeric_match, {metric: sized, function: "own.py:sized"}]
"""
SIZED = """\
from metrics import metric

@metric("sized", right_answers=lambda references, **_: [one + "!" for one in references])
def sized(references, predictions):
    return float(len(predictions[0]) > 2)
"""


def test_references_that_fail_themselves_are_named(folder: Path, evaluate: Evaluate) -> None:
    items = [*ITEMS[:2], {"id": "far", "question": "where?", "answer": "over there"}]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "own.py").write_text(SIZED)
    (folder / "bench.yaml").write_text(UNEQUAL)
    planned = evaluate(folder / "bench.yaml", "--dry-run", "--json", "--force")
    told = {said.partition(":")[0]: said for said in planned.document["warnings"]}
    assert set(told) == {"none × numeric_match", "none × sized"}
    assert "1 of 3 items is wrong as its own answer: 'far';" in told["none × numeric_match"]
    assert "2 of 3 items is wrong as its own answer: '0', '1';" in told["none × sized"]
    ran = evaluate(
        folder / "bench.yaml", "--force", "--set", "metric_list=[exact_match, {function: own.py:sized}]"
    )
    assert ran.code == 0
    assert f"warning: {told['none × sized']}" in ran.err
    again = evaluate(folder / "bench.yaml", "--set", "metric_list=[exact_match, {function: own.py:sized}]")
    assert "its own answer" not in again.err  # no score is computed: it was said
    selected = evaluate(
        folder / "bench.yaml",
        "--dry-run",
        "--json",
        "--samples",
        "0-1",
        "--set",
        "metric_list=[numeric_match]",
    )
    assert not selected.document["warnings"]


@pytest.mark.parametrize(
    "scorer",
    [
        "{type: llm_judge, judges: [judge], parse: {type: number}, prompt: '{{hint}} {{response}}'}",
        "{type: reward_model, model: judge, prompt: '{{hint}} {{response}}'}",
        "{type: arena, judges: [judge], prompt: '{{hint}} {{answer_a}} {{answer_b}}'}",
    ],
)
def test_a_later_item_that_a_grading_prompt_does_not_fit_is_refused_before_a_model_is_asked(
    folder: Path, evaluate: Evaluate, scorer: str
) -> None:
    items = [item | ({"hint": "add"} if place < 2 else {}) for place, item in enumerate(ITEMS)]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    config = "name: sums\ndataset: items.jsonl\nprompt_template: '{{question}}'\ntarget: '{{answer}}'\n"
    models = [{"name": name, "type": "demo"} for name in ("one", "two", "judge")]
    (folder / "judged.yaml").write_text(f"{config}models: {json.dumps(models)}\nscorer: {scorer}\n")
    done = evaluate(folder / "judged.yaml")
    assert done.code == 2
    assert "raises on items.jsonl:3: item '2'" in done.err
    assert "'hint' is undefined" in done.err
