"""What each model cost in two runs, answering and judging."""

from typing import Any

import pytest

from flows.compare.runs import cost_line
from tasks.comparison.runs import CostChange, cost_changes, costs


def manifest(currency: str | None = "USD", **accounts: Any) -> dict[str, Any]:
    return {"currency": currency, "models": {}, "judges": {}, **accounts}


BASE = manifest(models={"qwen": {"cost": 0.5, "saved_cost": 0.25}}, judges={"gpt": {"cost": 0.1}})


def test_reused_answers_count_at_what_they_cost() -> None:
    assert costs(BASE) == {("qwen", "answering"): 0.75, ("gpt", "judging"): 0.1}


def test_a_model_that_answers_and_judges_has_two_rows() -> None:
    both = manifest(models={"qwen": {"cost": 0.5}}, judges={"qwen": {"cost": 0.1}})
    assert costs(both) == {("qwen", "answering"): 0.5, ("qwen", "judging"): 0.1}


def test_both_runs_stand_side_by_side() -> None:
    candidate = manifest(models={"qwen": {"cost": 1.5}}, judges={"other": {"cost": 0.2}})
    found = cost_changes(BASE, candidate)
    assert found == [
        CostChange("qwen", "answering", 0.75, 1.5, "USD"),
        CostChange("gpt", "judging", 0.1, None, "USD"),
        CostChange("other", "judging", None, 0.2, "USD"),
    ]
    assert cost_line(found[1]) == "cost of gpt judging: 0.1 → not asked USD"


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        ({}, {}),
        (manifest(models={"qwen": {"cost": 0.0}}), manifest(models={"qwen": {"cost": None}})),
        (BASE, BASE | {"currency": "EUR"}),
    ],
)
def test_nothing_is_said_without_prices_or_across_currencies(base: Any, candidate: Any) -> None:
    assert cost_changes(base, candidate) == []
