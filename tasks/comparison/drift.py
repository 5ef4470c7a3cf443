"""The drift of each pair over several runs on the same items, oldest first."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from metrics.errors import NightjarError
from metrics.statistics.drift import slope_chance
from tasks.comparison.matching import AggregationOf, GroupKey, ItemGroup, clusters_of, column_of, row_keys

Runs = Sequence[Mapping[GroupKey, ItemGroup]]
PValue = Callable[[Sequence[ItemGroup], GroupKey], float]


def drift_tests(aggregation: AggregationOf) -> PValue:
    """The p-value of "no drift" of a pair's groups; NaN where it can't be had: fewer than three groups, no
    items in common, an aggregation without sums."""

    def tested(groups: Sequence[ItemGroup], key: GroupKey) -> float:
        if len(groups) < 3:
            return math.nan
        rows = _common_rows(groups)
        try:
            found = aggregation(key, groups[-1])
            columns = [column_of(group, own, found) for group, own in zip(groups, rows, strict=True)]
            return slope_chance(columns, found, clusters_of(groups[-1], rows[-1]))
        except NightjarError:
            return math.nan

    return tested


def groups_of(key: GroupKey, runs: Runs) -> list[ItemGroup]:
    """The pair's groups of the runs that have it."""
    return [run[key] for run in runs if key in run]


def _common_rows(groups: Sequence[ItemGroup]) -> list["np.ndarray[tuple[int], np.dtype[np.intp]]"]:
    """The rows of the items that every group scored, in the same order."""
    places = [{key: row for row, key in enumerate(row_keys(group)) if group.scored[row]} for group in groups]
    common = [key for key in places[-1] if all(key in own for own in places)]
    return [np.array([own[key] for key in common], dtype=np.intp) for own in places]
