"""The control group (cgroup v2) below which programs get one of their own, where the machine gives us one.

A group may be divided by who may write to it, and limits memory and processes below it where its
``cgroup.subtree_control`` says so: the root's own on most machines, that of a user's service manager, or one
that was delegated to us.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

NEEDED: Final = frozenset({"memory", "pids"})
MOUNTS: Final = Path("/proc/self/mountinfo")
OWN: Final = Path("/proc/self/cgroup")
_refused: set[str] = set()


def group_for_programs() -> str | None:
    """The folder of the nearest group that can be divided; None: there is none, or it could not be used."""
    group = divisible_group(MOUNTS, OWN)
    return None if group in _refused else group


def refuse_group(group: str) -> None:
    """Programs get no group below this one: it can't be used, whatever it says."""
    _refused.add(group)


@cache
def divisible_group(mounts: Path, own: Path) -> str | None:
    """The nearest group around ours whose children can be limited and made by us, as a folder.

    ``mounts`` and ``own`` are what the kernel says of the process's mounts and groups.
    """
    for root, point in _mounted(mounts):
        for path in _own_path(own):
            inside = os.path.relpath(path, root)
            group = Path(point) if inside.startswith("..") else Path(os.path.normpath(Path(point, inside)))
            while group == Path(point) or Path(point) in group.parents:
                if _can_be_divided(group):
                    return str(group)
                group = group.parent
    return None


def _mounted(mounts: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] == "cgroup2":
            root, point = before.split(" ")[3:5]
            yield root, point


def _own_path(own: Path) -> Iterator[str]:
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    yield from (line[3:] for line in lines if line.startswith("0::"))


def _can_be_divided(group: Path) -> bool:
    try:
        controlled = (group / "cgroup.subtree_control").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return set(controlled) >= NEEDED and all(
        os.access(place, os.W_OK) for place in (group, group / "cgroup.procs")
    )
