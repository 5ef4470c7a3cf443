"""What may stand on a side of a comparison: a run, a night, or several nights as one baseline.

A run comes from its output folder or from the store's history. A night's evaluations become one run, so that
one gate and one correction go over all of them; several nights become each item's mean.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.errors import NightjarError, nearest
from tasks.comparison.changes import Change, changes
from tasks.comparison.matching import ComparisonError, GroupKey, ItemGroup, read_groups, row_keys
from tasks.history.layout import ITEMS, RESULT_ROWS, Night, find_manifest, known_runs
from tasks.store.storage import Store

MODEL = "model_name"
OF_PLACE = frozenset({MODEL, "prompt_template"})
"""Facets that say who answered what; all others are a run's own."""


@dataclass(frozen=True)
class ComparedRun:
    """A run's item rows by group, its result rows, and its manifest (empty where a folder holds none).

    ``parts`` are the manifests of the runs that it was put together from.
    """

    name: str
    groups: Mapping[GroupKey, ItemGroup]
    results: tuple[Mapping[str, Any], ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Mapping[str, Any], ...] = ()

    @property
    def manifests(self) -> tuple[Mapping[str, Any], ...]:
        """Every manifest that says something about the run."""
        return (self.manifest, *self.parts) if self.manifest else self.parts

    def failed_pairs(self) -> Mapping[tuple[str, str], str]:
        """(filter, metric) → why, for the pairs that failed in this run."""
        failed = (row for row in self.results if row["status"] == "failed")
        return {(row["filter"], row["metric"]): row["error"] or "no reason given" for row in failed}


def open_run(name: str, store: Store) -> ComparedRun:
    """The run in the folder ``name``, else the one that the store's history has under that id.

    Raises ComparisonError for a name that is neither, and for files that are not those of a run.
    """
    folder = Path(name)
    if folder.is_dir():
        return _from_folder(name, folder)
    known = known_runs(store)
    if name in known:
        return _from_history(name, store)
    hint = nearest(name, known) or f" ({len(known)} runs are recorded there)"
    raise ComparisonError(f"'{name}' is neither an output folder nor a run in the store {store.uri}{hint}")


def open_night(night: Night, store: Store) -> Mapping[str, ComparedRun]:
    """The night's evaluations by name, as far as they came to results."""
    found = {}
    for evaluation in night.evaluations:
        try:
            found[evaluation.name] = open_run(evaluation.run_id, store)
        except NightjarError:
            continue  # it failed before it had any: the night's record says why
    return found


def merged_run(name: str, runs: Mapping[str, ComparedRun]) -> ComparedRun:
    """Several evaluations as one run.

    A model that an evaluation does not group by becomes a facet: the same benchmark on two models stays
    apart.
    """
    groups = {key_with_model(key, run): group for run in runs.values() for key, group in run.groups.items()}
    results = tuple(row for run in runs.values() for row in run.results)
    manifests = tuple(run.manifest for run in runs.values() if run.manifest)
    return ComparedRun(name, groups, results, parts=manifests)


def over_facets(run: ComparedRun, pairs: Collection[str]) -> ComparedRun:
    """The run with all items of each of these pairs as one group by model and prompt, over its own facets.

    Raises ComparisonError where a facet holds samples of one item apart: no row has their mean.
    """
    groups: dict[GroupKey, list[ItemGroup]] = {}
    for key, group in run.groups.items():
        groups.setdefault(key_over_facets(key, pairs), []).append(group)
    return replace(run, groups={key: _together(key, parts) for key, parts in groups.items()})


def key_over_facets(key: GroupKey, pairs: Collection[str]) -> GroupKey:
    """The group that a group's items come to in ``over_facets``."""
    own = frozenset(name for name, _ in key.facets) - OF_PLACE
    return key.without(own) if key.pair in pairs else key


def _together(key: GroupKey, groups: Sequence[ItemGroup]) -> ItemGroup:
    if len(groups) == 1:
        return groups[0]
    items = [item for group in groups for item in zip(group.digests, group.item_ids, strict=True)]
    if len(set(items)) < len(items):
        raise ComparisonError(
            f"{key.pair}: a facet holds samples of one item apart, so that no row has the item's own value:"
            " facets: overall needs facets of items"
        )
    tables = [group.statistics for group in groups if group.statistics is not None]
    objects = [row for group in groups for row in group.objects or [None] * len(group)]
    clusters = [group.clusters for group in groups if group.clusters is not None]
    counted = set.intersection(*(set(group.outcomes) for group in groups))
    return ItemGroup(
        item_ids=np.concatenate([group.item_ids for group in groups]),
        digests=np.concatenate([group.digests for group in groups]),
        clusters=np.concatenate(clusters) if len(clusters) == len(groups) else None,
        value=np.concatenate([group.value for group in groups]),
        statistics=np.concatenate(tables) if len(tables) == len(groups) else None,
        objects=objects if any(group.objects is not None for group in groups) else None,
        scored=np.concatenate([group.scored for group in groups]),
        outcomes={
            name: np.concatenate([group.outcomes[name] for group in groups]) for name in sorted(counted)
        },
    )


def reused_groups(runs: Mapping[str, ComparedRun]) -> frozenset[GroupKey]:
    """The groups, named as in ``merged_run``, of models that the night asked nothing: all answers were older.

    A recording is never asked, and is not meant. A group over several models counts if all of them are such.
    """
    found = set()
    for run in runs.values():
        models = run.manifest.get("models") or {}
        reused = {name for name, counts in models.items() if _is_reused(counts)}
        reused -= _recordings(run.manifest)
        for key in run.groups:
            model = key.facet(MODEL)
            if reused and (model in reused if model is not None else reused == set(models)):
                found.add(key_with_model(key, run))
    return frozenset(found)


def _is_reused(counts: Mapping[str, Any]) -> bool:
    return bool(counts.get("cached")) and not counts.get("sent") and not counts.get("same_night")


def _recordings(manifest: Mapping[str, Any]) -> set[str]:
    models = (manifest.get("config") or {}).get("models") or ()
    return {model["name"] for model in models if model.get("type") == "replay"}


def baseline_run(name: str, nights: Sequence[Mapping[str, ComparedRun]]) -> ComparedRun:
    """Several nights, oldest first, as one baseline: each item's mean."""
    if not nights:
        return ComparedRun(name, {})
    runs = [merged_run(name, night) for night in nights]
    return replace(runs[-1], groups=pooled_groups([run.groups for run in runs]))


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


def pooled_groups(runs: Sequence[Mapping[GroupKey, ItemGroup]]) -> Mapping[GroupKey, ItemGroup]:
    """The runs' groups, each item with the mean of its values and statistics over the runs that scored it.

    Runs come oldest first; the newest says which groups and items there are. Rows of kind "values" that are
    not one number can't be averaged and stay those of the newest run.
    """
    if len(runs) < 2:
        return runs[-1] if runs else {}
    return {
        key: _pooled(group, [run[key] for run in runs[:-1] if key in run]) for key, group in runs[-1].items()
    }


def _from_folder(name: str, folder: Path) -> ComparedRun:
    items, results, manifest = (
        folder / file for file in ("items.parquet", "results.parquet", "manifest.json")
    )
    if not items.is_file():
        raise ComparisonError(f"'{name}' is not the output of a run: no items.parquet in it")
    try:
        return ComparedRun(
            name=name,
            groups=read_groups(items, str(items)),
            results=tuple(pq.read_table(results).to_pylist()) if results.is_file() else (),
            manifest=json.loads(manifest.read_bytes()) if manifest.is_file() else {},
        )
    except (pa.ArrowInvalid, OSError, json.JSONDecodeError) as error:
        raise ComparisonError(f"'{name}': can't read the run's files: {error}") from error


def _from_history(run_id: str, store: Store) -> ComparedRun:
    names = (f"{ITEMS}/{run_id}.parquet", f"{RESULT_ROWS}/{run_id}.parquet")
    try:
        with (
            store.fs.open(store.path(names[0]), "rb") as items,
            store.fs.open(store.path(names[1]), "rb") as results,
        ):
            return ComparedRun(
                name=run_id,
                groups=read_groups(items, names[0]),
                results=tuple(pq.read_table(results).to_pylist()),
                manifest=find_manifest(store, run_id),
            )
    except FileNotFoundError as error:
        raise ComparisonError(
            f"run '{run_id}': its rows are gone from the store {store.uri}: {error}"
        ) from error


def _pooled(newest: ItemGroup, earlier: Sequence[ItemGroup]) -> ItemGroup:
    if newest.objects is not None:
        return newest
    groups = [newest, *(group for group in earlier if _same_shape(group, newest))]
    rows = [_aligned(newest, group) for group in groups]
    scored = [
        np.where(row >= 0, group.scored[row] if len(group) else False, False)
        for row, group in zip(rows, groups, strict=True)
    ]
    times = np.sum(scored, axis=0)
    statistics = None
    if newest.statistics is not None:
        tables = [group.statistics for group in groups if group.statistics is not None]
        statistics = _mean([table[row] for table, row in zip(tables, rows, strict=True)], scored, times)
    value = _mean([group.value[row] for group, row in zip(groups, rows, strict=True)], scored, times)
    return replace(newest, value=value, statistics=statistics, scored=times > 0)


def _mean(
    columns: Sequence[NDArray[np.float64]], scored: Sequence[NDArray[np.bool_]], times: NDArray[np.int_]
) -> NDArray[np.float64]:
    """Mean over the runs that scored a row; NaN where none did."""
    shape = (-1,) + (1,) * (columns[0].ndim - 1)
    total = sum(
        (np.where(mask.reshape(shape), column, 0.0) for column, mask in zip(columns, scored, strict=True)),
        start=np.zeros_like(columns[0]),
    )
    divisor = np.where(times > 0, times, 1).reshape(shape)
    return np.where((times > 0).reshape(shape), total / divisor, np.nan)


def _aligned(newest: ItemGroup, group: ItemGroup) -> NDArray[np.intp]:
    """For each row of ``newest`` the row of the same item in ``group``; -1: not there."""
    rows = {key: row for row, key in enumerate(row_keys(group))}
    return np.array([rows.get(key, -1) for key in row_keys(newest)], dtype=np.intp)


def _same_shape(group: ItemGroup, newest: ItemGroup) -> bool:
    """Whether statistics can be averaged: a metric that changed its statistics between nights is another
    metric."""
    if len(group) == 0 or group.objects is not None:
        return False
    if group.statistics is None or newest.statistics is None:
        return group.statistics is newest.statistics
    return bool(group.statistics.shape[1] == newest.statistics.shape[1])


def key_with_model(key: GroupKey, run: ComparedRun) -> GroupKey:
    """The key with the run's only model as a facet, unless it has that facet or the run several models."""
    models = list(run.manifest.get("models") or ())
    if len(models) != 1 or key.facet(MODEL) is not None:
        return key
    return replace(key, facets=tuple(sorted((*key.facets, (MODEL, models[0])))))
