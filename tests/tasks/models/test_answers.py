"""Kept answers: found by key, merged, shared by workers, on any file system."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from tasks.models.answers.segments import AnswerStore, KeyIndex, ModelAnswers, SegmentKeys, halves
from tasks.models.records import KeptAnswer, Lookup
from tasks.store.storage import Store, StoreError


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def answers(numbers, text="text", arrived=1.0) -> list[KeptAnswer]:
    return [KeptAnswer(key(n), "ok", response=f"{text} {n}", arrived=arrived) for n in numbers]


@pytest.fixture(params=["folder", "memory"])
def kept(request, tmp_path) -> ModelAnswers:
    uri = str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path.name}"
    return AnswerStore(Store(uri)).of_model("identity")


def texts(kept: ModelAnswers, numbers, **view) -> list[str | None]:
    table, position = kept.snapshot(**view).rows([key(n) for n in numbers])
    found = table.column("response").to_pylist()
    return [None if at < 0 else found[at] for at in position]


def test_an_empty_shelf_holds_nothing(kept):
    assert kept.snapshot().holds([key(1)]) == [False]
    assert kept.snapshot().holds([]) == []
    assert texts(kept, [1, 2]) == [None, None]


def test_answers_are_found_in_any_order_over_many_segments(kept):
    for start in range(0, 100, 10):
        kept.write(answers(range(start, start + 10)))
    numbers = [99, 0, 55, 200, 12, 13]
    assert texts(kept, numbers) == ["text 99", "text 0", "text 55", None, "text 12", "text 13"]


def test_of_two_answers_the_later_counts_whichever_was_written_last(kept):
    kept.write(answers([1], "new", arrived=2.0))
    kept.write(answers([1, 2], "old", arrived=1.0))
    assert texts(kept, [1, 2]) == ["new 1", "old 2"]
    assert texts(kept, [1, 2], lookup=Lookup(not_before=1.5)) == ["new 1", None]


def test_merging_keeps_every_answer_in_fewer_files(kept):
    segments = [kept.write(answers(range(start, start + 10))) for start in range(0, 100, 10)]
    kept.merge(segments)
    assert len(kept.names()) == 1
    assert texts(kept, range(100)) == [f"text {n}" for n in range(100)]


def test_a_reader_survives_a_merge_by_another_worker(kept):
    segments = [kept.write(answers(range(start, start + 10))) for start in range(0, 50, 10)]
    view = kept.snapshot()
    kept.merge(segments)
    table, position = view.rows([key(7), key(43)])
    assert [table.column("response")[int(at)].as_py() for at in position] == ["text 7", "text 43"]


def test_two_workers_never_write_the_same_file(kept):
    segments = [kept.write(answers([n])) for n in range(20)]
    assert len({segment.name for segment in segments}) == 20


def test_a_damaged_segment_is_a_miss_and_not_a_crash(tmp_path, caplog):
    kept = AnswerStore(Store(str(tmp_path))).of_model("identity")
    kept.write(answers([1]))
    segment = kept.write(answers([2]))
    file = tmp_path / "answers" / "identity" / segment.name
    file.write_bytes(file.read_bytes()[:40])
    assert texts(kept, [1, 2]) == ["text 1", None]
    assert "can't be read and are asked for again" in caplog.text


def test_altered_bytes_are_noticed_and_set_aside(tmp_path):
    kept = AnswerStore(Store(str(tmp_path))).of_model("identity")
    segment = kept.write([KeptAnswer(key(n), "ok", response=f"{n}" * 300, arrived=1.0) for n in range(200)])
    file = tmp_path / "answers" / "identity" / segment.name
    kept.snapshot()  # the keys are in memory now, and the rows are not
    content = bytearray(file.read_bytes())
    place = len(content) // 2
    content[place : place + 64] = bytes(64)
    file.write_bytes(content)
    with pytest.raises(StoreError, match="was damaged"):
        texts(kept, range(200))
    assert texts(kept, [3]) == [None]  # the next run asks again


def test_identities_keep_their_answers_apart(tmp_path):
    store = AnswerStore(Store(str(tmp_path)))
    store.of_model("a").write(answers([1]))
    assert store.of_model("b").snapshot().holds([key(1)]) == [False]


def random_keys(count: int, seed: int) -> pa.Array:
    raw = np.random.default_rng(seed).integers(0, 256, (count, 32), np.uint8).tobytes()
    return pa.Array.from_buffers(pa.binary(32), count, [None, pa.py_buffer(raw)])


def segment_of(keys: pa.Array) -> SegmentKeys:
    high, low = halves(keys)
    count = len(keys)
    return SegmentKeys(high, low, np.zeros(count), np.zeros(count, np.uint64), np.zeros(count, bool))


def test_a_million_keys_are_found_in_a_few_bytes_each():
    parts = [random_keys(250_000, seed) for seed in range(4)]
    index = KeyIndex([segment_of(part) for part in parts])
    assert len(index) == 1_000_000
    wanted = [parts[s][r].as_py() for s, r in itertools.product(range(4), (0, 17, 249_999))]
    segment, row = index.find([*wanted, bytes(32)])
    assert segment.tolist() == [*np.repeat(range(4), 3), -1]
    assert row.tolist() == [*[0, 17, 249_999] * 4, -1]
    held = sum(array.nbytes for array in vars(index).values())
    assert held <= 24 * 1_000_000


def test_keys_with_equal_first_halves_are_told_apart():
    same = [bytes(8) + bytes([n]) * 24 for n in range(5)]
    index = KeyIndex([segment_of(pa.array(same, pa.binary(32)))])
    segment, row = index.find([*same, bytes(8) + bytes([9]) * 24])
    assert segment.tolist() == [0, 0, 0, 0, 0, -1]
    assert row.tolist() == [0, 1, 2, 3, 4, -1]


def test_a_slice_of_keys_is_read_from_where_it_starts():
    keys = random_keys(10, 0)
    high, _ = halves(keys)
    assert halves(keys.slice(3, 4))[0].tolist() == high[3:7].tolist()
