"""A run to compare: its output folder, or what the store's history kept of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from metrics.errors import nearest
from tasks.comparison.items import ComparisonError, GroupKey, ItemGroup, read_groups
from tasks.history.layout import ITEMS, RESULT_ROWS, find_manifest, known_runs
from tasks.store.storage import Store


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
