"""Benchmarks of the harness that ask ``evaluate.load("code_eval")``, from their own YAMLs to pass@k."""

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from scorers.config import Program, ProgramOutcome
from tasks.rows import execution

Evaluate = Callable[..., Any]
VERBATIM = Path(__file__).parents[1] / "fixtures" / "harness"
MODELS = "models=[{name: recorded, type: replay, config: {field: answers}}]"
RIGHT = [
    "    return a + b\n",
    "    return b + a\n",
    "    total = [a, b]\n    return sum(total)\n\nif __name__ == '__main__':\n    add(input(), 1)\n",
]
WRONG = [
    "    return a - b\n",
    "    raise SystemExit\n",
    "    import os; os._exit(0)\n",
    "    return a +\n",
    "",
]
PICKED = [[1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]


pytestmark = pytest.mark.usefixtures("sandbox")


def bodies(picked: list[int], number: int) -> list[str]:
    return [
        (RIGHT if right else WRONG)[(number + at) % (3 if right else 5)] for at, right in enumerate(picked)
    ]


def humaneval_rows() -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"Made/{number}",
            "prompt": f'def add(a, b):\n    """The sum, {number}."""\n',
            "entry_point": "add",
            "canonical_solution": RIGHT[0],
            "test": f"def check(candidate):\n    assert candidate({number}, 2) == {number + 2}\n",
            "answers": bodies(picked, number),
        }
        for number, picked in enumerate(PICKED)
    ]


def mbpp_rows() -> list[dict[str, Any]]:
    return [
        {
            "task_id": number,
            "text": f"Add two numbers ({number}).",
            "code": "def add(a, b):\n" + RIGHT[0],
            "test_list": [f"assert add({number}, {more}) == {number + more}" for more in (1, 2, 3)],
            "answers": ["def add(a, b):\n" + body for body in bodies(picked[:1], number)],
        }
        for number, picked in enumerate(PICKED)
    ]


def made(folder: Path, file: str, rows: list[dict[str, Any]], **keys: Any) -> Path:
    """A definition that takes one of the collection and made rows."""
    data = folder / f"{Path(file).stem}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = folder / Path(file).name
    definition = {
        "include": str(VERBATIM / file), "dataset_path": "json", "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(data)}}, **keys,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    return path


def enumerated(picked: list[list[int]], k: int) -> float:
    """pass@k by trying every choice of k answers."""
    shares = [[any(chosen) for chosen in combinations(own, k)] for own in picked]
    return sum(sum(own) / len(own) for own in shares) / len(shares)


def test_humaneval_runs_from_its_yaml_and_gives_every_pass_at_k(
    evaluate: Evaluate, tmp_path: Path, programs_run: list[Program]
) -> None:
    metric = yaml.safe_load(
        (VERBATIM / "humaneval" / "humaneval_64.yaml").read_text().replace("!function", "")
    )
    assert metric["metric_list"][0]["k"] == [2, 8, 16, 32, 64]
    path = made(tmp_path, "humaneval/humaneval_64.yaml", humaneval_rows(), repeats=6)
    ks = ("--set", "metric_list.0.k=[1,2,4,64]")  # of 64 there are too few answers, as there
    done = evaluate(path, "--set", MODELS, *ks, "--json")
    assert done.code == 0, done.err
    values = {row["metric"]: row["value"] for row in done.document["results"]}
    assert values == {f"pass@{k}": pytest.approx(enumerated(PICKED, k)) for k in (1, 2, 4)}
    texts = [program.text for program in programs_run]
    assert len(texts) == len(set(texts)), "an equal program runs once"
    assert "def add(a,b): return a*b\nassert add(2, 3)==5" in texts  # what the file asks while it is imported
    assert all(program.limits.seconds == 3.0 for program in programs_run)

    again = evaluate(path, "--set", MODELS, *ks, "--json")
    assert again.steps("execute") == (0, 1)
    assert len(programs_run) == len(texts)
    other = evaluate(path, "--set", MODELS, "--set", "metric_list.0.k=[1,3]", "--json")
    assert {row["metric"]: row["value"] for row in other.document["results"]} == {
        f"pass@{k}": pytest.approx(enumerated(PICKED, k)) for k in (1, 3)
    }
    assert len(programs_run) == len(texts), "other levels of the same answers run nothing"


def test_what_the_sandbox_failed_at_is_unscored_and_asked_again(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = made(tmp_path, "mbpp/mbpp.yaml", mbpp_rows()), execution.run_program

    def without_room(program: Program, sandbox: Any) -> ProgramOutcome:
        if "assert add(1, 1)" in program.text:
            return ProgramOutcome("sandbox_error", sandbox="bubblewrap", error="sandbox bubblewrap: no room")
        return real(program, sandbox)

    monkeypatch.setattr(execution, "run_program", without_room)
    lost = evaluate(path, "--set", MODELS, "--json")
    [row] = lost.document["results"]
    assert (row["metric"], row["n_samples"], row["n_unscored"]) == ("pass_at_1", 4, 1)
    assert row["value"] == pytest.approx(1 / 3)  # of the first answers 1, 1, 0, 0 the second is lost
    monkeypatch.setattr(execution, "run_program", real)
    whole = evaluate(path, "--set", MODELS, "--json")
    assert whole.value("pass_at_1,none") == pytest.approx(0.5)


ASKS = """
import random
import evaluate

runs = evaluate.load("code_eval")

def drawn(references, predictions):
    test = f"assert {random.SystemRandom().random()}"
    return runs.compute(references=[test], predictions=[predictions], k=1)[0]["pass@1"]

def seeded(references, predictions):
    test = f"assert {random.random()} and {references}"
    return runs.compute(references=[test], predictions=[predictions], k=1)[0]["pass@1"]

def processed(doc, results):
    shares, found = runs.compute(references=doc["test_list"][:1], predictions=[results], k=[1])
    [(_, only)] = found[0]
    return {"share": shares["pass@1"], "right": only["result"] == "passed"}
"""
OWN = {
    "dataset_path": "json", "test_split": "test", "doc_to_text": "{{text}}", "doc_to_target": "{{code}}",
    "unsafe_code": True, "output_type": "generate_until",
}  # fmt: skip


def own(folder: Path, name: str, **keys: Any) -> Path:
    """A definition with functions of its own beside it."""
    (folder / "own.py").write_text(ASKS)
    rows = "".join(json.dumps(row) + "\n" for row in mbpp_rows())
    (folder / "rows.jsonl").write_text(rows)
    keys = {"task": name, **OWN, "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, **keys}
    path = folder / f"{name}.yaml"
    path.write_text(re.sub(r"'(!function [\w.]+)'", r"\1", yaml.safe_dump(keys)))
    return path


def test_process_results_may_ask_too_and_must_ask_the_same_each_time(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    metrics = [{"metric": "share"}, {"metric": "right"}]
    path = own(tmp_path, "processed", process_results="!function own.processed", metric_list=metrics)
    done = evaluate(path, "--set", MODELS, "--json")
    assert done.code == 0, done.err
    assert (done.value("share,none"), done.value("right,none")) == (0.5, 0.5)

    path = own(tmp_path, "seeded", metric_list=[{"metric": "!function own.seeded"}])
    same = evaluate(path, "--set", MODELS, "--json", "--output", str(tmp_path / "seeded"))
    assert same.value("seeded,none") == 0.75, same.err  # the first answer of one item can't be parsed

    path = own(tmp_path, "drawn", metric_list=[{"metric": "!function own.drawn"}])
    lost = evaluate(path, "--set", MODELS, "--json", "--output", str(tmp_path / "drawn"))
    assert lost.code != 0
    assert "must ask for the same programs each time" in lost.err + lost.out


FORMS = [
    ("humaneval/humaneval.yaml", "pass@1"),
    ("humaneval/humaneval_plus.yaml", "pass@1"),
    ("humaneval/humaneval_instruct.yaml", "pass@1"),
    ("humaneval/humaneval_64_instruct.yaml", "pass@2"),
    ("mbpp/mbpp.yaml", "pass_at_1"),
    ("mbpp/mbpp_plus.yaml", "pass_at_1"),
    ("mbpp/mbpp_instruct.yaml", "pass_at_1"),
    ("mbpp/mbpp_plus_instruct.yaml", "pass_at_1"),
]


@pytest.mark.services
@pytest.mark.parametrize(("file", "metric"), FORMS, ids=[file for file, _ in FORMS])
def test_every_form_runs_as_it_is(evaluate: Evaluate, tmp_path: Path, file: str, metric: str) -> None:
    several = "_64" in file
    keys = {"repeats": 6} if several else {}
    rows = humaneval_rows() if file.startswith("humaneval") else mbpp_rows()
    if "instruct" in file:  # the answer goes on where the prompt has opened a block of code
        start = "\n" if "mbpp" in file else ""
        rows = [
            {**row, "answers": [f"{start}{answer}\n```\nThat is it." for answer in row["answers"]]}
            for row in rows
        ]
    done = evaluate(made(tmp_path, file, rows, **keys), "--set", MODELS, "--json")
    assert done.code == 0, done.err
    [row] = done.document["results"]
    first = PICKED if several else [own[:1] for own in PICKED]
    assert (row["metric"], row["value"]) == (metric, pytest.approx(enumerated(first, 2 if several else 1)))
