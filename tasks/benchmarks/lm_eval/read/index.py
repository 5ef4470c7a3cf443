"""Definitions found in folders of YAML, and what a person's ``--tasks`` selects of them.

The harness calls them tasks; a *definition* is one of its benchmarks before anything is translated. A group
is a list of definitions with a score of its own, a tag a list without one.
"""

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from metrics.errors import ConfigError, NightjarError, nearest
from tasks.benchmarks.lm_eval.read.yaml import Reader

TREE = "tasks"  # the folder that a checkout keeps all definitions under
IGNORED_FOLDERS = frozenset({"__pycache__", ".ipynb_checkpoints"})
EntryKind = Literal["benchmark", "group", "tag"]


@dataclass(frozen=True)
class Definition:
    """One benchmark of the harness: its keys with includes and overrides merged, and the file it stands
    in."""

    name: str
    path: Path
    config: Mapping[str, Any]

    @property
    def where(self) -> str:
        """The file, and the name where the file holds several."""
        return str(self.path)


@dataclass(frozen=True)
class IndexEntry:
    """What a name of the index stands for. ``members`` are the names behind a tag."""

    name: str
    kind: EntryKind
    path: Path
    config: Mapping[str, Any]
    members: tuple[str, ...] = ()


class DefinitionIndex:
    """Names of folders of definitions.

    Folders are read when a name is first looked up, and later ones win over earlier ones. ``warnings`` says
    which files were left out, and which names were defined twice.
    """

    def __init__(self, folders: Iterable[Path] = (), reader: Reader | None = None) -> None:
        self.reader = reader or Reader()
        self.warnings: list[str] = []
        self._waiting: list[Path] = []
        self._entries: dict[str, IndexEntry] = {}
        for folder in folders:
            self.add_folder(folder)

    def add_folder(self, folder: Path) -> None:
        """Adds every ``*.yaml`` below the folder."""
        if not folder.expanduser().is_dir():
            raise ConfigError(f"--include-path {folder} is not a folder of lm-evaluation-harness definitions")
        self._waiting.append(folder.expanduser().resolve())

    def add_file(self, path: Path) -> None:
        """Adds what one file defines; a name that is known already stays what it is."""
        self._add(path, self._entries)

    @property
    def entries(self) -> Mapping[str, IndexEntry]:
        """All names."""
        while self._waiting:
            found: dict[str, IndexEntry] = {}
            for path in yaml_files(self._waiting.pop(0)):
                self._add(path, found)
            for name in sorted(found.keys() & self._entries.keys()):
                if found[name].kind != "tag" and found[name].path != self._entries[name].path:
                    self.warnings.append(
                        f"'{name}' of {found[name].path} replaces that of {self._entries[name].path}"
                    )
            self._entries.update(found)
        return self._entries

    def find(self, name: str, near: Path) -> IndexEntry | None:
        """The entry of that name; one that no folder has is looked for in the tree that the file ``near``
        belongs to."""
        found = self.entries.get(name)
        root = next((folder for folder in near.parents if folder.name == TREE), None)
        return found if found is not None or root is None else _tree(root).entries.get(name)

    def matching(self, patterns: Iterable[str]) -> list[IndexEntry]:
        """The entries that the names and glob patterns select, in the patterns' order; raises ConfigError for
        none."""
        selected: dict[str, IndexEntry] = {}
        for pattern in patterns:
            names = [pattern] if pattern in self.entries else sorted(fnmatch.filter(self.entries, pattern))
            if not names:
                hint = nearest(pattern, self.entries) or "; --include-path names the folder to look in"
                raise ConfigError(
                    f"no benchmark, group or tag is named '{pattern}' among {len(self.entries)} known{hint}"
                )
            selected.update((name, self.entries[name]) for name in names)
        return list(selected.values())

    def _add(self, path: Path, entries: dict[str, IndexEntry]) -> None:
        try:
            found = list(file_entries(path, self.reader.read(path)))
        except NightjarError as error:
            # Others may not need it; asked for by name, it is missing and the warning says why.
            self.warnings.append(f"left out: {error}")
            return
        for entry in found:
            first = entries.get(entry.name)
            if first is not None and first.kind != "tag":
                if first.path != path:
                    self.warnings.append(
                        f"{path}: '{entry.name}' is defined in {first.path} already; that one is taken"
                    )
                continue
            entries[entry.name] = entry
            for tag in names_under(entry.config, "tag") if entry.kind == "benchmark" else ():
                _tagged(entries, tag, entry)


@lru_cache(maxsize=8)
def _tree(root: Path) -> DefinitionIndex:
    """The index of a checkout's ``tasks`` folder, for groups whose members lie beside their own folder."""
    return DefinitionIndex([root])


def build_index(folders: Iterable[Path], reader: Reader | None = None) -> DefinitionIndex:
    """The index of all folders' definitions."""
    return DefinitionIndex(folders, reader)


def yaml_files(folder: Path) -> Iterator[Path]:
    """Every ``*.yaml`` below a folder in the order of their paths."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        found.extend(Path(root, name) for name in files if name.endswith(".yaml"))
    return iter(sorted(found, key=lambda path: path.as_posix()))


def file_entries(path: Path, config: Mapping[str, Any]) -> Iterator[IndexEntry]:
    """What a file defines: a group, benchmarks of a ``task_list``, one benchmark, or nothing (a base for
    others)."""
    if isinstance(config.get("task_list"), list):
        base = {key: value for key, value in config.items() if key not in ("task_list", "task", "group")}
        for member in config["task_list"]:
            own = member if isinstance(member, Mapping) else {"task": member}
            if not isinstance(own.get("task"), str):
                raise ConfigError(
                    f"{path}: an entry of task_list is a name or a mapping with 'task', got {member!r}"
                )
            yield IndexEntry(own["task"], "benchmark", path, {**base, **own})
    elif "class" not in config and isinstance(config.get("group"), str):
        yield IndexEntry(config["group"], "group", path, config)
    elif isinstance(config.get("task"), str):
        yield IndexEntry(config["task"], "benchmark", path, config)
    elif isinstance(config.get("group"), str):
        yield IndexEntry(config["group"], "benchmark", path, config)


def names_under(config: Mapping[str, Any], key: str) -> list[str]:
    """The names of a key that holds one text or a list of texts."""
    value = config.get(key)
    return [value] if isinstance(value, str) else [name for name in value or () if isinstance(name, str)]


def _tagged(entries: dict[str, IndexEntry], tag: str, member: IndexEntry) -> None:
    known = entries.get(tag)
    if known is None:
        entries[tag] = IndexEntry(tag, "tag", member.path, {}, (member.name,))
    elif known.kind == "tag":
        entries[tag] = IndexEntry(tag, "tag", known.path, {}, (*known.members, member.name))
