"""The tutorial: a CSV file to a gated night in ten commands, run as a reader types them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines()]
NOT_RUN = {"make worker": "it starts a process that stays: tests/flows/operations has tests of workers"}
NIGHTJAR = (sys.executable, "-c", "from flows.command_line import main; main()")


def test_it_takes_ten_commands_at_most() -> None:
    assert 5 < len(COMMANDS) <= 10
    assert set(NOT_RUN) <= set(COMMANDS)


@pytest.mark.services
def test_a_reader_of_the_tutorial_gets_to_a_gated_night(tmp_path: Path, migrated_database: Any) -> None:
    migrated_database.lend(tmp_path / "home" / "server")
    (table,) = (text for language, text in BLOCKS if language == "csv")
    (tmp_path / "my_questions.csv").write_text(table, encoding="utf-8")
    environment = {**os.environ, "NIGHTJAR_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    for name in ("PREFECT_API_URL", "NIGHTJAR_RESULTS", "NIGHTJAR_STORE"):
        environment.pop(name, None)

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    said = []
    try:
        for line in COMMANDS:
            if line not in NOT_RUN:
                program, *rest = shlex.split(line)
                done = call(*(NIGHTJAR if program == "nightjar" else (program,)), *rest)
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                said.append(done.stdout)
    finally:
        call(sys.executable, "-m", "flows.server", "stop")
    _, _, checked, planned, scores, first, second, registered, listed = said
    assert "no mistakes, 4 items, encoding utf-8, delimiter ','" in checked
    assert "Mara has 14 shells" in planned
    assert "subtraction" in scores
    assert "pass" not in first
    assert re.search(r"exact_match .*pass$", second, re.MULTILINE)
    assert "registered suite/mine_nightly: 30 2 * * * Europe/Berlin" in registered
    assert "mine" in listed
