"""``--from-inspect``: logs of Inspect as runs of our own."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.compare.__main__ import main as compare
from tasks.benchmarks.recorded.inspect_log import InspectLog
from tests.flows.conftest import INSPECT

Evaluate = Callable[..., Any]
LOGS = Path(__file__).parents[1] / "tasks" / "benchmarks" / "recorded" / "logs"
MAKER = LOGS.parent / "inspect_makes_logs.py"


def said(log: InspectLog) -> dict[str, dict[str, float]]:
    """What the log says of each pair: the value of each metric."""
    return {
        one["scorer"] if one["name"] == one["scorer"] else f"{one['scorer']}/{one['name']}": {
            name: metric["value"] for name, metric in one["metrics"].items()
        }
        for one in log.results()
    }


def hold_against(log: InspectLog, ran: Any) -> None:
    assert ran.code == 0, ran.err
    for name, metrics in said(log).items():
        value = metrics.get("accuracy", metrics.get("mean"))
        assert ran.value(f"{name},none") == pytest.approx(value, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("name", ["plain-0.3.90.eval", "two-scorers.eval", "tools.eval"])
def test_a_log_has_the_numbers_that_inspect_wrote_and_nothing_is_asked(name: str, evaluate: Evaluate) -> None:
    ran = evaluate("--from-inspect", LOGS / name, "--json")
    hold_against(InspectLog.open(LOGS / name), ran)
    assert ran.document["requests"]["sent"] == 0


def test_two_logs_are_compared_by_the_ids_of_their_samples(
    evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = InspectLog.open(LOGS / "plain-0.3.90.eval")
    samples = list(log.samples())
    for sample in samples:
        sample["scores"]["match"]["value"] = "I"
    worse = tmp_path / "worse.json"
    worse.write_text(json.dumps({**log.header, "samples": list(reversed(samples))}))
    base = evaluate("--from-inspect", LOGS / "plain-0.3.90.eval", "--output", tmp_path / "base", "--json")
    assert base.code == 0, base.err
    (tmp_path / "gate.yaml").write_text("margin: 0.05\n")
    against = ("--against", tmp_path / "base", "--gate", tmp_path / "gate.yaml")
    ran = evaluate("--from-inspect", worse, "--output", tmp_path / "candidate", *against, "--json")
    assert ran.value("match,none") == 0.0
    assert (ran.code, ran.document["comparison"]["verdict"]) == (3, "inconclusive")
    with pytest.raises(SystemExit):
        compare([str(tmp_path / "base"), str(tmp_path / "candidate"), "--json"])
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (pair["n_items"], pair["difference"]) == (8, -0.375)


def test_other_inputs_beside_the_logs_are_refused(evaluate: Evaluate) -> None:
    ran = evaluate("--from-inspect", LOGS / "tools.eval", "--tasks", "gsm8k")
    assert ran.code == 2
    assert "leave CONFIG, --tasks and --model out" in ran.err


def test_recorded_scores_stand_beside_our_own_metrics(evaluate: Evaluate, tmp_path: Path) -> None:
    rows = [
        {"item_id": "a", "response": "1", "score": 0.25, "rated": {"score": 3, "why": "good"}},
        {"item_id": "b", "response": "2", "rated": {"score": None, "error": "the rater was ill"}, "score": 1},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = [{"id": "a", "q": "?", "answer": "1"}, {"id": "b", "q": "?", "answer": "1"}]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    document = {
        "name": "rated", "dataset": "items.jsonl", "prompt_template": "{{q}}", "target": "{{answer}}",
        "models": [{"name": "m", "type": "replay", "config": {"path": "rows.jsonl"}}],
        "scorer": "recorded",
        "metric_list": [
            "recorded", {"metric": "recorded", "alias": "rated", "field": "rated"}, "exact_match",
        ],
    }  # fmt: skip
    (tmp_path / "rated.yaml").write_text(yaml.safe_dump(document))
    ran = evaluate(tmp_path / "rated.yaml", "--json")
    assert ran.value("recorded,none") == 0.625
    assert ran.value("exact_match,none") == 0.5
    rated = next(row for row in ran.document["results"] if row["metric"] == "rated")
    assert (rated["value"], rated["n_unscored"]) == (3.0, 1)
    assert "the rater was ill" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.inspect
def test_twenty_logs_of_each_format_have_inspects_own_numbers(evaluate: Evaluate, tmp_path: Path) -> None:
    subprocess.run([os.environ[INSPECT], MAKER, tmp_path / "logs"], check=True, timeout=500)
    logs = sorted((tmp_path / "logs").iterdir())
    assert [sum(path.suffix == kind for path in logs) for kind in (".eval", ".json")] == [20, 20]
    for path in logs:
        hold_against(InspectLog.open(path), evaluate("--from-inspect", path, "--json"))
