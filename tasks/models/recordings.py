"""Recorded responses in a JSONL or Parquet file, found by what they answer.

The file is read once to index it, 16 bytes a row, and then row by row as asked for; it may be larger than
memory.
"""

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.errors import DataError

JOINED = ("model_name", "prompt_template", "item_id", "sample_index")
OPEN_GROUPS = 4


@dataclass(frozen=True)
class Wanted:
    """Which recorded response: model and prompt template count only where the file has them."""

    model_name: str
    prompt_template: str
    item_id: str
    sample_index: int


class Source(Protocol):
    """Rows of a file by position."""

    def heads(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Every row's position, how a person finds it (``line 3``), and its joining fields."""
        ...

    def row(self, position: int) -> Mapping[str, Any]:
        """The row at a position."""
        ...


class Recordings:
    """An indexed file of responses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source: Source = ParquetSource(path) if path.suffix == ".parquet" else LinesSource(path)
        self.columns: frozenset[str] = frozenset()
        self._index()

    def find(self, wanted: Wanted) -> Mapping[str, Any] | None:
        """The recorded response; None when the file has none."""
        mark = self._mark(vars(wanted))
        at = int(np.searchsorted(self._marks, mark))
        if at == len(self._marks) or self._marks[at] != mark:
            return None
        return self._source.row(int(self._positions[at]))

    def _index(self) -> None:
        marks: list[int] = []
        positions: list[int] = []
        names: list[str] = []
        unnumbered: dict[str, int] = {}
        for position, name, head in self._source.heads():
            if not positions:
                self.columns = frozenset(column for column in JOINED if head.get(column) is not None)
            if head.get("item_id") is None:
                raise DataError(f"{self.path}: {name} has no item_id; recorded responses join on it")
            head = dict(head)
            if "sample_index" not in self.columns:
                group = str([head.get(column) for column in JOINED[:3]])
                head["sample_index"] = unnumbered[group] = unnumbered.get(group, -1) + 1
            marks.append(self._mark(head))
            positions.append(position)
            names.append(name)
        order = np.argsort(np.array(marks, np.uint64), kind="stable")
        self._marks: NDArray[np.uint64] = np.array(marks, np.uint64)[order]
        self._positions: NDArray[np.int64] = np.array(positions, np.int64)[order]
        twice = np.flatnonzero(self._marks[1:] == self._marks[:-1])
        if len(twice):
            first, second = (names[order[twice[0] + offset]] for offset in (0, 1))
            raise DataError(
                f"{self.path}: {first} and {second} answer the same item, sample, model and prompt; "
                "keep one of them"
            )

    def _mark(self, head: Mapping[str, Any]) -> int:
        parts = [
            str(head.get(name))
            for name in JOINED
            if name in self.columns or name in ("item_id", "sample_index")
        ]
        return int.from_bytes(
            hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).digest(), "big"
        )


class LinesSource:
    """JSONL; a position is a byte offset."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def heads(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """See ``Source``; raises DataError naming the line that is no JSON object."""
        position = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield position, f"line {number}", self._parsed(line, number)
                position += len(line)

    def row(self, position: int) -> Mapping[str, Any]:
        """See ``Source``."""
        with self._lock:
            if self._file is None:
                self._file = self._path.open("rb")
                weakref.finalize(self, self._file.close)
            self._file.seek(position)
            line = self._file.readline()
        return self._parsed(line, 0)

    def _parsed(self, line: bytes, number: int) -> Mapping[str, Any]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{self._path}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self._path}: line {number} is not a JSON object")
        return row


class ParquetSource:
    """Parquet; a position is a row number."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"can't read recorded responses {path}: {error}") from error
        self._lock = threading.Lock()
        groups = range(self._file.num_row_groups)
        sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def heads(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """See ``Source``."""
        columns = [name for name in JOINED if name in self._file.schema_arrow.names]
        position = 0
        for batch in self._file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield position, f"row {position + 1}", row
                position += 1

    def row(self, position: int) -> Mapping[str, Any]:
        """See ``Source``."""
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        with self._lock:
            if group not in self._groups:
                self._groups[group] = self._file.read_row_group(group)
                while len(self._groups) > OPEN_GROUPS:
                    self._groups.popitem(last=False)
            table = self._groups[group]
        rows: list[dict[str, Any]] = table.slice(position - int(self._starts[group]), 1).to_pylist()
        return rows[0]


_open: "OrderedDict[tuple[str, int, int], Recordings]" = OrderedDict()
_open_lock = threading.Lock()


def recordings_at(path: Path) -> Recordings:
    """The file's index, made once a process as long as the file does not change. Raises DataError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"can't read recorded responses {path}: {error.strerror or error}") from error
    place = (str(path.resolve()), status.st_mtime_ns, status.st_size)
    with _open_lock:
        if place not in _open:
            _open[place] = Recordings(path)
            while len(_open) > OPEN_GROUPS:
                _open.popitem(last=False)
        return _open[place]


def samples(value: Any) -> Iterable[Any]:
    """The samples in a field: a list holds one each, anything else is the only one."""
    return value if isinstance(value, list) else [value]
