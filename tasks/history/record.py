"""When a run or a night is part of the history: its rows first, then one record that makes it so.

Publish records runs, suites record nights and choose a baseline among past ones.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from metrics.errors import ConfigError, nearest
from tasks.history.layout import (
    HISTORY_ITEMS,
    HISTORY_RESULTS,
    ITEMS,
    RESULT_ROWS,
    RUNS,
    HistoryError,
    Records,
    check_format,
    check_run_id,
    known_runs,
    names_in,
    read_json,
    read_records,
)
from tasks.store.storage import FORMAT, Store, write_parquet

RowBatches = Iterable[pa.RecordBatch | pa.Table]
SUITES = "suites"
LAST, LAST_PASSED, ROLLING = "last", "last-passed", "rolling"


class NightEvaluation(BaseModel):
    """One evaluation of a night; ``name`` is the same every night, ``run_id`` its run in the history."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    run_id: str
    ok: bool = True
    message: str | None = None
    requests: dict[str, int] | None = None
    """Of its models: ``sent``, ``cached``, and of those ``same_night``; None where it came to nothing."""
    doubts: tuple[str, ...] = ()
    """What canaries say against reusing answers."""


class Night(BaseModel):
    """One run of a suite. ``verdict`` is the gate's, None where there was nothing to compare with;
    ``spending`` tells the nights apart that take parts of another alpha, or against another named baseline.

    ``format`` is that of the store's records; a later version may add keys within one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    suite: str
    run_id: str
    started: str
    evaluations: tuple[NightEvaluation, ...]
    baseline: tuple[str, ...] = ()
    verdict: str | None = None
    spending: str | None = None
    format: int = FORMAT

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
    record = {**manifest, "format": FORMAT}
    store.put_bytes(f"{RUNS}/{run_id}.json", json.dumps(record, ensure_ascii=False, indent=1).encode())


def record_night(store: Store, night: Night) -> None:
    """Adds a night to its suite's history, whole or not at all; a retry replaces its own record."""
    name = f"{SUITES}/{check_run_id(night.suite)}/{check_run_id(night.run_id)}.json"
    store.put_bytes(name, night.model_dump_json(indent=1).encode())


def read_nights(store: Store, suite: str) -> Records[Night]:
    """All nights of a suite by their ids, oldest first, and the records that nobody can read."""
    folder = f"{SUITES}/{check_run_id(suite)}"
    names = [(name, f"{folder}/{name}.json") for name in names_in(store, folder, ".json")]
    read = read_records(names, lambda name: _night(store, name))
    return Records(dict(sorted(read.found.items(), key=lambda entry: entry[1].started)), read.skipped)


def past_nights(store: Store, suite: str, before: str | None = None) -> list[Night]:
    """The suite's nights that can be read, oldest first, without the one called ``before`` (a retry is not
    its own baseline)."""
    return [night for night in read_nights(store, suite).found.values() if night.run_id != before]


def _night(store: Store, name: str) -> Night:
    document = read_json(store, name)
    check_format(store, name, document)
    try:
        return Night.model_validate({"format": 0, **document})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise HistoryError(
            f"store {store.uri}: {name} is no record of a night: {place}: {first['msg']}"
        ) from error


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
    with store.writing(name) as temporary:
        write_parquet(temporary, schema, batches)
