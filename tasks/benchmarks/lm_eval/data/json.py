"""Reads JSON and JSON Lines as Arrow tables with the types that Arrow infers, as ``datasets`` does."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json as paj

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
