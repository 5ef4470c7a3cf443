"""Appending a run to the history, and marking runs in progress."""

import json
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.history.layout import (
    ACTIVE,
    HISTORY_ITEMS,
    HISTORY_RESULTS,
    ITEMS,
    RESULT_ROWS,
    RUNS,
    check_run_id,
)
from tasks.store.storage import Store, StoreError, write_parquet

Rows = Iterable[pa.RecordBatch | pa.Table]


def record_run(store: Store, manifest: Mapping[str, Any], results: Rows, items: Rows) -> None:
    """Adds a run to the store's history: its result rows, its item rows, and last its manifest.

    ``results`` are rows of the RESULTS schema, ``items`` of ITEM_ROWS. Each of the three files appears whole;
    the manifest comes last, so that a run is either in the history or not. The same run recorded again (a
    retry in the Prefect UI publishes once more) replaces its own files and no others. Raises StoreError.
    """
    run_id = check_run_id(str(manifest["run_id"]))
    _write(
        store, f"{RESULT_ROWS}/{run_id}.parquet", HISTORY_RESULTS, (_named(rows, run_id) for rows in results)
    )
    _write(store, f"{ITEMS}/{run_id}.parquet", HISTORY_ITEMS, (_named(rows, run_id) for rows in items))
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


def _named(rows: pa.RecordBatch | pa.Table, run_id: str) -> pa.Table:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    ids = pa.array([run_id] * table.num_rows, pa.string())
    if "run_id" in table.schema.names:
        return table.set_column(table.schema.get_field_index("run_id"), "run_id", ids)
    return table.append_column("run_id", ids)


def _write(store: Store, name: str, schema: pa.Schema, batches: Rows) -> None:
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
