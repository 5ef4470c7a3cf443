"""Processes of this machine, told apart even where a number is used again, and ended with all they started.

Imports the standard library alone: the supervisor and its guard use it.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "NIGHTJAR_SERVER"
"""Environment variable that every process of a server inherits, with the server's id."""
_PROC = Path("/proc")


def started(pid: int) -> str | None:
    """When a process began, as a text that no later process of the same number shares; None: there is none.

    Where the kernel does not tell, every living process has the same one.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        if _PROC.is_dir() and (_PROC / "self" / "stat").exists():
            return None
        return "alive" if _answers(pid) else None
    # The name stands in parentheses and may hold anything; state is the field behind it, the start the 20th.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else f"{_boot()}:{fields[19]}"


def _boot() -> str:
    with suppress(OSError):
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    return ""


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def lives(pid: int, since: str | None) -> bool:
    """Whether the process that began then is still there."""
    return since is not None and started(pid) == since


def marked(identifier: str) -> Iterator[int]:
    """The processes that a server's mark was handed down to; this one is left out."""
    wanted = f"{MARK}={identifier}".encode()
    for entry in _PROC.glob("[0-9]*") if _PROC.is_dir() else ():
        if int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def signal_group(group: int | None, number: int) -> None:
    """Sends a signal to a process group; nothing where it is gone."""
    if group is not None and group > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def end_marked(identifier: str, patience: float = 5.0) -> None:
    """Kills every process with the server's mark, and waits until none is left."""
    until = time.monotonic() + patience
    while found := list(marked(identifier)):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(0.05)
