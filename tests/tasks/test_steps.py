"""Steps go to other processes, whatever these have imported before."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = "from tasks.store.keys import Unkeyed\n\n\nclass OwnSetup(Unkeyed):\n    number: int\n"
STAGE = """
from own_setup import OwnSetup
from tasks.store.keys import Step


def {name}(step: Step[OwnSetup]) -> int:
    return step.setup.number
"""
MAKE = """
import pickle, sys, first_stage, second_stage
from own_setup import OwnSetup
from tasks.store.keys import Step
step = Step[OwnSetup](name="score", identity={"a": 1}, setup=OwnSetup(number=7))
sys.stdout.buffer.write(pickle.dumps(step))
"""
READ = """
import pickle, sys, second_stage, first_stage
step = pickle.load(sys.stdin.buffer)
print(second_stage.second(step), type(step).__name__, step.identity, step == step.at(""))
"""


def test_a_step_is_read_in_whatever_order_stages_were_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_setup.py").write_text(SETUP)
    (tmp_path / "first_stage.py").write_text(STAGE.format(name="first"))
    (tmp_path / "second_stage.py").write_text(STAGE.format(name="second"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    made = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, check=True).stdout
    read = subprocess.run([sys.executable, "-c", READ], input=made, capture_output=True)
    assert read.stdout.decode().strip() == "7 Step {'a': 1} True", read.stderr.decode()


def test_a_step_without_a_named_setup_is_read_too() -> None:
    from tasks.store.keys import Step

    step: Step[int] = Step(name="score", identity={}, setup=3)
    assert pickle.loads(pickle.dumps(step)) == step
