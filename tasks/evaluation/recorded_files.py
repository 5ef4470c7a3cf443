"""Files of recorded responses: JSON Lines and Parquet, read from front to back and at chosen rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.errors import NightjarError

Row = Mapping[str, Any]


class RecordedRows(ABC):
    """A file's rows as mappings, with the place that each can be found at again."""

    def __init__(self, path: Path):
        self.path = path

    @abstractmethod
    def scan(self) -> Iterator[tuple[int, Row]]:
        """(place, row) of every row in order; only the fields that decide who it belongs to need be there."""

    @abstractmethod
    def at(self, places: Sequence[int]) -> Iterator[Row]:
        """The whole rows at ``places`` (ascending)."""

    @abstractmethod
    def where(self, place: int) -> str:
        """The place in words, for an error."""


class JsonLines(RecordedRows):
    """One JSON object a line; a place is the offset of its first byte."""

    def scan(self) -> Iterator[tuple[int, Row]]:
        """Every line but blank ones; raises NightjarError naming the line that is no JSON object."""
        offset = 0
        with self.path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.isspace():
                    yield offset, self._read(text, f"{self.path}:{number}")
                offset += len(text)

    def at(self, places: Sequence[int]) -> Iterator[Row]:
        """The lines that begin at the offsets."""
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place)
                yield self._read(file.readline(), f"{self.path} at byte {place}")

    def where(self, place: int) -> str:
        """The number of the line, counted now: errors are rare."""
        with self.path.open("rb") as file:
            lines, rest = 1, place
            while rest > 0 and (block := file.read(min(rest, 1 << 20))):
                lines += block.count(b"\n")
                rest -= len(block)
        return f"{self.path}:{lines}"

    @staticmethod
    def _read(text: bytes, where: str) -> Row:
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise NightjarError(f"{where}: expected one response as a JSON object a line: {error}") from error
        if not isinstance(row, dict):
            raise NightjarError(f"{where}: expected a JSON object, found {type(row).__name__}")
        return row


_IDENTITY = ("item_id", "sample_id", "sample_index", "model_name", "prompt_template")


class ParquetRows(RecordedRows):
    """The rows of a Parquet file; a place is the row's number."""

    def __init__(self, path: Path):
        super().__init__(path)
        try:
            with pq.ParquetFile(path) as file:
                self._names = file.schema_arrow.names
                sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        except (pa.ArrowInvalid, OSError) as error:
            raise NightjarError(f"{path}: not a readable Parquet file: {error}") from error
        self._ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
        self._group = lru_cache(maxsize=2)(self._load)

    def scan(self) -> Iterator[tuple[int, Row]]:
        """Every row, with the columns that decide who it belongs to."""
        place = 0
        columns = [name for name in _IDENTITY if name in self._names]
        with pq.ParquetFile(self.path, pre_buffer=False) as file:
            for batch in file.iter_batches(4096, columns=columns):
                for row in batch.to_pylist():
                    yield place, row
                    place += 1

    def at(self, places: Sequence[int]) -> Iterator[Row]:
        """The rows of those numbers; two row groups are kept in memory, so rows in order are cheap."""
        groups = np.searchsorted(self._ends, places, side="right").tolist()
        for number, together in groupby(zip(groups, places, strict=True), key=itemgetter(0)):
            start = int(self._ends[number - 1]) if number else 0
            rows = self._group(number).take([place - start for _, place in together])
            yield from rows.to_pylist()

    def where(self, place: int) -> str:
        """The number of the row, from 1."""
        return f"{self.path}: row {place + 1}"

    def _load(self, number: int) -> pa.Table:
        with pq.ParquetFile(self.path, pre_buffer=False) as file:
            return file.read_row_group(number)


def recorded_rows(path: Path) -> RecordedRows:
    """The file by its suffix; raises NightjarError where it is not there or of another kind."""
    if not path.is_file():
        raise NightjarError(f"{path} is not there; expected recorded responses (.jsonl or .parquet)")
    match path.suffix:
        case ".jsonl" | ".ndjson":
            return JsonLines(path)
        case ".parquet":
            return ParquetRows(path)
        case suffix:
            raise NightjarError(
                f"{path}: recorded responses are .jsonl or .parquet files, not {suffix or 'this'}"
            )
