"""Fork servers: warm interpreters inside a sandbox that fork for each program.

Starting a sandbox and a Python takes tens of milliseconds of a core, forking a warm one a few. Each program
still has namespaces, a user and a folder of its own: the server only makes them, and runs nothing itself. One
server runs one program at a time; those that are free wait for the next.
"""

import atexit
import os
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final

from metrics.errors import NightjarError
from tasks.sandboxes.kinds import Invocation

SHOWN: Final = 2_000


class ServerLostError(NightjarError):
    """A fork server gave no answer."""


class ForkServer:
    """One server's process, and the pipes to it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._jobs, self._answers = process.stdin.fileno(), process.stdout.fileno()

    def ask(self, job: bytes, seconds: float) -> bytes:
        """The result of a job; raises ServerLostError where none comes within ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            _write(self._jobs, struct.pack(">Q", len(job)) + job)
            (size,) = struct.unpack(">Q", self._read(8, deadline))
            return self._read(size, deadline)
        except OSError as error:
            raise ServerLostError(f"it ended: {error}{self._last_words()}") from None

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ServerLostError("it did not answer in time")
            part = os.read(self._answers, min(size, 1 << 20))
            if not part:
                raise ServerLostError(f"it ended{self._last_words()}")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        self.end()
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode("utf-8", "replace").strip()[-SHOWN:]
        return f": {said}" if said else ""

    def end(self) -> None:
        """Ends the server, and with it all that runs in it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Lets a server go that is free: it ends when its stdin does."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.end()


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


Key = tuple[int, tuple[str, ...]]
_free: dict[Key, list[ForkServer]] = {}
_lock = threading.Lock()
_starter: tuple[int, ThreadPoolExecutor] | None = None


@contextmanager
def fork_server(invocation: Invocation) -> Iterator[ForkServer]:
    """A server that was started so and is free, or a new one. One in whose block anything is raised is
    ended."""
    key = os.getpid(), tuple(invocation.command)
    with _lock:
        waiting = _free.get(key)
        server = waiting.pop() if waiting else None
    if server is None:
        server = _start(invocation)
    try:
        yield server
    except BaseException:
        server.close()
        raise
    with _lock:
        _free.setdefault(key, []).append(server)


def end_free_servers() -> None:
    """Ends the servers of this process that run nothing."""
    with _lock:
        own = [key for key in _free if key[0] == os.getpid()]
        ended = [server for key in own for server in _free.pop(key)]
    for server in ended:
        server.close()


atexit.register(end_free_servers)


def _start(invocation: Invocation) -> ForkServer:
    """Starts a server from a thread that lives as long as this process: the kernel ends a sandbox with the
    thread that started it."""
    global _starter
    with _lock:
        if _starter is None or _starter[0] != os.getpid():
            _starter = os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="fork-servers")
        starter = _starter[1]
    return ForkServer(starter.submit(_popen, invocation).result())


def _popen(invocation: Invocation) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        invocation.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True, bufsize=0,
    )  # fmt: skip
