"""What the built-in server works on together: one request at fault among several is refused alone."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.serving
SCRIPT = Path(__file__).with_name("tiny_faults.py")


@pytest.fixture(scope="module")
def found(hf_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], dict[str, Any]]:
    command = [hf_python, "-W", "ignore", str(SCRIPT), str(tmp_path_factory.mktemp("models") / "tiny")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(row["name"], row["keeps"]): row for row in rows}


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "plain"])
@pytest.mark.parametrize("fault", ["scored", "begun", "gone on with", "drawn"])
def test_one_request_at_fault_is_refused_alone(
    found: dict[tuple[str, bool], dict[str, Any]], fault: str, keeps: bool
) -> None:
    sound, faulty = found[fault, keeps]["sound"], found[fault, keeps]["faulty"]
    refused = [told for told in faulty if "refused" in told]
    assert len(refused) == 1
    assert refused[0]["refused"].startswith("a fault of the server, the same at every attempt: ")
    for one, other in zip(sound, faulty, strict=True):
        if "refused" in other:
            continue
        assert other == (pytest.approx(one, abs=1e-4) if fault == "scored" else one)


def test_a_step_that_fails_is_made_again_without_what_was_kept(
    found: dict[tuple[str, bool], dict[str, Any]],
) -> None:
    row = found["a step alone", True]
    assert row["faulty"] == row["sound"]


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "plain"])
def test_prompts_that_can_not_be_made_one_batch_go_on_apart(
    found: dict[tuple[str, bool], dict[str, Any]], keeps: bool
) -> None:
    row = found["joined", keeps]
    assert row["faulty"] == row["sound"]


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "plain"])
def test_a_prompt_that_comes_while_others_begin_is_gone_on_with_from_the_first_step(
    found: dict[tuple[str, bool], dict[str, Any]], keeps: bool
) -> None:
    assert found["late", keeps]["steps"][0] == len(found["begun", keeps]["sound"]) + 1
