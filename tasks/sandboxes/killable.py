"""Calls of functions that may never return: in a process of their own, called for one item after another,
each with a limit.

What is called is named by module and function, so that it is imported there and its code is in the
caller's keys. An item that takes more is given up: the process ends, another takes the items that are
left, and the caller is told why there is no value. The limit is CPU time, so that a loaded machine does
not decide what is given up.

In the process, the kernel keeps the clocks: a regular expression that runs away, or a library's C code,
lets no other code of it run. So nothing outlives its limit even if who waits for it was killed.
"""

import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import IO, Any, BinaryIO, Final

from tasks.store.home import PROJECT
from tasks.usercode import observed

MEMORY_BYTES: Final = 4 << 30
"""Address space of a process; a formula such as 9^(9^9) asks for more."""
WAITING: Final = 20
"""How many times the limit may pass by the clock of the wall: a loaded machine is slow, but not stuck."""

Reply = tuple[str, Any]
"""``value`` and the value, ``raised`` and the exception, ``memory`` and the reason; before any of them
``seen`` and what users' code has just read, so that it is known of an item that is given up, too."""
_writing = threading.Lock()
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class ItemTimeout:
    """Why there is no value for an item."""

    reason: str


class KillableProcess(AbstractContextManager["KillableProcess"]):
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, items: Sequence[Any]) -> list[Any]:
        """The value of every item in order, ``ItemTimeout`` for one that took too much."""
        values: list[Any] = []
        while len(values) < len(items):
            process = self._running()
            if not _sent(process, list(items[len(values) :])):
                raise self._broken(process)
            while len(values) < len(items):
                reply = _received(process)
                if reply is None:
                    values.append(ItemTimeout(self._reason(process)))
                    break
                kind, value = reply
                if kind == "raised":
                    self.close()
                    raise value
                values.append(ItemTimeout(value) if kind == "memory" else value)
                if kind == "memory":  # what is left of it can't be relied on
                    self.close()
                    break
        return values

    def __call__(self, item: Any) -> Any:
        """The value of one item, or ``ItemTimeout``."""
        return self.map([item])[0]

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None:
            return self._process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.sandboxes.killable"],
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
        code = self.close()
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
        code = _ended(process)
        assert self._errors is not None
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        self.close()
        return RuntimeError(f"the process for {self._setup[0]} could not start (exit code {code}): {said}")

    def close(self) -> int:
        """Ends the process, if there is one, and returns its exit code; the next item starts another."""
        process, self._process = self._process, None
        code = 0
        if process is not None:
            code = _ended(process)
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                try:
                    stream.close()
                except BrokenPipeError:  # what it was sent and did not read
                    continue
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        return code


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """The exit code of a process that is ended, and with it what it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _sent(process: "subprocess.Popen[bytes]", message: Any) -> bool:
    assert process.stdin is not None
    try:
        pickle.dump(message, process.stdin)
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _received(process: "subprocess.Popen[bytes]") -> tuple[str, Any] | None:
    """What it replies; None if it has ended. What it has seen is taken as seen here."""
    assert process.stdout is not None
    try:
        kind, value = pickle.load(process.stdout)
        while kind == "seen":
            observed.take(value)
            kind, value = pickle.load(process.stdout)
    except (EOFError, pickle.UnpicklingError):
        return None
    return kind, value


def main() -> None:
    """Reads ``(target, arguments, seconds, waiting)``, then lists of items; writes a reply for each."""
    requests, replies = _streams()
    target, arguments, seconds, waiting = pickle.load(requests)
    _limit_memory()
    observed.forward(lambda note: _write(replies, ("seen", note)))
    try:
        module, _, name = target.partition(":")
        function = getattr(import_module(module), name)(*arguments)
    except Exception as error:
        _write(replies, ("raised", error))
        return
    _write(replies, ("ready", None))
    while True:
        try:
            items = pickle.load(requests)
        except EOFError:
            return
        for item in items:
            _write(replies, _reply(function, item, seconds, seconds * waiting))


def _reply(function: Callable[[Any], Any], item: Any, seconds: float, by_the_clock: float) -> Reply:
    _leave_to_the_kernel()  # the function may have set an alarm of its own
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, by_the_clock)
    try:
        return "value", function(item)
    except MemoryError:
        return "memory", f"took more than {MEMORY_BYTES >> 30} GiB of memory"
    except Exception as error:
        return "raised", error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _write(replies: BinaryIO, reply: Reply) -> None:
    try:
        frame = pickle.dumps(reply)
    except Exception:  # a value or an exception that can't be sent
        frame = pickle.dumps(("raised", RuntimeError(f"{type(reply[1]).__name__}: {reply[1]}")))
    with _writing:
        replies.write(frame)
        replies.flush()


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Streams of our own: what a library prints goes elsewhere, and what it reads is nothing."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # A child that the function forks, and that outlives this process, would hold up who waits for replies.
    os.register_at_fork(after_in_child=partial(os.close, requests.fileno()))
    os.register_at_fork(after_in_child=partial(os.close, replies.fileno()))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    _leave_to_the_kernel()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
    return requests, replies


def _leave_to_the_kernel() -> None:
    """The clocks' signals, which then end the process."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def _limit_memory() -> None:
    with suppress(OSError, ValueError):  # a tighter limit stands already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
