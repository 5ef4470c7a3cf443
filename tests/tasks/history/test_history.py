"""The history of a store: recording and asking."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrics.errors import ConfigError
from tasks.history.layout import HistoryError, record_run
from tasks.history.nights import Night, nights_before, read_nights, record_night
from tasks.history.prune import active_run
from tasks.history.query import FOLDER, compact, query
from tasks.store.schemas import ITEM_ROWS, RESPONSES, RESULTS, STATISTICS
from tasks.store.storage import FORMAT, ArtifactRef, Store, StoreError


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


def test_a_recorded_run_answers_sql_over_runs_results_and_items(store: Store) -> None:
    record(store, "monday", 0.25, requests={"sent": 10, "cached": 2, "failed": 0})
    record(store, "tuesday", 0.75)
    answer = query(store, "SELECT run_id, value FROM results ORDER BY value")
    assert answer.columns == ("run_id", "value")
    assert list(answer.rows) == [("monday", 0.25), ("tuesday", 0.75)]
    assert query(store, "SELECT sent FROM runs WHERE run_id = 'monday'").rows == [(10,)]
    assert query(store, "SELECT count(*), min(item_id) FROM items").rows == [(2, "q1")]


@pytest.mark.parametrize("place", ["folder", "memory"])
@pytest.mark.parametrize("pattern", ["runs*", "runs[1]", "run?-other"])
def test_a_store_whose_name_looks_like_a_pattern_is_asked_alone(
    tmp_path: Path, place: str, pattern: str
) -> None:
    root = str(tmp_path) if place == "folder" else f"memory://{uuid4().hex}"
    for number, name in enumerate(("runs-other", "runs1", pattern)):
        record(Store(f"{root}/{name}"), f"run-{number}")
    store = Store(f"{root}/{pattern}")
    assert query(store, "SELECT run_id FROM results").rows == [("run-2",)]
    compact(store)
    assert query(store, "SELECT run_id FROM results").rows == [("run-2",)]


@pytest.mark.parametrize("compacted", [False, True], ids=["loose", "compacted"])
def test_costs_have_their_unit_beside_them(store: Store, compacted: bool) -> None:
    record(store, "monday", cost=0.5, currency="EUR")
    record(store, "tuesday", cost=0.25)
    if compacted:
        compact(store)
    answer = query(store, "SELECT cost, currency FROM runs ORDER BY run_id")
    assert answer.rows == [(0.5, "EUR"), (0.25, None)]
    columns = query(store, "SELECT * FROM runs").columns
    assert columns[columns.index("cost") + 1] == "currency"


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
        ("EXPLAIN ANALYZE DELETE FROM compacted", "read-only: expected a SELECT, got DELETE"),
        ("PIVOT results ON metric USING first(value)", r"PIVOT .* ON metric IN \('acc', 'f1'\)"),
        ("SELECT 1; SELECT 2", "expected one SQL query, got 2"),
        ("SELEC value", "the query is not SQL"),
        ("", "expected one SQL query, got 0"),
    ],
)
def test_a_statement_that_does_not_read_is_refused(store: Store, sql: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        query(store, sql)


@pytest.mark.parametrize(
    "writing",
    [
        "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{file}'",
        "EXPLAIN (ANALYZE, FORMAT json) /* a */ COPY (SELECT 1 AS a) TO '{file}';",
        "WITH a AS (COPY (SELECT 1) TO '{file}') SELECT * FROM a; -- b",
        "EXPLAIN ANALYZE WITH a AS (COPY (SELECT 1) TO '{file}') FROM a",
    ],
)
def test_no_query_writes_a_file_of_the_store(store: Store, writing: str) -> None:
    record(store, "monday")
    kept = store.document("runs/monday.json")
    with pytest.raises((ConfigError, HistoryError), match="read-only"):
        query(store, writing.format(file=store.path("runs/monday.json")))
    assert store.document("runs/monday.json") == kept


@pytest.mark.parametrize(
    "reading",
    [
        "EXPLAIN SELECT * FROM results",
        'EXPLAIN (ANALYZE, FORMAT json) (SELECT run_id AS "é", run_id FROM results);',
        "SELECT ';' FROM runs ; -- a",
        "DESCRIBE results",
        "SUMMARIZE runs",
        "SHOW TABLES",
        "FROM runs",
        "PIVOT results ON metric IN ('exact_match') USING first(value)",
    ],
)
def test_every_statement_that_reads_is_answered(store: Store, reading: str) -> None:
    record(store, "monday")
    assert query(store, reading).rows


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


TORN = {
    "torn": b'{"run_id": "bad", "bench',
    "empty": b"",
    "no text": b"\xff\xfe\x00 no text",
    "another thing": b'["not", "a", "manifest"]',
    "no manifest": b'{"hello": "there"}',
    "strange artifacts": b'{"run_id": "bad", "artifacts": {"filter": [{"kind": "filter"}]}}',
    "strange numbers": b'{"run_id": "bad", "wall_seconds": {"a": 1}}',
    "of a later format": b'{"run_id": "bad", "format": 99}',
}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
@pytest.mark.parametrize("compacted", [False, True], ids=["loose", "compacted"])
def test_a_record_that_can_not_be_read_costs_itself_only(
    store: Store, content: bytes, compacted: bool
) -> None:
    record(store, "monday", 0.25)
    record(store, "bad", 0.5)
    record(store, "tuesday", 0.75)
    store.put_bytes("runs/bad.json", content)
    if compacted:
        assert [skipped.name for skipped in compact(store)[1]] == ["runs/bad.json"]
    answer = query(store, "SELECT run_id, value FROM results ORDER BY run_id")
    assert answer.rows == [("monday", 0.25), ("tuesday", 0.75)]
    assert [skipped.name for skipped in answer.skipped] == ["runs/bad.json"]
    assert "runs/bad.json" in str(answer.skipped[0])


@pytest.mark.parametrize("file", ["history/results/bad.parquet", "history/items/bad.parquet"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_rows_that_can_not_be_read_cost_their_run_only(store: Store, file: str, damage: str) -> None:
    for run_id in ("bad", "monday"):
        record(store, run_id)
    path = Path(store.path(file))
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    view = "results" if "results" in file else "items"
    for _ in range(2):
        answer = query(store, f"SELECT run_id FROM {view}")
        assert answer.rows == [("monday",)]
        assert file in str(answer.skipped[0])
        assert query(store, "SELECT run_id FROM runs ORDER BY ALL").rows == [("bad",), ("monday",)]
        compact(store)  # the second time from a segment


def everything(store: Store) -> list[Any]:
    views = ("runs", "results", "items", "scores", "samples")
    return [query(store, f"SELECT * FROM {view} ORDER BY ALL").rows for view in views]


@pytest.fixture(params=["local", "memory"])
def any_store(request: pytest.FixtureRequest, store: Store) -> Iterator[Store]:
    """A store in a folder, and one that DuckDB reads through fsspec, as one on S3 is."""
    if request.param == "local":
        yield store
        return
    remote = Store(f"memory://history-{uuid4().hex}")
    yield remote
    remote.fs.rm(remote.root, recursive=True)


def test_a_compacted_history_gives_the_same_rows(any_store: Store) -> None:
    store = any_store
    statistics = rows(STATISTICS, {"item_id": "q1", "score": 1.0})
    score = store.write("score", "b" * 64, STATISTICS, [statistics])
    listed = {"score": [entry(score, filter="none", metric="exact_match")]}
    for run_id in ("monday", "tuesday", "wednesday"):
        record(store, run_id, artifacts=listed, requests={"sent": 1}, steps={"infer": {"failed": 0}})
    loose = everything(store)
    assert all(loose[:4])
    assert compact(store) == (3, ())
    assert everything(store) == loose
    record(store, "thursday")
    mixed = everything(store)
    assert len(mixed[0]) == 4
    assert compact(store) == (1, ())
    assert everything(store) == mixed
    assert compact(store) == (0, ())
    assert compact(store, anew=True) == (4, ())
    assert everything(store) == mixed


def test_a_run_recorded_again_or_forgotten_is_not_read_from_an_old_segment(any_store: Store) -> None:
    store = any_store
    record(store, "monday", 0.25, started="2026-01-05")
    record(store, "tuesday", 0.5, started="2026-01-06")
    compact(store)
    record(store, "monday", 0.3, started="2026-01-05")
    assert query(store, "SELECT run_id, value FROM results ORDER BY run_id").rows == [
        ("monday", 0.3),
        ("tuesday", 0.5),
    ]
    store.fs.makedirs(store.path("history/forgotten"), exist_ok=True)
    store.fs.mv(store.path("runs/tuesday.json"), store.path("history/forgotten/tuesday.json"))
    assert query(store, "SELECT run_id, kept FROM runs ORDER BY ALL").rows == [
        ("monday", True),
        ("tuesday", False),
    ]
    store.fs.rm_file(store.path("runs/monday.json"))
    assert query(store, "SELECT run_id FROM results").rows == [("tuesday",)]


def test_a_damaged_segment_is_made_anew_from_the_records(store: Store) -> None:
    record(store, "monday")
    compact(store)
    before = everything(store)
    for path in Path(store.path(FOLDER)).iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert everything(store) == before
    assert compact(store) == (1, ())
    assert everything(store) == before


def test_a_query_over_many_runs_compacts_them_and_many_segments_become_one(store: Store) -> None:
    folder = Path(store.path(FOLDER))
    for number in range(51):
        record(store, f"run-{number}")
    assert query(store, "SELECT count(*) FROM results").rows == [(51,)]
    assert len(list(folder.glob("*.runs.parquet"))) == 1
    for number in range(51, 59):
        record(store, f"run-{number}")
        compact(store)
    newest = max(folder.glob("*.runs.parquet"))
    with pq.ParquetFile(newest) as file:
        assert file.metadata.num_rows == 59
    assert query(store, "SELECT count(*), count(DISTINCT run_id) FROM results").rows == [(59, 59)]


def test_a_night_that_can_not_be_read_costs_itself_only(store: Store) -> None:
    for number in (1, 2, 3):
        record_night(
            store, Night(suite="s", run_id=f"n{number}", started=f"2026-01-0{number}", evaluations=())
        )
    store.put_bytes("suites/s/n2.json", b'{"suite": "s", "run')
    store.put_bytes("suites/s/n4.json", b'{"suite": "s", "run_id": "n4", "format": 99}')
    store.put_bytes("suites/s/n5.json", b'{"suite": "s", "run_id": "n5", "started": "x"}')
    added = {"suite": "s", "run_id": "n6", "started": "2026-01-06", "evaluations": [], "added_later": 1}
    store.put_bytes("suites/s/n6.json", json.dumps(added).encode())
    found = read_nights(store, "s")
    assert list(found.found) == ["n1", "n3", "n6"]
    assert [skipped.name for skipped in found.skipped] == [f"suites/s/n{number}.json" for number in (2, 4, 5)]
    assert [night.run_id for night in nights_before(found.found.values(), found.found["n6"])] == ["n1", "n3"]


def test_a_run_marks_the_format_and_a_store_of_a_later_one_is_refused(store: Store) -> None:
    assert store.format() == (0, None)
    with active_run(store, "tonight"):
        pass
    assert store.format()[0] == FORMAT
    record(store, "tonight")
    assert json.loads(Path(store.path("runs/tonight.json")).read_bytes())["format"] == FORMAT
    mark = {"format": FORMAT + 1, "since": "2030-01-01T00:00:00+00:00"}
    store.put_bytes("format.json", json.dumps(mark).encode())
    for use in (store.check_readable, store.check_writable, active_run(store, "late").__enter__):
        with pytest.raises(StoreError, match=f"has format {FORMAT + 1}, of a later version of Nightjar"):
            use()
    store.put_bytes("format.json", b"{")
    with pytest.raises(StoreError, match=r"format\.json can't be read"):
        store.check_readable()
