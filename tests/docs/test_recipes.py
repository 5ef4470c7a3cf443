"""Recipes run as they are printed; a test runs each command of the other pages, or a reason says why not."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("python ", "nightjar ", "make ", "prefect ", "eval ", "cp ", "systemctl ")
TABLE = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8"))
NIGHTJAR = (sys.executable, "-c", "from flows.command_line import main; main()")


def commands(page: Path) -> list[str]:
    """The commands of a page's plain blocks, without their comments."""
    blocks = (block for block in BLOCK.finditer(page.read_text(encoding="utf-8")) if not block["language"])
    lines = (line.partition(" #")[0].strip() for block in blocks for line in block["text"].splitlines())
    return [line for line in lines if line.startswith(PROGRAMS) and "─►" not in line]


def row_of(page: Path, command: str) -> dict[str, Any] | None:
    """The first row of the table for a command of a page."""
    name = str(page.relative_to(ROOT))
    fits = (row for row in TABLE if row.get("page", name) == name)
    return next((row for row in fits if re.fullmatch(row["command"], command)), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_test_runs_each_command_or_a_reason_says_why_none_does(page: Path) -> None:
    assert [command for command in commands(page) if row_of(page, command) is None] == []


def test_the_table_of_commands_names_tests_that_are_there_and_no_command_that_is_gone() -> None:
    used = [row_of(page, command) for page in PAGES for command in commands(page)]
    assert [row["command"] for row in TABLE if row not in used] == []
    assert [row for row in TABLE if "run_by" in row and not (ROOT / row["run_by"]).exists()] == []
    assert all(("run_by" in row) != ("reason" in row) for row in TABLE)


@pytest.mark.services
def test_the_recipes_run_as_they_are_printed(tmp_path: Path, migrated_database: Any) -> None:
    migrated_database.lend(tmp_path / "home" / "server")
    environment = {**os.environ, "NIGHTJAR_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    for name in ("PREFECT_API_URL", "NIGHTJAR_RESULTS", "NIGHTJAR_STORE"):
        environment.pop(name, None)

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    page = ROOT / "docs" / "recipes.md"
    said: dict[str, str] = {}
    try:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            language, text = block["language"], block["text"]
            file = re.match(r"# (mine/\S+)\n", text)
            if language and file:
                (tmp_path / file[1]).write_text(text, encoding="utf-8")
            for line in text.splitlines() if not language else ():
                if line.startswith(PROGRAMS):
                    program, *rest = shlex.split(line)
                    done = call(*(NIGHTJAR if program == "nightjar" else (sys.executable,)), *rest)
                    assert done.returncode == 0, (line, done.stdout, done.stderr)
                    said[line] = done.stdout + done.stderr
    finally:
        call(sys.executable, "-m", "flows.server", "stop")
    assert set(said) == set(commands(page))
    (table,) = re.findall(
        r"^Model   topic.*?(?=^```)", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert table in next(text for line, text in said.items() if "results/topics" in line)
    assert (tmp_path / "results" / "first-second" / "comparison.html").is_file()
