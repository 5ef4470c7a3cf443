"""A Prefect server for the session, and the command line as its users call it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of the session's own, whose server is stopped at the end."""
    folder = tmp_path_factory.mktemp("nightjar-home")
    environment = {**os.environ, "NIGHTJAR_HOME": str(folder)}
    environment.pop("PREFECT_API_URL", None)
    try:
        yield folder
    finally:
        stop = [sys.executable, "-m", "flows.server", "stop"]
        subprocess.run(stop, cwd=PROJECT, env=environment, check=False, timeout=60, capture_output=True)


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed

    def value(self, pair: str, model: str | None = None) -> Any:
        """The value of "metric,filter"."""
        metric, _, name = pair.partition(",")
        rows = [
            row
            for row in self.document["results"]
            if row["metric"] == metric and row["filter"] == name and model in (None, row["model_name"])
        ]
        assert len(rows) == 1, f"{pair}: {rows}"
        return rows[0]["value"]

    def steps(self, stage: str) -> tuple[int, int]:
        """How many steps of a stage were computed and cached."""
        counts = self.document["steps"][stage]
        return counts["computed"], counts["cached"]


Evaluate = Callable[..., Ran]


@pytest.fixture
def evaluate(home: Path, tmp_path: Path) -> Evaluate:
    """Calls ``python -m flows.eval`` with a store of the test's own."""

    def call(*arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 120) -> Ran:
        environment = {**os.environ, "NIGHTJAR_HOME": str(home), **(env or {})}
        environment.pop("PREFECT_API_URL", None)
        options = ["--store", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
        if "--store" in arguments:
            options = options[2:]
        if "--output" in arguments:
            options = options[:-2]
        done = subprocess.run(
            [sys.executable, "-m", "flows.eval", *map(str, arguments), *options],
            cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    return call
