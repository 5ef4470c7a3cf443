"""Where the numbers of a suite go over its nights, and which items flip back and forth.

``pair_courses`` gives suites, for every pair of the last night, the trend of its number and its flapping
items.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from tasks.comparison.items import GroupKey, ItemGroup, result_key
from tasks.comparison.matching import row_keys
from tasks.comparison.runs import ComparedRun, key_with_model, merged_run

MINIMUM_NIGHTS = 4
"""Below this no order of the nights is rare enough to call it a trend."""


@dataclass(frozen=True)
class Trend:
    """The course of one number over consecutive nights.

    ``slope`` is the change from night to night (Theil–Sen: the median over all pairs of nights, so that one
    odd night does not make a trend), in the number's own units; ``p_value`` is that of the Mann–Kendall test,
    two-sided. Both are NaN where there are too few nights.
    """

    nights: int
    first: float
    last: float
    slope: float
    p_value: float


@dataclass(frozen=True)
class Flapping:
    """An item whose answer changed between right and wrong more than once; ``course`` is oldest night first,
    as in "1101", "-" for a night that did not score it."""

    item_id: str
    course: str
    flips: int


@dataclass(frozen=True)
class PairCourse:
    """One pair over the last nights: where its number goes, and which items flip back and forth."""

    key: GroupKey
    trend: Trend
    flapping: tuple[Flapping, ...]


def pair_courses(nights: Sequence[Mapping[str, ComparedRun]]) -> tuple[PairCourse, ...]:
    """The course of every pair of the last night over all of them, oldest first."""
    runs = [merged_run("", night) for night in nights]
    values = [_result_values(night) for night in nights]
    return tuple(
        PairCourse(key, trend([night.get(key, math.nan) for night in values]), _flapping(key, runs))
        for key in (runs[-1].groups if runs else ())
    )


def trend(values: Sequence[float]) -> Trend:
    """The trend of a number, oldest night first; nights without the number (NaN) are left out but keep their
    place.

    Source: Sen 1968; Mann 1945; Kendall 1975 (variance with ties, continuity correction).

    >>> trend([0.70, 0.71, 0.72, 0.73, 0.74, 0.75]).slope
    0.01
    """
    nights = [(night, value) for night, value in enumerate(values) if math.isfinite(value)]
    if not nights:
        return Trend(0, math.nan, math.nan, math.nan, math.nan)
    first, last = nights[0][1], nights[-1][1]
    if len(nights) < MINIMUM_NIGHTS:
        return Trend(len(nights), first, last, math.nan, math.nan)
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in combinations(nights, 2)]
    slope = round(float(np.median(slopes)), 15)
    return Trend(len(nights), first, last, slope, _mann_kendall([value for _, value in nights]))


def flapping_items(key: GroupKey, runs: Sequence[Mapping[GroupKey, ItemGroup]]) -> list[Flapping]:
    """Items of one group that flip back and forth over the runs (oldest first), most flips first.

    Only for metrics whose values are 0 and 1: of others every item moves every night.
    """
    courses: dict[tuple[str, int], list[str]] = {}
    names: dict[tuple[str, int], str] = {}
    for night, run in enumerate(runs):
        group = run.get(key)
        if group is None:
            continue
        if not np.isin(group.value[group.scored], (0.0, 1.0)).all():
            return []
        for place, item_id, value, scored in zip(
            row_keys(group), group.item_ids, group.value, group.scored, strict=True
        ):
            course = courses.setdefault(place, ["-"] * len(runs))
            course[night] = str(int(value)) if scored else "-"
            names[place] = item_id
    found = [Flapping(names[place], "".join(course), _flips(course)) for place, course in courses.items()]
    return sorted((item for item in found if item.flips > 1), key=lambda item: (-item.flips, item.item_id))


def _mann_kendall(values: Sequence[float]) -> float:
    """Two-sided p-value of "no order", by the normal approximation."""
    n = len(values)
    score = sum(int(np.sign(b - a)) for a, b in combinations(values, 2))
    ties = np.unique(values, return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - int(np.sum(ties * (ties - 1) * (2 * ties + 5)))) / 18
    if score == 0 or variance == 0:
        return 1.0
    return math.erfc((abs(score) - 1) / math.sqrt(2 * variance))


def _flips(course: Sequence[str]) -> int:
    seen = [value for value in course if value != "-"]
    return sum(a != b for a, b in pairwise(seen))


def _flapping(key: GroupKey, runs: Sequence[ComparedRun]) -> tuple[Flapping, ...]:
    return tuple(flapping_items(key, [run.groups for run in runs]))


def _result_values(night: Mapping[str, ComparedRun]) -> dict[GroupKey, float]:
    """The night's numbers, as its result rows have them."""
    return {
        key_with_model(result_key(row), run): row["value"]
        for run in night.values()
        for row in run.results
        if row["value"] is not None
    }
