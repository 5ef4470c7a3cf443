"""``evaluate.load("code_eval")``: what is asked is noted, verdicts are found by digest, nothing runs."""

import random
from itertools import combinations
from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.usercode.evaluate import (
    CodeVerdict,
    ProgramLostError,
    answering,
    asks_about_programs,
    code_eval,
    collecting,
    digest_of,
    load,
    program_of,
)
from tasks.usercode.load import load_function

TESTS = ["assert add(2, 3) == 5", "assert add(1, 1) == 2"]
CANDIDATES = [["def add(a, b): return a + b", "def add(a, b): return a * b"], ["add = max", "add = min"]]


def verdicts(passed: dict[str, bool]) -> dict[str, CodeVerdict]:
    return {name: CodeVerdict(right, "passed" if right else "failed: ") for name, right in passed.items()}


def test_what_is_asked_is_noted_in_order_and_once() -> None:
    with collecting() as asked:
        for _ in range(2):
            shares, results = load("code_eval").compute(references=TESTS, predictions=CANDIDATES, k=[1, 2])
    assert [program.text for program in asked.values()] == [
        f"{candidate}\n{test}" for own, test in zip(CANDIDATES, TESTS, strict=True) for candidate in own
    ]
    assert not any(program.script for program in asked.values())
    assert shares == {"pass@1": 0.0, "pass@2": 0.0}
    assert [[entry["passed"] for _, entry in own] for own in results.values()] == [[False] * 2] * 2


def test_pass_at_k_is_that_of_all_choices_and_left_out_where_there_are_too_few() -> None:
    rng = random.Random(3)
    for _ in range(50):
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
        right = [[rng.random() < 0.4 for _ in range(size)] for size in sizes]
        texts = [[f"{task} {place}" for place in range(size)] for task, size in enumerate(sizes)]
        known = {
            digest_of(program_of(text, "t")): verdict
            for own, chosen in zip(texts, right, strict=True)
            for text, verdict in zip(own, chosen, strict=True)
        }
        with answering(verdicts(known)):
            shares, results = code_eval(texts, ["t"] * len(texts), k=[1, 2, 3, 4])
        for k in (1, 2, 3, 4):
            if min(sizes) < k:
                assert f"pass@{k}" not in shares
                continue
            means = [[any(one) for one in combinations(own, k)] for own in right]
            expected = sum(sum(own) / len(own) for own in means) / len(means)
            assert shares[f"pass@{k}"] == pytest.approx(expected, abs=1e-12)
        assert [[entry["passed"] for _, entry in own] for own in results.values()] == right


def test_a_program_that_was_not_asked_about_before_is_an_error() -> None:
    with answering({}), pytest.raises(ConfigError, match="must ask for the same programs each time"):
        code_eval(CANDIDATES, TESTS)
    other_limit = {digest_of(program_of("add = max", TESTS[1], 5.0)): CodeVerdict(True, "passed")}
    with answering(other_limit):
        assert code_eval([["add = max"]], TESTS[1:], k=1, timeout=5)[0] == {"pass@1": 1.0}
        with pytest.raises(ConfigError):
            code_eval([["add = max"]], TESTS[1:], k=1)


def test_what_the_sandbox_could_not_run_is_no_failure() -> None:
    lost = {digest_of(program_of("add = max", TESTS[1])): CodeVerdict(False, "failed: ", "no room")}
    with answering(lost), pytest.raises(ProgramLostError, match="no room"):
        code_eval([["add = max"]], TESTS[1:])


def test_a_file_may_ask_while_it_is_imported_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(
        "import evaluate\nruns = evaluate.load('code_eval')\n"
        "tried = runs.compute(references=['assert f()'], predictions=[['f = bool']], k=[1])[0]\n"
        "def told(references, predictions): return tried\n"
        "def asked(references, predictions):\n"
        "    return runs.compute(references=references, predictions=[predictions])\n"
    )
    (tmp_path / "beside.py").write_text("from utils import asked as imported\ndef other(x): return x\n")
    (tmp_path / "apart.py").write_text("'''Says code_eval.'''\ndef other(x): return x\n")
    assert load_function("utils.py:told", tmp_path)([], []) == {"pass@1": 0.0}
    with pytest.raises(ConfigError, match=r"use scorer: \{type: execution\}"):
        load_function("utils.py:asked", tmp_path)(["t"], ["p"])
    assert asks_about_programs(load_function("utils.py:told", tmp_path))
    assert asks_about_programs(load_function("beside.py:other", tmp_path))
    assert not asks_about_programs(load_function("apart.py:other", tmp_path))
    assert not asks_about_programs(None)
    assert not asks_about_programs(len)
