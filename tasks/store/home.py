"""Where the project keeps what is this machine's own: server, default store, journal, parsed sources."""

import os
import stat
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """``NIGHTJAR_HOME``, else ``.nightjar`` in the checkout."""
    return Path(os.environ.get("NIGHTJAR_HOME") or PROJECT / ".nightjar").resolve()


def default_store() -> str:
    """URI of the store where none is named: ``NIGHTJAR_STORE``, else the project's own."""
    return os.environ.get("NIGHTJAR_STORE") or str(home() / "store")


def private_folder(path: Path) -> Path:
    """Makes the folder, and what is missing above it, for this user alone (mode 700), and returns it.

    A folder that is there keeps its mode: one that was made for several users stays theirs.
    """
    missing = []
    folder = path
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def results_folder() -> Path:
    """Where runs that name no output folder put theirs: ``NIGHTJAR_RESULTS``, else ``results`` in the working
    folder."""
    return Path(os.environ.get("NIGHTJAR_RESULTS") or "results")


def folder_within(root: Path, path: Path) -> Path:
    """Makes a folder at or below ``root``, and ``root`` itself if it is missing, and returns it.

    ``root`` is made for this user alone; what is below it is as open as ``root`` is, so that one ``chmod`` of
    it shares the whole.
    """
    private_folder(root)
    mode = stat.S_IMODE(root.stat().st_mode)
    missing = []
    folder = path
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        with suppress(PermissionError):  # another process made it
            folder.chmod(mode)
    return path


def as_open_as_its_folder(file: Path) -> None:
    """Lets those read, or write, a file of ours who may do so with its folder."""
    with suppress(PermissionError):
        file.chmod(stat.S_IMODE(file.parent.stat().st_mode) & 0o666)
