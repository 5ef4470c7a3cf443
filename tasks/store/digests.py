"""Digests of files: SHA-256 over their bytes, 64 hexadecimal digits.

A digest is kept under a file's path, size, time and inode, in this process, and that of a large file in the
project's home, so that weights are read once. File systems count time in steps: a file that was written a
moment ago may be written again without a sign of it, and no digest of it is kept.
"""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tasks.store.home import FileUnwritable, home, whole_text

SETTLED: Final = 2.0
"""Seconds after which a file's time tells its next version from this one."""
LARGE: Final = 1 << 24
"""Bytes of a file beyond which later processes are spared to read it."""

_kept: dict[str, tuple[tuple[int, int, int], str]] = {}


def file_digest(path: str | Path) -> str:
    """The digest of a file as it is read now. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kept_digest(path: str | Path) -> str:
    """The digest of a file; it is read again when its size, time or inode changed. Raises OSError."""
    now, found = time.time(), os.stat(path)  # the time before the file is read, which may take minutes
    state = found.st_size, found.st_mtime_ns, found.st_ino
    before = _kept.get(str(path))
    if before is not None and before[0] == state:
        return before[1]
    if now - found.st_mtime <= SETTLED:
        return file_digest(path)
    large = found.st_size > LARGE
    digest = _read_once(path, f"{os.path.realpath(path)} {state}") if large else file_digest(path)
    _kept[str(path)] = state, digest
    return digest


def _read_once(path: str | Path, version: str) -> str:
    name = hashlib.sha256(os.fsencode(version)).hexdigest()
    kept = home() / "digests" / name[:2] / name
    with suppress(OSError):
        found = kept.read_text()
        if len(found) == 64:
            return found
    digest = file_digest(path)
    with suppress(FileUnwritable), whole_text(kept) as file:  # a cache: without it the file is read again
        file.write(digest)
    return digest
