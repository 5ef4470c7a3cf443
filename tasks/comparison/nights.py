"""A night's evaluations as one run, so that one gate and one correction go over all of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from metrics.errors import NightjarError
from tasks.comparison.changes import Change, changes
from tasks.comparison.items import GroupKey, ItemGroup, result_key
from tasks.comparison.pooling import pool
from tasks.comparison.runs import ComparedRun, open_run
from tasks.comparison.trends import Flapping, Trend, flapping_items, trend
from tasks.history.suites import Night
from tasks.store.storage import Store

MODEL = "model_name"


@dataclass(frozen=True)
class Course:
    """One pair over the last nights: where its number goes, and which items flip back and forth."""

    key: GroupKey
    trend: Trend
    flapping: tuple[Flapping, ...]


def open_night(night: Night, store: Store) -> Mapping[str, ComparedRun]:
    """The night's evaluations by name, as far as they came to results."""
    found = {}
    for evaluation in night.evaluations:
        try:
            found[evaluation.name] = open_run(evaluation.run_id, store)
        except NightjarError:
            continue  # it failed before it had any: the night's record says why
    return found


def together(name: str, runs: Mapping[str, ComparedRun]) -> ComparedRun:
    """Several evaluations as one run.

    A model that an evaluation does not group by becomes a facet: the same benchmark on two models stays
    apart.
    """
    groups = {key: group for run in runs.values() for key, group in _with_model(run)}
    results = tuple(row for run in runs.values() for row in run.results)
    manifests = tuple(run.manifest for run in runs.values() if run.manifest)
    return ComparedRun(name, groups, results, parts=manifests)


def pooled(name: str, nights: Sequence[Mapping[str, ComparedRun]]) -> ComparedRun:
    """Several nights, oldest first, as one baseline: each item's mean."""
    each = [together(name, night) for night in nights]
    return replace(each[-1], groups=pool([run.groups for run in each])) if each else ComparedRun(name, {})


def night_changes(
    base: Mapping[str, ComparedRun], candidate: Mapping[str, ComparedRun]
) -> tuple[Change, ...]:
    """What else changed in each evaluation since the baseline."""
    return tuple(
        replace(change, what=f"{name}, {change.what}")
        for name in candidate
        if name in base
        for change in changes(base[name].manifest, candidate[name].manifest)
    )


def courses(nights: Sequence[Mapping[str, ComparedRun]]) -> tuple[Course, ...]:
    """The course of every pair of the last night over all of them, oldest first."""
    runs = [together("", night) for night in nights]
    values = [_values(night) for night in nights]
    return tuple(
        Course(key, trend([night.get(key, math.nan) for night in values]), _flapping(key, runs))
        for key in (runs[-1].groups if runs else ())
    )


def _flapping(key: GroupKey, runs: Sequence[ComparedRun]) -> tuple[Flapping, ...]:
    return tuple(flapping_items(key, [run.groups for run in runs]))


def _values(night: Mapping[str, ComparedRun]) -> dict[GroupKey, float]:
    """The night's numbers, as its result rows have them."""
    return {
        _named(result_key(row), _only_model(run)): row["value"]
        for run in night.values()
        for row in run.results
        if row["value"] is not None
    }


def _with_model(run: ComparedRun) -> Iterator[tuple[GroupKey, ItemGroup]]:
    for key, group in run.groups.items():
        yield _named(key, _only_model(run)), group


def _only_model(run: ComparedRun) -> str | None:
    models = list(run.manifest.get("models") or ())
    return models[0] if len(models) == 1 else None


def _named(key: GroupKey, model: str | None) -> GroupKey:
    if model is None or key.facet(MODEL) is not None:
        return key
    return replace(key, facets=tuple(sorted((*key.facets, (MODEL, model)))))
