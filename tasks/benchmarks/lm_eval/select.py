"""Definitions found in folders of YAML, and those that a person asks for by name.

The harness calls them tasks; a *definition* is one of its benchmarks before anything is translated. A
group is a list of definitions with a score of its own, a tag a list without one. ``build_index`` finds
them; ``select`` spreads tags out, merges overrides and resolves the members of groups. A ``Group`` is
several benchmarks and the one number over them. The translation takes the definitions, the results files
the groups.
"""

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from metrics.aliases import nearest
from metrics.errors import ConfigError, NightjarError
from tasks.benchmarks.lm_eval.yaml import AGGREGATE_KEYS, GROUP_KEYS, Reader
from tasks.store.home import named_path

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
            if not folder.expanduser().is_dir():
                raise ConfigError(
                    f"--include-path {folder} is not a folder of lm-evaluation-harness definitions"
                )
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
            if pattern.endswith(".yaml") and pattern not in self.entries:
                selected.update(self._of_files(pattern))
                continue
            names = [pattern] if pattern in self.entries else sorted(fnmatch.filter(self.entries, pattern))
            if not names and pattern.rpartition("@")[0] in self.entries:
                name, _, form = pattern.rpartition("@")
                raise ConfigError(
                    f"'{pattern}': formats, which are chosen behind @, belong to version 0.5 of the harness; "
                    f"write what '{form}' stands for into a definition of your own, or ask for '{name}'"
                )
            if not names:
                hint = nearest(pattern, self.entries) or "; --include-path names the folder to look in"
                raise ConfigError(
                    f"no benchmark, group or tag is named '{pattern}' among {len(self.entries)} known{hint}"
                )
            selected.update((name, self.entries[name]) for name in names)
        return list(selected.values())

    def _of_files(self, pattern: str) -> dict[str, IndexEntry]:
        """What the YAML files of that name or pattern define; raises ConfigError where there are none."""
        place = named_path(Path(), pattern).absolute()
        files = [Path(path) for path in sorted(glob.glob(str(place)))]
        if not files:
            raise ConfigError(f"--tasks {pattern}: there is no such file")
        found: dict[str, IndexEntry] = {}
        for path in files:
            entries = list(file_entries(path.resolve(), self.reader.read(path)))
            if not entries:
                raise ConfigError(
                    f"{path}: has neither 'task' nor 'group': it's a base that other files include"
                )
            found.update((entry.name, entry) for entry in entries)
        return found

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
            for tag in _tags(entry.config) if entry.kind == "benchmark" else ():
                _tagged(entries, tag, entry)


@lru_cache(maxsize=8)
def _tree(root: Path) -> DefinitionIndex:
    """The index of a checkout's ``tasks`` folder, for groups whose members are beside their own folder."""
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


def _tags(config: Mapping[str, Any]) -> list[str]:
    value = config.get("tag")
    return [value] if isinstance(value, str) else [name for name in value or () if isinstance(name, str)]


def _tagged(entries: dict[str, IndexEntry], tag: str, member: IndexEntry) -> None:
    known = entries.get(tag)
    if known is None:
        entries[tag] = IndexEntry(tag, "tag", member.path, {}, (member.name,))
    elif known.kind == "tag":
        entries[tag] = IndexEntry(tag, "tag", known.path, {}, (*known.members, member.name))


@dataclass(frozen=True)
class Aggregate:
    """One entry of ``aggregate_metric_list``. ``filters`` None: every filter that the members have the metric
    for."""

    metric: str
    filters: tuple[str, ...] | None = None
    weight_by_size: bool = True


@dataclass(frozen=True)
class Group:
    """A group as results show it; ``members`` are benchmarks and groups, ``aggregates`` empty where it has no
    score."""

    name: str
    alias: str
    members: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    version: str = "N/A"
    config: Mapping[str, Any] | None = None


def group_of(name: str, config: Mapping[str, Any], members: tuple[str, ...], where: str) -> Group:
    """The group a mapping describes; raises ConfigError for an aggregation other than the mean."""
    entries = config.get("aggregate_metric_list") or []
    listed = entries if isinstance(entries, list) else [entries]
    metadata = config.get("metadata")
    version = metadata.get("version", "N/A") if isinstance(metadata, Mapping) else "N/A"
    aggregates = tuple(_aggregate(entry, name, where) for entry in listed)
    alias = config.get("group_alias")
    shown = {
        key: config[key] for key in ("group_alias", "aggregate_metric_list", "metadata") if config.get(key)
    }
    return Group(
        name=name,
        alias=alias if isinstance(alias, str) else name,
        members=members,
        aggregates=aggregates,
        version=str(version),
        config={"group": name, "task": list(members), **shown},
    )


def _aggregate(entry: Any, group: str, where: str) -> Aggregate:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("metric"), str):
        raise ConfigError(
            f"{where}: an entry of aggregate_metric_list is a mapping with 'metric', got {entry!r}"
        )
    unknown = sorted(set(entry) - set(AGGREGATE_KEYS))
    if unknown:
        raise ConfigError(
            f"{where}: aggregate_metric_list has no key '{unknown[0]}'; it has {', '.join(AGGREGATE_KEYS)}"
        )
    if entry.get("aggregation", "mean") != "mean":
        raise ConfigError(
            f"{where}: group '{group}' aggregates by '{entry['aggregation']}'; "
            "over benchmarks there is only the mean, weighted by size or not"
        )
    filters = entry.get("filter_list")
    names = (filters,) if isinstance(filters, str) else None if filters is None else tuple(map(str, filters))
    return Aggregate(entry["metric"], names, bool(entry.get("weight_by_size", True)))


# What belongs to the file a definition was found in, not to the definition.
STRUCTURE = ("tag", "group", "task_list", "group_alias")
Overrides = Mapping[str, Any]


@dataclass
class SelectedBenchmarks:
    """Benchmarks to run, by name in the order they were asked for, and the groups they are scored in, parents
    first."""

    benchmarks: dict[str, Definition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def select(
    patterns: Iterable[str], folders: Iterable[Path], reader: Reader | None = None
) -> SelectedBenchmarks:
    """What ``--tasks`` names (benchmarks, groups, tags, globs of them) in the folders of
    ``--include-path``."""
    return select_from(build_index(folders, reader), patterns)


def select_from(index: DefinitionIndex, patterns: Iterable[str]) -> SelectedBenchmarks:
    """The same in an index that exists."""
    selection = SelectedBenchmarks()
    for entry in index.matching(patterns):
        _add(selection, index, entry, {})
    selection.warnings += index.warnings
    return selection


def select_file(path: Path, index: DefinitionIndex) -> SelectedBenchmarks:
    """What one file defines; a group's members are looked up in ``index``."""
    path = path.expanduser().resolve()
    config = index.reader.read(path)
    entries = list(file_entries(path, config))
    if not entries:
        raise ConfigError(f"{path}: has neither 'task' nor 'group': it's a base that other files include")
    selection = SelectedBenchmarks()
    for entry in entries:
        _add(selection, index, entry, {})
    return selection


def _add(
    selection: SelectedBenchmarks,
    index: DefinitionIndex,
    entry: IndexEntry,
    overrides: Overrides,
    inside: tuple[str, ...] = (),
) -> list[str]:
    """Adds what an entry stands for; returns the names it is known by in its group."""
    if entry.kind == "group":
        return [_add_group(selection, index, entry, overrides, inside)]
    if entry.kind == "tag":
        return [
            name
            for member in sorted(set(entry.members))
            for name in _add(selection, index, _member(index, member, entry), overrides, inside)
        ]
    config = {key: value for key, value in {**entry.config, **overrides}.items() if key not in STRUCTURE}
    name = str(config.get("task", entry.name))
    _add_benchmark(selection, Definition(name, entry.path, {**config, "task": name}))
    return [name]


def _member(index: DefinitionIndex, name: str, tag: IndexEntry) -> IndexEntry:
    found = index.find(name, tag.path)
    if found is None:
        raise ConfigError(
            f"tag '{tag.name}' names '{name}', which is not known; --include-path names its folder"
        )
    return found


def _add_benchmark(selection: SelectedBenchmarks, definition: Definition) -> None:
    known = selection.benchmarks.get(definition.name)
    if known is not None and known.config != definition.config:
        raise ConfigError(
            f"{definition.path}: '{definition.name}' is asked for twice with different settings; "
            "select the groups one at a time"
        )
    selection.benchmarks.setdefault(definition.name, definition)


def _add_group(
    selection: SelectedBenchmarks,
    index: DefinitionIndex,
    entry: IndexEntry,
    overrides: Overrides,
    inside: tuple[str, ...],
) -> str:
    if entry.name in inside:
        raise ConfigError(
            f"{entry.path}: group '{entry.name}' contains itself: {' → '.join((*inside, entry.name))}"
        )
    inherited = {**{key: value for key, value in entry.config.items() if key not in GROUP_KEYS}, **overrides}
    # The group stands before its members, so that parents come first.
    selection.groups[entry.name] = group_of(entry.name, entry.config, (), str(entry.path))
    names: list[str] = []
    task = entry.config.get("task")
    for member in task if isinstance(task, list) else [] if task is None else [task]:
        names += _add_member(selection, index, (entry, member), inherited, (*inside, entry.name))
    selection.groups[entry.name] = group_of(
        entry.name, entry.config, tuple(dict.fromkeys(names)), str(entry.path)
    )
    return entry.name


def _add_member(
    selection: SelectedBenchmarks,
    index: DefinitionIndex,
    member: tuple[IndexEntry, Any],
    inherited: Overrides,
    inside: tuple[str, ...],
) -> list[str]:
    group, value = member
    own: Overrides = index.reader.included(value, group.path) if isinstance(value, Mapping) else {}
    name = value if isinstance(value, str) else own.get("group", own.get("task"))
    if not isinstance(name, str):
        raise ConfigError(
            f"{group.path}: a member of group '{group.name}' is a name or a mapping with 'task', "
            f"got {value!r:.200}"
        )
    overrides = {**inherited, **{key: entry for key, entry in own.items() if key != "group"}}
    known = index.find(name, group.path)
    if known is not None:
        if "group" not in own and known.kind != "tag":
            overrides = {**overrides, "task": name} if known.kind == "benchmark" else overrides
        if known.kind != "benchmark":
            overrides.pop("task", None)
        return _add(selection, index, known, overrides, inside)
    return _add_inline(
        selection, index, IndexEntry(f"{group.name}::{name}", "group", group.path, own), overrides, inside
    )


def _add_inline(
    selection: SelectedBenchmarks,
    index: DefinitionIndex,
    entry: IndexEntry,
    overrides: Overrides,
    inside: tuple[str, ...],
) -> list[str]:
    """A member that the group itself defines, under a name of the group's."""
    if "group" in entry.config:
        inherited = {
            key: value
            for key, value in overrides.items()
            if key not in GROUP_KEYS and key not in entry.config
        }
        return [_add_group(selection, index, entry, inherited, inside)]
    if overrides.get("dataset_path") is None and overrides.get("custom_dataset") is None:
        name = entry.name.rpartition("::")[2]
        raise ConfigError(
            f"{entry.path}: member '{name}' of group '{inside[-1]}' is not known; "
            "--include-path names the folder that holds it"
        )
    config = {key: value for key, value in overrides.items() if key not in STRUCTURE}
    _add_benchmark(selection, Definition(entry.name, entry.path, {**config, "task": entry.name}))
    return [entry.name]
