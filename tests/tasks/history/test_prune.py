"""What pruning removes and what it never does, alone and beside runs in progress."""

import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.history import prune as pruning_module
from tasks.history import verify as verify_module
from tasks.history.layout import HistoryError, record_run
from tasks.history.prune import (
    EVERYTHING,
    LONGEST_LOG,
    PRUNING,
    AnswerRetention,
    Retention,
    active_run,
    find_leftovers,
    plan_pruning,
    prune,
    remove_leftovers,
)
from tasks.history.query import query
from tasks.history.verify import repair
from tasks.models.answers.segments import note_use
from tasks.models.batches.records import Job, JobRecords
from tasks.store.machine import this_process
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import ArtifactRef, Store

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def keeping(count: int) -> Retention:
    return EVERYTHING.model_copy(update={"keep": count})


def record(store: Store, run_id: str, **manifest: Any) -> None:
    document = {"run_id": run_id, "benchmark": "sums", "models": {"demo": {}}, **manifest}
    record_run(store, document, [RESULTS.empty_table()], [ITEM_ROWS.empty_table()])


def artifact(store: Store, stage: str = "filter", key: str = "a" * 64) -> ArtifactRef:
    return store.write(stage, key, pa.schema([("x", pa.int64())]), [pa.table({"x": [1]})])


def entry(ref: ArtifactRef) -> dict[str, str]:
    return {"kind": ref.kind, "key": ref.key, "digest": ref.digest}


def forgotten(store: Store, keep: int) -> tuple[str, ...]:
    return plan_pruning(store, keeping(keep)).runs


def test_pruning_removes_what_no_kept_run_refers_to_and_nothing_else(store: Store) -> None:
    referred, stray = artifact(store), artifact(store, key="f" * 64)
    record(store, "monday", artifacts={"filter": [entry(referred)]})
    store.put_bytes("answers/model/segment-0.parquet", b"an answer")
    store.put_bytes("filter/notes.txt", b"mine")
    plan = plan_pruning(store)
    assert [found.name for found in plan.artifacts] == [stray.name]
    assert (plan.bytes, plan.kept) == (stray.bytes, 1)
    assert prune(store) == plan
    assert store.holds(referred)
    assert not store.holds(stray)
    assert store.fs.exists(store.path("answers/model/segment-0.parquet"))
    assert store.fs.exists(store.path("filter/notes.txt"))
    assert plan_pruning(store).artifacts == ()
    assert query(store, "SELECT run_id FROM runs").rows == [("monday",)]


def test_a_store_that_is_no_folder_is_pruned_alike() -> None:
    store = Store("memory://pruned")
    shared, own = artifact(store), artifact(store, key="b" * 64)
    record(store, "monday", started="2026-01-05", artifacts={"filter": [entry(shared), entry(own)]})
    with active_run(store, "tuesday"):
        record(store, "tuesday", started="2026-01-06", artifacts={"filter": [entry(shared)]})
    old, new = segment(store, NOW - 100 * DAY), segment(store, NOW - DAY)
    retention = Retention(keep=1, answers=AnswerRetention(unused=None, age=90 * DAY))
    pruned = prune(store, retention, NOW)
    assert (pruned.runs, [found.name for found in pruned.artifacts]) == (("monday",), [own.name])
    assert [found.name for found in pruned.answers] == [f"answers/model/{old}"]
    assert store.names("answers/model", ".parquet") == [new.removesuffix(".parquet")]
    assert store.holds(shared)
    assert query(store, "SELECT count(*) FROM runs").rows == [(2,)]
    store.fs.rm(store.root, recursive=True)


def test_an_artifact_of_a_forgotten_run_stays_while_a_kept_one_refers_to_it(store: Store) -> None:
    shared, own = artifact(store), artifact(store, key="b" * 64)
    record(store, "monday", started="2026-01-05", artifacts={"filter": [entry(shared), entry(own)]})
    record(store, "tuesday", started="2026-01-06", artifacts={"filter": [entry(shared)]})
    assert prune(store, keeping(1)).runs == ("monday",)
    assert store.holds(shared)
    assert not store.holds(own)
    assert query(store, "SELECT run_id, kept FROM runs ORDER BY run_id").rows == [
        ("monday", False),
        ("tuesday", True),
    ]


def test_keeping_counts_runs_of_each_benchmark_and_model_apart(store: Store) -> None:
    record(store, "a1", started="2026-01-01")
    record(store, "b1", started="2026-01-02", benchmark="words")
    record(store, "a2", started="2026-01-03", models={"other": {}})
    record(store, "a3", started="2026-01-04")
    assert forgotten(store, 1) == ("a1",)
    record(store, "both", started="2026-01-05", models={"demo": {}, "other": {}})
    assert forgotten(store, 1) == ("a1", "a2", "a3")
    assert forgotten(store, 2) == ("a1",)


def test_a_run_of_several_models_stays_while_one_of_them_needs_it(store: Store) -> None:
    record(store, "both", started="2026-01-01", models={"demo": {}, "other": {}})
    record(store, "demo", started="2026-01-02")
    assert forgotten(store, 1) == ()


def test_pruning_waits_for_a_run_in_progress(store: Store) -> None:
    with active_run(store, "tonight"):
        for attempt in (plan_pruning, prune):
            with pytest.raises(HistoryError, match="tonight is in progress"):
                attempt(store)
    assert prune(store).artifacts == ()


def test_a_run_whose_machine_slept_for_hours_is_in_progress(store: Store) -> None:
    renewed = (datetime.now(UTC) - timedelta(hours=30)).isoformat()
    store.put_document("active/slept.json", json.dumps({**this_process(), "renewed": renewed}).encode())
    with pytest.raises(HistoryError, match="slept is in progress"):
        prune(store)


@pytest.mark.parametrize("act", [prune, repair], ids=["prune", "repair"])
def test_a_pruning_that_was_taken_for_dead_removes_nothing_more(
    store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[Store], Any]
) -> None:
    strays = [artifact(store, key=key * 64) for key in "abc"]
    for stray in strays[1:]:
        Path(store.path(stray.name)).write_bytes(b"damaged")
    touched: list[str] = []

    def stopped(function: Callable[..., Any]) -> Callable[..., Any]:
        """Its first call takes so long that a run that waits removes the claim."""

        def call(*arguments: Any) -> Any:
            for claim in store.names(f"claims/{PRUNING}", ".json"):
                store.remove(f"claims/{PRUNING}/{claim}.json")
            touched.append("one")
            return function(*arguments)

        return call

    monkeypatch.setattr(pruning_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pruning_module, "_remove", stopped(pruning_module._remove))
    monkeypatch.setattr(verify_module, "_mended", stopped(verify_module._mended))
    with pytest.raises(HistoryError, match="was suspended, and others went on"):
        act(store)
    assert touched == ["one"]


@pytest.mark.parametrize(
    "mark",
    [
        {**this_process(), "pid": 2**22 + 1, "since": datetime.now(UTC).isoformat()},
        {
            **this_process(),
            "began": 1,
            "since": datetime.now(UTC).isoformat(),
            "renewed": datetime.now(UTC).isoformat(),
        },
        {
            **this_process(),
            "began": None,
            "since": datetime.now(UTC).isoformat(),
            "renewed": (datetime.now(UTC) - timedelta(hours=2)).isoformat(),
        },
        {"host": "a-machine-that-died", "pid": 1, "since": "2020-01-01T00:00:00+00:00"},
        {
            "host": "a-machine-that-died",
            "pid": 1,
            "since": datetime.now(UTC).isoformat(),
            "renewed": (datetime.now(UTC) - timedelta(hours=2)).isoformat(),
        },
    ],
    ids=[
        "a process that ended",
        "a number that another process has now",
        "a number of a mark of before, which may be another's",
        "a machine of long ago",
        "a machine that renews no more",
    ],
)
def test_the_mark_of_a_run_that_died_does_not_stop_pruning(store: Store, mark: dict[str, Any]) -> None:
    store.put_document("active/dead.json", json.dumps(mark).encode())
    assert plan_pruning(store).artifacts == ()


@pytest.mark.parametrize("renewed", [{}, {"renewed": datetime.now(UTC).isoformat()}], ids=["0.1.0", "now"])
def test_a_run_on_another_machine_is_waited_for(store: Store, renewed: dict[str, str]) -> None:
    since = datetime.now(UTC) - timedelta(hours=30)
    mark = {"host": "another-machine", "pid": os.getpid(), "since": since.isoformat(), **renewed}
    store.put_bytes("active/far.json", json.dumps(mark).encode())
    with pytest.raises(HistoryError, match="far is in progress"):
        plan_pruning(store)


def test_a_run_in_a_container_with_this_host_s_name_is_waited_for(store: Store) -> None:
    mark = {"host": socket.gethostname(), "pid": 2**22 + 1, "since": datetime.now(UTC).isoformat()}
    store.put_document("active/contained.json", json.dumps(mark).encode())
    with pytest.raises(HistoryError, match="contained is in progress"):
        plan_pruning(store)


def test_a_run_that_begins_while_the_store_is_pruned_waits_until_that_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray, order = artifact(store), []
    begun = threading.Event()

    def run() -> None:
        with active_run(store, "late"):
            order.append("run")
            begun.set()

    late = threading.Thread(target=run)
    plan = pruning_module._planned

    def planned(*arguments: Any) -> Any:
        found = plan(*arguments)
        late.start()
        while not store.names("active", ".json"):
            assert not begun.is_set()
        # It has announced itself, and looked for prunings or is about to.
        assert not begun.wait(1.5)
        order.append("pruning")
        return found

    monkeypatch.setattr(pruning_module, "_planned", planned)
    prune(store)
    late.join(60)
    assert order == ["pruning", "run"]
    assert not store.holds(stray)


def test_a_manifest_that_can_not_be_read_stops_pruning(store: Store) -> None:
    stray = artifact(store)
    store.put_bytes("runs/broken.json", b"{")
    with pytest.raises(HistoryError, match=r"broken\.json can't be read(.|\n)*fix the file, or remove it"):
        prune(store)
    assert store.holds(stray)


TEMPORARY = (
    "filter/.one.tmp", "history/items/.two.tmp", "active/.mark.tmp", "nights/.night.tmp", "batches/m/.3.tmp"
)  # fmt: skip


def test_what_killed_processes_left_half_written_goes_after_a_day(store: Store) -> None:
    for name in TEMPORARY:
        store.put_bytes("filter/mine.txt", b"x")
        Path(store.path(name)).parent.mkdir(parents=True, exist_ok=True)
        Path(store.path(name)).write_bytes(b"half")
    later = datetime.now(UTC) + timedelta(hours=25)
    assert plan_pruning(store).torn == ()
    assert set(prune(store, now=later).torn) == set(TEMPORARY)
    assert not list(Path(store.path("")).rglob("*.tmp"))


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_what_was_set_aside_of_a_step_goes_after_a_day(tmp_path: Path, place: str) -> None:
    store = Store(str(tmp_path) if place == "folder" else f"memory://{tmp_path.name}")
    aside = store.set_aside(artifact(store).name)
    store.put_bytes("answers/model/1-a.parquet.damaged", b"may hold what is paid for")
    assert plan_pruning(store).torn == ()
    assert prune(store, now=datetime.now(UTC) + timedelta(hours=25)).torn == (aside,)
    assert not store.exists(aside)
    assert store.exists("answers/model/1-a.parquet.damaged")


def test_a_mark_that_is_finished_while_the_store_is_looked_through_is_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes("active/.mark.tmp", b"{}")
    temporary, modified = Path(store.path("active/.mark.tmp")), store.fs.modified

    def finished(path: str) -> datetime:
        temporary.rename(temporary.with_name("run.json"))
        return modified(path)

    monkeypatch.setattr(store.fs, "modified", finished)
    assert "active/.mark.tmp" not in plan_pruning(store).torn


def claim(store: Store, moment: datetime, **owner: Any) -> list[str]:
    """What a claim's owner left, which will never take it away."""
    name = f"claims/answers/model/{int(moment.timestamp() * 1e9):020d}-{'f' * 32}"
    store.put_bytes(f"{name}.bin", b"keys")
    store.put_document(f"{name}.json", json.dumps(owner).encode())
    return [f"{name}.bin", f"{name}.json"]


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_claims_marks_and_nights_that_killed_runs_left_go_and_those_of_the_living_stay(
    tmp_path: Path, place: str
) -> None:
    store = Store(str(tmp_path) if place == "folder" else f"memory://{tmp_path.name}")
    here, far = this_process(), {"host": "another-machine", "pid": 1}
    gone = [
        *claim(store, NOW - timedelta(hours=2), **{**here, "pid": 2**22 + 1}),
        *claim(store, NOW - timedelta(hours=25), **far),
    ]
    claim(store, NOW - timedelta(hours=3), **far)
    claim(store, NOW - timedelta(hours=4), **here)
    store.put_bytes("claims/execute/x/00000000000000000001-new.bin", b"whose owner comes next")
    for name, hours in (("old", 25), ("new", 23)):
        began = {"night": name, "began": (NOW - timedelta(hours=hours)).timestamp()}
        store.put_document(f"nights/{name}.json", json.dumps(began).encode())
    store.put_bytes("nights/torn.json", b"{")
    dead = {**here, "pid": 2**22 + 1, "since": NOW.isoformat()}
    store.put_document("active/dead.json", json.dumps(dead).encode())
    gone += ["nights/old.json", "nights/torn.json", "active/dead.json"]
    gone += ["claims/execute/x/00000000000000000001-new.bin"]  # by its time, of 1970
    assert set(plan_pruning(store, now=NOW).torn) == set(gone)
    assert set(prune(store, now=NOW).torn) == set(gone)
    left = {str(path).removeprefix(store.root + "/") for path in store.fs.find(store.root)}
    assert not left & set(gone)
    assert len([name for name in left if name.startswith("claims/answers/")]) == 4
    assert {name for name in left if name.startswith("nights/")} == {"nights/new.json"}


# Runs over a small pool of artifacts, some made under one key with different contents.


@dataclass(frozen=True)
class Made:
    started: int
    benchmark: str
    models: frozenset[str]
    artifacts: frozenset[int]


POOL = [f"{('filter', 'score')[number % 2]}/{number // 3:064x}.{number:016x}.parquet" for number in range(9)]
MADE = st.builds(
    Made,
    st.integers(0, 5),
    st.sampled_from("ab"),
    st.frozensets(st.sampled_from("mn"), max_size=2),
    st.frozensets(st.integers(0, len(POOL) - 1), max_size=4),
)


def reference(number: int) -> dict[str, str]:
    kind, _, file = POOL[number].partition("/")
    key, digest, _ = file.split(".")
    return {"kind": kind, "key": key, "digest": digest + "0" * 48}


def newest(runs: Mapping[str, Made], keep: int | None) -> set[str]:
    """The runs that stay, by the rule as docs/operations.md has it."""
    if keep is None:
        return set(runs)
    kept = set()
    groups = {(run.benchmark, model) for run in runs.values() for model in run.models or {""}}
    for benchmark, model in groups:
        members = [
            name for name, run in runs.items() if run.benchmark == benchmark and model in (run.models or {""})
        ]
        kept |= set(sorted(members, key=lambda name: (-runs[name].started, name))[:keep])
    return kept


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(MADE, max_size=8), lost=st.frozensets(st.integers(0, 8)), keep=st.sampled_from([None, 1, 2])
)
def test_whatever_is_pruned_every_kept_run_keeps_every_artifact(
    tmp_path_factory: pytest.TempPathFactory, made: list[Made], lost: frozenset[int], keep: int | None
) -> None:
    store = Store(str(tmp_path_factory.mktemp("pruned")))
    runs = {f"run-{number}": run for number, run in enumerate(made)}
    present = {number for number in range(len(POOL)) if number not in lost}
    for number in present:
        kind, _, file = POOL[number].partition("/")
        store.put_bytes(POOL[number], b"rows")
        store.put_bytes(f"records/{kind}-{file[:64]}", b"{}")
    for name, run in runs.items():
        manifest = {
            "run_id": name,
            "benchmark": run.benchmark,
            "started": run.started,
            "models": {model: {} for model in run.models},
            "artifacts": {"any": [reference(number) for number in run.artifacts]},
        }
        store.put_bytes(f"runs/{name}.json", json.dumps(manifest).encode())
    prune(store, keeping(keep) if keep else EVERYTHING)
    kept = newest(runs, keep)
    needed = {number for name in kept for number in runs[name].artifacts}
    there = {number for number in range(len(POOL)) if store.fs.exists(store.path(POOL[number]))}
    assert set(store.names("runs", ".json")) == kept
    assert set(store.names("history/forgotten", ".json")) == set(runs) - kept
    assert there == needed & present
    keys = {f"{POOL[number].partition('/')[0]}-{POOL[number].partition('/')[2][:64]}" for number in there}
    assert set(store.names("records", "")) == keys
    again = plan_pruning(store, keeping(keep) if keep else EVERYTHING)
    assert (again.runs, again.artifacts) == ((), ())


def test_runs_that_reuse_artifacts_while_others_are_pruned_never_lose_one(store: Store) -> None:
    """Each run refers to whatever it finds of some artifacts, and makes the others: what a pruning removes
    between its look and its record would be missing."""
    keys = [f"{number:064x}" for number in range(6)]
    done, problems = threading.Event(), []

    def evaluate(worker: int) -> None:
        for number in range(4):
            run_id = f"w{worker}-{number}"
            with active_run(store, run_id):
                refs = []
                for key in (keys[number], keys[number + worker]):
                    ref = artifact(store, key=key)
                    if not store.holds(ref):
                        problems.append(f"{run_id}: {ref.name} went while it ran")
                    refs.append(ref)
                listed = {"filter": [entry(ref) for ref in refs]}
                record(store, run_id, started=number, artifacts=listed)

    def upkeep() -> None:
        while not done.is_set():
            with suppress(HistoryError):
                prune(store, keeping(1))

    workers = [threading.Thread(target=evaluate, args=(worker,)) for worker in range(2)]
    keeper = threading.Thread(target=upkeep)
    for thread in (*workers, keeper):
        thread.start()
    for thread in workers:
        thread.join(120)
    done.set()
    keeper.join(120)
    prune(store, keeping(1))
    assert problems == []
    (kept,) = store.names("runs", ".json")
    manifest = json.loads(Path(store.path(f"runs/{kept}.json")).read_bytes())
    for found in manifest["artifacts"]["filter"]:
        name = f"{found['kind']}/{found['key']}.{found['digest'][:16]}.parquet"
        assert store.fs.exists(store.path(name))


# Answers


def segment(store: Store, written: datetime, identity: str = "model", content: bytes = b"rows") -> str:
    name = f"{int(written.timestamp() * 1000):013d}-{'a' * 12}.parquet"
    store.put_bytes(f"answers/{identity}/{name}", content)
    return name


def used(store: Store, name: str, day: datetime, identity: str = "model") -> None:
    mark = {"used": day.date().isoformat()}
    store.put_bytes(f"answers/{identity}/used/{name.partition('.')[0]}.json", json.dumps(mark).encode())


def answers_left(store: Store, **limits: timedelta | None) -> list[str]:
    retention = EVERYTHING.model_copy(update={"answers": AnswerRetention(**{"unused": None, **limits})})
    prune(store, retention, NOW)
    return store.names("answers/model", ".parquet")


@pytest.fixture
def marked(store: Store) -> Store:
    """A store whose format was marked long ago."""
    mark = {"format": 1, "since": (NOW - 400 * DAY).isoformat()}
    store.put_bytes("format.json", json.dumps(mark).encode())
    return store


def test_answers_go_when_no_run_has_used_them_for_so_long(marked: Store) -> None:
    idle, fresh, busy = (segment(marked, NOW - days * DAY) for days in (100, 10, 300))
    used(marked, busy, NOW - 2 * DAY)
    used(marked, idle, NOW - 95 * DAY)
    left = answers_left(marked, unused=90 * DAY)
    assert left == sorted(name.removesuffix(".parquet") for name in (fresh, busy))
    assert marked.names("answers/model/used", ".json") == [busy.removesuffix(".parquet")]


def test_answers_go_at_an_age_whether_used_or_not(marked: Store) -> None:
    old, young = (segment(marked, NOW - days * DAY) for days in (31, 29))
    used(marked, old, NOW)
    assert answers_left(marked, age=30 * DAY) == [young.removesuffix(".parquet")]


def test_answers_of_a_store_from_before_marks_count_as_used_when_it_became_todays(store: Store) -> None:
    segment(store, NOW - 300 * DAY)
    assert len(answers_left(store, unused=90 * DAY)) == 1
    mark = {"format": 1, "since": (NOW - 80 * DAY).isoformat()}
    store.put_bytes("format.json", json.dumps(mark).encode())
    assert len(answers_left(store, unused=90 * DAY)) == 1
    assert answers_left(store, unused=70 * DAY) == []


def batch(store: Store, name: str, made: datetime, fetched: bool = True) -> None:
    job = Job(name, "model", made.timestamp(), made.timestamp(), None, ("a",), 1, fetched=fetched)
    JobRecords(store, "model").keep(job)
    if fetched:
        store.put_bytes(f"batches/model/{name}.parquet", b"whole answers")


@pytest.mark.parametrize("limit", ["unused", "age"])
def test_what_came_of_batches_goes_as_answers_do(marked: Store, limit: str) -> None:
    batch(marked, "old", NOW - 8 * DAY)
    batch(marked, "young", NOW - 6 * DAY)
    batch(marked, "open", NOW - 8 * DAY, fetched=False)
    batch(marked, "forgotten", NOW - 30 * DAY, fetched=False)
    answers_left(marked, **{limit: 7 * DAY})
    assert marked.names("batches/model", ".json") == ["open", "young"]
    assert marked.names("batches/model", ".parquet") == ["young"]


def test_rows_of_a_batch_without_a_record_go(marked: Store) -> None:
    batch(marked, "kept", NOW - 20 * DAY)
    marked.put_bytes("batches/model/lost.parquet", b"whole answers")
    marked.put_bytes("batches/model/broken.parquet.damaged", b"whole answers")
    prune(marked, EVERYTHING, NOW)
    assert [entry.name for entry in marked.all_entries("batches")] == [
        "batches/model/kept.json",
        "batches/model/kept.parquet",
    ]


def test_a_use_is_noted_once_a_day(store: Store) -> None:
    note_use(store, "model", "0000000000001-x.parquet")
    path = Path(store.path("answers/model/used/0000000000001-x.json"))
    assert json.loads(path.read_bytes())["used"] == datetime.now(UTC).date().isoformat()
    path.unlink()
    note_use(store, "model", "0000000000001-x.parquet")
    assert not path.exists()


# Beside the store


def aged(path: Path, days: float, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    moment = (NOW - days * DAY).timestamp()
    os.utime(path, (moment, moment))
    return path


OF_A_RUN = json.dumps({"run_id": "sums-1", "benchmark": "sums", "steps": {}}).encode()
OF_A_NIGHT = json.dumps({"run_id": "nightly-1", "suite": "nightly", "evaluations": []}).encode()


def test_output_folders_go_when_nothing_was_written_to_them_for_so_long(tmp_path: Path) -> None:
    results = tmp_path / "results"
    aged(results / "old" / "manifest.json", 91, OF_A_RUN)
    aged(results / "night" / "suite.json", 91, OF_A_NIGHT)
    aged(results / "night" / "sums-demo" / "manifest.json", 91, OF_A_RUN)
    aged(results / "published-again" / "manifest.json", 91, OF_A_RUN)
    aged(results / "published-again" / "report.html", 1)
    aged(results / "new" / "manifest.json", 1, OF_A_RUN)
    aged(results / "notes" / "thesis.tex", 900)
    aged(results / "index.html", 900)
    aged(tmp_path / "elsewhere" / "manifest.json", 900, OF_A_RUN)
    (results / "link").symlink_to(tmp_path / "elsewhere")
    found = find_leftovers(results, tmp_path / "home", Retention(results=90 * DAY), NOW)
    assert [folder.name for folder in found.folders] == ["night", "old"]
    remove_leftovers(found)
    left = {path.name for path in results.iterdir()}
    assert left == {"published-again", "new", "notes", "index.html", "link"}
    assert (tmp_path / "elsewhere" / "manifest.json").exists()
    nothing = find_leftovers(results, tmp_path / "home", Retention(results=None), NOW)
    assert nothing.folders == ()


def test_a_file_that_goes_while_it_is_looked_at_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run writes into the same folder of results, under temporary names."""
    folder = tmp_path / "results" / "old"
    aged(folder / "manifest.json", 91, OF_A_RUN)
    aged(folder / "report.html", 91)
    aged(tmp_path / "home" / "old.log", 91)
    aged(folder / ".gone.tmp", 91)
    looked_at = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path.name == ".gone.tmp":
            raise FileNotFoundError(path)
        return looked_at(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    found = find_leftovers(tmp_path / "results", tmp_path / "home", Retention(), NOW)
    assert (found.folders, found.logs) == ((folder,), (tmp_path / "home" / "old.log",))


@pytest.mark.parametrize(
    "content",
    [
        b'{"manifest_version": 3, "name": "a browser extension"}',
        b'{"run_id": 7, "benchmark": "of another tool", "steps": {}}',
        b'{"run_id": "of/another tool", "benchmark": "sums", "steps": {}}',
        OF_A_NIGHT,
        b"[]",
        b'{"run_id": "torn',
        b"\xff",
    ],
)
def test_a_folder_with_a_manifest_of_another_program_is_not_ours(tmp_path: Path, content: bytes) -> None:
    aged(tmp_path / "results" / "extension" / "manifest.json", 900, content)
    aged(tmp_path / "results" / "extension" / "src" / "thesis.txt", 900)
    found = find_leftovers(tmp_path / "results", tmp_path / "home", Retention(results=90 * DAY), NOW)
    assert found.folders == ()


def test_logs_go_at_an_age_and_one_that_is_written_is_cut_in_place(tmp_path: Path) -> None:
    home = tmp_path / "home"
    aged(home / "server" / "old.log", 31)
    aged(home / "worker.log", 1)
    aged(home / "server" / "server.json", 900)
    growing = aged(home / "server" / "server.log", 0, b"a line of the log\n" * (LONGEST_LOG // 16))
    with growing.open("ab") as writer:
        remove_leftovers(find_leftovers(tmp_path / "results", home, Retention(logs=30 * DAY), NOW))
        assert growing.stat().st_size <= LONGEST_LOG // 4
        writer.write(b"the next line\n")
    lines = growing.read_bytes().splitlines()
    assert (lines[0], lines[-1]) == (b"a line of the log", b"the next line")
    assert {path.name for path in home.rglob("*") if path.is_file()} == {
        "worker.log",
        "server.json",
        "server.log",
    }


def nights(store: Store, count: int, retention: Retention) -> Iterator[int]:
    """Nights that ask anew: each has its own answers and artifacts, 100 KB; pruned every other week. Gives
    the store's size after each pruning."""
    for number in range(count):
        moment = NOW + number * DAY
        segment(store, moment, content=b"r" * 20_000)
        refs = []
        for stage in ("infer", "filter", "score", "reduce"):
            key = hashlib.sha256(f"{stage} {number}".encode()).hexdigest()
            refs.append(ArtifactRef(kind=stage, key=key, digest=key, rows=1, bytes=20_000))
            store.put_bytes(refs[-1].name, b"r" * 20_000)
        listed = {"any": [entry(ref) for ref in refs]}
        record(store, f"night-{number}", started=moment.timestamp(), artifacts=listed)
        if number % 14 == 13:
            prune(store, retention, moment)
            yield sum(path.stat().st_size for path in Path(store.path("")).rglob("*") if path.is_file())


@pytest.mark.services
def test_a_year_of_nights_stays_within_a_size(store: Store) -> None:
    retention = Retention(keep=30, answers=AnswerRetention(unused=30 * DAY))
    sizes = list(nights(store, 365, retention))
    # What is left of 365 nights: 30, those since the last pruning, and the rows of all.
    assert len(store.names("runs", ".json")) == 30 + 365 % 14
    assert len(store.names("answers/model", ".parquet")) == 31 + 365 % 14
    assert query(store, "SELECT count(*) FROM runs").rows == [(365,)]
    rows_a_night = 25_000
    assert sizes[-1] < 31 * 100_000 + 365 * rows_a_night
    assert sizes[-1] - sizes[5] < (365 - 6 * 14) * rows_a_night
