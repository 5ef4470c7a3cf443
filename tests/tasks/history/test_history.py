"""The history of a store: recording, asking, pruning."""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from metrics.errors import ConfigError
from tasks.history.layout import HistoryError
from tasks.history.prune import plan_pruning, prune
from tasks.history.query import query
from tasks.history.record import active_run, record_run
from tasks.store.schemas import ITEM_ROWS, RESPONSES, RESULTS, STATISTICS
from tasks.store.storage import ArtifactRef, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def rows(schema: pa.Schema, *given: dict[str, Any]) -> pa.Table:
    """A table of the schema; what a row does not give is a plain value of the field's type."""
    plain = {pa.string(): "", pa.int64(): 0, pa.int32(): 0, pa.bool_(): True}

    def value(field: pa.Field, row: dict[str, Any]) -> Any:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        return row.get(field.name, None if field.nullable else plain[kind])

    columns = [pa.array([value(field, row) for row in given]).cast(field.type) for field in schema]
    return pa.table(columns, schema=schema)


def record(store: Store, run_id: str, score: float = 0.5, **manifest: Any) -> None:
    result = rows(RESULTS, {"benchmark": "sums", "metric": "exact_match", "value": score, "status": "ok"})
    item = rows(ITEM_ROWS, {"item_id": "q1", "metric": "exact_match", "value": score, "facets": "{}"})
    record_run(store, {"run_id": run_id, "benchmark": "sums", **manifest}, [result], [item])


def artifact(store: Store, stage: str = "filter", key: str = "a" * 64) -> ArtifactRef:
    return store.write(stage, key, pa.schema([("x", pa.int64())]), [pa.table({"x": [1]})])


def test_a_recorded_run_answers_sql_over_runs_results_and_items(store: Store) -> None:
    record(store, "monday", 0.25, requests={"sent": 10, "cached": 2, "failed": 0})
    record(store, "tuesday", 0.75)
    answer = query(store, "SELECT run_id, value FROM results ORDER BY value")
    assert answer.columns == ("run_id", "value")
    assert list(answer.rows) == [("monday", 0.25), ("tuesday", 0.75)]
    assert query(store, "SELECT sent FROM runs WHERE run_id = 'monday'").rows == [(10,)]
    assert query(store, "SELECT count(*), min(item_id) FROM items").rows == [(2, "q1")]


def test_a_run_recorded_again_replaces_its_own_rows_only(store: Store) -> None:
    record(store, "monday", 0.25)
    record(store, "tuesday", 0.5)
    record(store, "monday", 0.3)
    assert query(store, "SELECT run_id, value FROM results ORDER BY run_id").rows == [
        ("monday", 0.3),
        ("tuesday", 0.5),
    ]


def test_a_run_whose_recording_was_cut_short_is_not_in_the_history(store: Store) -> None:
    record(store, "monday", 0.25)
    record(store, "tuesday", 0.5)
    store.fs.rm_file(store.path("runs/tuesday.json"))
    assert query(store, "SELECT run_id FROM results").rows == [("monday",)]


def test_a_history_without_runs_has_all_its_columns(store: Store) -> None:
    for view in ("runs", "results", "items", "scores", "samples"):
        answer = query(store, f"SELECT * FROM {view}")
        assert "run_id" in answer.columns
        assert answer.rows == []


def test_scores_and_samples_are_the_artifacts_that_runs_refer_to(store: Store) -> None:
    statistics = rows(STATISTICS, {"item_id": "q1", "score": 1.0}, {"item_id": "q2", "score": 0.0})
    responses = rows(RESPONSES, {"item_id": "q1", "prompt": "1+1?", "response": "2", "status": "ok"})
    score = store.write("score", "b" * 64, STATISTICS, [statistics])
    infer = store.write("infer", "c" * 64, RESPONSES, [responses])
    gone = ArtifactRef(kind="score", key="d" * 64, digest="e" * 64, rows=1, bytes=1)
    listed = {
        "score": [
            entry(score, filter="none", metric="exact_match"),
            entry(gone, filter="none", metric="bleu"),
        ],
        "infer": [entry(infer, model_name="demo")],
    }
    record(store, "monday", artifacts=listed)
    record(store, "tuesday", artifacts=listed)
    scores = query(store, "SELECT run_id, metric, item_id, score FROM scores ORDER BY ALL").rows
    assert scores == [
        ("monday", "exact_match", "q1", 1.0),
        ("monday", "exact_match", "q2", 0.0),
        ("tuesday", "exact_match", "q1", 1.0),
        ("tuesday", "exact_match", "q2", 0.0),
    ]
    assert query(store, "SELECT DISTINCT model_name, prompt, response FROM samples").rows == [
        ("demo", "1+1?", "2")
    ]


def entry(ref: ArtifactRef, **of: str) -> dict[str, str]:
    return {"kind": ref.kind, "key": ref.key, "digest": ref.digest, **of}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DROP VIEW results", "read-only: expected a SELECT, got DROP"),
        ("COPY (SELECT 1) TO 'x.csv'", "read-only: expected a SELECT, got COPY"),
        ("SELECT 1; SELECT 2", "expected one SQL query, got 2"),
        ("SELEC value", "the query is not SQL"),
        ("", "expected one SQL query, got 0"),
    ],
)
def test_a_statement_that_does_not_read_is_refused(store: Store, sql: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        query(store, sql)


def test_a_query_reads_no_file_outside_the_store(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside.csv"
    outside.write_text("a\n1\n")
    record(store, "monday")
    with pytest.raises(HistoryError, match="Permission"):
        query(store, f"SELECT * FROM read_csv('{outside}')")


def test_an_unknown_column_is_answered_by_name(store: Store) -> None:
    record(store, "monday")
    with pytest.raises(HistoryError, match="valu"):
        query(store, "SELECT valu FROM results")


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden"])
def test_a_run_id_that_is_no_file_name_is_refused(store: Store, run_id: str) -> None:
    with pytest.raises(ConfigError, match="run id"):
        record(store, run_id)


def test_pruning_removes_what_no_kept_run_refers_to_and_nothing_else(store: Store) -> None:
    referred, stray = artifact(store), artifact(store, key="f" * 64)
    record(store, "monday", artifacts={"filter": [entry(referred)]})
    store.put_bytes("answers/model/segment-0.parquet", b"an answer")
    store.put_bytes("filter/notes.txt", b"mine")
    plan = plan_pruning(store)
    assert [found.name for found in plan.artifacts] == [stray.name]
    assert (plan.bytes, plan.kept) == (stray.bytes, 1)
    prune(store, plan)
    assert store.holds(referred)
    assert not store.holds(stray)
    assert store.fs.exists(store.path("answers/model/segment-0.parquet"))
    assert store.fs.exists(store.path("filter/notes.txt"))
    assert plan_pruning(store).artifacts == ()
    assert query(store, "SELECT count(*) FROM results").rows == [(1,)]


def test_an_artifact_of_a_forgotten_run_stays_while_a_kept_one_refers_to_it(store: Store) -> None:
    shared, own = artifact(store), artifact(store, key="b" * 64)
    record(store, "monday", started="2026-01-05", artifacts={"filter": [entry(shared), entry(own)]})
    record(store, "tuesday", started="2026-01-06", artifacts={"filter": [entry(shared)]})
    plan = plan_pruning(store, keep=1)
    assert plan.runs == ("monday",)
    prune(store, plan)
    assert store.holds(shared)
    assert not store.holds(own)
    assert query(store, "SELECT run_id, kept FROM runs ORDER BY run_id").rows == [
        ("monday", False),
        ("tuesday", True),
    ]
    assert query(store, "SELECT count(*) FROM results").rows == [(2,)]


def test_keeping_counts_runs_of_each_benchmark_apart(store: Store) -> None:
    record(store, "a1", started="2026-01-01")
    record(store, "b1", started="2026-01-02", benchmark="words")
    record(store, "a2", started="2026-01-03")
    assert plan_pruning(store, keep=1).runs == ("a1",)


def test_pruning_waits_for_a_run_in_progress(store: Store) -> None:
    with active_run(store, "tonight"), pytest.raises(HistoryError, match="tonight is in progress"):
        plan_pruning(store)
    assert plan_pruning(store).artifacts == ()


@pytest.mark.parametrize(
    "mark",
    [
        {"host": socket.gethostname(), "pid": 2**22 + 1, "since": datetime.now(UTC).isoformat()},
        {"host": "a-machine-that-died", "pid": 1, "since": "2020-01-01T00:00:00+00:00"},
    ],
)
def test_the_mark_of_a_run_that_died_does_not_stop_pruning(store: Store, mark: dict[str, Any]) -> None:
    store.put_bytes("active/dead.json", json.dumps(mark).encode())
    assert plan_pruning(store).artifacts == ()


def test_a_run_on_another_machine_is_waited_for(store: Store) -> None:
    mark = {"host": "another-machine", "pid": os.getpid(), "since": datetime.now(UTC).isoformat()}
    store.put_bytes("active/far.json", json.dumps(mark).encode())
    with pytest.raises(HistoryError, match="far is in progress"):
        plan_pruning(store)


def test_a_manifest_that_can_not_be_read_stops_pruning(store: Store) -> None:
    stray = artifact(store)
    store.put_bytes("runs/broken.json", b"{")
    with pytest.raises(HistoryError, match=r"broken\.json can't be read"):
        plan_pruning(store)
    assert store.holds(stray)
