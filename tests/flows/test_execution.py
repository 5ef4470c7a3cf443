"""Answers that are programs, from the responses to pass@k, in a real sandbox."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from scorers.config import Program, ProgramOutcome
from tasks.rows import execution

Evaluate = Callable[..., Any]

CONFIG = """
name: programs
dataset: {path: items.jsonl}
prompt_template: "{{ prompt }}"
models:
MODELS
sample_params: {num_samples: 4}
filter_list:
  - name: code
    filter: [{function: regex, regex_pattern: "```python\\n([\\\\s\\\\S]*?)```", fallback: null}]
    metric_list: [{metric: tests_passed, reduction: ["pass@1", "pass@2", "mean"]}]
scorer: {type: execution, program: "{{ prediction }}\\n{{ test }}", limits: {seconds: 20}}
"""
RIGHT = ["return a + b", "return b + a", "return sum((a, b))"]
WRONG = ["return a - b", "raise SystemExit", "import os; os._exit(0)", "while True: pass"]
PICKED = [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]


pytestmark = pytest.mark.usefixtures("sandbox")


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def config(folder: Path, models: tuple[str, ...] = ("recorded",), text: str = CONFIG) -> Path:
    entries = "\n".join(
        f"  - {{name: {name}, type: replay, config: {{path: responses.jsonl}}}}" for name in models
    )
    path = folder / "programs.yaml"
    path.write_text(text.replace("MODELS", entries), encoding="utf-8")
    return path


@pytest.fixture
def written(tmp_path: Path) -> list[list[int]]:
    """Five problems with four answers each: which of them are right."""
    items = [
        {"id": str(n), "prompt": f"add {n}", "test": f"assert add({n}, 2) == {n} + 2"}
        for n in range(len(PICKED))
    ]
    rows = []
    for n, right in enumerate(PICKED):
        for sample, ok in enumerate(right):
            body = (RIGHT if ok else WRONG[:3])[(n + sample) % 3]
            text = f"Here:\n```python\ndef add(a, b):\n    {body}\n```\nDone."
            rows.append({"item_id": str(n), "sample_index": sample, "response": text})
    write(tmp_path, "items.jsonl", items)
    write(tmp_path, "responses.jsonl", rows)
    return PICKED


def enumerated(right: list[list[int]], k: int) -> float:
    """pass@k by its definition: the share of sets of k answers with a right one."""
    shares = [[any(answers) for answers in combinations(item, k)] for item in right]
    return sum(sum(sets) / len(sets) for sets in shares) / len(shares)


def test_programs_are_run_and_counted_by_pass_at_k(
    evaluate: Evaluate, tmp_path: Path, written: list[list[int]], programs_run: list[Program]
) -> None:
    done = evaluate(config(tmp_path), "--json")
    assert done.code == 0, done.err
    rows = {row["reduction"]: row for row in done.document["results"] if row["metric"] == "tests_passed"}
    for k in (1, 2):
        assert rows[f"pass@{k}"]["value"] == pytest.approx(enumerated(written, k))
    assert rows["mean"]["value"] == pytest.approx(enumerated(written, 1))
    assert len(programs_run) == len({program.text for program in programs_run})
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    kinds = {finding["kind"] for finding in manifest["diagnostics"]}
    assert "reference_missing" not in kinds  # programs are compared with none
    first = len(programs_run)
    assert evaluate(config(tmp_path), "--json").steps("execute") == (0, 1)
    assert len(programs_run) == first

    # Another model with the same answers is scored, and none of its programs run.
    second = evaluate(config(tmp_path, ("recorded", "again")), "--json")
    assert second.code == 0, second.err
    assert {row["model_name"] for row in second.document["results"]} == {"recorded", "again"}
    assert len(programs_run) == first

    assert evaluate(config(tmp_path), "--refresh", "execute").code == 0
    assert len(programs_run) == 2 * first


def test_a_changed_test_runs_its_own_programs_only(
    evaluate: Evaluate, tmp_path: Path, written: list[list[int]], programs_run: list[Program]
) -> None:
    assert evaluate(config(tmp_path)).code == 0
    programs_run.clear()
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    items[1]["test"] = "assert add(1, 2) == 4"
    write(tmp_path, "items.jsonl", items)
    done = evaluate(config(tmp_path), "--json")
    assert {program.text.splitlines()[-1] for program in programs_run} == {"assert add(1, 2) == 4"}
    changed = [right if n != 1 else [0] * 4 for n, right in enumerate(written)]
    rows = {row["reduction"]: row["value"] for row in done.document["results"]}
    assert rows["pass@1"] == pytest.approx(enumerated(changed, 1))


def test_what_the_sandbox_failed_at_is_unscored_and_tried_by_the_next_run(
    evaluate: Evaluate, tmp_path: Path, written: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = execution.run_program

    def without_room(program: Program, sandbox: Any) -> ProgramOutcome:
        if "add(3, 2)" in program.text:
            return ProgramOutcome("sandbox_error", sandbox="bubblewrap", error="sandbox bubblewrap: no room")
        return real(program, sandbox)

    with monkeypatch.context() as broken:
        broken.setattr(execution, "run_program", without_room)
        lost = evaluate(config(tmp_path), "--json")
    [row] = [row for row in lost.document["results"] if row["reduction"] == "mean"]
    assert (row["n_samples"], row["n_unscored"]) == (20, 4)
    rest = [right for n, right in enumerate(written) if n != 3]
    assert row["value"] == pytest.approx(enumerated(rest, 1))

    asked: list[Program] = []

    def counted(program: Program, sandbox: Any) -> ProgramOutcome:
        asked.append(program)
        return real(program, sandbox)

    monkeypatch.setattr(execution, "run_program", counted)
    whole = evaluate(config(tmp_path), "--json")
    rows = {row["reduction"]: row["value"] for row in whole.document["results"]}
    assert rows["mean"] == pytest.approx(enumerated(written, 1))
    assert {program.text.splitlines()[-1] for program in asked} == {"assert add(3, 2) == 3 + 2"}


def test_a_time_out_is_wrong_and_shown_beside_the_sample(evaluate: Evaluate, tmp_path: Path) -> None:
    write(tmp_path, "items.jsonl", [{"id": "0", "prompt": "p", "test": "assert add(1, 1) == 2"}])
    bodies = [RIGHT[0], WRONG[3], WRONG[0], RIGHT[0]]
    rows = [
        {"item_id": "0", "sample_index": n, "response": f"```python\ndef add(a, b):\n    {body}\n```"}
        for n, body in enumerate(bodies)
    ]
    write(tmp_path, "responses.jsonl", rows)
    text = CONFIG.replace("seconds: 20", "seconds: 1")
    done = evaluate(config(tmp_path, text=text), "--json")
    assert done.code == 0, done.err
    assert {row["reduction"]: row["value"] for row in done.document["results"]}["mean"] == 0.5
    [sample] = map(json.loads, (tmp_path / "out" / "samples_programs.jsonl").read_text().splitlines())
    assert sample["tests_passed_repeats"] == [1.0, 0.0, 0.0, 1.0]


CASES = """
name: cases
dataset: {path: items.jsonl}
prompt_template: "{{ prompt }}"
models:
MODELS
metric_list: [tests_passed, {metric: tests_passed, count: share, alias: share}]
scorer: {type: execution, cases: tests}
"""


def test_programs_are_fed_cases_and_judged_by_what_they_print(evaluate: Evaluate, tmp_path: Path) -> None:
    tests = [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in range(4)]
    write(
        tmp_path,
        "items.jsonl",
        [{"id": "0", "prompt": "p", "tests": tests}, {"id": "1", "prompt": "q", "tests": json.dumps(tests)}],
    )
    write(
        tmp_path,
        "responses.jsonl",
        [
            {"item_id": "0", "sample_index": 0, "response": "print(int(input()) * 2)"},
            {"item_id": "1", "sample_index": 0, "response": "n = int(input())\nprint(n * 2 if n < 3 else 0)"},
        ],
    )
    done = evaluate(config(tmp_path, text=CASES), "--json")
    assert done.code == 0, done.err
    assert (done.value("tests_passed,none"), done.value("share,none")) == (0.5, 0.875)


def test_an_item_without_usable_cases_is_refused_before_a_model_is_asked(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    case = {"input": "1", "output": "1"}
    items = [{"id": "a", "q": "echo", "io": [case]}, {"id": "b", "q": "echo it", "io": []}]
    write(tmp_path, "items.jsonl", items)
    text = (
        CONFIG.partition("sample_params")[0]
        .replace("prompt }}", "q }}")
        .replace("MODELS", "  - {name: asked, type: demo}")
    )
    path = tmp_path / "programs.yaml"
    path.write_text(f"{text}metric_list: [tests_passed]\nscorer: {{type: execution, cases: io}}\n")
    done = evaluate(path)
    assert done.code == 2
    assert "raises on items.jsonl:2: item 'b' (sample 0): scorer.cases: field 'io' has no case" in done.err
    assert evaluate(path, "--limit", "1", "--dry-run").code == 0
