"""Where the project keeps what is this machine's own, server, default store, journal, parsed sources; and
files that are whole at any moment: written under a temporary name beside their place, then renamed.
"""

import errno
import hashlib
import math
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import orjson

from metrics.errors import ConfigError, NightjarError

PROJECT = Path(__file__).resolve().parents[2]


def variable(name: str) -> str:
    """What an environment variable says, without the white space around it; empty where it says nothing."""
    return os.environ.get(name, "").strip()


def home() -> Path:
    """``NIGHTJAR_HOME``, else ``.nightjar`` in the checkout."""
    return named_path("", variable("NIGHTJAR_HOME") or str(PROJECT / ".nightjar")).resolve()


def named_path(folder: str | Path, name: str) -> Path:
    """Where a file is that a config of this folder names: relative to the folder, or to a home (``~``)."""
    path = Path(name)
    with suppress(RuntimeError):  # a home of nobody
        path = path.expanduser()
    return Path(folder) / path


def default_store() -> str:
    """URI of the store where none is named: ``NIGHTJAR_STORE``, else the project's own."""
    return variable("NIGHTJAR_STORE") or str(home() / "store")


def number_set(name: str, usual: float) -> float:
    """The finite number above 0 that an environment variable says, else the usual one; raises ConfigError."""
    text = os.environ.get(name) or str(usual)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{name}: expected a finite number above 0, got '{text}'; correct it, or unset it")
    return number


def private_folder(path: Path) -> Path:
    """Makes the folder, and what is missing above it, for this user alone (mode 700), and returns it.

    A folder that is there keeps its mode: one that was made for several users stays theirs.
    """
    for folder in _missing(path):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def _missing(path: Path) -> list[Path]:
    """What of a folder and those above it is not there, from the top; raises NotADirectoryError where a file
    is in the place of one."""
    missing: list[Path] = []
    while not path.is_dir():
        if path.exists() and not path.is_dir():  # another process may just have made it
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        missing.append(path)
        path = path.parent
    return missing[::-1]


def results_folder() -> Path:
    """Where runs that name no output folder put theirs: ``NIGHTJAR_RESULTS``, else ``results`` in the working
    folder."""
    return named_path("", variable("NIGHTJAR_RESULTS") or "results")


def folder_within(root: Path, path: Path) -> Path:
    """Makes a folder at or below ``root``, and ``root`` itself if it is missing, and returns it.

    ``root`` is made for this user alone; what is below it is as open as ``root`` is, so that a root
    that is opened to others shares what is made in it later.
    """
    private_folder(root)
    mode = stat.S_IMODE(root.stat().st_mode)
    for folder in _missing(path):
        folder.mkdir(exist_ok=True)
        with suppress(PermissionError):  # another process made it
            folder.chmod(mode)
    return path


def as_open_as_its_folder(file: Path) -> None:
    """Lets those read, or write, a file of ours who may do so with its folder."""
    with suppress(PermissionError):
        file.chmod(stat.S_IMODE(file.parent.stat().st_mode) & 0o666)


_BUFFER = 1 << 20


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class FileUnwritable(NightjarError):
    """A file can't be written; on a disk of the network a second time may help."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, whose place it takes when the block ends well; else it is gone.

    A reader of ``path`` sees the old content or the new, never a part. Raises FileUnwritable.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        private_folder(path.parent)
        yield temporary
        as_open_as_its_folder(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise FileUnwritable(f"can't write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of ``path`` when the block ends well; what UTF-8 has no form for is
    ``?`` in it. Raises FileUnwritable."""
    with (
        whole_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        yield file


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes one JSON object a line, in UTF-8 with every character as it is; returns the number of lines."""
    lines = 0
    with whole_file(path) as temporary, temporary.open("wb", buffering=_BUFFER) as file:
        for row in rows:
            file.write(line(row))
            lines += 1
    return lines


def line(row: Mapping[str, Any]) -> bytes:
    """One row as a line of JSON. A number that is not finite becomes null: JSON has no word for it."""
    return orjson.dumps(row, default=_plain, option=_OPTIONS | orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} can't be exported as JSON")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes one JSON document, indented, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(
            orjson.dumps(
                document, default=_plain, option=_OPTIONS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            )
        )


def finite(value: float | None) -> float | None:
    """The number, None where it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def slug(name: str) -> str:
    """A name that can be a file's: letters, digits, dots and dashes.

    >>> slug("GSM8K (5-shot)")
    'GSM8K-5-shot'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "run"


def ui_key(name: str) -> str:
    """A name as a key of Prefect's UI: small letters, digits and dashes. One with other letters than ASCII's,
    which its key leaves out, has a digest in their place.

    >>> ui_key("GSM8K (5-shot)"), ui_key("数学")
    ('gsm8k-5-shot', '872c1fa1')
    """
    return _with_digest(re.sub("[^a-z0-9]+", "-", name.lower()).strip("-"), name)


def plain_name(name: str) -> str:
    """As ``ui_key``, with capital letters, dots and underlines too, as names of files and assets have them.

    >>> plain_name("GSM8K v1.2 (5-shot)")
    'GSM8K-v1.2-5-shot'
    """
    return _with_digest(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-"), name)


def _with_digest(key: str, name: str) -> str:
    if key and name.isascii():
        return key
    return "-".join(filter(None, (key, hashlib.sha256(name.encode()).hexdigest()[:8])))
