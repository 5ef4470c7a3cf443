"""Several evaluations of one command: one that is refused costs itself only under ``--force``."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import PROJECT

GOOD = {
    "dataset": "items.jsonl",
    "prompt_template": "{{q}}",
    "models": [{"name": "demo", "type": "demo"}],
}


@pytest.fixture
def configs(tmp_path: Path) -> list[str]:
    """One that runs, one with a key that is not known, one whose dataset is not there."""
    (tmp_path / "items.jsonl").write_text('{"id": "a", "q": "1 + 1?", "ground_truth": "2"}\n')
    written = {"good": GOOD, "unknown": {**GOOD, "datasets": 1}, "gone": {**GOOD, "dataset": "gone.jsonl"}}
    for name, config in written.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(config))
    return [str(tmp_path / f"{name}.yaml") for name in written]


def test_a_bad_config_of_a_list_stops_all_of_it_or_under_force_itself(
    evaluate: Callable[..., Any], configs: list[str], tmp_path: Path
) -> None:
    refused = evaluate(*configs)
    assert (refused.code, refused.out, (tmp_path / "out").exists()) == (2, "", False)
    ran = evaluate(*configs, "--force", "--json")
    assert ran.code == 1, ran.err
    assert f"error: {configs[1]} is left out: unknown.yaml:1: " in ran.err
    assert "error: gone is left out: " in ran.err
    assert ran.document["output"] == str(tmp_path / "out" / "good")
    assert [row["n_scored"] for row in ran.document["results"]] == [1]


def test_under_force_a_list_of_which_nothing_can_run_is_refused(
    evaluate: Callable[..., Any], configs: list[str]
) -> None:
    ran = evaluate(*configs[1:], "--force")
    assert ran.code == 2
    assert "unknown.yaml:1" in ran.err


MOVES = """
import os
from pathlib import Path

ELSEWHERE = Path(__file__).parent / "else" / "where"
os.chdir(ELSEWHERE)


def moves(references, predictions):
    os.chdir(ELSEWHERE)
    return 1.0
"""


@pytest.fixture
def moving(configs: list[str], tmp_path: Path) -> list[str]:
    """Two whose metric chooses another working folder, as its module does when it is loaded."""
    (tmp_path / "own.py").write_text(MOVES)
    (tmp_path / "else" / "where").mkdir(parents=True)
    written = [tmp_path / f"{name}.yaml" for name in ("one", "two")]
    for path in written:
        path.write_text(json.dumps({**GOOD, "metric_list": [{"metric": "own.py:moves"}]}))
    return [str(path) for path in written]


def test_a_metric_that_chooses_another_working_folder_moves_neither_output_nor_store_of_a_command(
    evaluate: Callable[..., Any], moving: list[str], tmp_path: Path
) -> None:
    here = os.path.relpath(tmp_path, PROJECT)
    places = ["--output", f"{here}/out", "--store", f"{here}/store"]
    ran = evaluate(*moving, "--json", *places)
    assert ran.code == 0, ran.err
    assert [run["output"] for run in ran.document["runs"]] == [
        str(tmp_path / "out" / name) for name in ("one", "two")
    ]
    assert (tmp_path / "store").is_dir()
