"""Reads rows of JSONL, JSON, CSV and Parquet files one at a time, each with the place that it came from."""

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tasks.datasets.config import DatasetError
from tasks.store.keys import file_digest

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_ROWS: Final = 1024
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SourceRow(NamedTuple):
    """A row as it was read. ``place`` continues the source's name in a message: ":12" or ", row 3"."""

    place: str
    value: Any


def read_rows(path: Path) -> Iterator[SourceRow]:
    """The rows of a file by its suffix, in order; only JSON is read as a whole.

    Raises DataError naming the file, and the line where one is at fault.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DatasetError(
            f"{path.name}: a dataset file ends in {', '.join(READERS)}; got '{path.suffix or path.name}'"
        )
    if not os.path.isfile(path):  # unlike Path's, this takes every text, one too long for a name included
        found = "is a folder, not a file" if os.path.isdir(path) else "is not there"
        raise DatasetError(f"{path.name} {found}: expected a dataset at {path}")
    try:
        yield from reader(path)
    except OSError as error:
        raise DatasetError(f"{path.name} can't be read: {error.strerror or error}") from error


def data_digest(path: Path) -> str:
    """SHA-256 over the bytes of a data file, 64 hexadecimal digits; raises DatasetError."""
    try:
        return file_digest(path)
    except OSError as error:
        raise DatasetError(f"{path.name} can't be read: {error.strerror or error} ({path})") from error


def row_places(path: Path, positions: Collection[int]) -> dict[int, str]:
    """Position of a row → where it stands, as "questions.jsonl:7"; empty where the file is not there any
    more."""
    if not positions:
        return {}
    try:
        numbered = path.suffix.lower() == ".jsonl"
        rows = _numbers(path) if numbered else (row.place for row in read_rows(path))
        last = max(positions)
        wanted = set(positions)
        return {
            position: f"{path.name}{place}"
            for position, place in islice(enumerate(rows), last + 1)
            if position in wanted
        }
    except (OSError, DatasetError):
        return {}


def _numbers(path: Path) -> Iterator[str]:
    """The places of a JSONL file's rows, none of which is parsed."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f":{number}"


def _jsonl(path: Path) -> Iterator[SourceRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.strip():
                place = f":{number}"
                yield SourceRow(place, parse_json(line.strip(), f"{path.name}{place}"))


def _json(path: Path) -> Iterator[SourceRow]:
    rows = parse_json(path.read_bytes().removeprefix(BYTE_ORDER_MARK), path.name)
    if not isinstance(rows, list):
        raise DatasetError(f"{path.name}: expected a JSON list of items, got {type_name(rows)}")
    for number, row in enumerate(rows, 1):
        yield SourceRow(f", item {number}", row)


def parse_json(text: bytes, where: str) -> Any:
    """The JSON value of ``text``; raises DataError naming ``where`` and the fault. NaN and infinities are
    no JSON.
    """
    try:
        return _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{where}: is not UTF-8 (byte {error.start + 1}); save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        spot = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise DatasetError(f"{where}: malformed JSON at {spot}: {error.msg}") from error
    except RecursionError as error:
        raise DatasetError(f"{where}: malformed JSON: lists or mappings nested far too deep") from error
    except ValueError as error:
        raise DatasetError(f"{where}: malformed JSON: {error}") from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values; raises ValueError for a key that is there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON value; write null")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_without_twins)


def _csv(path: Path) -> Iterator[SourceRow]:
    csv.field_size_limit(sys.maxsize)  # the module's default refuses documents beyond 128 KB
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            refuse_twins(header, f"{path.name}:1")
            start = reader.line_num + 1
            for values in reader:
                if values:
                    yield SourceRow(f":{start}", _csv_row(header, values, f"{path.name}:{start}"))
                start = reader.line_num + 1
        except csv.Error as error:
            raise DatasetError(f"{path.name}:{reader.line_num}: malformed CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{path.name}: is not UTF-8 after line {reader.line_num}; save the file as UTF-8"
            ) from error


def _csv_row(header: list[str], values: list[str], where: str) -> dict[str, str]:
    if len(values) != len(header):
        raise DatasetError(f"{where}: {len(values)} fields, but the header has {len(header)} columns")
    return dict(zip(header, values, strict=True))


def _parquet(path: Path) -> Iterator[SourceRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            refuse_twins(file.schema_arrow.names, path.name)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in python_rows(batch, f"{path.name}, row", number + 1):
                    number += 1
                    yield SourceRow(f", row {number}", row)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path.name} is not a Parquet file that can be read: {error}") from error


def refuse_twins(columns: Sequence[str], where: str) -> None:
    """Raises DataError for a column that is there twice."""
    for name, times in Counter(columns).items():
        if times > 1:
            raise DatasetError(f"{where}: column '{name}' stands in the header twice")


def python_rows(batch: "pa.RecordBatch | pa.Table", where: str, first: int) -> list[dict[str, Any]]:
    """The rows of an Arrow table as Python values.

    Raises DataError naming the row (the first is number ``first``) and the column whose value Python has no
    equal of: a date outside the years 1 to 9999, an unknown time zone, bytes that are no text.
    """
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except Exception:  # whatever Arrow raises: a value, a zone, a text; found by looking at each
        rows = [_python_row(batch.slice(row, 1), f"{where} {first + row}") for row in range(batch.num_rows)]
    return rows


def _python_row(row: "pa.RecordBatch | pa.Table", where: str) -> dict[str, Any]:
    values = {}
    for name in row.schema.names:
        try:
            values[name] = row.column(name)[0].as_py()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise DatasetError(f"{where}: field '{name}' can't be read as Python has it ({said})") from error
    return values


READERS: Final[dict[str, Callable[[Path], Iterator[SourceRow]]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def type_name(value: Any) -> str:
    """What a JSON-like value is, in the words of a message."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), f"a value of type {type(value).__name__}")
