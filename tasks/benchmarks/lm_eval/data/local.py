"""Reads splits from local JSON, CSV, Parquet and text files, row for row as ``datasets.load_dataset`` does.

Of a folder of data files the format and the splits are told from the files' names, as ``datasets`` tells
them.
"""

import glob
import gzip
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.data.tables import JsonReader, read_csv
from tasks.datasets.config import DatasetError
from tasks.datasets.files import python_rows, refuse_twins
from tasks.usercode.documents import Documents

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
        folders = [folder / Path(str(options["data_dir"])).expanduser() for folder in folders]
    found: list[Path] = []
    for name in files:
        candidates = (
            sorted(glob.glob(str(folder / Path(name).expanduser()), recursive=True)) for folder in folders
        )
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
    text = data.decode(options.get("encoding") or "utf-8")
    kind = options.get("sample_by", "line")
    if kind == "document":
        return pa.table({"text": [text]})
    if kind == "paragraph":
        return pa.table({"text": [part for part in text.split("\n\n") if part]})
    lines = text.splitlines(keepends=bool(options.get("keep_linebreaks")))
    return pa.table({"text": pa.array(lines, pa.string())})


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
    places = (base_dir / Path(path).expanduser(), Path.cwd() / Path(path).expanduser())
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
