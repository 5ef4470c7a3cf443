"""When a run or a night is part of the history: its rows first, then one record that makes it so.

Publish records runs, suites record nights and choose a baseline among past ones; a mark stands for each run
in progress, so that pruning waits for it.
"""

import json
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from metrics.errors import ConfigError, nearest
from tasks.history.layout import (
    ACTIVE,
    HISTORY_ITEMS,
    HISTORY_RESULTS,
    ITEMS,
    RESULT_ROWS,
    RUNS,
    check_run_id,
    known_runs,
    names_in,
    read_json,
)
from tasks.store.storage import Store, StoreError, write_parquet

RowBatches = Iterable[pa.RecordBatch | pa.Table]
SUITES = "suites"
LAST, LAST_PASSED, ROLLING = "last", "last-passed", "rolling"


class NightEvaluation(BaseModel):
    """One evaluation of a night; ``name`` is the same every night, ``run_id`` its run in the history."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    run_id: str
    ok: bool = True
    message: str | None = None


class Night(BaseModel):
    """One run of a suite. ``verdict`` is the gate's, None where there was nothing to compare with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    suite: str
    run_id: str
    started: str
    evaluations: tuple[NightEvaluation, ...]
    baseline: tuple[str, ...] = ()
    verdict: str | None = None

    @property
    def passed(self) -> bool:
        """Everything was evaluated, and nothing stands against it: the next night may be held against this
        one."""
        return all(evaluation.ok for evaluation in self.evaluations) and self.verdict in (None, "pass")


def record_run(store: Store, manifest: Mapping[str, Any], results: RowBatches, items: RowBatches) -> None:
    """Adds a run to the store's history: its result rows, its item rows, and last its manifest.

    ``results`` are rows of the RESULTS schema, ``items`` of ITEM_ROWS. Each of the three files appears whole;
    the manifest comes last, so that a run is either in the history or not. The same run recorded again (a
    retry in the Prefect UI publishes once more) replaces its own files and no others. Raises StoreError.
    """
    run_id = check_run_id(str(manifest["run_id"]))
    _write(
        store,
        f"{RESULT_ROWS}/{run_id}.parquet",
        HISTORY_RESULTS,
        (_with_run_id(rows, run_id) for rows in results),
    )
    _write(store, f"{ITEMS}/{run_id}.parquet", HISTORY_ITEMS, (_with_run_id(rows, run_id) for rows in items))
    store.put_bytes(
        f"{RUNS}/{run_id}.json", json.dumps(dict(manifest), ensure_ascii=False, indent=1).encode()
    )


@contextmanager
def active_run(store: Store, run_id: str) -> Iterator[None]:
    """Marks a run as in progress: until it is recorded no manifest names its artifacts, and pruning has to
    wait."""
    name = f"{ACTIVE}/{check_run_id(run_id)}.json"
    mark = {
        "run_id": run_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(),
    }
    store.put_bytes(name, json.dumps(mark).encode())
    try:
        yield
    finally:
        # A mark left behind only delays pruning: it must not turn a finished run into a failed one.
        with suppress(OSError):
            store.fs.rm_file(store.path(name))


def record_night(store: Store, night: Night) -> None:
    """Adds a night to its suite's history, whole or not at all; a retry replaces its own record."""
    name = f"{SUITES}/{check_run_id(night.suite)}/{check_run_id(night.run_id)}.json"
    store.put_bytes(name, night.model_dump_json(indent=1).encode())


def past_nights(store: Store, suite: str, before: str | None = None) -> list[Night]:
    """The suite's nights, oldest first, without the one called ``before`` (a retry is not its own
    baseline)."""
    folder = f"{SUITES}/{check_run_id(suite)}"
    nights = [
        Night.model_validate(read_json(store, f"{folder}/{name}.json"))
        for name in names_in(store, folder, ".json")
    ]
    return sorted((night for night in nights if night.run_id != before), key=lambda night: night.started)


def baseline_nights(store: Store, nights: Sequence[Night], baseline: str, count: int) -> list[Night]:
    """The nights that ``baseline`` names among past ones, oldest first; none if there is no such night yet.

    ``last``; ``last-passed``; ``rolling``, the last ``count`` that passed; or the id of a suite's run, or of
    a single evaluation's. Raises ConfigError for an id that nothing in the store has.
    """
    passed = [night for night in nights if night.passed]
    match baseline:
        case "last":
            return list(nights[-1:])
        case "last-passed":
            return passed[-1:]
        case "rolling":
            return passed[-count:]
    if found := [night for night in nights if night.run_id == baseline]:
        return found
    runs = known_runs(store)
    if baseline in runs:
        alone = (NightEvaluation(name="", run_id=baseline),)
        return [Night(suite="", run_id=baseline, started="", evaluations=alone)]
    known = [LAST_PASSED, LAST, ROLLING, *(night.run_id for night in nights), *runs]
    hint = nearest(baseline, known)
    raise ConfigError(f"baseline '{baseline}' is neither {LAST_PASSED}, {LAST}, {ROLLING} nor a run{hint}")


def _with_run_id(rows: pa.RecordBatch | pa.Table, run_id: str) -> pa.Table:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    ids = pa.array([run_id] * table.num_rows, pa.string())
    if "run_id" in table.schema.names:
        return table.set_column(table.schema.get_field_index("run_id"), "run_id", ids)
    return table.append_column("run_id", ids)


def _write(store: Store, name: str, schema: pa.Schema, batches: RowBatches) -> None:
    target = Path(store.path(name)) if store.local else Path(tempfile.gettempdir()) / "history"
    temporary = target.parent / f".{os.getpid()}-{Path(name).name}.tmp"
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(temporary, schema, batches)
        if store.local:
            temporary.replace(target)
        else:
            store.fs.put_file(str(temporary), store.path(name))
    except OSError as error:
        raise StoreError(f"store {store.uri}: can't write {name}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
