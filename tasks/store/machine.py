"""Whose a process number is: one machine's, since it was booted, and one container's of it.

A process that writes its number where others look says with it where the number counts, and nobody else
concludes from it that the process is gone: containers with the host's name, and machines that share one,
have numbers of their own. Imports the standard library alone: supervisors of servers use it.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")


def boot() -> str:
    """What is another one after each start of the machine; empty where the kernel does not tell."""
    with suppress(OSError):
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    return ""


def process_space() -> str:
    """Which numbers of processes count here, of those of this machine: its name, and the namespace where the
    kernel has such."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink(_PROC / 'self' / 'ns' / 'pid')}"
    return socket.gethostname()


def this_process() -> dict[str, Any]:
    """This process for others, who ask ``has_ended`` about it: where its number counts, the number, and when
    it began, since numbers are given again."""
    return {"host": _here(), "pid": os.getpid(), "began": began(os.getpid())}


def has_ended(process: Mapping[str, Any]) -> bool:
    """Whether it was a process whose number counts here, and is gone; False where that can't be told."""
    return _lives(process) is False


def lives_here(process: Mapping[str, Any]) -> bool:
    """Whether it is a process whose number counts here, and which is there, be it stopped or asleep; False
    where that can't be told."""
    return _lives(process) is True


def _lives(process: Mapping[str, Any]) -> bool | None:
    if process.get("host") != _here():
        return None
    try:
        pid = int(process["pid"])
        if not is_process(pid):
            return False
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    before, now = process.get("began"), began(pid)
    return None if before is None or now is None else before == now


def began(pid: int) -> int | None:
    """Ticks of the clock from the machine's start to the process's; None where the kernel does not tell."""
    try:
        return int(_fields(pid)[19])
    except (IndexError, ValueError):
        return None


def _fields(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on; nothing where it does not tell."""
    try:
        # The second field, the name, may hold blanks and parentheses: what follows it begins at the third.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _here() -> str:
    return f"{process_space()} {boot()}".rstrip()


def is_process(pid: int) -> bool:
    """Whether this machine, or this container of it, has a process of this number, of whatever user. One
    that has ended is none, though its parent may not have asked how."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return pid > 0 and _fields(pid)[:1] != ["Z"]


def processes_with(variable: str, value: str) -> list[int]:
    """The processes of this user that were begun with this environment variable; none where the kernel does
    not list processes."""
    pids = (int(entry.name) for entry in _PROC.glob("[0-9]*"))
    return [pid for pid in pids if has_variable(pid, variable, value)]


def has_variable(pid: int, variable: str, value: str) -> bool:
    """Whether a process of this user was begun with this environment variable, as far as the kernel tells."""
    try:
        return os.fsencode(f"{variable}={value}") in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
