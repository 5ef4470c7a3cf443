"""Reads CSV as Arrow tables with the types that pandas infers, as ``datasets`` does."""

import csv
import io
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetError

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
