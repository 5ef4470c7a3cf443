"""Groups: several benchmarks and the one number over them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.schema import AGGREGATE_KEYS


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
