"""The two-phase framework's files run as they lie there and give the numbers that it recorded itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
