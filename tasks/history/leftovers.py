"""What runs leave on this machine outside the store: output folders, and logs of what works for them."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tasks.history.retention import Retention

OUTPUTS: Final = ("manifest.json", "suite.json")
"""A folder that holds one of these is a run's or a night's."""
LONGEST_LOG: Final = 16 << 20
"""A log that is still written is cut to its last quarter beyond so many bytes."""


@dataclass(frozen=True)
class Leftovers:
    """Folders and logs that are removed, logs that are ``cut``, and the bytes that this frees."""

    folders: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()
    cut: tuple[Path, ...] = ()
    bytes: int = 0


def find_leftovers(results: Path, home: Path, retention: Retention, now: datetime | None = None) -> Leftovers:
    """What the retention does not keep of the folder of results and of the logs in the project's home.

    Only folders directly in ``results`` that a run or a night wrote, and to which nothing was written for the
    time that ``retention.results`` says, are meant; what else lies there is not ours.
    """
    moment = now or datetime.now(UTC)
    folders = [] if retention.results is None else list(_old(_outputs(results), moment, retention.results))
    logs, cut = [], []
    if retention.logs is not None:
        found = sorted(home.rglob("*.log")) if home.is_dir() else []
        logs = list(_old(found, moment, retention.logs))
        cut = [path for path in found if path not in logs and _size(path) > LONGEST_LOG]
    freed = sum(map(_size, (*folders, *logs))) + sum(_size(path) - LONGEST_LOG // 4 for path in cut)
    return Leftovers(tuple(folders), tuple(logs), tuple(cut), freed)


def remove_leftovers(leftovers: Leftovers) -> None:
    """Removes and cuts what was found; what somebody else has removed meanwhile is gone all the same."""
    for folder in leftovers.folders:
        shutil.rmtree(folder, ignore_errors=True)
    for log in leftovers.logs:
        log.unlink(missing_ok=True)
    for log in leftovers.cut:
        # In place: its writer has it open, at its end.
        with suppress(OSError), log.open("r+b") as file:
            file.seek(-(LONGEST_LOG // 4), 2)
            file.readline()  # the rest of a line
            last = file.read()
            file.seek(0)
            file.truncate()
            file.write(last)


def _outputs(results: Path) -> Iterator[Path]:
    for folder in sorted(results.iterdir()) if results.is_dir() else ():
        if folder.is_dir() and not folder.is_symlink() and any((folder / name).is_file() for name in OUTPUTS):
            yield folder


def _old(paths: Iterator[Path] | list[Path], now: datetime, limit: timedelta) -> Iterator[Path]:
    for path in paths:
        times = [entry.lstat().st_mtime for entry in (path, *_below(path)) if not entry.is_dir()]
        if times and now.timestamp() - max(times) > limit.total_seconds():
            yield path


def _size(path: Path) -> int:
    return sum(entry.lstat().st_size for entry in (path, *_below(path)) if entry.is_file())


def _below(path: Path) -> Iterator[Path]:
    return path.rglob("*") if path.is_dir() else iter(())
