"""A bit of any file of a store flips: the same numbers, or damage that is named, never another number."""

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem

from metrics.errors import NightjarError
from tasks.comparison.runs import recorded_run
from tasks.history import query as query_module
from tasks.history.layout import record_run
from tasks.history.nights import Night, NightEvaluation, read_nights, record_night
from tasks.history.query import compact, query
from tasks.history.verify import repair, verify
from tasks.models.answers.segments import AnswerStore
from tasks.models.records import KeptAnswer
from tasks.store import storage
from tasks.store.errors import FileDamaged, StoreError
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import ArtifactRef, Store

RUN = "monday"
SCORES = pa.schema([pa.field("item_id", pa.string()), pa.field("score", pa.float64())])
KEYS = [bytes([n]) * 32 for n in range(20)]


def rows(schema: pa.Schema, count: int, **given: Any) -> pa.Table:
    plain = {pa.string(): "x", pa.int64(): 1, pa.int32(): 1, pa.bool_(): True, pa.float64(): 0.5}
    columns = {}
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        value = given.get(field.name, plain.get(kind))
        columns[field.name] = pa.array(value if isinstance(value, list) else [value] * count).cast(field.type)
    return pa.table(columns, schema=schema)


def small_store(uri: str) -> tuple[Store, ArtifactRef]:
    """One file of each kind, in a store that was made by this version."""
    store = Store(uri)
    store.mark_format()
    ref = store.write("score", "ab" * 32, SCORES, [pa.table({"item_id": ["q1"], "score": [0.25]}, SCORES)])
    store.put_document(
        "records/score-x",
        json.dumps({"result": {**ref.model_dump()}, "metadata": {"storage_key": "score-x"}}).encode(),
    )
    answers = [
        KeptAnswer(status="ok", key=key, response=f"answer {n}", arrived=1.0 + n)
        for n, key in enumerate(KEYS)
    ]
    AnswerStore(store).of_model("model").write(answers)
    items = rows(
        ITEM_ROWS, 3, item_id=["q1", "q2", "q3"], value=[0.0, 0.5, 1.0], facets="{}", value_json=[None] * 3
    )
    record_run(store, {"run_id": RUN, "benchmark": "sums"}, [rows(RESULTS, 2, value=[0.25, 0.5])], [items])
    record_run(store, {"run_id": "tuesday", "benchmark": "sums"}, [rows(RESULTS, 1)], [items])
    compact(store)
    record_run(store, {"run_id": "wednesday", "benchmark": "sums"}, [rows(RESULTS, 1)], [items])
    night = Night(
        suite="s", run_id="n1", started="2026-01-01", evaluations=(NightEvaluation(name="a", run_id=RUN),)
    )
    record_night(store, night)
    return store, ref


def read_answers(store: Store, _: ArtifactRef) -> Any:
    found, position = AnswerStore(store).of_model("model").snapshot().rows(KEYS)
    responses = found.column("response").to_pylist()
    return [responses[at] if at >= 0 else None for at in position]


def read_query(sql: str) -> Callable[[Store, ArtifactRef], Any]:
    def read(store: Store, _: ArtifactRef) -> Any:
        found = query(store, sql)
        return found.rows if not found.skipped else f"damaged: {found.skipped}"

    return read


def read_night(store: Store, _: ArtifactRef) -> Any:
    found = read_nights(store, "s")
    return found.found if not found.skipped else f"damaged: {found.skipped}"


def read_compared(store: Store, _: ArtifactRef) -> Any:
    run = recorded_run(RUN, store)
    return run.results, [(key, group.value.tolist()) for key, group in run.groups.items()]


READERS: dict[str, tuple[str, Callable[[Store, ArtifactRef], Any]]] = {
    "answers": ("answers/model/*.parquet", read_answers),
    "artifact": ("score/*.parquet", lambda store, ref: store.table(ref).to_pylist()),
    "record": ("records/score-x", lambda store, _: store.document("records/score-x", sealed=True)),
    "results": ("history/results/wednesday.parquet", read_query("SELECT * FROM results ORDER BY ALL")),
    "items": ("history/items/wednesday.parquet", read_query("SELECT * FROM items ORDER BY ALL")),
    "run": ("runs/wednesday.json", read_query("SELECT * EXCLUDE manifest FROM runs ORDER BY ALL")),
    "compacted results": (
        "history/compacted/*.results.parquet",
        read_query("SELECT * FROM results ORDER BY ALL"),
    ),
    "compacted items": ("history/compacted/*.items.parquet", read_query("SELECT * FROM items ORDER BY ALL")),
    "compacted runs": (
        "history/compacted/*.runs.parquet",
        read_query("SELECT run_id FROM runs ORDER BY ALL"),
    ),
    "night": ("suites/s/n1.json", read_night),
    "compared": (f"history/items/{RUN}.parquet", read_compared),
    "format": ("format.json", lambda store, _: store.format()),
}


@pytest.fixture
def made(tmp_path: Path) -> tuple[Store, ArtifactRef]:
    return small_store(str(tmp_path / "store"))


def flips(path: Path, stride: int) -> Iterator[int]:
    """Flips one bit after the other in the file, and leaves it as it was."""
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), stride):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        # By a rename, as a writer does: a file of the same times would be taken for one that was verified.
        path.with_suffix(".new").write_bytes(changed)
        os.replace(path.with_suffix(".new"), path)
        yield bit
    path.write_bytes(content)


def the_file(store: Store, pattern: str) -> Path:
    (found,) = Path(store.root).glob(pattern)
    return found


def test_a_store_of_this_version_has_a_digest_for_every_file(made: tuple[Store, ArtifactRef]) -> None:
    store, _ = made
    names = [entry.name for entry in store.all_entries()]
    kinds = {name.partition("/")[0] for name in names}
    assert kinds == {"answers", "format.json", "history", "records", "runs", "score", "suites"}
    for name in names:
        path = Path(store.path(name))
        content = path.read_bytes()
        assert store.checked(name) == name
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(FileDamaged, match=r"is damaged: .*; "):
                Store(store.uri).checked(name)
        path.write_bytes(content)


def hold(made: tuple[Store, ArtifactRef], kind: str, stride: int) -> None:
    store, ref = made
    pattern, read = READERS[kind]
    expected = read(Store(store.uri), ref)
    path = the_file(store, pattern)
    folder = {entry.name for entry in store.all_entries()}
    for bit in flips(path, stride):
        try:
            found = read(Store(store.uri), ref)
        except NightjarError as error:
            found = f"damaged: {error}"
        if kind == "answers":
            assert set(found) <= {*expected, None} or str(found).startswith("damaged"), bit
        else:
            assert found == expected or str(found).startswith("damaged"), bit
        for entry in store.all_entries():  # what was set aside or saved
            if entry.name not in folder:
                store.remove(entry.name)


@pytest.mark.parametrize("kind", READERS)
def test_a_flipped_bit_gives_the_same_numbers_or_damage_that_is_named(
    made: tuple[Store, ArtifactRef], kind: str
) -> None:
    hold(made, kind, 8 * the_file(made[0], READERS[kind][0]).stat().st_size // 12 + 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_every_flipped_bit_is_seen_by_the_check_that_readers_go_through(
    made: tuple[Store, ArtifactRef], kind: str
) -> None:
    store, _ = made
    path = the_file(store, READERS[kind][0])
    name = path.relative_to(store.root).as_posix()
    for _ in flips(path, 1):
        anew = Store(store.uri)
        with pytest.raises(FileDamaged):
            anew.checked(name)


@pytest.mark.slow
def test_every_flipped_bit_of_answers_gives_the_same_answers_or_none(made: tuple[Store, ArtifactRef]) -> None:
    hold(made, "answers", 1)  # of a damaged segment the sound part is read


def test_a_file_without_a_seal_is_damage_in_a_store_that_was_new(made: tuple[Store, ArtifactRef]) -> None:
    store, _ = made
    store.put_bytes("runs/later.json", b'{"run_id": "later"}')
    found = query(store, "SELECT run_id FROM runs WHERE run_id = 'later'")
    assert not found.rows
    assert "runs/later.json is damaged: it has no seal" in str(found.skipped[0])


def test_a_column_that_a_file_lacks_or_adds_is_damage(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    whole = rows(RESULTS, 1)
    for name, table in (
        ("lacks", whole.drop_columns(["value"])),
        ("adds", whole.append_column("values", pa.array([1.0]))),
        ("lacks later", whole.drop_columns(["warning"])),
    ):
        record_run(store, {"run_id": RUN}, [rows(RESULTS, 1)], [rows(ITEM_ROWS, 1, facets="{}")])
        with store.writing_table(f"history/results/{RUN}.parquet", table.schema) as writer:
            writer.write_table(table)
        found = query(store, "SELECT * FROM results")
        assert not found.rows, name
        assert "is damaged: its column" in str(found.skipped[0]), name


def test_a_reference_with_another_number_of_rows_is_not_served(made: tuple[Store, ArtifactRef]) -> None:
    store, ref = made
    fewer = ref.model_copy(update={"rows": 0})
    with pytest.raises(StoreError, match="has 1 rows and its reference says 0"):
        store.table(fewer)
    with pytest.raises(StoreError, match="has 1 rows and its reference says 0"):
        list(store.batches(fewer))


def spoil(store: Store, pattern: str) -> str:
    """Flips a bit in the middle of a file; its name."""
    path = the_file(store, pattern)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)
    return str(path.relative_to(store.root))


def test_a_whole_store_has_nothing_to_mend(made: tuple[Store, ArtifactRef]) -> None:
    store, _ = made
    before = {path: path.read_bytes() for path in Path(store.root).rglob("*") if path.is_file()}
    found = verify(store)
    assert not found.damaged
    assert not found.unsealed
    kinds = {"answers": 1, "format.json": 1, "history": 10, "records": 1, "runs": 3, "score": 1, "suites": 1}
    assert found.files == kinds
    repair(store)
    for path, content in before.items():
        assert "compacted" in str(path) or path.read_bytes() == content


@pytest.mark.parametrize(
    ("pattern", "done"),
    [
        (f"runs/{RUN}.json", "made again from the compacted copy"),
        (f"history/results/{RUN}.parquet", "made again from the compacted copy"),
        (f"history/items/{RUN}.parquet", "made again from the compacted copy"),
        ("history/compacted/*.items.parquet", "made again from the records"),
        ("history/items/wednesday.parquet", "nothing else has it"),
        ("suites/s/n1.json", "set aside"),
        ("score/*.parquet", "computed again by the next run"),
        ("records/score-x", "computed again by the next run"),
        ("answers/model/*.parquet", "answers are saved, the others are asked for again"),
        ("format.json", ""),
    ],
)
def test_repair_sets_damage_aside_and_makes_anew_what_it_can(
    made: tuple[Store, ArtifactRef], pattern: str, done: str
) -> None:
    store, _ = made
    views = [f"SELECT * FROM {view} ORDER BY ALL" for view in ("runs", "results", "items")]
    before = [query(store, sql).rows for sql in views]
    name = spoil(store, pattern)
    assert [entry.name for entry in verify(Store(store.uri)).damaged] == [name]
    mended = repair(Store(store.uri))
    assert all(done in entry.done for entry in mended.damaged)
    assert Path(store.path(f"{name}.damaged")).is_file()
    again = verify(Store(store.uri))
    assert not again.damaged
    assert again.aside == (f"{name}.damaged",)
    if done != "nothing else has it":
        assert [query(Store(store.uri), sql).rows for sql in views] == before


@pytest.mark.parametrize(
    "pattern", [f"runs/{RUN}.json", f"history/results/{RUN}.parquet", f"history/items/{RUN}.parquet"]
)
def test_compacting_keeps_the_copy_that_a_damaged_file_is_made_again_from(
    made: tuple[Store, ArtifactRef], pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "REMOVED_AFTER_SECONDS", -1.0)
    store, _ = made
    before = query(store, "SELECT * FROM items ORDER BY ALL").rows
    name = spoil(store, pattern)
    for anew in (False, True):
        compact(Store(store.uri), anew)
    assert [(entry.name, entry.done) for entry in repair(Store(store.uri)).damaged] == [
        (name, "set aside, and made again from the compacted copy")
    ]
    assert query(Store(store.uri), "SELECT * FROM items ORDER BY ALL").rows == before


OTHERS = [
    (f"runs/{RUN}.json", "runs/{}.json"),
    (f"history/results/{RUN}.parquet", "history/results/{}.parquet"),
    (f"history/items/{RUN}.parquet", "history/items/{}.parquet"),
    ("suites/s/n1.json", "suites/s/{}.json"),
    ("records/score-x", "records/score-{}"),
]


@pytest.mark.parametrize(("own", "place"), OTHERS, ids=[own for own, _ in OTHERS])
@pytest.mark.parametrize("other", ["wednesday", f"{RUN}.sync-conflict-20261127", f"{RUN} (copy)"])
def test_a_whole_file_in_the_place_of_another_is_damage(
    made: tuple[Store, ArtifactRef], own: str, place: str, other: str
) -> None:
    store, _ = made
    views = ("runs", "results", "items")
    before = [query(store, f"SELECT run_id FROM {view} ORDER BY ALL").rows for view in views]
    name = place.format(other)
    Path(store.path(name)).write_bytes(Path(store.path(own)).read_bytes())
    anew = Store(store.uri)
    for view, rows_before in zip(views, before, strict=True):
        found = query(anew, f"SELECT run_id FROM {view} ORDER BY ALL").rows
        assert found in (rows_before, [row for row in rows_before if row[0] != other]), view
    assert read_night(anew, made[1]) == read_night(store, made[1])
    if "records" in own:
        with pytest.raises(FileDamaged, match="is the record of score-x: it was copied or renamed"):
            anew.record(f"score-{other}")
    (damage,) = verify(anew).damaged
    assert damage.name == name
    assert "it was copied or renamed" in damage.reason
    repair(anew)
    assert verify(anew).aside == (f"{name}.damaged",)


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Has a local store's file fail when it is read, or opened where that is what may not be."""
    error = OSError(number, os.strerror(number))

    class Failing(io.FileIO):
        def readinto(self, _: Any) -> int:
            raise error

        def read(self, _: int | None = -1) -> bytes:
            raise error

    def opened(path: str, mode: str) -> Any:
        if not path.endswith(name):
            return open(path, mode)
        if number == errno.EACCES:
            raise error
        return Failing(path)

    def content(self: LocalFileSystem, path: str) -> bytes:
        if path.endswith(name):
            raise error
        return Path(path).read_bytes()

    monkeypatch.setattr(storage, "open", opened, raising=False)
    monkeypatch.setattr(LocalFileSystem, "cat_file", content)


UNREADABLE = ["score/*.parquet", f"runs/{RUN}.json", "history/items/wednesday.parquet", "records/score-x"]


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_an_input_output_error_of_a_disk_is_damage_of_one_file(
    made: tuple[Store, ArtifactRef], pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = made
    whole = sum(verify(store).files.values())
    name = the_file(store, pattern).relative_to(store.root).as_posix()
    failing(monkeypatch, name, errno.EIO)
    found = verify(Store(store.uri))
    assert [(entry.name, "Input/output error" in entry.reason) for entry in found.damaged] == [(name, True)]
    assert sum(found.files.values()) == whole - 1
    repair(Store(store.uri))
    assert verify(Store(store.uri)).aside == (f"{name}.damaged",)


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_a_file_that_this_user_may_not_read_is_named_and_stays(
    made: tuple[Store, ArtifactRef], pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = made
    name = the_file(store, pattern).relative_to(store.root).as_posix()
    damaged = spoil(store, "suites/s/n1.json")
    failing(monkeypatch, name, errno.EACCES)
    for look in (verify, repair):
        found = look(Store(store.uri))
        assert [entry.name for entry in found.damaged] == [damaged]
        assert [(entry.name, "Permission denied" in entry.reason) for entry in found.unread] == [(name, True)]
    assert Path(store.path(name)).is_file()


def test_rows_of_another_run_are_not_compared(made: tuple[Store, ArtifactRef]) -> None:
    store, _ = made
    for part in ("results", "items"):
        name = store.path(f"history/{part}/{{}}.parquet")
        Path(name.format("wednesday")).write_bytes(Path(name.format(RUN)).read_bytes())
        with pytest.raises(NightjarError, match=f"{part}/wednesday.parquet is damaged: it is of run {RUN}"):
            recorded_run("wednesday", Store(store.uri))
        record_run(store, {"run_id": "wednesday"}, [rows(RESULTS, 1)], [rows(ITEM_ROWS, 1, facets="{}")])


def test_several_damages_are_all_named(made: tuple[Store, ArtifactRef]) -> None:
    store, _ = made
    names = [spoil(store, pattern) for pattern in (f"runs/{RUN}.json", "score/*.parquet", "suites/s/n1.json")]
    assert sorted(entry.name for entry in verify(Store(store.uri)).damaged) == sorted(names)
