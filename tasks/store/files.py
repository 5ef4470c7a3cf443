"""Files that are whole at any moment: written under a temporary name beside their place, then renamed."""

import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from metrics.errors import NightjarError
from tasks.store.home import as_open_as_its_folder, private_folder

_BUFFER = 1 << 20


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, whose place it takes when the block ends well; else it is gone.

    A reader of ``path`` sees the old content or the new, never a part. Raises NightjarError where the folder
    can't be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        private_folder(path.parent)
        yield temporary
        as_open_as_its_folder(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise NightjarError(
            f"can't write {path}: {error.strerror or error}; choose another --output"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
