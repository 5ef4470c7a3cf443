"""Definitions found in folders of YAML, and what a person's ``--tasks`` selects of them.

The harness calls them tasks; a *definition* is one of its benchmarks before anything is translated. A group is a list of
definitions with a score of its own, a tag a list without one.
"""

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from metrics.errors import ConfigError, NightjarError, nearest
from tasks.benchmarks.lm_eval.reading import Reader

IGNORED_FOLDERS = frozenset({"__pycache__", ".ipynb_checkpoints"})
Kind = Literal["benchmark", "group", "tag"]


@dataclass(frozen=True)
class Definition:
    """One benchmark of the harness: its keys with includes and overrides merged, and the file it stands in."""

    name: str
    path: Path
    config: Mapping[str, Any]

    @property
    def where(self) -> str:
        """The file, and the name where the file holds several."""
        return str(self.path)


@dataclass(frozen=True)
class Entry:
    """What a name of the index stands for. ``members`` are the names behind a tag."""

    name: str
    kind: Kind
    path: Path
    config: Mapping[str, Any]
    members: tuple[str, ...] = ()


@dataclass
class Index:
    """Names of folders of definitions. Filled once by ``build``; later folders win over earlier ones."""

    reader: Reader = field(default_factory=Reader)
    entries: dict[str, Entry] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add_folder(self, folder: Path) -> None:
        """Adds every ``*.yaml`` below the folder; a file that can't be read is a warning, others may not need it."""
        if not folder.is_dir():
            raise ConfigError(f"--include-path {folder} is not a folder of lm-evaluation-harness definitions")
        found: dict[str, Entry] = {}
        for path in yaml_files(folder):
            self.add_file(path, found)
        for name in found.keys() & self.entries.keys():
            if found[name].kind != "tag":
                self.warnings.append(
                    f"'{name}' of {found[name].path} replaces that of {self.entries[name].path}"
                )
        self.entries.update(found)

    def add_file(self, path: Path, found: dict[str, Entry] | None = None) -> None:
        """Adds what one file defines; of two definitions of a name, the first stays."""
        entries = self.entries if found is None else found
        try:
            config = self.reader.read(path)
        except NightjarError as error:
            self.warnings.append(f"left out: {error}")
            return
        for entry in file_entries(path, config):
            first = entries.get(entry.name)
            if first is not None and first.kind != "tag":
                self.warnings.append(
                    f"{path}: '{entry.name}' is already defined in {first.path}; that one is taken"
                )
                continue
            entries[entry.name] = entry
            if entry.kind == "benchmark":
                for tag in names_under(entry.config, "tag"):
                    _tagged(entries, tag, entry)

    def matching(self, patterns: Iterable[str]) -> list[Entry]:
        """The entries that the names and glob patterns select, in the patterns' order; raises ConfigError for none."""
        selected: dict[str, Entry] = {}
        for pattern in patterns:
            names = [pattern] if pattern in self.entries else sorted(fnmatch.filter(self.entries, pattern))
            if not names:
                raise ConfigError(self._unknown(pattern))
            selected.update((name, self.entries[name]) for name in names)
        return list(selected.values())

    def _unknown(self, pattern: str) -> str:
        hint = nearest(pattern, self.entries) or "; --include-path names the folder to look in"
        return f"no benchmark, group or tag is named '{pattern}' among {len(self.entries)} known{hint}"


def build_index(folders: Iterable[Path], reader: Reader | None = None) -> Index:
    """The index of all folders' definitions."""
    index = Index(reader=reader or Reader())
    for folder in folders:
        index.add_folder(folder.expanduser().resolve())
    return index


def yaml_files(folder: Path) -> Iterator[Path]:
    """Every ``*.yaml`` below a folder in the order of their paths."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        found.extend(Path(root, name) for name in files if name.endswith(".yaml"))
    return iter(sorted(found, key=lambda path: path.as_posix()))


def file_entries(path: Path, config: Mapping[str, Any]) -> Iterator[Entry]:
    """What a file defines: a group, benchmarks of a ``task_list``, one benchmark, or nothing (a base for others)."""
    if isinstance(config.get("task_list"), list):
        base = {key: value for key, value in config.items() if key not in ("task_list", "task", "group")}
        for member in config["task_list"]:
            own = member if isinstance(member, Mapping) else {"task": member}
            if not isinstance(own.get("task"), str):
                raise ConfigError(
                    f"{path}: an entry of task_list is a name or a mapping with 'task', got {member!r}"
                )
            yield Entry(own["task"], "benchmark", path, {**base, **own})
    elif "class" not in config and isinstance(config.get("group"), str):
        yield Entry(config["group"], "group", path, config)
    elif isinstance(config.get("task"), str):
        yield Entry(config["task"], "benchmark", path, config)
    elif isinstance(config.get("group"), str):
        yield Entry(config["group"], "benchmark", path, config)


def names_under(config: Mapping[str, Any], key: str) -> list[str]:
    """The names of a key that holds one text or a list of texts."""
    value = config.get(key)
    return [value] if isinstance(value, str) else [name for name in value or () if isinstance(name, str)]


def _tagged(entries: dict[str, Entry], tag: str, member: Entry) -> None:
    known = entries.get(tag)
    if known is None:
        entries[tag] = Entry(tag, "tag", member.path, {}, (member.name,))
    elif known.kind == "tag":
        entries[tag] = Entry(tag, "tag", known.path, {}, (*known.members, member.name))
