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
    """This process for others, who ask ``has_ended`` about it: where its number counts, and the number."""
    return {"host": _here(), "pid": os.getpid()}


def has_ended(process: Mapping[str, Any]) -> bool:
    """Whether it was a process whose number counts here, and is gone; False where that can't be told."""
    if process.get("host") != _here():
        return False
    try:
        return not is_process(int(process["pid"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return False


def _here() -> str:
    return f"{process_space()} {boot()}".rstrip()


def is_process(pid: int) -> bool:
    """Whether this machine, or this container of it, has a process of this number, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
