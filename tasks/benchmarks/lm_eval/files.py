"""Reads splits from local JSON, CSV, Parquet and text files, row for row as ``datasets.load_dataset``
does, with the types that it gives columns: those that Arrow infers of JSON, those that pandas infers of
CSV.

Of a folder of data files the format and the splits are told from the files' names, as ``datasets`` tells
them. ``JsonReader`` reads the JSON files of one dataset, ``read_csv`` one file.
"""

import csv
import glob
import gzip
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as paj

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetError
from tasks.datasets.items import python_rows, refuse_twins
from tasks.store.home import named_path
from tasks.usercode.surroundings import Documents

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
            rows = [_changed_at(row, path, json.loads) for row in rows]
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
        changed = _changed_at(changed, path, partial(json.dumps, ensure_ascii=False))
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
    rows = _csv_rows(data.decode(options.get("encoding") or "utf-8-sig"), options)
    names, body = _header(rows, options)
    missing = _missing(options)
    columns = [[row[index] if index < len(row) else None for row in body] for index in range(len(names))]
    return pa.Table.from_arrays([_typed_column(values, missing) for values in columns], names=names)


def _csv_rows(text: str, options: Mapping[str, Any]) -> list[list[str]]:
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


BUILDERS: Final = ("json", "csv", "parquet", "text")
# Options of load_dataset that decide how it works and not what comes out.
WITHOUT_EFFECT: Final = frozenset(
    {
        "trust_remote_code",
        "verification_mode",
        "cache_dir",
        "download_mode",
        "num_proc",
        "keep_in_memory",
        "token",
    }
)
REMOTE: Final = ("hf://", "http://", "https://", "s3://", "zip://")


def is_local(path: str | None, options: Mapping[str, Any]) -> bool:
    """Whether plain readers suffice: one of their formats, and files on this machine."""
    return path in BUILDERS and not any(
        str(file).startswith(REMOTE)
        for files in split_files(options.get("data_files")).values()
        for file in files
    )


def split_files(data_files: Any) -> dict[str, list[str]]:
    """Split → files; files without a split are the split "train"."""
    if data_files is None:
        return {}
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    return {str(split): _file_names(files) for split, files in by_split.items()}


def _file_names(files: Any) -> list[str]:
    names = [files] if isinstance(files, str) else files if files is not None else []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "dataset_kwargs.data_files: expected a file, a list of files, or these by split; got "
            f"{repr(files)[:80]}"
        )
    return list(names)


def paths_of(files: Sequence[str], base_dir: Path, options: Mapping[str, Any]) -> list[Path]:
    """The files behind names and glob patterns: relative to ``data_dir``, the definition's folder or the
    working folder."""
    folders = [base_dir, Path.cwd()]
    if options.get("data_dir"):
        folders = [named_path(folder, str(options["data_dir"])) for folder in folders]
    found: list[Path] = []
    for name in files:
        candidates = (sorted(glob.glob(str(named_path(folder, name)), recursive=True)) for folder in folders)
        matches = next((paths for paths in candidates if paths), [])
        if not matches:
            places = " nor in ".join(dict.fromkeys(str(folder) for folder in folders))
            raise DatasetError(f"data file '{name}' is not in {places}")
        found.extend(Path(path) for path in matches if Path(path).is_file())
    return found


def load_local(builder: str, options: Mapping[str, Any], base_dir: Path) -> dict[str, Documents]:
    """Every split of the files named by ``dataset_kwargs``; raises ConfigError for an option that has no
    meaning here."""
    splits = split_files(options.get("data_files"))
    if not splits:
        raise ConfigError(
            f"dataset_path {builder} needs dataset_kwargs.data_files: a file, a list, or files by split"
        )
    reading = {
        key: value for key, value in options.items() if key not in WITHOUT_EFFECT | {"data_files", "data_dir"}
    }
    if builder == "json":
        _refuse_options("json", reading, ("field", "encoding", "chunksize"))
    objects = JsonReader(reading.get("field"), reading.get("encoding") or "utf-8")
    read = objects.table if builder == "json" else lambda data: READERS[builder](data, reading)
    tables = {
        split: [(path.name, _read(read, builder, path)) for path in paths_of(files, base_dir, options)]
        for split, files in splits.items()
    }
    return _with_one_schema(tables, objects.release)


def _read(read: Callable[[bytes], pa.Table], builder: str, path: Path) -> pa.Table:
    try:
        data = path.read_bytes()
        return read(gzip.decompress(data) if path.suffix == ".gz" else data)
    except RecursionError as error:
        raise DatasetError(f"{path.name}: lists or mappings nested far too deep") from error
    except Exception as error:  # the readers are libraries: what they raise for bytes that are no such file
        if isinstance(error, ConfigError) and not isinstance(error, DatasetError):
            raise
        said = str(error) if isinstance(error, OSError | ValueError | pa.ArrowException) else repr(error)
        raise DatasetError(f"{path.name} can't be read as {builder}: {said}") from error


def _read_parquet(data: bytes, options: Mapping[str, Any]) -> pa.Table:
    import pyarrow.parquet as pq

    _refuse_options("parquet", options, ("columns", "batch_size"))
    return pq.read_table(pa.BufferReader(data), columns=options.get("columns"))


def _read_text(data: bytes, options: Mapping[str, Any]) -> pa.Table:
    _refuse_options("text", options, ("keep_linebreaks", "sample_by", "encoding"))
    with io.TextIOWrapper(io.BytesIO(data), options.get("encoding") or "utf-8") as file:
        text = file.read()  # \r\n and \r are \n
    kind = options.get("sample_by", "line")
    if kind == "document":
        parts = [text]
    elif kind == "paragraph":
        parts = [part for part in text.split("\n\n") if part]
    else:
        lines = io.StringIO(text).readlines()  # other signs end no line
        parts = lines if options.get("keep_linebreaks") else [line.removesuffix("\n") for line in lines]
    return pa.table({"text": pa.array(parts, pa.string())})


def _refuse_options(builder: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(key for key, value in options.items() if key not in tuple(known) and value is not None)
    if unknown:
        raise ConfigError(
            f"dataset_kwargs.{unknown[0]} of dataset_path {builder} is not supported; {', '.join(known)} are"
        )


READERS: Final[Mapping[str, Callable[[bytes, Mapping[str, Any]], pa.Table]]] = {
    "csv": read_csv,
    "parquet": _read_parquet,
    "text": _read_text,
}


def _with_one_schema(
    tables: Mapping[str, Sequence[tuple[str, pa.Table]]],
    finish: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
) -> dict[str, Documents]:
    """All files, each a name and a table, with the columns of the first one, as ``datasets`` casts them;
    columns they lack are None."""
    for name, table in (part for parts in tables.values() for part in parts):
        refuse_twins(table.column_names, name)
    first = next((table.schema for parts in tables.values() for _, table in parts), None)
    if first is None:
        raise DatasetError("the dataset names no files")
    return {
        split: Documents(
            (row for name, table in parts for row in finish(_rows(name, table, first))), first.names
        )
        for split, parts in tables.items()
    }


def _rows(name: str, table: pa.Table, schema: pa.Schema) -> list[dict[str, Any]]:
    extra = [name for name in table.column_names if name not in schema.names]
    if extra:
        raise DatasetError(
            f"{name} has the column '{extra[0]}', which the dataset's first file does not have"
        )
    columns = []
    for field in schema:
        column = table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type)
        columns.append(column.cast(field.type) if column.type != field.type else column)
    return python_rows(pa.Table.from_arrays(columns, schema=schema), f"{name}, row", 1)


FORMATS: Final = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".txt": "text",
}
"""Suffix → format; of suffixes that are equally common the first here is taken."""
IGNORED: Final = frozenset(
    {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
)
KEYWORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
ORDER: Final = {split: place for place, split in enumerate(KEYWORDS)}
_in_folders = {
    split: re.compile(rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})(?:[-._ 0-9]|$)")
    for split, words in KEYWORDS.items()
}
_in_names = {
    split: re.compile(rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})[-._ 0-9]") for split, words in KEYWORDS.items()
}
_shard = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}.*\..*")


def folder_at(path: str | None, base_dir: Path) -> Path | None:
    """The folder that ``dataset_path`` names, relative to the definition or to the working folder; None for
    the name of a format or of a dataset elsewhere.
    """
    if path is None:
        return None
    places = (named_path(base_dir, path), named_path(Path.cwd(), path))
    return next((place for place in places if os.path.isdir(place)), None)  # whatever text it is


def dataset_of(folder: Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The format of a folder's files and the options that read them, the files by split among them.

    Raises DataError for a folder without data files.
    """
    folder = folder / str(options.get("data_dir") or "")
    remaining = {key: value for key, value in options.items() if key not in ("data_dir", "data_files")}
    given = options.get("data_files")
    files = _splits(folder, _data_files(folder)) if given is None else _named(folder, given)
    suffixes = Counter(Path(name).suffix for names in files.values() for name in names)
    known = [suffix for suffix in FORMATS if suffixes[suffix]]
    if not known:
        raise DatasetError(f"folder {folder} holds no data files; known are {', '.join(FORMATS)}")
    builder = FORMATS[max(known, key=lambda suffix: suffixes[suffix])]
    readable = {
        split: [name for name in names if FORMATS.get(Path(name).suffix) == builder]
        for split, names in files.items()
    }
    return builder, {**remaining, "data_files": {split: names for split, names in readable.items() if names}}


def _named(folder: Path, given: Any) -> dict[str, list[str]]:
    """The files that ``data_files`` names, in the folder."""
    return {split: [str(folder / name) for name in names] for split, names in split_files(given).items()}


def _data_files(folder: Path) -> list[Path]:
    """All files below a folder but hidden ones and descriptions, as paths from there."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        path
        for path in paths
        if path.name not in IGNORED and not any(part.startswith((".", "__")) for part in path.parts)
    ]


def _splits(folder: Path, files: list[Path]) -> dict[str, list[str]]:
    """Files by split: by shards' names, else folders', else files' own; all are "train" where none tells."""
    shards = [(match["split"], path) for path in files if (match := _shard.fullmatch(path.name))]
    by_folder = [(split, path) for path in files for split in _matching(path.parts[:-1], _in_folders)]
    by_name = [(split, path) for path in files for split in _matching(path.parts[-1:], _in_names)]
    found: dict[str, list[str]] = {}
    for split, path in shards or by_folder or by_name or [("train", path) for path in files]:
        found.setdefault(split, []).append(str(folder / path))
    # The first split's first file decides the columns.
    return dict(sorted(found.items(), key=lambda entry: (ORDER.get(entry[0], len(ORDER)), entry[0])))


def _matching(names: tuple[str, ...], patterns: Mapping[str, re.Pattern[str]]) -> list[str]:
    return [split for split, pattern in patterns.items() if any(map(pattern.search, names))]
