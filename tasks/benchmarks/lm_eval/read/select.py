"""Selects definitions and groups by the names that a person asks for.

Tags are spread out, overrides merged, members of groups resolved. A ``Group`` is several benchmarks and the
one number over them. The translation takes the definitions, the results files the groups.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.read.index import (
    Definition,
    DefinitionIndex,
    IndexEntry,
    build_index,
    file_entries,
)
from tasks.benchmarks.lm_eval.read.schema import AGGREGATE_KEYS, GROUP_KEYS
from tasks.benchmarks.lm_eval.read.yaml import Reader


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
