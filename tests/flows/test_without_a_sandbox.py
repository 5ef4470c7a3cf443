"""Where no sandbox works, a run of programs is refused before a model is asked, with what installs one."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.catalog import catalog
from tasks.sandboxes.kinds import SANDBOXES
from tasks.sandboxes.run import trouble
from tests.flows.conftest import PROJECT
from tests.flows.test_code_eval import MODELS, made, mbpp_rows

Evaluate = Callable[..., Any]
PROGRAMS = PROJECT / "deployments" / "benchmarks" / "scorers" / "programs.yaml"
REFUSED = re.compile(
    r"programs run in a sandbox only, and none works here \(bubblewrap: bwrap is not on the PATH; .*\)\. "
    r"Install one: \S+ \S+ bubblewrap"
)


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a machine without bubblewrap and without an engine, for this process, too."""
    left_out = {"bwrap", *(sandbox.name for sandbox in SANDBOXES)}
    programs = tmp_path / "programs of the system"
    programs.mkdir()
    for folder in filter(os.path.isdir, os.environ["PATH"].split(os.pathsep)):
        for name in set(os.listdir(folder)) - left_out:
            if not (programs / name).is_symlink():
                (programs / name).symlink_to(Path(folder, name))
    monkeypatch.setenv("PATH", str(programs))
    trouble.cache_clear()
    yield {"PATH": str(programs)}
    trouble.cache_clear()


def test_a_scorer_that_runs_programs_is_refused(
    evaluate: Evaluate, tmp_path: Path, bare: dict[str, str], programs_run: list[Any]
) -> None:
    done = evaluate(PROGRAMS, env=bare)
    assert done.code == 2
    assert REFUSED.search(" ".join(done.err.split())), done.err
    assert not programs_run
    assert not (tmp_path / "out" / "responses.jsonl").exists()


def test_a_benchmark_whose_metric_asks_about_programs_is_refused(
    evaluate: Evaluate, tmp_path: Path, bare: dict[str, str]
) -> None:
    done = evaluate(made(tmp_path, "mbpp/mbpp.yaml", mbpp_rows()), "--set", MODELS, env=bare)
    assert done.code == 2
    assert REFUSED.search(" ".join(done.err.split())), done.err


def test_a_config_that_names_a_sandbox_is_told_that_the_machine_decides(
    evaluate: Evaluate, bare: dict[str, str]
) -> None:
    done = evaluate(PROGRAMS, "--set", "scorer.sandbox=namespaces", env=bare)
    assert done.code == 2
    assert "scorer.sandbox" in done.err


def test_the_catalog_says_of_each_sandbox_why_it_does_not_work() -> None:
    said = {entry.name: entry.applies_to for entry in catalog("sandboxes")}
    assert said == {
        "bubblewrap": "not here: bwrap is not on the PATH",
        "docker": "not here: docker is not on the PATH",
        "podman": "not here: podman is not on the PATH",
    }
