"""An arena end to end: who plays whom, what a judge is asked, and what is said where games say little."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.endpoints import chat_endpoint, says

Evaluate = Callable[..., Any]
ITEMS = 30
GRADES = {"weak": 3, "fair": 4, "good": 5, "best": 6}


@dataclass
class Judge:
    """An endpoint that compares answers, as ``verdict`` says of the question and both."""

    verdict: Callable[[str, str, str], str]
    base_url: str = ""
    asked: list[str] = field(default_factory=list)
    seen: int = 0

    def reply(self, prompt: str) -> str:
        self.asked.append(prompt)
        question, a, b = prompt.split("|")
        return self.verdict(question, a, b)

    def since(self) -> int:
        """How often it was asked since the last call."""
        count, self.seen = len(self.asked) - self.seen, len(self.asked)
        return count


def larger_wins(question: str, a: str, b: str) -> str:
    """But for every fifth item, where the smaller does."""
    contrary = int(question) % 5 == 0
    return "[[A]]" if (int(a) > int(b)) != contrary else "[[B]]"


@pytest.fixture
def judge() -> Iterator[Judge]:
    """A judge's server on a free port."""
    judging = Judge(larger_wins)
    with chat_endpoint(lambda body: says(judging.reply(body["messages"][-1]["content"]))) as url:
        judging.base_url = url
        yield judging


def arena(folder: Path, judge: Judge, models: tuple[str, ...], items: int = ITEMS, **scorer: Any) -> Path:
    """A benchmark of recorded answers: each model's are its number in ``GRADES``, those of every seventh item
    all the same."""
    rows = [
        {
            "id": str(place),
            "question": place,
            **{name: str(5 if place % 7 == 0 else grade) for name, grade in GRADES.items()},
        }
        for place in range(1, items + 1)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "duel",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "metric_list": [],
        "models": [{"name": name, "type": "replay", "config": {"field": name}} for name in models],
        "scorer": {
            "type": "arena",
            "prompt": "{{question}}|{{answer_a}}|{{answer_b}}",
            "judges": {"name": "judge", "config": {"model": "judge", "base_url": judge.base_url}},
            **scorer,
        },
    }
    path = folder / "duel.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.services
def test_new_model_plays_only_its_own_games(evaluate: Evaluate, tmp_path: Path, judge: Judge) -> None:
    alike = ITEMS // 7  # equal answers: no judge is asked
    ran = evaluate(arena(tmp_path, judge, ("weak", "best")), "--json")
    assert ran.code == 0, ran.err
    assert judge.since() == 2 * (ITEMS - alike)
    contrary = sum(place % 5 == 0 and place % 7 != 0 for place in range(1, ITEMS + 1))
    won = ITEMS - alike - contrary
    assert ran.value("win_rate,none", "best") == pytest.approx((won + alike / 2) / ITEMS)
    assert ran.value("win_rate,none", "weak") == pytest.approx((contrary + alike / 2) / ITEMS)

    ran = evaluate(arena(tmp_path, judge, ("best", "weak", "fair")), "--json")
    assert ran.code == 0, ran.err
    assert judge.since() == 2 * 2 * (ITEMS - alike), "two matchups of the new model, both orders"
    (rated,) = json.loads((tmp_path / "out" / "results.json").read_text())["ratings"]
    strengths = {row["model"]: row["strength"] for row in rated["models"]}
    assert strengths["best"] > strengths["fair"] > strengths["weak"]
    assert sum(strengths.values()) == pytest.approx(0)
    assert next(row["rank_best"] for row in rated["models"]) == 1

    ran = evaluate(arena(tmp_path, judge, ("best", "weak", "fair")))
    assert ran.code == 0, ran.err
    assert judge.since() == 0
    assert "strength" in ran.out.lower()


def test_baseline_is_the_one_opponent_and_half_the_unread_verdicts_are_said(
    evaluate: Evaluate, tmp_path: Path, judge: Judge
) -> None:
    judge.verdict = lambda question, a, b: "hm" if int(question) % 2 else larger_wins(question, a, b)
    config = arena(tmp_path, judge, ("weak", "good", "best"), opponents="baseline", baseline="good")
    ran = evaluate(config, "--json")
    rows = {row["model_name"]: row for row in ran.document["results"]}
    assert set(rows) == {"weak", "best"}, "the baseline has no rate against itself"
    assert judge.since() == 2 * 2 * (ITEMS - ITEMS // 7)
    unread = sum(place % 2 == 1 and place % 7 != 0 for place in range(1, ITEMS + 1))
    assert {row["n_unscored"] for row in rows.values()} == {unread}
    (rated,) = json.loads((tmp_path / "out" / "results.json").read_text())["ratings"]
    assert rated["unread"] == 2 * 2 * unread
    assert f"{4 * unread} of {rated['games'] + 4 * unread} games have no verdict" in rated["warning"]


def test_judge_that_looks_at_the_place_alone_is_found(
    evaluate: Evaluate, tmp_path: Path, judge: Judge
) -> None:
    judge.verdict = lambda question, a, b: "A"
    ran = evaluate(arena(tmp_path, judge, ("weak", "best")), "--json")
    assert ran.value("win_rate,none", "best") == 0.5
    findings = {entry["kind"]: entry for entry in ran.document["diagnostics"]}
    assert "the answer shown first won 100 %" in findings["judge_position"]["message"]
    (rated,) = json.loads((tmp_path / "out" / "results.json").read_text())["ratings"]
    assert {row["strength"] for row in rated["models"]} == {None}
    assert {row["note"] for row in rated["models"]} == {
        "the answer shown first won every verdict: nothing is said of the models"
    }


@pytest.mark.parametrize(
    ("models", "scorer", "expected"),
    [
        (("weak",), {}, "compares models"),
        (("weak", "best"), {"opponents": "baseline", "baseline": "bets"}, "did you mean 'best'"),
        (("weak", "best"), {"opponents": "baseline"}, "belong together"),
        (("weak", "best"), {"prompt": "{{question}} {{answer_c}}"}, "answer_c"),
        (("weak", "best"), {"parse": {"type": "json"}}, "two answers change places"),
    ],
)
def test_what_no_arena_can_be_made_of_is_refused(
    evaluate: Evaluate, tmp_path: Path, judge: Judge, models: Any, scorer: Any, expected: str
) -> None:
    ran = evaluate(arena(tmp_path, judge, models, **scorer))
    assert ran.code == 2, ran.out
    assert expected in ran.err
    assert judge.since() == 0
