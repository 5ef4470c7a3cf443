"""Where a store keeps its history, and which artifacts a manifest refers to.

``runs/<run_id>.json``                the run's manifest: with it the run is in the history, and kept
``history/results/<run_id>.parquet``  its result rows
``history/items/<run_id>.parquet``    its item rows
``history/forgotten/<run_id>.json``   the manifest of a run whose rows stay although its artifacts need not
``active/<run_id>.json``              a mark of a run in progress, whose artifacts no manifest names yet
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from metrics.errors import ConfigError, NightjarError
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import ArtifactRef, Store

RUNS: Final = "runs"
ACTIVE: Final = "active"
FORGOTTEN: Final = "history/forgotten"
RESULT_ROWS: Final = "history/results"
ITEMS: Final = "history/items"
HISTORY_RESULTS: Final = RESULTS
HISTORY_ITEMS: Final = pa.schema([pa.field("run_id", pa.string(), nullable=False), *ITEM_ROWS])
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class HistoryError(NightjarError):
    """The history can't be read or asked that."""


@dataclass(frozen=True)
class Reference:
    """An artifact of a run: its file's name below the store's root, the stage that made it, and what it is of
    (``step``, ``filter``, ``metric``, ``model_name``, ``prompt_template``, as far as the manifest says)."""

    name: str
    stage: str
    of: Mapping[str, str | None]


def kept_runs(store: Store) -> dict[str, dict[str, Any]]:
    """Manifests of the runs whose artifacts are kept, by run id, sorted."""
    return {run_id: read_json(store, f"{RUNS}/{run_id}.json") for run_id in names_in(store, RUNS, ".json")}


def forgotten_runs(store: Store) -> dict[str, dict[str, Any]]:
    """Manifests of the runs of which only the rows are left, by run id, sorted."""
    return {
        run_id: read_json(store, f"{FORGOTTEN}/{run_id}.json")
        for run_id in names_in(store, FORGOTTEN, ".json")
    }


def known_runs(store: Store) -> list[str]:
    """Ids of all runs that have rows in the history, kept or forgotten."""
    return sorted({*names_in(store, RUNS, ".json"), *names_in(store, FORGOTTEN, ".json")})


def find_manifest(store: Store, run_id: str) -> dict[str, Any]:
    """A run's manifest, whether the run is kept or forgotten; raises HistoryError."""
    kept = run_id in names_in(store, RUNS, ".json")
    return read_json(store, f"{RUNS if kept else FORGOTTEN}/{check_run_id(run_id)}.json")


def references(manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """All artifacts in a manifest's ``artifacts: {stage: [{kind, key, digest, …}]}``."""
    for stage, entries in (manifest.get("artifacts") or {}).items():
        for entry in entries:
            ref = ArtifactRef(kind=entry["kind"], key=entry["key"], digest=entry["digest"], rows=0, bytes=0)
            of = {name: value for name, value in entry.items() if name not in ArtifactRef.model_fields}
            yield Reference(name=ref.name, stage=stage, of=of)


def started_at(manifest: Mapping[str, Any]) -> str:
    """When a run began, as ISO 8601 text in UTC, which sorts as time does; empty where its manifest does not
    say."""
    moment = manifest.get("started")
    if isinstance(moment, int | float):
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    return str(moment or "")


def check_run_id(run_id: str) -> str:
    """The run id, which becomes a file name; raises ConfigError for one that can't."""
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"run id {run_id!r}: expected letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return run_id


def names_in(store: Store, folder: str, suffix: str) -> list[str]:
    """The entries of one of the store's folders that end with ``suffix``, without it, sorted."""
    try:
        store.fs.invalidate_cache()
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return []
    names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)
    return sorted(
        name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")
    )


def read_json(store: Store, name: str) -> dict[str, Any]:
    """One JSON object of the store; raises HistoryError naming the file."""
    try:
        with store.fs.open(store.path(name), "rb") as file:
            document = json.load(file)
    except FileNotFoundError:
        raise HistoryError(f"store {store.uri}: {name} is not there") from None
    except (OSError, json.JSONDecodeError) as error:
        raise HistoryError(f"store {store.uri}: {name} can't be read: {error}") from error
    if not isinstance(document, Mapping):
        raise HistoryError(f"store {store.uri}: {name} holds no JSON object")
    return dict(document)
