"""The judges' processes: each judges one program at a time, those that are free wait for the next."""

import atexit
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from metrics.errors import NightjarError
from tasks.sandboxes.judge import write_all

JUDGE: Final = Path(__file__).with_name("judge.py")
SHOWN: Final = 2_000


class JudgeLostError(NightjarError):
    """A judge gave no answer."""


class Judge:
    """One judge's process, and the pipes to it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise JudgeLostError(f"the judge could not be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()

    def ask(self, job: bytes, seconds: float) -> bytes:
        """The result of a job; raises JudgeLostError where none comes within ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            write_all(self._jobs, struct.pack(">Q", len(job)) + job)
            (size,) = struct.unpack(">Q", self._read(8, deadline))
            return self._read(size, deadline)
        except OSError as error:
            raise JudgeLostError(f"the judge ended: {error}{self._last_words()}") from None

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise JudgeLostError("the judge did not answer in time")
            part = os.read(self._answers, min(size, 1 << 20))
            if not part:
                raise JudgeLostError(f"the judge ended{self._last_words()}")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        self._end()
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode("utf-8", "replace").strip()[-SHOWN:]
        return f": {said}" if said else ""

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Lets a judge go: it ends when its stdin does, and with it all that it started."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._end()


SECONDS_TO_END: Final = 5.0
Key = tuple[int, tuple[str, ...]]
_free: dict[Key, list[Judge]] = {}
_lock = threading.Lock()


def ourselves() -> tuple[str, ...]:
    """The command that starts a judge as the user that we are."""
    return (sys.executable, "-I", "-S", "-B", str(JUDGE))


@contextmanager
def judge(command: tuple[str, ...]) -> Iterator[Judge]:
    """A judge that was started so and is free, or a new one. One in whose block anything is raised ends."""
    key = os.getpid(), command
    with _lock:
        waiting = _free.get(key)
        found = waiting.pop() if waiting else None
    found = found or Judge(command)
    try:
        yield found
    except BaseException:
        found.close()
        raise
    with _lock:
        _free.setdefault(key, []).append(found)


def end_free_judges() -> None:
    """Ends the judges of this process that judge nothing."""
    with _lock:
        own = [key for key in _free if key[0] == os.getpid()]
        ended = [found for key in own for found in _free.pop(key)]
    for found in ended:
        found.close()


atexit.register(end_free_judges)
