"""The two-phase framework's files run as they lie there and give the numbers that it recorded itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
COPY = PROJECT / "tests" / "fixtures" / "two-phase"
SHARED = PROJECT.parent / "shared" / "data" / "two-phase"
COUNTED = ("facets", "label", "metric_name")
Evaluate = Callable[..., Any]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def group_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Which number a row is: the framework writes facet values as text."""
    return (row["metric_name"], row["label"], *(f"{facet}={row[facet]}" for facet in row["facets"]))


@pytest.fixture(scope="module", params=[COPY, SHARED], ids=["copy", "shared"])
def folder(request: pytest.FixtureRequest) -> Path:
    if not request.param.is_dir():
        pytest.skip(f"{request.param} is not there; the project's own copy of it is tested")
    found: Path = request.param
    return found


def test_every_recorded_number_is_reached(evaluate: Evaluate, tmp_path: Path, folder: Path) -> None:
    ran = evaluate(folder / "config.yaml")
    assert ran.code == 0, ran.err
    ours = {group_of(row): row for row in lines(tmp_path / "out" / "metrics.jsonl")}
    recorded = lines(folder / "recorded_metrics.jsonl")
    assert {group_of(row) for row in recorded} == set(ours)
    for row in recorded:
        own = ours[group_of(row)]
        assert own["facets"] == row["facets"]
        for key, value in row.items():
            if key not in (*COUNTED, *row["facets"]):
                assert own[key] == pytest.approx(value, abs=1e-12), (group_of(row), key)
        headline = {"f1": row.get("f1")} if "f1" in row else row
        assert own["value"] in [pytest.approx(number) for number in headline.values() if _number(number)]
        assert own["status"] == "ok", own["error"]


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def changed(folder: Path, tmp_path: Path, method: str, **more: Any) -> Path:
    """The config with another method, which stands in a file of its own, and three of the metrics."""
    (tmp_path / "own.py").write_text(method + "\n", encoding="utf-8")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["dataset"] = str(folder / "dataset.jsonl")
    for model in config["models"]:
        model["config"]["path"] = str(folder / "responses.jsonl")
    config["evaluation_methods"] = [{"name": "j", "function": "own.py:judge"}, {"name": "short", **SHORT}]
    count = {"name": "sum", "function": f"{folder / 'methods.py'}:mycount", "facets": ["model_name"]}
    config["metrics"] = [{"name": "mean", "facets": ["model_name"]}, count]
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(config | more), encoding="utf-8")
    return path


SHORT = {"type": "length_check", "params": {"max_length": 100}}
RAISES = "def judge(response, **params):\n    raise KeyError('no such key')"
UNREADABLE = "def judge(response, **params):\n    return {'label': {'description': 'x'}, 'result': {}}"
OFTEN = "def judge(response, **params):\n    return 1 / (len(response) % 3)"


@pytest.mark.parametrize(
    ("method", "reason"),
    [(RAISES, "KeyError: 'no such key'"), (UNREADABLE, "a label's name must be a text")],
)
def test_a_method_that_fails_everywhere_fails_its_pairs_and_no_others(
    evaluate: Evaluate, tmp_path: Path, method: str, reason: str
) -> None:
    ran = evaluate(changed(COPY, tmp_path, method))
    assert ran.code == 1
    rows = lines(tmp_path / "out" / "metrics.jsonl")
    failed = [row for row in rows if row["label"] == "j"]
    assert {(row["metric_name"], row["model_name"]) for row in failed} == {
        (metric, model) for metric in ("mean", "sum") for model in "AB"
    }
    for row in failed:
        assert (row["status"], row["value"]) == ("failed", None)
        assert "'j' failed on every one of 42 responses" in row["error"]
        assert reason in row["error"]
    assert reason in ran.out
    others = [row for row in rows if row["label"] == "short"]
    assert [(row["status"], row["value"] is None) for row in others] == [("ok", False)] * 4
    judged = lines(tmp_path / "out" / "evaluation_results.jsonl")
    assert [row["status"] for row in judged if row["label"] == "j"] == ["unscored"] * 84


def test_a_method_that_fails_too_often_fails_its_pairs(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(changed(COPY, tmp_path, OFTEN, errors={"max_rate": 0.1}))
    assert ran.code == 1
    rows = [row for row in lines(tmp_path / "out" / "metrics.jsonl") if row["label"] == "j"]
    assert {row["status"] for row in rows} == {"failed"}
    assert "more than errors.max_rate: 0.1 allows; the first: " in rows[0]["error"]
    assert "ZeroDivisionError" in rows[0]["error"]

    alone = {"errors": {"max_rate": 0.9}, "metrics": ["mean"]}
    ran = evaluate(changed(COPY, tmp_path, OFTEN, **alone))
    assert ran.code == 0, ran.err
    rows = [row for row in lines(tmp_path / "out" / "metrics.jsonl") if row["label"] == "j"]
    assert {(row["status"], row["unscored_sample_count"] > 0) for row in rows} == {("ok", True)}
