"""What a command line has to be able to do before Prefect is imported, and so reads its settings."""

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


@pytest.mark.parametrize("module", BEFORE_PREFECT)
def test_prefect_and_other_slow_libraries_are_imported_only_when_needed(module: str) -> None:
    slow = ("prefect", "openai", "aiohttp", "duckdb", "pandas", "sklearn", "sacrebleu", "numba")
    code = f"import sys, {module}; print(*[name for name in {slow!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
