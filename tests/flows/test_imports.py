"""What a command line has to be able to do before Prefect is imported, and so reads its settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
BEFORE_PREFECT = [
    "flows.catalog",
    "flows.compare.__main__",
    "flows.config.load",
    "flows.eval.__main__",
    "flows.history",
    "flows.server",
    "flows.server.__main__",
    "flows.suite.__main__",
]


SLOW = ("prefect", "openai", "aiohttp", "duckdb", "pandas", "sklearn", "sacrebleu", "numba")
ONE_AFTER_ANOTHER = f"""
import importlib, json, sys
loaded = {{}}
for module in {BEFORE_PREFECT!r}:
    before = set(sys.modules)
    importlib.import_module(module)
    loaded[module] = [name for name in {SLOW!r} if name in set(sys.modules) - before]
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The slow libraries that each module is the first to load, all imported by one new Python."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("module", BEFORE_PREFECT)
def test_prefect_and_other_slow_libraries_are_imported_only_when_needed(
    module: str, loaded: dict[str, list[str]]
) -> None:
    assert loaded[module] == []


ONLY_PREFECT = """
import json, sys
from prefect import flow, task
before = set(sys.modules)
import flows.eval.session
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_an_evaluation_begins_without_the_libraries_of_clients_and_metrics() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONLY_PREFECT], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert "flows.eval.flow" in loaded
    assert [name for name in SLOW if name in loaded] == []
