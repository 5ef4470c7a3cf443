"""The built-in server puts adapters over their base, and loads quantised folders, as transformers and peft
do, on the oldest and the newest of them."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasks.serving.config import SERVER_SCRIPT

pytestmark = pytest.mark.serving
SCRIPT = Path(__file__).with_name("tiny_loaded.py")
CASES = ("adapter", "quantised", "laid out")
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def found(hf_python: str, models: Path) -> dict[str, dict[str, Any]]:
    """What the server and plain passes say, by case."""
    command = [hf_python, "-W", "ignore", str(SCRIPT), str(models)]
    done = subprocess.run(
        command, env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("case", CASES)
def test_it_answers_as_plain_passes_of_the_same_model_do(found: dict[str, dict[str, Any]], case: str) -> None:
    row = found[case]
    assert row["away"] < 1e-3
    assert row["rolling"][0] == pytest.approx(row["rolling"][1], abs=1e-3)
    for kind in ("greedy", "sampled"):
        assert row[kind] == row[f"{kind}, plain"]
    assert row["chat"][0] == row["chat"][1]
    assert row["keeps"], row["why_not"]


def test_adapters_and_rounding_change_what_the_base_says(found: dict[str, dict[str, Any]]) -> None:
    assert found["adapter"]["away from the base"] > 0.1
    assert found["quantised"]["away from the base"] > 0.001
    assert found["laid out"]["away from the base"] < 1e-3


LACKING = {
    "peft": ["base", "--peft", "adapter"],
    "compressed[-_]tensors": ["rounded"],
    "accelerate": ["base", "--device-map", "auto"],
}


@pytest.mark.parametrize("package", LACKING)
@pytest.mark.usefixtures("found")
def test_a_package_that_is_missing_is_named(hf_python: str, models: Path, package: str) -> None:
    folders = ("base", "adapter", "rounded")
    words = [str(models / word) if word in folders else word for word in LACKING[package]]
    last = last_words(hf_python, ["--model", *words], package.replace("[-_]", "_"))
    assert last.endswith("for the interpreter of the server")
    assert re.search(f"; a package is missing: install {package} for", last)


@pytest.mark.usefixtures("found")
def test_a_learned_prompt_is_refused(hf_python: str, models: Path) -> None:
    last = last_words(hf_python, ["--model", str(models / "base"), "--peft", str(models / "prompt")])
    assert "learned a prompt (PROMPT_TUNING); adapters of layers, such as LoRA, are served" in last


HIDING = """
import runpy, sys
from importlib.machinery import PathFinder

hidden = sys.argv[1]

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.argv[1:] = sys.argv[2:]
sys.argv[:1] = []
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def last_words(python: str, told: list[str], hidden: str = "") -> str:
    """The last line of a server that does not start, in an interpreter that does not find ``hidden``."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", HIDING, hidden, str(SERVER_SCRIPT), "--port", "1", *told],
        env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]
