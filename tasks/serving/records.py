"""What there is of a server on this machine: its folder in the home, with its order, its state and its
log, and its processes.

The supervisor writes the state and the log; the process that started the server, and one that comes after a
crash, read them. Processes are distinguished even where a number is used again, and ended with all they
started. Imports little more than the standard library: the supervisor and its guard use it.
"""

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tasks.store.machine import began, boot, is_process, processes_with

MARK = "NIGHTJAR_SERVER"
"""Environment variable that every process of a server inherits, with the server's id."""
KILL_SECONDS: Final = 5.0
LAST_LINES: Final = 5
LINE_WIDTH: Final = 160


def started(pid: int) -> str | None:
    """When a process began, as a text that no later process of the same number shares; None: there is none.

    Where the kernel does not tell, every living process has the same one.
    """
    if not is_process(pid):
        return None
    ticks = began(pid)
    return "alive" if ticks is None else f"{boot()}:{ticks}"


def lives(pid: int, since: str | None) -> bool:
    """Whether the process that began then is still there."""
    return since is not None and started(pid) == since


def marked(identifier: str) -> list[int]:
    """The processes that a server's mark was handed down to; this one is left out."""
    return [pid for pid in processes_with(MARK, identifier) if pid != os.getpid()]


def signal_group(group: int | None, number: int) -> None:
    """Sends a signal to a process group; nothing where it is gone."""
    if group is not None and group > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def end_marked(identifier: str) -> None:
    """Kills every process with the server's mark, and waits until none is left."""
    until = time.monotonic() + KILL_SECONDS
    while found := marked(identifier):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(0.05)


ORDER, STATE, WITHDRAWN = "order.json", "state.json", "withdrawn"
HEAD, TAIL, TAIL_BEFORE = "log.head", "log.tail", "log.tail.before"
WAITING, STARTING, READY, FAILED, ENDED = "waiting", "starting", "ready", "failed", "ended"
OVER: Final = (FAILED, ENDED)


@dataclass(frozen=True)
class Order:
    """What a supervisor is to start: ``{port}``, ``{gpus}`` and ``{devices}`` in words of the command are its
    to fill in.

    ``owner`` is the process that the server is for, with the time it began; the server ends with it.
    ``candidates`` are the places of this host of which ``places`` are to be held, by locks in ``locks``.
    """

    id: str
    command: tuple[str, ...]
    environment: dict[str, str]
    owner: int
    owner_started: str | None
    host: str
    ready: str
    start_seconds: float
    restarts: int
    locks: str
    candidates: tuple[str, ...]
    places: int
    log_bytes: int = 1 << 20
    container: tuple[str, ...] = ()
    """What ends the server's container, if it runs in one."""
    bytes_needed: int = 0
    """Memory that the weights alone take."""
    run: str = ""
    """The run that the server is for."""
    space: str = ""
    """Where ``owner`` is a process's number (``process_space``); empty in orders of before."""
    weights: dict[str, Any] | None = None
    """The fields of the ``KnownWeights`` that the server has to have loaded once it is ready; None: any."""


@dataclass(frozen=True)
class State:
    """How far a server is: waiting (for a place), starting, ready, failed or ended, and why."""

    phase: str = WAITING
    reason: str = ""
    port: int = 0
    held: tuple[str, ...] = ()
    supervisor: int = 0
    supervisor_started: str | None = None
    group: int = 0
    """The server's process group; 0 where none was started."""
    starts: int = 0


def write(path: Path, record: Order | State) -> None:
    """Writes a record, whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(asdict(record)))
    part.chmod(0o600)
    part.replace(path)


def read_order(folder: Path) -> Order | None:
    """The order in a server's folder; None where there is none that can be read."""
    found = _read(folder / ORDER)
    return None if found is None else Order(**_tuples(found, ("command", "candidates", "container")))


def withdraw(folder: Path) -> None:
    """Says that a server is not wanted any more: its supervisor ends it, or never starts it."""
    with suppress(OSError):  # the folder is gone, which says the same
        (folder / WITHDRAWN).touch(mode=0o600)


def is_wanted(folder: Path) -> bool:
    """Whether nobody has withdrawn the order in a server's folder."""
    return (folder / ORDER).exists() and not (folder / WITHDRAWN).exists()


def read_state(folder: Path) -> State | None:
    """The state in a server's folder; None where there is none yet."""
    found = _read(folder / STATE)
    if found is None:
        return None
    found.pop("host", None)  # of before, where the order did not say it
    return State(**_tuples(found, ("held",)))


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else None
    return None


def _tuples(found: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {**found, **{name: tuple(found.get(name) or ()) for name in names}}


class BoundedLog:
    """A log on disk with a bound: its first bytes and its last ones; what lies between is dropped.

    ``limit`` bytes of the beginning are kept, and between one and two times as many of the end.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._head = (folder / HEAD).open("ab", buffering=0)
        self._tail = (folder / TAIL).open("ab", buffering=0)

    def write(self, content: bytes) -> None:
        """Adds what the server printed."""
        room = self._limit - self._head.tell()
        if room > 0:
            self._head.write(content[:room])
            content = content[room:]
        for start in range(0, len(content), self._limit):
            self._append(content[start : start + self._limit])

    def _append(self, content: bytes) -> None:
        if self._tail.tell() + len(content) > self._limit:
            self._tail.close()
            (self._folder / TAIL).replace(self._folder / TAIL_BEFORE)
            self._tail = (self._folder / TAIL).open("ab", buffering=0)
        self._tail.write(content)

    def close(self) -> None:
        """Closes the files."""
        self._head.close()
        self._tail.close()


def log_text(folder: Path) -> str:
    """What is kept of a server's log; a line of its own says where something was left out."""
    parts = []
    for name in (HEAD, TAIL_BEFORE, TAIL):
        with suppress(OSError):
            parts.append((name, (folder / name).read_bytes().decode("utf-8", "replace")))
    cut = any(name == TAIL_BEFORE for name, _ in parts)
    head = "".join(text for name, text in parts if name == HEAD)
    rest = "".join(text for name, text in parts if name != HEAD)
    return f"{head}\n… some of the log was left out here …\n{rest}" if cut else head + rest


def last_lines(folder: Path) -> list[str]:
    """The last lines of a server's log that say something, each cut at LINE_WIDTH characters."""
    text = ""
    for name in (TAIL, TAIL_BEFORE, HEAD):
        with suppress(OSError), (folder / name).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65_536))
            text = file.read().decode("utf-8", "replace") + text
        if len(text.splitlines()) > LAST_LINES:
            break
    return [line.rstrip()[:LINE_WIDTH] for line in text.splitlines() if line.strip()][-LAST_LINES:]
