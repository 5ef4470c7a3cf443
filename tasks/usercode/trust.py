"""Whose code runs without asking: that of folders which only the user can write to, of the project and of
installed packages.

Anything else runs once its user has said so by ``--trust``, which is remembered in the user's own folder of
settings (a folder can't vouch for itself), or where ``NIGHTJAR_TRUST`` lists the folder, as for workers.
"""

import os
import site
import stat
import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path

from metrics.errors import ConfigError
from tasks.store.home import PROJECT, private_folder

_asked = False


def trust_what_is_named(yes: bool = True) -> None:
    """From now on what this process would refuse is remembered as trusted instead (``--trust``)."""
    global _asked
    _asked = yes


def trusting() -> bool:
    """Whether that is so."""
    return _asked


def check_trusted(place: Path, reference: str) -> None:
    """Raises ConfigError if code that a file of this folder names, or that this file is, must not run yet."""
    place = place.resolve()
    if _runs_unasked(place):
        return
    why = _writable_by_others(place)
    if why is None or any(place.is_relative_to(entry) for entry in _trusted()):
        return
    if _asked:
        _remember(place)
        return
    raise ConfigError(
        f"'{reference}' is code of {place}, {why}: it runs with your rights. Read it, then call "
        "python -m flows.eval (or flows.suite) once with --trust, or name the folder in NIGHTJAR_TRUST"
    )


def _runs_unasked(path: Path) -> bool:
    return any(path.is_relative_to(above) for above in (PROJECT, *_installed()))


@cache
def _installed() -> tuple[Path, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(path).resolve() for path in paths if path)


def _writable_by_others(place: Path) -> str | None:
    """Why a folder, or a Python file, may hold what another user wrote; None if it can't."""
    try:
        found = place.stat()
    except OSError:
        return "which can't be looked at"
    # Who put a file into the user's own folder was the user, or root.
    if found.st_uid != os.geteuid() and not (found.st_uid == 0 and stat.S_ISREG(found.st_mode)):
        return "which belongs to another user"
    if found.st_mode & stat.S_IWOTH:
        return "which every user can write to"
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid):
        return "which its group can write to"
    return None


def _own_group(gid: int) -> bool:
    """Whether the group is the user's own, as many systems give each user one, with nobody else in it."""
    import grp
    import pwd

    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _trusted() -> list[Path]:
    listed = [Path(entry) for entry in os.environ.get("NIGHTJAR_TRUST", "").split(os.pathsep) if entry]
    with suppress(OSError):
        listed += [Path(line) for line in _list().read_text(encoding="utf-8").splitlines() if line]
    return [entry.expanduser().resolve() for entry in listed]


def _remember(place: Path) -> None:
    path = _list()
    private_folder(path.parent)
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{place}\n")


def _list() -> Path:
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return settings / "nightjar" / "trusted"
