"""Files of recorded responses, found row by row: by item and sample, and by model and prompt where they say
these.

A JSONL or Parquet file is read once to index it, 24 bytes a row, and then row by row as asked for; it may be
larger than memory.
"""

import hashlib
import math
import os
import re
import threading
import weakref
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.errors import DataError
from tasks.datasets.config import DatasetError, parsed_json
from tasks.models.errors import MalformedBody
from tasks.models.usage import IMPLAUSIBLE_COUNT
from tasks.models.wire import mended
from tasks.store.thresholds import Threshold


@dataclass(frozen=True)
class RecordedRow:
    """A recorded response: its fields, how a person finds it, and its place in its file, from 1."""

    fields: Mapping[str, Any]
    place: str = ""
    number: int | None = None


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number, and a finite one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def whole_number(value: Any) -> int | None:
    """A value of JSON as a count; None where it is none."""
    whole = is_number(value) and value == int(value) and 0 <= value < IMPLAUSIBLE_COUNT
    return int(value) if whole else None


def shown(value: Any) -> str:
    """A value as a message repeats it, cut where it is long."""
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


JOIN_FIELDS = ("model_name", "prompt_template", "item_id", "sample_index")
OPEN_GROUPS = Threshold("recorded_groups_open", 4)


@dataclass(frozen=True)
class RecordedKey:
    """Which recorded response: model and prompt template count only where the file has them."""

    model_name: str
    prompt_template: str
    item_id: str
    sample_index: int


class RecordedRows(Protocol):
    """Rows of a file by position; ``unit`` is what a person counts in it: lines or rows."""

    unit: str

    def heads(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Every row's position, its number from 1, and its joining fields."""
        ...

    def row(self, position: int) -> Mapping[str, Any]:
        """The row at a position."""
        ...


class RecordingFile:
    """An indexed file of responses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source: RecordedRows = ParquetSource(path) if path.suffix == ".parquet" else LinesSource(path)
        self.columns: frozenset[str] = frozenset()
        self.models: Counter[str] = Counter()
        """Rows by model_name; empty for a file without such a field."""
        self.most_samples = 0
        """Of the item with the highest sample_index."""
        self.metadata_prompts: tuple[str, ...] = ()
        """What rows say in ``metadata.prompt_template``, where they say their prompt there alone."""
        if not self._index() and len(self.metadata_prompts) > 1:
            self.models.clear()
            self._index(by_metadata=True)

    @property
    def rows(self) -> int:
        """How many responses the file holds."""
        return len(self._hashes)

    def find(self, key: RecordedKey) -> RecordedRow | None:
        """The recorded response; None when the file has none."""
        row_hash = _row_hash([getattr(key, name) if name in self.columns else None for name in JOIN_FIELDS])
        at = bisect_left(self._ordered, row_hash)
        if at == len(self._ordered) or self._ordered[at] != row_hash:
            return None
        number = int(self._numbers[at])
        place = f"{self.path}: {self._source.unit} {number}"
        return RecordedRow(self._source.row(int(self._positions[at])), place, number)

    def _index(self, by_metadata: bool = False) -> bool:
        """Whether the index can be used: rows that tell their prompts apart ``by_metadata`` need one so."""
        hashes: list[int] = []
        positions: list[int] = []
        numbers: list[int] = []
        unnumbered: dict[tuple[str | None, ...], int] = {}
        shapes: dict[tuple[bool, bool], int] = {}  # which of model and prompt a row has → the first such row
        said: dict[str | None, None] = {}
        for position, number, head in self._source.heads():
            parts = self._parts(head, number)
            if parts[1] is None:
                said[found := _prompt_in_metadata(head)] = None
                parts[1] = found if by_metadata else None
            model, prompt, item, index = parts
            shape = (model is not None, prompt is not None)
            if shape not in shapes:
                shapes[shape] = number
            if model is not None:
                self.models[model] += 1
            if index is None:
                group = (model, prompt, item)
                place = unnumbered[group] = unnumbered.get(group, -1) + 1
                sample_id = head.get("sample_id")
                named = _SAMPLE.search(str(sample_id)) if sample_id else None
                parts[3] = index = named[1] if named else str(place)
            if int(index) >= self.most_samples:
                self.most_samples = int(index) + 1
            hashes.append(_row_hash(parts))
            positions.append(position)
            numbers.append(number)
        self.columns = frozenset({*self._named(shapes), "item_id", "sample_index"})
        if None not in said and (by_metadata or "prompt_template" not in self.columns):
            self.metadata_prompts = tuple(map(str, said))
            if len(said) > 1 and not by_metadata:
                return False
        self._sort(hashes, positions, numbers)
        return True

    def _parts(self, head: Mapping[str, Any], number: int) -> list[str | None]:
        """What row ``number`` joins on, by JOIN_FIELDS; an index that it does not say is None."""
        model, prompt, item, index = parts = [head.get(name) for name in JOIN_FIELDS]
        if type(item) is str and model is None and prompt is None and index is None:
            return parts  # by far the most are such
        where = f"{self.path}: {self._source.unit} {number}"
        if item is None:
            raise DataError(f"{where} has no item_id; recorded responses join on it")
        return [_joining(where, name, value) for name, value in zip(JOIN_FIELDS, parts, strict=True)]

    def _named(self, shapes: Mapping[tuple[bool, bool], int]) -> Iterator[str]:
        """Those of model and prompt that rows name, all of them or none."""
        for at, name in enumerate(JOIN_FIELDS[:2]):
            first = {
                named: min(n for s, n in shapes.items() if s[at] is named)
                for named in {s[at] for s in shapes}
            }
            if len(first) > 1:
                unit = self._source.unit
                raise DataError(
                    f"{self.path}: {unit} {first[False]} has no {name}, and {unit} {first[True]} has one; "
                    "recorded responses join on it, so give it to all rows or to none"
                )
            if True in first:
                yield name

    def _sort(self, hashes: list[int], positions: list[int], numbers: list[int]) -> None:
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")
        self._hashes: NDArray[np.uint64] = np.array(hashes, np.uint64)[order]
        self._ordered = self._hashes.data  # one value is found sooner in it than in an array of numpy
        self._positions: NDArray[np.int64] = np.array(positions, np.int64)[order]
        self._numbers: NDArray[np.int64] = np.array(numbers, np.int64)[order]
        twice = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if len(twice):
            first, second = (self._numbers[twice[0] + offset] for offset in (0, 1))
            raise DataError(
                f"{self.path}: {self._source.unit} {first} and {self._source.unit} {second} answer the same "
                "item, sample, model and prompt; keep one of them"
            )


def _prompt_in_metadata(head: Mapping[str, Any]) -> str | None:
    metadata = head.get("metadata")
    prompt = metadata.get("prompt_template") if isinstance(metadata, Mapping) else None
    return prompt if isinstance(prompt, str) and prompt else None


def says_prompts_in_metadata(path: Path) -> bool:
    """Whether the first row of a file of responses names its prompt in its metadata alone; raises DataError
    or OSError for a file that can't be read."""
    source: RecordedRows = ParquetSource(path) if path.suffix == ".parquet" else LinesSource(path)
    first = next((head for _, _, head in source.heads()), None)
    return first is not None and first.get("prompt_template") is None and bool(_prompt_in_metadata(first))


_SAMPLE = re.compile(r"_sample_(\d+)$")


def _joining(where: str, name: str, value: Any) -> str | None:
    """A field that rows join on as text; raises DataError where it is of a type that nothing joins on."""
    if value is None or (isinstance(value, str) and name != "sample_index"):
        return value
    if name == "sample_index":
        index = int(value) if isinstance(value, str) and value.isdecimal() else whole_number(value)
        if index is None:
            raise DataError(f"{where}: sample_index is {shown(value)}; expected a whole number from 0")
        return str(index)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"{where}: {name} is {shown(value)}; expected text or a number")
    return str(value)


def _row_hash(parts: Sequence[Any]) -> int:
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class LinesSource:
    """JSONL; a position is a byte offset."""

    unit = "line"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def heads(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """See ``RecordedRows``; raises DataError naming the line that is no JSON object."""
        position = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield position, number, self._parsed(line, number)
                position += len(line)

    def row(self, position: int) -> Mapping[str, Any]:
        """See ``RecordedRows``."""
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
        except orjson.JSONDecodeError:
            row = self._parsed_as_python(line, number)
        if not isinstance(row, dict):
            raise DataError(f"{self._path}: line {number} is not a JSON object")
        return row

    def _parsed_as_python(self, line: bytes, number: int) -> Any:
        """JSON as Python writes it, with a question mark for half a character, as in the same reply."""
        try:
            return mended(parsed_json(line, f"{self._path}: line {number}"))
        except (DatasetError, MalformedBody) as error:
            raise DataError(str(error)) from error


class ParquetSource:
    """Parquet; a position is a row number."""

    unit = "row"

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"can't read recorded responses {path}: {error}") from error
        self._lock = threading.Lock()
        groups = range(self._file.num_row_groups)
        sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def heads(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """See ``RecordedRows``."""
        known = self._file.schema_arrow.names
        columns = [name for name in (*JOIN_FIELDS, "sample_id", "metadata") if name in known]
        position = 0
        for batch in self._file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield position, position + 1, row
                position += 1

    def row(self, position: int) -> Mapping[str, Any]:
        """See ``RecordedRows``."""
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        with self._lock:
            if group not in self._groups:
                self._groups[group] = self._file.read_row_group(group)
                while len(self._groups) > OPEN_GROUPS:
                    self._groups.popitem(last=False)
            table = self._groups[group]
        rows: list[dict[str, Any]] = table.slice(position - int(self._starts[group]), 1).to_pylist()
        return rows[0]


_open: "OrderedDict[tuple[str, int, int], RecordingFile]" = OrderedDict()
_open_lock = threading.Lock()


def recorded_counts(path: Path) -> tuple[int, dict[str, int]]:
    """How many responses the file holds, and how many of each model that it names. Raises DataError."""
    recording = recording_file(path)
    return recording.rows, dict(recording.models)


def recording_file(path: Path) -> RecordingFile:
    """The file's index, made once a process as long as the file does not change. Raises DataError."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # no such file, or no name that a file can have
        said = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"can't read recorded responses {path}: {said}") from error
    version = (str(path.resolve()), status.st_mtime_ns, status.st_size)
    with _open_lock:
        if version not in _open:
            _open[version] = RecordingFile(path)
            while len(_open) > OPEN_GROUPS:
                _open.popitem(last=False)
        return _open[version]
