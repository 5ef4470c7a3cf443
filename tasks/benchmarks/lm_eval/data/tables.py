"""Reads JSON, JSON Lines and CSV as Arrow tables with the types that ``datasets`` gives their columns:
those that Arrow infers of JSON, those that pandas infers of CSV.

``JsonReader`` reads the files of one dataset, ``read_csv`` one file.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as paj

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetError

BOM = b"\xef\xbb\xbf"
ValuePath = tuple[str | None, ...]
"""Where a value stands in a row: field names, None for "in every entry of the list"."""


class JsonReader:
    """Reads the files of one dataset.

    Arrow gives a field one type: numbers become floats where one is, text that reads like a date becomes one,
    fields that an object lacks are None. Values that have no common type (mappings with different keys among
    them) are kept as they were written: ``free`` holds their places, found in one file and held to in the
    next, and ``release`` puts them back.
    """

    def __init__(self, field: str | None = None, encoding: str = "utf-8") -> None:
        self._field = field
        self._encoding = encoding
        self.free: list[ValuePath] = []

    def table(self, data: bytes) -> pa.Table:
        """The table of a file with one object a line, a list of objects, or an object that holds them under a
        field."""
        rows = self._rows(
            data.removeprefix(BOM) if self._encoding == "utf-8" else data.decode(self._encoding).encode()
        )
        if not rows:
            return pa.table({})
        self._set_free(path for path in mixed_places(rows))
        while True:
            lines = "\n".join(
                json.dumps(_as_texts(row, self.free), ensure_ascii=False) for row in rows
            ).encode()
            options = paj.ReadOptions(use_threads=False, block_size=max(len(lines) + 1, 1 << 16))
            try:
                return paj.read_json(pa.BufferReader(lines), read_options=options)
            except pa.ArrowInvalid as error:
                self._set_free([_changing_place(error, rows)])

    def release(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the table with the values at free places as they were written."""
        for path in self.free:
            rows = [_changed_at(row, path, _as_value) for row in rows]
        return rows

    def _set_free(self, paths: Any) -> None:
        for path in paths:
            if not any(path[: len(known)] == known for known in self.free):
                self.free = [known for known in self.free if known[: len(path)] != path] + [path]

    def _rows(self, text: bytes) -> list[dict[str, Any]]:
        if self._field is not None:
            whole = _parsed(text)
            if not isinstance(whole, dict) or self._field not in whole:
                raise DatasetError(f"there is no field '{self._field}' (dataset_kwargs.field) in it")
            return _objects(whole[self._field])
        if text.lstrip()[:1] == b"[":
            return _objects(_parsed(text))
        try:
            return _objects([json.loads(line) for line in text.splitlines() if line.strip()])
        except json.JSONDecodeError:
            return _objects([_parsed(text)])


def mixed_places(rows: list[Any]) -> Iterator[ValuePath]:
    """Places whose values are mappings with different keys (or none), or of which only some are mappings or
    lists."""
    waiting: list[tuple[ValuePath, list[Any]]] = [((), rows)]
    while waiting:
        path, found = waiting.pop(0)
        values = [value for value in found if value is not None]
        if values and all(isinstance(value, dict) for value in values):
            if path and (not values[0] or any(set(value) != set(values[0]) for value in values)):
                yield path
                continue
            names = dict.fromkeys(name for value in values for name in value)
            waiting.extend(
                ((*path, name), [value[name] for value in values if name in value]) for name in names
            )
        elif values and all(isinstance(value, list) for value in values):
            waiting.append(((*path, None), [entry for value in values for entry in value]))
        elif any(isinstance(value, dict | list) for value in values):
            yield path


def _objects(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        raise DatasetError(f"expected a list of objects, got {type(values).__name__}")
    rows = [value if isinstance(value, dict) else {"text": value} for value in values]
    if (
        rows
        and any(isinstance(value, dict) for value in values)
        and not all(isinstance(value, dict) for value in values)
    ):
        raise DatasetError("expected an object in every row, some are something else")
    return rows


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DatasetError(
            f"malformed JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error


def _changing_place(error: pa.ArrowInvalid, rows: list[dict[str, Any]]) -> ValuePath:
    """The place that Arrow's message is about: "Column(/a/[]/b) changed from string to number"."""
    message = str(error)
    if "Column(" not in message or ") changed from" not in message:
        raise DatasetError(message) from error
    steps = message.split("Column(", 1)[1].split(") changed from", 1)[0].strip("/").split("/")
    return tuple(None if step == "[]" and steps[0] != "[]" else step for step in steps)


def _as_texts(row: dict[str, Any], free: list[ValuePath]) -> dict[str, Any]:
    changed: dict[str, Any] = row
    for path in free:
        changed = _changed_at(changed, path, _as_json)
    return changed


def _changed_at(value: Any, path: ValuePath, change: Any) -> Any:
    """``value`` with ``change`` applied at a place; what is not there stays away."""
    if value is None:
        return None
    if not path:
        return change(value)
    step, rest = path[0], path[1:]
    if step is None:
        return [_changed_at(entry, rest, change) for entry in value]
    return {**value, step: _changed_at(value[step], rest, change)} if step in value else value


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_value(value: str) -> Any:
    return json.loads(value)


# What pandas takes for a missing value.
MISSING: Final = frozenset(
    {
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
        "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    }
)  # fmt: skip
TRUE: Final = frozenset({"True", "TRUE", "true"})
FALSE: Final = frozenset({"False", "FALSE", "false"})
INTEGER: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
FLOAT: Final = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
INFINITE: Final = re.compile(r"\s*[+-]?(inf|infinity)\s*", re.IGNORECASE)
OPTIONS: Final = (
    "sep", "delimiter", "header", "names", "column_names", "quotechar", "escapechar", "doublequote",
    "skipinitialspace", "encoding", "keep_default_na", "na_filter", "na_values", "quoting",
)  # fmt: skip


def read_csv(data: bytes, options: Mapping[str, Any]) -> pa.Table:
    """The table of a CSV file; ``options`` are those of ``pandas.read_csv`` in ``OPTIONS``.

    Raises ConfigError for another option, DataError for a row with more fields than there are columns.
    """
    unknown = sorted(key for key, value in options.items() if key not in OPTIONS and value is not None)
    if unknown:
        raise ConfigError(
            f"dataset_kwargs.{unknown[0]} of dataset_path csv is not supported; {', '.join(OPTIONS)} are"
        )
    rows = _rows(data.decode(options.get("encoding") or "utf-8-sig"), options)
    names, body = _header(rows, options)
    missing = _missing(options)
    columns = [[row[index] if index < len(row) else None for row in body] for index in range(len(names))]
    return pa.Table.from_arrays([_typed_column(values, missing) for values in columns], names=names)


def _rows(text: str, options: Mapping[str, Any]) -> list[list[str]]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=options.get("delimiter") or options.get("sep") or ",",
        quotechar=options.get("quotechar") or '"',
        escapechar=options.get("escapechar"),
        doublequote=options.get("doublequote", True),
        skipinitialspace=options.get("skipinitialspace", False),
        quoting=options.get("quoting", csv.QUOTE_MINIMAL),
    )
    try:
        return [row for row in reader if row and not (len(row) == 1 and row[0] and row[0].isspace())]
    except csv.Error as error:
        raise DatasetError(f"line {reader.line_num}: malformed CSV: {error}") from error


def _header(rows: list[list[str]], options: Mapping[str, Any]) -> tuple[list[str], Sequence[list[str]]]:
    given = options.get("column_names") or options.get("names")
    header = options.get("header", "infer")
    if header == "infer":
        header = None if given else 0
    if header is not None and (not isinstance(header, int) or not 0 <= header < len(rows)):
        raise DatasetError(f"there is no line {header} for the header (dataset_kwargs.header)")
    body = rows if header is None else rows[header + 1 :]
    widest = max((len(row) for row in body), default=0)
    names = (
        list(given)
        if given
        else _unique(rows[header])
        if header is not None
        else [str(i) for i in range(widest)]
    )
    if widest > len(names):
        number = next(index for index, row in enumerate(body) if len(row) > len(names)) + (header or 0) + 2
        raise DatasetError(f"row {number} has {widest} fields, and there are {len(names)} columns")
    return names, body


def _unique(names: Sequence[str]) -> list[str]:
    """Column names as pandas makes them differ."""
    unique: list[str] = []
    for index, name in enumerate(names):
        base = name or f"Unnamed: {index}"
        candidate, count = base, 0
        while candidate in unique:
            count += 1
            candidate = f"{base}.{count}"
        unique.append(candidate)
    return unique


def _missing(options: Mapping[str, Any]) -> frozenset[str]:
    if options.get("na_filter") is False:
        return frozenset()
    own = options.get("na_values") or []
    listed = frozenset([own] if isinstance(own, str) else map(str, own))
    return listed if options.get("keep_default_na") is False else MISSING | listed


def _typed_column(values: list[str | None], missing: frozenset[str]) -> pa.Array:
    """The column as integers, floats, booleans or texts: the first of them that every value is."""
    cells = [None if value is None or value in missing else value for value in values]
    present = [value for value in cells if value is not None]
    if not present:
        return pa.array([None] * len(cells), pa.float64())
    if all(INTEGER.fullmatch(value) for value in present):
        numbers = [None if value is None else int(value) for value in cells]
        if len(present) == len(cells) and all(
            -(2**63) <= number < 2**63 for number in numbers if number is not None
        ):
            return pa.array(numbers, pa.int64())
        if len(present) == len(cells) and all(
            0 <= number < 2**64 for number in numbers if number is not None
        ):
            return pa.array(numbers, pa.uint64())
        if len(present) == len(cells):
            return pa.array(cells, pa.string())
    if all(FLOAT.fullmatch(value) or INFINITE.fullmatch(value) for value in present):
        return pa.array([None if value is None else float(value) for value in cells], pa.float64())
    if all(value in TRUE or value in FALSE for value in present):
        return pa.array([None if value is None else value in TRUE for value in cells], pa.bool_())
    return pa.array(cells, pa.string())
