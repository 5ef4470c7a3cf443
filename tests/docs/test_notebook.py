"""The page about notebooks, run as a notebook runs it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNNER = """
import ast, asyncio, inspect, re, sys, types
from pathlib import Path

shell = type("ZMQInteractiveShell", (), {})()  # what a kernel's shell is called
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)

async def run():
    names = {"__name__": "notebook"}
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    for code in re.findall(r"^```python\\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        pending = eval(compile(code, "notebook.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(pending):
            await pending
        print("ran:", code.splitlines()[0])

asyncio.run(run())
"""
COMMAND = "python -m flows.compare results/notebook results/notebook-again"
SERVER_KNOWS = """
from flows.server import ask, serving
with serving():
    print([run["state_name"] for run in ask("/flow_runs/filter", {})])
"""


@pytest.mark.services
def test_page_runs_from_top_to_bottom(tmp_path: Path, migrated_database: Any) -> None:
    migrated_database.lend(tmp_path / "home" / "server")
    page = ROOT / "docs" / "notebook.md"
    environment = {**os.environ, "NIGHTJAR_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    for name in ("PREFECT_API_URL", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"):
        environment.pop(name, None)
    (tmp_path / "deployments").symlink_to(ROOT / "deployments")
    try:
        ran = subprocess.run(
            [sys.executable, "-c", RUNNER, str(page)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        compared = subprocess.run(
            [sys.executable, *shlex.split(COMMAND)[1:]],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        known = subprocess.run(
            [sys.executable, "-c", SERVER_KNOWS],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        subprocess.run(
            [sys.executable, "-m", "flows.server", "stop"],
            cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert compared.returncode == 0, compared.stderr
    assert known.stdout.strip() == "['Completed', 'Completed']", "both runs are on the own server's pages"
    assert COMMAND in page.read_text(encoding="utf-8")
    assert " | INFO " not in ran.stdout + ran.stderr, "Prefect's lines about every task run are left out"
    blocks = re.findall(r"^```python\n", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert ran.stdout.count("ran:") == len(blocks) > 5
    assert (tmp_path / "results" / "notebook" / "report.html").exists()
