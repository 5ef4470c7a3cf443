"""The embedded model: what it solves, how often it is wrong, and that it always says the same."""

import json
import urllib.request
from fractions import Fraction
from pathlib import Path

import pytest

from tasks.models.demo.answering import Draw, in_digits, last_question, respond, shown, solve
from tasks.models.demo.options import Faults
from tasks.models.demo.server import Stats

PROBLEMS = [
    json.loads(line)
    for line in (Path(__file__).parents[3] / "deployments/benchmarks/demo/problems.jsonl")
    .read_text()
    .splitlines()
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["question"][:30])
def test_every_problem_of_the_benchmark_is_solved_by_reading_it(problem):
    solution = solve(problem["question"])
    assert solution is not None
    assert shown(solution.answer) == problem["answer"].rpartition("#### ")[2]


@pytest.mark.parametrize("number", [3, 7, 58])
def test_other_numbers_give_other_answers(number):
    solution = solve(
        f"Ida has {number} nuts. She finds 4 bags with 9 nuts each. How many nuts does Ida have now?"
    )
    assert solution is not None
    assert solution.answer == number + 36


@pytest.mark.parametrize("text", ["", "Hello", "How many stars are there?", "how much " * 2_000])
def test_what_is_no_problem_is_not_solved(text):
    assert solve(text) is None


def test_the_steps_are_arithmetic_that_holds():
    for problem in PROBLEMS:
        for step in solve(problem["question"]).steps:
            left, _, right = step.partition("<<")[2].partition(">>")[0].rpartition("=")
            sign = next(sign for sign in "*/-+" if sign in left[1:])
            a, b = (Fraction(part) for part in left.split(sign))
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
            assert float(right) == pytest.approx(float(value), abs=1e-4)


def test_numbers_are_read_in_words_and_digits():
    assert (
        in_digits("Twenty-five eggs, two dozen figs and half of $1,200")
        == "25 eggs, 2*12 figs and 1/2 of 1200"
    )


def test_the_last_question_of_a_few_shot_prompt_is_answered():
    assert last_question("Question: A?\nAnswer: #### 3\n\nQuestion: B?\nAnswer:") == "B?"


def test_the_rate_of_wrong_answers_is_the_one_asked_for():
    question = "Ida has {} nuts. She finds 4 bags with 9 nuts each. How many nuts does Ida have now?"
    wrong = [
        str(n + 36) not in respond(question.format(n), Draw(temperature=0), 0.3) for n in range(200, 1_200)
    ]
    assert sum(wrong) / len(wrong) == pytest.approx(0.3, abs=0.05)  # three standard errors
    assert str(236) in respond(question.format(200), Draw(temperature=0), 0.0)


def test_answers_depend_on_prompt_seed_and_temperature_alone():
    question = PROBLEMS[0]["question"]
    drawn = {seed: respond(question, Draw(seed, 1.0), 0.5) for seed in range(40)}
    assert drawn == {seed: respond(question, Draw(seed, 1.0), 0.5) for seed in range(40)}
    assert len(set(drawn.values())) > 1
    assert len({respond(question, Draw(seed, 0), 0.5) for seed in range(40)}) == 1


@pytest.mark.parametrize(
    ("response", "instruction", "verdict"),
    [
        ("so it is 18", "Answer with one of: CORRECT, INCORRECT", "CORRECT"),
        ("so it is 19", "Answer with one of: CORRECT, INCORRECT", "INCORRECT"),
        ("so it is 18", "Rate it from 1 to 5.", "5"),
        ("so it is 19", 'Reply as {"grade": 1 to 5} from 1 to 5.', '{"grade": 1}'),
    ],
)
def test_a_grading_prompt_is_graded(response, instruction, verdict):
    prompt = f"Reference: 18\nResponse: {response}\n{instruction}"
    assert respond(prompt, Draw(), 0.0) == verdict


def test_faults_are_read_from_text():
    assert Faults.parse("error_500=0.05, stall=1,capacity=3,ignore_echo=1,fail_prompts=x") == Faults(
        error_500=0.05, stall=1.0, capacity=3, ignore_echo=True, fail_prompts="x"
    )
    with pytest.raises(ValueError, match="known are"):
        Faults.parse("eror=1")


def test_the_server_lists_its_model_and_counts(served):
    serving = served(model="m")
    with urllib.request.urlopen(f"{serving.base_url}/models") as answer:
        assert [entry["id"] for entry in json.load(answer)["data"]] == ["m"]
    assert serving.stats()["received"] == 0


def test_counts_are_read_while_requests_come():
    stats = Stats()

    class AnsweredMeanwhile(int):
        def __gt__(self, other):
            stats.answer(stats.arrive("/", str(stats.received).encode()))
            return int(self) > other

    for number in range(3):
        stats._answers[bytes([number])] = AnsweredMeanwhile(2)
    assert stats.snapshot()["answered_again"] == 3
