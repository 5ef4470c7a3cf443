"""The built-in server gives the numbers and texts of plain passes for every architecture, on the oldest and
the newest transformers that the extra ``hf`` allows."""

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.serving
SCRIPT = Path(__file__).with_name("tiny_models.py")


def architectures() -> list[str]:
    """The names in the script, which has to run elsewhere."""
    for node in ast.parse(SCRIPT.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ARCHITECTURES":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise AssertionError("no ARCHITECTURES")


@pytest.fixture(scope="module")
def found(hf_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the server and plain passes say, by architecture."""
    command = [hf_python, "-W", "ignore", str(SCRIPT), str(tmp_path_factory.mktemp("models"))]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("name", architectures())
def test_every_architecture_answers_as_plain_passes_do(
    found: dict[str, dict[str, Any]], hf_version: str, name: str
) -> None:
    row = found[name]
    if "absent" in row:
        assert hf_version == "oldest", row
        pytest.skip(f"transformers {row['absent']} has no {name}")
    assert row["away"] < 1e-3
    assert row["rolling"][0] == pytest.approx(row["rolling"][1], abs=1e-3)
    for kind in ("greedy", "sampled"):
        assert row[kind] == row[f"{kind}, plain"]
    assert row["chat"][0] == row["chat"][1]


@pytest.mark.parametrize("name", ["llama", "mistral", "mixtral"])
def test_attention_keeps_keys_and_values(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name]["keeps"], found[name]["why_not"]


def test_a_fault_of_the_server_is_refused_with_its_reason_and_ends_nothing(
    found: dict[str, dict[str, Any]],
) -> None:
    row = found["llama"]
    assert row["fault"] == "a fault of the server, the same at every attempt: AttributeError: no such layer"
    assert row["after the fault"] == row["greedy"]
