"""A function in a process of its own, called for one item after another, each with a limit.

An item that takes more is given up: the process ends, another takes the items that are left, and the caller
is told why there is no value. The limit is CPU time, so that a loaded machine does not decide what is given
up.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from tasks.killable.child import WAITING
from tasks.store.home import PROJECT

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class GaveUp:
    """Why there is no value for an item."""

    reason: str


class KillableProcess:
    """Calls ``target(*arguments)(item)``; ``target`` is ``module:function`` and imported there.

    The process starts with the first call and ends with the ``with`` block. Items and values are pickled. An
    exception that the function raises is raised here. An item may take ``seconds`` of CPU time, by the clock
    of the wall ``waiting`` times that; ``setting`` is what a config calls the limit, None if it has none.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any],
        seconds: float,
        waiting: int = WAITING,
        setting: str | None = "item_timeout",
    ) -> None:
        self._setup = target, tuple(arguments), seconds, waiting
        self._setting = setting
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> "KillableProcess":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def map(self, items: Sequence[Any]) -> list[Any]:
        """The value of every item in order, ``GaveUp`` for one that took too much."""
        values: list[Any] = []
        while len(values) < len(items):
            process = self._running()
            if not _sent(process, list(items[len(values) :])):
                raise self._broken(process)
            while len(values) < len(items):
                reply = _received(process)
                if reply is None:
                    values.append(GaveUp(self._reason(process)))
                    break
                kind, value = reply
                if kind == "raised":
                    self.close()
                    raise value
                values.append(GaveUp(value) if kind == "memory" else value)
                if kind == "memory":  # what is left of it can't be relied on
                    self.close()
                    break
        return values

    def __call__(self, item: Any) -> Any:
        """The value of one item, or ``GaveUp``."""
        return self.map([item])[0]

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None:
            return self._process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.killable.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path, **dict.fromkeys(THREADS, "1")},
            start_new_session=True,  # Ctrl-C is for who waits
        )
        reply = _received(process) if _sent(process, self._setup) else None
        if reply is None:
            raise self._broken(process)
        kind, value = reply
        if kind == "raised":
            self.close()
            raise value
        return process

    def _reason(self, process: "subprocess.Popen[bytes]") -> str:
        """Why the process ended in the middle of an item; the next item starts another."""
        code = process.wait()
        self.close()
        _, _, seconds, waiting = self._setup
        match -code:
            case signal.SIGPROF:
                named = f" ({self._setting})" if self._setting else ""
                return f"took more than {seconds:g} s{named}"
            case signal.SIGALRM:
                named = f" ({self._setting}: {seconds:g})" if self._setting else ""
                return f"took more than {seconds * waiting:g} s by the clock{named}"
        said = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"ended the process that worked on it ({said})"

    def _broken(self, process: "subprocess.Popen[bytes]") -> RuntimeError:
        process.kill()
        code = process.wait()
        assert self._errors is not None
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        self.close()
        return RuntimeError(f"the process for {self._setup[0]} could not start (exit code {code}): {said}")

    def close(self) -> None:
        """Ends the process; the next item starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                try:
                    stream.close()
                except BrokenPipeError:  # what it was sent and did not read
                    continue
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _sent(process: "subprocess.Popen[bytes]", message: Any) -> bool:
    assert process.stdin is not None
    try:
        pickle.dump(message, process.stdin)
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _received(process: "subprocess.Popen[bytes]") -> tuple[str, Any] | None:
    """What it replies; None if it has ended."""
    assert process.stdout is not None
    try:
        reply: tuple[str, Any] = pickle.load(process.stdout)
    except (EOFError, pickle.UnpicklingError):
        return None
    return reply
