"""Names in Prefect's UI: its graph draws the characters of ASCII only, and leaves the others out."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Evaluate = Callable[..., Any]
MODELS = "models=[{name: a, type: demo}, {name: b, type: demo}]"


@pytest.fixture(scope="module")
def home(recording_home: Path) -> Path:
    """As that of the other tests, with a server that keeps task runs."""
    return recording_home


def test_names_of_runs_are_in_the_characters_that_prefects_graph_draws(
    evaluate: Evaluate, prefect_api: Callable[..., Any]
) -> None:
    ran = evaluate("--set", MODELS, "--limit", "4", "--run-name", "night: sums × a", "--json")
    run = "/flow_runs/" + ran.document["flow_run_url"].rpartition("/")[2]
    assert prefect_api("GET", run)["name"] == "night: sums x a"
    until = time.monotonic() + 60
    while "publish" not in (names := labels(prefect_api("GET", f"{run}/graph-v2"))):
        assert time.monotonic() < until, f"no task run of that name: {sorted(names)}"
        time.sleep(0.5)
    assert {"filter strict-match | b", "score strict-match x exact_match | a"} <= names
    assert [name for name in names if not name.isascii()] == []


def labels(graph: Any) -> set[str]:
    return {node["label"] for _, node in graph["nodes"]}
