"""Every sandbox that works here, as root and as an ordinary user."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from scorers.config import ProgramLimits
from tasks.sandboxes import run
from tasks.sandboxes.run import SANDBOXES, Interpreter, Invocation, Sandbox, trouble

NOBODY = 65_534


@dataclass(frozen=True)
class Place:
    """A sandbox and the interpreter that works in it."""

    sandbox: Sandbox
    interpreter: str


class _AsOrdinaryUser:
    """Starts a sandbox as a user without rights, where the tests are root's."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self.name = sandbox, sandbox.name

    def missing(self) -> str | None:
        return self._sandbox.missing()

    def start(self, interpreter: Interpreter, limits: ProgramLimits) -> Invocation:
        return _without_rights(lambda: self._sandbox.start(interpreter, limits))

    def serve(self, interpreter: Interpreter) -> Invocation:
        return _without_rights(lambda: self._sandbox.serve(interpreter))


class StartedAnew:
    """A sandbox without its fork server: it is started for each program."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self.name = sandbox, sandbox.name

    def missing(self) -> str | None:
        return self._sandbox.missing()

    def start(self, interpreter: Interpreter, limits: ProgramLimits) -> Invocation:
        return self._sandbox.start(interpreter, limits)

    def serve(self, interpreter: Interpreter) -> None:
        """There is none."""


def _without_rights(make: Callable[[], Invocation | None]) -> Invocation:
    getuid = os.getuid
    os.getuid = lambda: NOBODY
    try:
        invocation = make()
    finally:
        os.getuid = getuid
    assert invocation is not None
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    return replace(invocation, command=["setpriv", *user, *invocation.command])


@pytest.fixture(params=[sandbox.name for sandbox in SANDBOXES])
def kind(request: pytest.FixtureRequest) -> Sandbox:
    if (reason := trouble(request.param)) is not None:
        pytest.skip(f"{request.param}: {reason}")
    return next(sandbox for sandbox in SANDBOXES if sandbox.name == request.param)


@pytest.fixture(params=["as we are", "as an ordinary user", "started anew"])
def place(request: pytest.FixtureRequest, kind: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Place:
    if request.param == "as we are":
        return Place(kind, "")
    if request.param == "started anew":
        return Place(StartedAnew(kind), "")
    if os.getuid():
        pytest.skip("the tests run as an ordinary user anyway")
    if kind.name in ("docker", "podman"):
        pytest.skip("its daemon starts programs as root's")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or shutil.which("setpriv") is None:
        pytest.skip("no python3 in /usr that every user can read, or no setpriv")
    return Place(_AsOrdinaryUser(kind), python)


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], None]:
    """The sandbox's own programs where every user can read them: a checkout may lie in a home folder."""
    folder = tmp_path_factory.getbasetemp() / "inside"  # one for all tests: one fork server
    folder.mkdir(exist_ok=True)
    for parent in (folder, *folder.parents):
        if parent.owner() == folder.owner() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    copy = shutil.copy(run.INSIDE, folder / run.INSIDE.name)
    os.chmod(copy, 0o644)
    monkeypatch.setattr(run, "INSIDE", folder / run.INSIDE.name)
    return lambda: None
