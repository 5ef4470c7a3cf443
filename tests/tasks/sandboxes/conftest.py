"""Every sandbox that works here, as root and as an ordinary user."""

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import pytest

from scorers.config import ProgramLimits
from tasks.sandboxes import judges
from tasks.sandboxes.interpreters import Interpreter, interpreter_at
from tasks.sandboxes.kinds import SANDBOXES, Invocation, Sandbox
from tasks.sandboxes.run import trouble

NOBODY = 65_534
_AS_NOBODY = Lock()


@dataclass(frozen=True)
class Place:
    """A sandbox and the interpreter that works in it."""

    sandbox: Sandbox
    interpreter: str


@dataclass(frozen=True)
class _AsOrdinaryUser:
    """Starts a sandbox as a user without rights, where the tests are root's, with the judge."""

    _sandbox: Sandbox
    _python: str

    @property
    def name(self) -> str:
        return self._sandbox.name

    def missing(self) -> str | None:
        return self._sandbox.missing()

    def not_enforced(self) -> str | None:
        return self._sandbox.not_enforced()

    def start(self, interpreter: Interpreter, limits: ProgramLimits, text: bytes) -> Invocation:
        with _AS_NOBODY:  # two threads at once would leave it as the other made it, for all tests that follow
            getuid = os.getuid
            os.getuid = lambda: NOBODY
            try:
                invocation = self._sandbox.start(interpreter, limits, text)
            finally:
                os.getuid = getuid
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        command = [*user, self._python, "-I", "-S", "-B", str(judges.JUDGE)]
        return replace(invocation, judge=tuple(command), group=None)


def at_once(run: Callable[[Any], str | None], entries: Sequence[Any]) -> list[str]:
    """What was found wrong with the entries, as many looked at at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [found for found in pool.map(run, entries) if found is not None]


@pytest.fixture(params=[sandbox.name for sandbox in SANDBOXES])
def kind(request: pytest.FixtureRequest) -> Sandbox:
    if (reason := trouble(request.param)) is not None:
        pytest.skip(f"{request.param}: {reason}")
    return next(sandbox for sandbox in SANDBOXES if sandbox.name == request.param)


@pytest.fixture(params=["as we are", "as an ordinary user"])
def place(request: pytest.FixtureRequest, kind: Sandbox) -> Place:
    if request.param == "as we are":
        return Place(kind, "")
    if os.getuid():
        pytest.skip("the tests run as an ordinary user anyway")
    if kind.name in ("docker", "podman"):
        pytest.skip("its daemon starts programs as root's")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or shutil.which("setpriv") is None:
        pytest.skip("no python3 in /usr that every user can read, or no setpriv")
    if tuple(map(int, interpreter_at(python).about.split()[1].split(".")[:2])) < (3, 11):
        pytest.skip(f"{python} is older than the programs of the tables")
    return Place(_AsOrdinaryUser(kind, python), python)


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], None]:
    """The judge where every user can read it: a checkout may lie in a home folder."""
    folder = tmp_path_factory.getbasetemp() / "judge"  # one for all tests: one process
    folder.mkdir(exist_ok=True)
    for parent in (folder, *folder.parents):
        if parent.owner() == folder.owner() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    copy = shutil.copy(judges.JUDGE, folder / judges.JUDGE.name)
    os.chmod(copy, 0o644)
    monkeypatch.setattr(judges, "JUDGE", folder / judges.JUDGE.name)
    return lambda: None
