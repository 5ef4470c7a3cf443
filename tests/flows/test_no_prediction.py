"""Answers that hold no prediction, because they were cut off before they began or refused: what each kind of
metric makes of them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.flows.endpoints import ScriptedChat

Reply = tuple[dict[str, Any], str]
LOST: dict[str, Reply] = {
    "cut_off": ({"content": None, "reasoning_content": "let me see"}, "length"),
    "refused": ({"content": None, "refusal": "I can't help with that."}, "stop"),
}


@pytest.fixture(params=LOST)
def outcome(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def config(numbers: Callable[..., Path], endpoint: ScriptedChat, outcome: str) -> Callable[..., Path]:
    """Of its four questions two are right, and two have the outcome."""

    def two_of_four(prompt: str, sample: int) -> Reply:
        return ({"content": prompt[1:]}, "stop") if int(prompt[1:]) < 2 else LOST[outcome]

    endpoint.script = two_of_four
    return partial(numbers, name="lost")


@pytest.fixture
def sampled(config: Callable[..., Path], endpoint: ScriptedChat, outcome: str) -> Callable[..., Path]:
    """Of the samples 0 to 5 the third and sixth have the outcome; of the others the first two are right, the
    rest of a kind and wrong."""

    def every_third(prompt: str, sample: int) -> Reply:
        if sample % 3 == 2:
            return LOST[outcome]
        return {"content": prompt[1:] if sample < 2 else "wrong"}, "stop"

    endpoint.script = every_third
    return partial(config, sample_params={"num_samples": 6, "seed": 0, "temperature": 1.0})


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "results.parquet").to_pylist()


def test_samples_without_a_prediction_have_no_vote_and_are_failed_trials(
    evaluate, sampled, tmp_path, outcome
):
    metrics = [{"metric": "exact_match", "reduction": ["mean", "pass@2", "maj@3", "maj@6", "pass^2"]}]
    ran = evaluate(sampled(n=2, metric_list=metrics), "--json")
    assert ran.code == 0
    rows = rows_in(tmp_path / "out")
    found = {row["reduction"]: row["value"] for row in rows}
    # Right: samples 0 and 1; wrong: 3 and 4; lost: 2 and 5. Two against two: the first of the votes wins.
    assert found["mean"] == pytest.approx(2 / 6)
    assert found["pass@2"] == pytest.approx(1 - (4 * 3) / (6 * 5))
    assert found["maj@3"] == found["maj@6"] == 1.0
    assert found["pass^2"] == pytest.approx((2 * 1) / (6 * 5))
    assert {row[f"n_{outcome}"] for row in rows} == {4}


def test_a_filter_that_chooses_takes_the_votes_that_were_cast(evaluate, sampled, tmp_path, outcome):
    filters = [
        {"name": "first", "filter": [{"function": "take_first"}], "metric_list": ["exact_match"]},
        {"name": "vote", "filter": [{"function": "majority_vote"}], "metric_list": ["exact_match"]},
    ]
    ran = evaluate(sampled(n=1, filter_list=filters, metric_list=None), "--json")
    assert ran.value("exact_match,vote") == 1.0
    rows = {row["filter"]: row[f"n_{outcome}"] for row in rows_in(tmp_path / "out")}
    # A vote counts as cut off where one of its samples does, and as refused where all of them do.
    assert (rows["first"], rows["vote"]) == (0, int(outcome == "cut_off"))


MINE = '''
from metrics import metric

def seen(references, predictions):
    """One for the empty text."""
    return float(predictions == [""])

@metric("mistakes", higher_is_better=False, bounds=(0.0, 7.0), source="a test")
def mistakes(references, predictions):
    return float(predictions != references)

@metric("far", higher_is_better=False, bounds=(0.0, float("inf")), source="a test")
def far(references, predictions):
    return float(abs(len(predictions[0]) - 3))

@metric("beyond", higher_is_better=False, source="a test")
def beyond(references, predictions):
    return 0.0 if predictions[0] else 9.0

def reward(responses, docs):
    return [1.0 if text == "" else 0.0 for text in responses]

def judge(response, ground_truth, inference_result):
    return {"label": "mine", "passed": response == "", "score": float(response == "")}

def results(doc, results):
    return {"blank": float(results == [""])}

class Counter:
    def __init__(self, **_):
        pass

    def score(self, batch):
        return [1.0 if text == "" and answer == "" else 0.0
                for text, answer in zip(batch.predictions, batch.responses)]
'''


def see(evaluate, config, tmp_path, outcome, keys, pair, value):
    (tmp_path / "mine.py").write_text(MINE)
    ran = evaluate(config(**keys), "--json")
    assert ran.code == 0, ran.err
    assert ran.value(pair) == value
    rows = {row["metric"]: row for row in rows_in(tmp_path / "out")}
    assert rows[pair.partition(",")[0]][f"n_{outcome}"] == 2


@pytest.mark.parametrize(
    ("keys", "pair"),
    [
        ({"metric_list": ["mine.py:seen"]}, "seen,none"),
        ({"process_results": "mine.py:results", "metric_list": ["blank"]}, "blank,none"),
        ({"scorer": {"type": "reward_model", "function": "mine.py:reward"}}, "reward,none"),
        ({"scorer": {"type": "mine.py:Counter"}, "metric_list": ["counter"]}, "counter,none"),
    ],
)
def test_users_functions_see_the_empty_text(evaluate, config, tmp_path, outcome, keys, pair):
    see(evaluate, config, tmp_path, outcome, keys, pair, 0.5)


@pytest.mark.parametrize("outcome", ["refused"], indirect=True)
@pytest.mark.parametrize(
    ("keys", "pair", "value"),
    [
        ({"metric_list": ["mine.py:mistakes"]}, "mistakes,none", 3.5),
        ({"metric_list": ["mine.py:far"]}, "far,none", (2 + 2 + 3 + 3) / 4),
        ({"metric_list": ["mine.py:beyond"]}, "beyond,none", 4.5),
        ({"metric_list": [{"metric": "mine.py:seen", "higher_is_better": False}]}, "seen,none", 0.5),
    ],
)
def test_the_worst_value_is_kept_to_the_range(evaluate, config, tmp_path, outcome, keys, pair, value):
    see(evaluate, config, tmp_path, outcome, keys, pair, value)


def test_evaluation_methods_built_in_are_not_passed_and_users_judge_the_empty_text(
    evaluate, config, tmp_path, outcome
):
    (tmp_path / "mine.py").write_text(MINE)
    methods = [
        {"name": "right", "type": "exact_match"},
        {"name": "short", "type": "length_check", "params": {"max_length": 100}},
        {"name": "mine", "function": "mine.py:judge"},
    ]
    metrics = [
        {"name": "rate", "type": "pass_rate"},
        {"name": "pass@1", "type": "pass_at_k", "params": {"k": 1}},
    ]
    ran = evaluate(config(metric_list=None, evaluation_methods=methods, metrics=metrics), "--json")
    assert ran.code == 0, ran.err
    rows = rows_in(tmp_path / "out")
    found = {(row["metric"], row["label"]): row["value"] for row in rows}
    assert {found["rate", label] for label in ("right", "short", "mine")} == {0.5}
    assert {found["pass@1", label] for label in ("right", "short", "mine")} == {0.5}
    assert {row[f"n_{outcome}"] for row in rows} == {2}
    lines = map(json.loads, (tmp_path / "out/evaluation_results.jsonl").read_text().splitlines())
    assert {(line["status"], line["passed"]) for line in lines if line["label"] == "short"} == {
        ("ok", True),
        (outcome, False),
    }


@pytest.mark.parametrize(("better", "worst"), [(True, 1), (False, 5)])
def test_a_judge_is_not_shown_it_and_gives_it_the_worst_grade(
    evaluate, config, endpoint, tmp_path, better, worst
):
    answered = endpoint.script

    def script(prompt: str, sample: int) -> Reply:
        return ({"content": "3"}, "stop") if prompt.startswith("Grade") else answered(prompt, sample)

    endpoint.script = script
    judge = {
        "type": "llm_judge",
        "judges": [{"name": "j", "type": "openai", "config": {"base_url": endpoint.url}}],
        "prompt": "Grade from 1 to 5: {{ response }}",
        "parse": {"type": "number", "min": 1, "max": 5},
    }
    named = [{"metric": "llm_judge", "higher_is_better": better}]
    ran = evaluate(config(scorer=judge, metric_list=named), "--json")
    assert ran.code == 0, ran.err
    assert ran.value("llm_judge,none") == pytest.approx((3 + 3 + 2 * worst) / 4)
    assert sum(prompt.startswith("Grade") for prompt in endpoint.asked) == 2
