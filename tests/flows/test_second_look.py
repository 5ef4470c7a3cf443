"""``confirm: 1``: what regressed is asked again in full before anybody is told, and both looks say so."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.endpoints import chat_endpoint, says

ITEMS, LOST = 100, 40


class Model:
    """Answers sums rightly, but those of the first items in the looks that ``wrong`` names: how often each
    was asked before. What it asked of other benchmarks is counted, too."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.wrong: set[int] = set()
        self.fingerprint = "fp-1"
        self.url = ""

    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        question = str(body["messages"][-1]["content"])
        look = self.asked[question]
        self.asked[question] += 1
        kind, number = question.split()
        fails = kind == "sum" and int(number) < LOST and look in self.wrong
        return says("?" if fails else str(int(number) + 1))

    def about(self) -> dict[str, Any]:
        return {"system_fingerprint": self.fingerprint}

    def times(self, kind: str) -> set[int]:
        """How often each item of a benchmark was asked."""
        return {times for question, times in self.asked.items() if question.startswith(kind)}


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    with chat_endpoint(made.choice, ["m"], made.about) as made.url:
        yield made


@pytest.fixture
def suite(model: Model, tmp_path: Path) -> Path:
    """Two benchmarks on the model, and a gate that confirms."""
    for kind in ("sum", "other"):
        rows = [{"id": f"{kind}-{n}", "question": f"{kind} {n}", "answer": str(n + 1)} for n in range(ITEMS)]
        (tmp_path / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        benchmark = {
            "name": kind, "output_type": "generate_until", "dataset": f"{kind}.jsonl", "target": "{{answer}}",
            "prompt_template": "{{question}}", "metric_list": ["exact_match"],
            "sample_params": {"temperature": 0, "max_tokens": 8},
            "models": [{"name": "m", "config": {"base_url": model.url, "model": "m"}}],
        }  # fmt: skip
        (tmp_path / f"{kind}.yaml").write_text(json.dumps(benchmark))
    path = tmp_path / "suite.yaml"
    document = {"name": "night", "benchmarks": ["sum.yaml", "other.yaml"], "answers": "fresh"}
    path.write_text(json.dumps({**document, "gate": {"margin": 0.05, "confirm": 1}}))
    return path


def pair_of(night: dict[str, Any]) -> dict[str, Any]:
    (pair,) = (pair for pair in night["comparison"]["pairs"] if pair["benchmark"] == "sum")
    return dict(pair)


def test_a_regression_that_is_gone_when_asked_anew_is_told_as_not_confirmed(
    suite_night: Callable[..., Any], suite: Path, model: Model
) -> None:
    assert suite_night(suite).code == 0
    model.wrong = {1}
    ran = suite_night(suite)
    assert (ran.code, ran.document["verdict"]) == (3, "inconclusive")
    pair = pair_of(ran.document)
    assert pair["verdict"] == "inconclusive"
    assert "a difference of -0.4 was not confirmed: asked again, it is +0" in pair["reason"]
    assert (model.times("sum"), model.times("other")) == ({3}, {2})
    (again,) = ran.document["again"]
    assert (again["name"], again["requests"]["sent"]) == ("sum × m", ITEMS)


def test_a_regression_that_is_confirmed_names_items_and_what_changed_in_the_served_model(
    suite_night: Callable[..., Any], suite: Path, model: Model, prefect_api: Callable[..., Any]
) -> None:
    suite_night(suite)
    model.wrong, model.fingerprint = {1, 2}, "fp-2"
    ran = suite_night(suite)
    assert (ran.code, ran.document["verdict"]) == (1, "regression")
    assert pair_of(ran.document)["reason"].startswith(
        "confirmed: asked again, the difference is -0.4, interval [-"
    )
    assert "asked again before it was told: sum × m" in ran.document["headline"]
    changed = 'the identity of a model changed: sum × m, m: system_fingerprint: ["fp-1"] → ["fp-2"]'
    assert changed in ran.document["headline"]
    run = prefect_api("GET", "/flow_runs/" + ran.document["flow_run_url"].rpartition("/")[2])
    (told,) = json.loads(run["labels"]["nightjar.pairs"])
    assert (told["verdict"], len(told["flipped"])) == ("regression", 10)
    assert {flip[:5] for flip in told["flipped"]} == {"-sum-"}


def test_a_night_that_passes_is_asked_once(
    suite_night: Callable[..., Any], suite: Path, model: Model
) -> None:
    assert [suite_night(suite).document["again"] for _ in range(2)] == [[], []]
    assert (model.times("sum"), model.times("other")) == ({2}, {2})


def test_each_of_the_two_looks_has_half_of_alpha(night: Callable[..., Any]) -> None:
    night()
    verdicts = [
        (
            night(wrong=range(lost), margin=0.02).outcome,
            night(wrong=range(lost), margin=0.02, confirm=1).outcome,
        )
        for lost in range(28, 40)
    ]
    assert ("regression", "inconclusive") in verdicts
    assert verdicts[-1] == ("regression", "regression")
