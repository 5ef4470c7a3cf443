"""Where a store keeps its history, which artifacts a manifest refers to, and when a run or a night is part
of it: its rows first, then one record that makes it so.

``runs/<run_id>.json``                the run's manifest: with it the run is in the history, and kept
``history/results/<run_id>.parquet``  its result rows
``history/items/<run_id>.parquet``    its item rows
``history/forgotten/<run_id>.json``   the manifest of a run whose rows stay although its artifacts need not
``history/compacted/…``               all of these again in few files: built again from them at any time
``active/<run_id>.json``              a mark of a run in progress, whose artifacts no manifest names yet

A record that can't be read, or is of a later format, costs itself only: who reads several gets the
others, and the names of those left out with the reason (``Records``). Publish records runs, suites record
nights and choose a baseline among past ones.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from metrics.errors import ConfigError, NightjarError
from tasks.store.errors import FileDamaged, FileMissing
from tasks.store.rows import write_rows
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import FORMAT, ArtifactRef, Store

RUNS: Final = "runs"
ACTIVE: Final = "active"
FORGOTTEN: Final = "history/forgotten"
RESULT_ROWS: Final = "history/results"
ITEMS: Final = "history/items"
HISTORY_ITEMS: Final = pa.schema([pa.field("run_id", pa.string(), nullable=False), *ITEM_ROWS])
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
R = TypeVar("R")


class HistoryError(NightjarError):
    """The history can't be read or asked that."""


@dataclass(frozen=True)
class Skipped:
    """A record that was left out: its file's name below the store's root, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"left out: {self.reason}"


@dataclass(frozen=True)
class Records(Generic[R]):
    """Records by name, and those that were left out because nobody can read them."""

    found: Mapping[str, R]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """Where a run's manifest lies and in which state: a record written again has another ``token``."""

    run_id: str
    name: str
    token: str

    @property
    def kept(self) -> bool:
        """Whether the run's artifacts are kept."""
        return self.name.startswith(f"{RUNS}/")


@dataclass(frozen=True)
class Reference:
    """An artifact of a run: its file's name below the store's root, the stage that made it, and what it is of
    (``step``, ``filter``, ``metric``, ``model_name``, ``prompt_template``, as far as the manifest says)."""

    name: str
    stage: str
    of: Mapping[str, str | None]


def kept_runs(store: Store) -> dict[str, dict[str, Any]]:
    """Manifests of the runs whose artifacts are kept, by run id, sorted; raises HistoryError for one that
    can't be read."""
    return {run_id: read_manifest(store, f"{RUNS}/{run_id}.json") for run_id in store.names(RUNS, ".json")}


def run_records(store: Store) -> dict[str, RunRecord]:
    """All runs of the history by id, kept or forgotten, from two listings: no record is opened."""
    found = {}
    for folder in (FORGOTTEN, RUNS):  # one that is being forgotten is in both, and still kept
        for name, token in tokens(store, folder).items():
            found[name.removesuffix(".json")] = RunRecord(
                name.removesuffix(".json"), f"{folder}/{name}", token
            )
    return dict(sorted(found.items()))


def read_records(names: Iterable[tuple[str, str]], read: Callable[[str], R]) -> Records[R]:
    """What ``read`` makes of records, given as key and file name; one that it refuses is left out and
    named."""
    found, skipped = {}, []
    for key, name in names:
        try:
            found[key] = read(name)
        except NightjarError as error:
            skipped.append(Skipped(name, str(error)))
    return Records(found, tuple(skipped))


def known_runs(store: Store) -> list[str]:
    """Ids of all runs that have rows in the history, kept or forgotten."""
    return list(run_records(store))


def find_manifest(store: Store, run_id: str) -> dict[str, Any]:
    """A run's manifest, whether the run is kept or forgotten; raises HistoryError."""
    kept = store.exists(f"{RUNS}/{check_run_id(run_id)}.json")
    return read_manifest(store, f"{RUNS if kept else FORGOTTEN}/{run_id}.json")


def read_manifest(store: Store, name: str) -> dict[str, Any]:
    """The manifest in a file; raises HistoryError for one that is torn, of a later format, or no manifest."""
    manifest = read_json(store, name)
    check_format(store, name, manifest)
    if problem := _not_a_manifest(manifest):
        raise HistoryError(f"store {store.uri}: {name} is no manifest of a run: {problem}")
    return manifest


def _not_a_manifest(document: Mapping[str, Any]) -> str | None:
    """What keeps a document from being a run's manifest; None: nothing."""
    if not isinstance(document.get("run_id"), str):
        return "it has no run_id"
    for key, kind in (("requests", object), ("steps", Mapping), ("artifacts", list)):
        value = document.get(key) or {}
        if not isinstance(value, Mapping) or not all(isinstance(entry, kind) for entry in value.values()):
            return f"{key} is not what it should be"
    entries = [entry for entries in (document.get("artifacts") or {}).values() for entry in entries]
    if not all(isinstance(entry, Mapping) and {"kind", "key", "digest"} <= entry.keys() for entry in entries):
        return "an artifact has no digest"
    return None


def check_format(store: Store, name: str, record: Mapping[str, Any]) -> None:
    """Raises HistoryError for a record of a later version: what it says would be misread."""
    version = record.get("format", 0)
    if not isinstance(version, int) or version > FORMAT:
        raise HistoryError(
            f"store {store.uri}: {name} has format {version}, of a later version of Nightjar; this one reads"
            f" formats up to {FORMAT}"
        )


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


def tokens(store: Store, folder: str) -> dict[str, str]:
    """The JSON files of a folder with what changes when one is written again, as far as the listing says."""
    entries = ((entry.name.rpartition("/")[2], entry.token) for entry in store.entries(folder))
    return {name: token for name, token in entries if name.endswith(".json")}


def read_json(store: Store, name: str) -> dict[str, Any]:
    """One JSON object of the store, which is of the run that the file is named after if it says a run. Raises
    HistoryError naming the file, StoreUnavailable."""
    try:
        document = json.loads(store.document(name))
        if isinstance(document, Mapping) and "run_id" in document:
            check_run(store, name, [document["run_id"]])
    except (FileMissing, FileDamaged) as error:
        raise HistoryError(str(error)) from error
    except (ValueError, RecursionError) as error:  # torn, no UTF-8, no JSON
        raise HistoryError(f"store {store.uri}: {name} can't be read: {error}") from error
    if not isinstance(document, Mapping):
        raise HistoryError(f"store {store.uri}: {name} holds no JSON object")
    return dict(document)


def check_run(store: Store, name: str, run_ids: Iterable[Any]) -> None:
    """Raises FileDamaged for a file that is of other runs than the one that it is named after."""
    own = name.rpartition("/")[2].rpartition(".")[0]
    if others := sorted({str(run_id) for run_id in run_ids} - {own}):
        raise store.damage(name, f"it is of run {', '.join(others)}: it was copied or renamed")


RowBatches = Iterable[pa.RecordBatch | pa.Table]


def record_run(store: Store, manifest: Mapping[str, Any], results: RowBatches, items: RowBatches) -> None:
    """Adds a run to the store's history: its result rows, its item rows, and last its manifest.

    Each of the three files appears whole; the manifest comes last, so that a run is either in the history or
    not. The same run recorded again (a retry in the Prefect UI publishes once more) replaces its own files
    and no others. Raises StoreError.
    """
    record_rows(store, str(manifest["run_id"]), results, items)
    record_manifest(store, manifest)


def record_rows(store: Store, run_id: str, results: RowBatches, items: RowBatches) -> None:
    """Writes a run's rows, where nobody looks for them before ``record_manifest`` has made it a run of the
    history. ``results`` are rows of the RESULTS schema, ``items`` of ITEM_ROWS. Raises StoreError."""
    check_run_id(run_id)
    _write(
        store,
        f"{RESULT_ROWS}/{run_id}.parquet",
        RESULTS,
        (_with_run_id(rows, run_id) for rows in results),
    )
    _write(store, f"{ITEMS}/{run_id}.parquet", HISTORY_ITEMS, (_with_run_id(rows, run_id) for rows in items))


def unrecord(store: Store, run_id: str) -> None:
    """Takes a run out of the history, as if it had never been in it. Raises StoreError."""
    for name in (f"{RUNS}/{check_run_id(run_id)}.json", f"{RESULT_ROWS}/{run_id}.parquet"):
        store.remove(name)
    store.remove(f"{ITEMS}/{run_id}.parquet")


def record_manifest(store: Store, manifest: Mapping[str, Any]) -> None:
    """Makes a run one of the history: its rows are written already. Raises StoreError."""
    run_id = check_run_id(str(manifest["run_id"]))
    record = {**manifest, "format": FORMAT}
    store.put_document(f"{RUNS}/{run_id}.json", json.dumps(record, ensure_ascii=False, indent=1).encode())


def _with_run_id(rows: pa.RecordBatch | pa.Table, run_id: str) -> pa.Table:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    ids = pa.array([run_id] * table.num_rows, pa.string())
    if "run_id" in table.schema.names:
        return table.set_column(table.schema.get_field_index("run_id"), "run_id", ids)
    return table.append_column("run_id", ids)


def _write(store: Store, name: str, schema: pa.Schema, batches: RowBatches) -> None:
    with store.writing_table(name, schema, compression_level=3) as writer:
        write_rows(writer, schema, batches)
