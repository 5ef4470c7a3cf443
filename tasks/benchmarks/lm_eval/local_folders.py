"""A folder of data files as a dataset: its format and its splits, told from the files' names as ``datasets``
tells them.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tasks.benchmarks.lm_eval.local_files import split_files
from tasks.datasets.errors import DataError

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
    return next((place for place in places if place.is_dir()), None)


def dataset_of(folder: Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The format of a folder's files and the options that read them, the files by split among them.

    Raises DataError for a folder without data files.
    """
    folder = folder / str(options.get("data_dir") or "")
    kept = {key: value for key, value in options.items() if key not in ("data_dir", "data_files")}
    given = options.get("data_files")
    files = _splits(folder, _data_files(folder)) if given is None else _named(folder, given)
    suffixes = Counter(Path(name).suffix for names in files.values() for name in names)
    known = [suffix for suffix in FORMATS if suffixes[suffix]]
    if not known:
        raise DataError(f"folder {folder} holds no data files; known are {', '.join(FORMATS)}")
    builder = FORMATS[max(known, key=lambda suffix: suffixes[suffix])]
    readable = {
        split: [name for name in names if FORMATS.get(Path(name).suffix) == builder]
        for split, names in files.items()
    }
    return builder, {**kept, "data_files": {split: names for split, names in readable.items() if names}}


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
