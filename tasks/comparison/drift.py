"""The drift of each pair: of a suite's nights since its anchor, and over the runs of a sweep."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metrics.errors import NightjarError
from metrics.statistics.drift import adjusted_at_night, drift_chance, least_chance
from tasks.comparison.matching import (
    AggregationOf,
    GroupKey,
    ItemGroup,
    aggregations,
    column_of,
    counterparts,
    result_key,
    row_keys,
    shared_clusters,
)
from tasks.comparison.runs import ComparedRun, key_with_model, merged_run

Runs = Mapping[str, ComparedRun]
PValue = Callable[[Sequence[ItemGroup], GroupKey], float]
UNTESTED = (math.nan, math.nan)


@dataclass(frozen=True)
class AnchorNight:
    """The night that drift is counted from. ``night`` is the place of the last night after it, from 1."""

    name: str
    runs: Runs
    night: int


@dataclass(frozen=True)
class Drift:
    """How far a number is from where it was on the anchor night.

    ``p_value`` is that of no difference on the items of both, ``p_adjusted`` over all pairs and all nights
    since the anchor. Both are NaN where nothing can be tested. ``p_least`` is the smallest ``p_adjusted``
    that as many items, or clusters, could have beside the other pairs of tonight.
    """

    anchor: str
    night: int
    first: float
    last: float
    p_value: float
    p_adjusted: float
    p_least: float = math.nan


def pair_drifts(tonight: Runs, anchor: AnchorNight | None) -> Mapping[GroupKey, Drift]:
    """The drift of every pair that the night and its anchor have.

    A pair that stopped before all its items were asked has no test: it stopped because of its answers.
    """
    if anchor is None:
        return {}
    base, last = merged_run("", anchor.runs), merged_run("", tonight)
    tested = _tests(aggregations({}, last.results))
    known = counterparts(last.groups, base.groups)
    keys = [(known[key], key) for key in last.groups if key in known]
    early = [{key for key, own in run.stopping.items() if own.early} for run in (base, last)]
    found = [
        UNTESTED
        if first in early[0] or key in early[1]
        else tested([base.groups[first], last.groups[key]], key)
        for first, key in keys
    ]
    then, now = _values(anchor.runs), _values(tonight)
    p_values = [p for p, _ in found]
    adjusted = adjusted_at_night(p_values, anchor.night).tolist()

    def least(place: int) -> float:
        at_best = [*p_values[:place], found[place][1], *p_values[place + 1 :]]
        return float(adjusted_at_night(at_best, anchor.night)[place])

    return {
        key: Drift(
            anchor.name,
            anchor.night,
            then.get(first, math.nan),
            now.get(key, math.nan),
            p_values[place],
            adjusted[place],
            least(place),
        )
        for place, (first, key) in enumerate(keys)
    }


def drift_tests(aggregation: AggregationOf) -> PValue:
    """The p-value of "no drift" of a pair's groups, oldest first; NaN where there is none: fewer than two
    groups, no items in common, an aggregation without sums."""
    tests = _tests(aggregation)
    return lambda groups, key: tests(groups, key)[0]


def _tests(aggregation: AggregationOf) -> Callable[[Sequence[ItemGroup], GroupKey], tuple[float, float]]:
    """The same with the smallest p-value that so many items, or clusters, can have."""

    def tested(groups: Sequence[ItemGroup], key: GroupKey) -> tuple[float, float]:
        if len(groups) < 2:
            return UNTESTED
        rows = _common_rows(groups)
        try:
            found = aggregation(key, groups[-1])
            columns = [column_of(group, own, found) for group, own in zip(groups, rows, strict=True)]
            clusters = shared_clusters(*zip(groups, rows, strict=True))
            p_value = drift_chance(columns, found, clusters)
        except NightjarError:
            return UNTESTED
        return UNTESTED if math.isnan(p_value) else (p_value, least_chance(len(rows[0]), clusters))

    return tested


def _common_rows(groups: Sequence[ItemGroup]) -> list["np.ndarray[tuple[int], np.dtype[np.intp]]"]:
    """The rows of the items that every group scored, in the same order."""
    places = [{key: row for row, key in enumerate(row_keys(group)) if group.scored[row]} for group in groups]
    common = [key for key in places[-1] if all(key in own for own in places)]
    return [np.array([own[key] for key in common], dtype=np.intp) for own in places]


def _values(night: Runs) -> dict[GroupKey, float]:
    """The night's numbers, as its result rows have them."""
    return {
        key_with_model(result_key(row), run): float(row["value"])
        for run in night.values()
        for row in run.results
        if row["value"] is not None
    }
