"""Which aggregation makes one number of a group's rows."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from metrics.aggregations.aggregation import Aggregation, build_aggregation
from metrics.errors import ConfigError
from tasks.comparison.items import ComparisonError, GroupKey, ItemGroup

AggregationOf = Callable[[GroupKey, ItemGroup], Aggregation]
"""The aggregation of a group; raises NightjarError where it can't be had."""
Place = tuple[str, str, str]
"""Benchmark, filter, metric."""
PREFIX = "agg:"


def aggregations(known: Mapping[Place, Aggregation], results: Iterable[Mapping[str, Any]]) -> AggregationOf:
    """Looks an aggregation up in ``known``, which comes from the run's config; else by the name in the
    signatures of its result rows; a run that has neither is taken to average its items."""
    named = {
        (row["benchmark"], row["filter"], row["metric"]): _named(row["signature"])
        for row in results
        if row["signature"]
    }

    def of(key: GroupKey, group: ItemGroup) -> Aggregation:
        place = (key.benchmark, key.filter, key.metric)
        found = known.get(place) or _registered(named.get(place) or "mean", key)
        width = None if group.statistics is None else group.statistics.shape[1]
        if found.kind == "sums" and width is not None and width != found.k:
            raise ComparisonError(
                f"{key.pair}: '{found.name}' adds up {found.k} numbers an item, the rows have {width};"
                " the run's manifest.json, with its config, has to lie beside them"
            )
        return found

    return of


def _named(signature: str) -> str | None:
    return next((part[len(PREFIX) :] for part in signature.split("|") if part.startswith(PREFIX)), None)


def _registered(name: str, key: GroupKey) -> Aggregation:
    try:
        return build_aggregation(name)
    except ConfigError as error:
        raise ComparisonError(
            f"{key.pair}: aggregation '{name}' is the run's own, and its config can't be read now ({error})"
        ) from error
