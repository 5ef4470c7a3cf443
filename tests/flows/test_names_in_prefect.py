"""Names in Prefect's UI: its graph draws the characters of ASCII only, and leaves the others out."""

import importlib
import pkgutil
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import Task

import tasks
from tasks.preflight import log_file
from tasks.publish import run_assets
from tasks.store.home import ui_key

Evaluate = Callable[..., Any]
MODELS = "models=[{name: a, type: demo}, {name: b, type: demo}]"


@pytest.fixture(scope="module")
def home(recording_home: Path) -> Path:
    """As that of the other tests, with a server that keeps task runs."""
    return recording_home


@pytest.mark.services
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
    assert {"infer a", "filter strict-match | b", "score strict-match x exact_match | a"} <= names
    assert [name for name in names if not name.isascii()] == []


def labels(graph: Any) -> set[str]:
    return {node["label"] for _, node in graph["nodes"]}


def test_every_task_on_a_step_is_called_by_the_name_that_prefect_draws() -> None:
    modules = [importlib.import_module(f"tasks.{one.name}") for one in pkgutil.iter_modules(tasks.__path__)]
    found = {
        name: task for module in modules for name, task in vars(module).items() if isinstance(task, Task)
    }
    on_a_step = {
        name: str(task.task_run_name) for name, task in found.items() if "{" in str(task.task_run_name)
    }
    assert len(on_a_step) > 10
    assert {name: shown for name, shown in on_a_step.items() if "{step.name}" in shown} == {}


def test_keys_of_names_in_other_letters_are_apart_and_others_stay() -> None:
    keys = [ui_key(name) for name in ("数学", "阅读", "Büro", "Boro", "GSM8K (5-shot)", "v1.2_a", "!?")]
    assert len(set(keys)) == len(keys)
    assert keys[3:6] == ["boro", "gsm8k-5-shot", "v1-2-a"]
    assert all(re.fullmatch("[a-z0-9-]+", key) for key in keys)
    assets = [run_assets("run", name, "out")[0].key for name in ("数学", "阅读", "GSM8K (5-shot)")]
    assert len(set(assets)) == 3
    logs = [log_file("out", name).name for name in ("qwen_2", "qwen-2", "千问", "通义", "Qwen/Qwen3-8B")]
    assert len(set(logs)) == len(logs)
    assert logs[-1] == "Qwen-Qwen3-8B.log"
    assert assets[2] == "nightjar://GSM8K-5-shot/results"
