"""Upgrades don't cry wolf: tonight's code scores the baseline's answers before a gate looks at them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.plan.build import scored_by
from tasks.history.layout import known_runs
from tasks.store.storage import Store

ITEMS = 100
OWN = """
def own(references, predictions):
    return float(references[0] == predictions[0] and int(references[0]) > {least})
"""


class Nights:
    """Nights on recorded answers, of which the first ones are wrong, scored by a function of the user's."""

    def __init__(self, folder: Path, run: Callable[..., Any]) -> None:
        self.folder, self.run = folder, run
        self.gate: dict[str, Any] = {"margin": 0.05}
        rows = [{"id": f"q{n}", "question": f"{n}+1?", "answer": str(n + 1)} for n in range(ITEMS)]
        (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def night(self, wrong: int = 0, least: int = 0, pattern: str = r"(\d+)") -> Any:
        """``wrong`` answers of the last items; the function counts answers above ``least`` only."""
        said = [
            {"item_id": f"q{n}", "sample_index": 0, "response": "0" if n >= ITEMS - wrong else str(n + 1)}
            for n in range(ITEMS)
        ]
        (self.folder / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
        (self.folder / "own.py").write_text(OWN.format(least=least))
        number = [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]
        metrics = [{"metric": "own", "function": "own.py:own"}]
        benchmark = {
            "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
            "prompt_template": "{{question}}",
            "filter_list": [{"name": "number", "filter": number, "metric_list": metrics}],
            "models": [{"name": "recorded", "type": "replay", "config": {"path": "said.jsonl"}}],
        }  # fmt: skip
        (self.folder / "sums.yaml").write_text(json.dumps(benchmark))
        suite = {"name": "night", "benchmarks": ["sums.yaml"], "gate": self.gate}
        (self.folder / "suite.yaml").write_text(json.dumps(suite))
        return self.run(self.folder / "suite.yaml")


@pytest.fixture
def nights(suite_night: Callable[..., Any], tmp_path: Path) -> Nights:
    return Nights(tmp_path, suite_night)


def pair_of(ran: Any) -> dict[str, Any]:
    (pair,) = ran.document["comparison"]["pairs"]
    return dict(pair)


def test_code_that_moves_a_number_is_no_regression_and_says_so(nights: Nights, tmp_path: Path) -> None:
    nights.night()
    ran = nights.night(least=20)
    assert (ran.code, ran.document["verdict"]) == (0, "pass")
    pair = pair_of(ran)
    assert (pair["code"], pair["difference"], pair["base"]) == (pytest.approx(-0.2), 0, pytest.approx(0.8))
    assert "of -0.2, -0.2 is code and +0 is the model" in pair["reason"]
    assert (
        "tonight's code moves kept answers: own,number (recorded, default) -0.2" in ran.document["headline"]
    )
    assert len(known_runs(Store(str(tmp_path / "store")))) == 2  # of the two nights
    changes = ran.document["comparison"]["changes"]
    assert not [change for change in changes if change["kind"] == "model identity"], "the model is the same"


def test_a_model_that_lost_beside_code_that_changed_is_told_with_both_parts(nights: Nights) -> None:
    nights.night()
    ran = nights.night(wrong=30, least=20)
    assert (ran.code, ran.document["verdict"]) == (1, "regression")
    assert "of -0.5, -0.2 is code and -0.3 is the model" in pair_of(ran)["reason"]


def test_code_that_moves_a_number_is_no_loss_against_the_anchor_and_no_drift(
    nights: Nights, tmp_path: Path
) -> None:
    nights.gate["anchor"] = "first"
    nights.night()
    nights.night()  # from here on the anchor is not the baseline
    ran = nights.night(least=20)
    assert (ran.code, ran.document["verdict"], ran.document["passed"]) == (0, "pass", True)
    (pair,) = ran.document["anchor"]["pairs"]
    assert (pair["base"], pair["code"]) == (pytest.approx(0.8), pytest.approx(-0.2))
    assert "of -0.2, -0.2 is code and +0 is the model" in pair["reason"]
    (drift,) = ran.document["drift"]
    assert (drift["first"], drift["last"]) == (pytest.approx(0.8), pytest.approx(0.8))
    assert drift["p_adjusted"] == 1
    assert len(known_runs(Store(str(tmp_path / "store")))) == 3  # of the three nights
    lost = nights.night(wrong=30, least=20)
    assert lost.document["anchor"]["verdict"] == "regression"
    assert "of -0.5, -0.2 is code and -0.3 is the model" in lost.document["anchor"]["pairs"][0]["reason"]


def test_drift_is_counted_from_the_first_night_as_tonights_code_scores_it(nights: Nights) -> None:
    nights.night()
    nights.night()
    (drift,) = nights.night(least=20).document["drift"]
    assert (drift["first"], drift["p_adjusted"]) == (pytest.approx(0.8), 1)


def test_a_filter_that_the_config_changed_is_the_nights_own_and_told(nights: Nights) -> None:
    nights.night()
    ran = nights.night(pattern=r"(\d*[1-5])")
    assert (ran.code, ran.document["verdict"], pair_of(ran)["code"]) == (1, "regression", None)


def test_the_same_code_scores_nothing_anew(nights: Nights) -> None:
    nights.night()
    ran = nights.night(wrong=1)
    assert pair_of(ran)["code"] is None
    assert not list(nights.folder.glob("night-*/baseline"))


def test_answers_that_are_gone_leave_the_numbers_of_then(nights: Nights) -> None:
    nights.night()
    (answers,) = nights.folder.glob("night-1/*/responses.jsonl")
    answers.unlink()
    ran = nights.night(least=20)
    assert (ran.code, ran.document["verdict"], pair_of(ran)["code"]) == (1, "regression", None)


def test_what_scores_is_known_from_a_manifest_alone(nights: Nights) -> None:
    ran = nights.night()
    (file,) = nights.folder.glob("night-1/*/manifest.json")
    manifest = json.loads(file.read_text())
    assert ran.code == 0
    assert manifest["scored_by"] == scored_by(manifest["config"]) is not None
    (nights.folder / "own.py").write_text(OWN.format(least=5))
    assert scored_by(manifest["config"]) != manifest["scored_by"]
    assert scored_by({}) is None
