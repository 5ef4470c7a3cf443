"""A hundred problems in HumanEval's format: what solves them passes, what was mutated fails, and pass@k is
that of every choice, and of the library where it is at hand."""

import json
import os
import random
import subprocess
from itertools import combinations
from math import comb
from pathlib import Path

import pytest

from bench.lm_eval.peer import peer_python
from scorers.config import ProgramOutcome
from tasks.rows.execution import OutcomeStore, ProgramRunner
from tasks.sandboxes.run import chosen_sandbox
from tasks.store.storage import Store
from tasks.usercode.evaluate import CodeVerdict, answering, code_eval, collecting
from tests.tasks.rows.problems import Problem, problems

FOLDER = "NIGHTJAR_CODE_EVAL"
"""Names a copy of evaluate's folder ``metrics/code_eval``, where the library can't fetch it."""
PEER = """
import sys, json, evaluate
asked = json.load(sys.stdin)
shares, results = evaluate.load(sys.argv[1]).compute(**asked, k=[1, 10], num_workers=2, timeout=20.0)
passed = [[one["passed"] for _, one in sorted(results[task])] for task in range(len(results))]
print(json.dumps([{name: float(value) for name, value in shares.items()}, passed]))
"""
SECONDS = 20.0


pytestmark = pytest.mark.usefixtures("sandbox")


def candidates(problem: Problem, rng: random.Random) -> list[tuple[str, bool]]:
    """Twelve candidates, which differ in a comment at least, and whether each is right."""
    mutants = problem.mutants()
    found = []
    for place in range(12):
        right = rng.random() < 0.3
        body = problem.canonical_solution if right else rng.choice(mutants)
        found.append((f"{problem.prompt}{body}# {place}\n", right))
    return found


def verdicts(folder: Path, predictions: list[list[str]], tests: list[str]) -> dict[str, CodeVerdict]:
    """What the stage makes of what ``code_eval`` is asked."""
    with collecting() as asked:
        code_eval(predictions, tests, k=[1, 10], timeout=SECONDS)
    kept = OutcomeStore(Store(str(folder / "store")), folder / "journal")
    with ProgramRunner(kept, chosen_sandbox) as runner:
        outcomes = runner.run(list(asked.values()))
    assert all(isinstance(one, ProgramOutcome) and one.verdict in ("passed", "failed") for one in outcomes)
    return {
        name: CodeVerdict(one is not None and one.verdict == "passed", "")
        for name, one in zip(asked, outcomes, strict=True)
    }


def test_the_problems_are_a_hundred_and_every_one_has_mutants() -> None:
    names = [problem.name for problem in problems()]
    assert len(names) == len(set(names)) == 100
    assert min(len(problem.mutants()) for problem in problems()) >= 2


@pytest.mark.services
def test_what_solves_a_problem_passes_and_what_was_mutated_fails(tmp_path: Path) -> None:
    own = [
        [problem.prompt + body for body in (problem.canonical_solution, *problem.mutants())]
        for problem in problems()
    ]
    tests = [f"{problem.test}\ncheck({problem.entry_point})" for problem in problems()]
    with answering(verdicts(tmp_path, own, tests)):
        _, results = code_eval(own, tests, k=[1], timeout=SECONDS)
    for problem, found in zip(problems(), results.values(), strict=True):
        passed = [entry["passed"] for _, entry in found]
        assert passed == [True] + [False] * (len(passed) - 1), problem.name


@pytest.mark.services
def test_pass_at_k_is_that_of_every_choice_and_the_librarys(tmp_path: Path) -> None:
    rng = random.Random(20)
    drawn = [candidates(problem, rng) for problem in problems()]
    predictions = [[text for text, _ in own] for own in drawn]
    tests = [f"{problem.test}\ncheck({problem.entry_point})" for problem in problems()]
    with answering(verdicts(tmp_path, predictions, tests)):
        shares, results = code_eval(predictions, tests, k=[1, 10], timeout=SECONDS)
    right = [[is_right for _, is_right in own] for own in drawn]
    passed = [[entry["passed"] for _, entry in own] for own in results.values()]
    assert passed == right
    for k in (1, 10):
        tried = [sum(map(any, combinations(own, k))) / comb(len(own), k) for own in right]
        assert shares[f"pass@{k}"] == pytest.approx(sum(tried) / len(tried), abs=1e-12)

    folder, peer = os.environ.get(FOLDER), peer_python(None, "evaluate")
    if folder is None or peer is None:
        pytest.skip(f"beside enumeration, evaluate's code_eval is compared where {FOLDER} names its folder")
    theirs = subprocess.run(
        [peer, "-c", PEER, folder],
        input=json.dumps({"predictions": predictions, "references": tests}),
        env={**os.environ, "HF_ALLOW_CODE_EVAL": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected, librarys = json.loads(theirs.stdout)
    assert librarys == passed
    assert shares == pytest.approx(expected, abs=1e-12)
