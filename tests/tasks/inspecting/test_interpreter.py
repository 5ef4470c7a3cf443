"""Processes of Inspect: what they reply, what they can't, and their end."""

import sys
import time
from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.inspecting import interpreter
from tasks.inspecting.interpreter import VARIABLE, InspectFailed, call_inspect

REPLIES = """
import json, os, sys
from pathlib import Path
_, action, request, reply = sys.argv
given = json.loads(Path(request).read_text())
if action == "silent":
    print("a last word")
    sys.exit(3)
if action == "long":
    Path(given["pid"]).write_text(str(os.getpid()))
    sys.stdin.read()
said = {"given": given, "prefect": [name for name in os.environ if name.startswith("PREFECT_")],
        "key": os.environ.get("A_KEY")}
Path(reply).write_text(json.dumps({"error": "KeyError: 'x'"} if action == "wrong" else {"ok": said}))
"""


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "side.py").write_text(REPLIES)
    monkeypatch.setattr(interpreter, "SIDE", tmp_path / "side.py")
    monkeypatch.setenv(VARIABLE, sys.executable)
    monkeypatch.setenv("PREFECT_API_KEY", "none of a task's business")
    return tmp_path


def test_a_process_replies_and_has_the_key_and_nothing_of_prefects(side: Path) -> None:
    said = call_inspect("run", {"a": 1}, side / "place", side, {"A_KEY": "k"})
    assert said == {"given": {"a": 1}, "prefect": [], "key": "k"}
    assert '"k"' not in (side / "place" / "run.request.json").read_text()


def test_what_went_wrong_there_is_said(side: Path) -> None:
    with pytest.raises(InspectFailed, match="Inspect: KeyError: 'x'"):
        call_inspect("wrong", {}, side / "place", side)
    with pytest.raises(InspectFailed, match=r"code 3 \(silent\): a last word; see .*silent.log"):
        call_inspect("silent", {}, side / "place", side)


def test_a_process_ends_when_the_run_is_stopped(side: Path) -> None:
    pid = side / "pid"

    def check() -> None:
        if pid.exists() and pid.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_inspect("long", {"pid": str(pid)}, side / "place", side, check=check)
    place, deadline = Path("/proc") / pid.read_text(), time.monotonic() + 60
    while place.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not place.exists()


def test_without_inspect_the_sentence_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"run pip install 'nightjar\[inspect\]', or set " + VARIABLE):
        call_inspect("describe", {}, tmp_path, tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no-python"))
    with pytest.raises(ConfigError, match="expected the Python of an environment with inspect_ai"):
        call_inspect("describe", {}, tmp_path, tmp_path)


def test_an_interpreter_without_inspect_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import venv

    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    monkeypatch.setenv(VARIABLE, str(python))
    with pytest.raises(ConfigError, match=r"has no inspect_ai; run .* -m pip install inspect-ai"):
        call_inspect("describe", {"task": "a.py", "args": {}}, tmp_path / "place", tmp_path)
