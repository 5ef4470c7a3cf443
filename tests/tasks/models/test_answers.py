"""Kept answers: found by key, merged, shared by workers, on any file system."""

import itertools
import random
import string
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.models.answers import segments
from tasks.models.answers.segments import (
    AnswerStore,
    DamagedAnswers,
    KeyIndex,
    ModelAnswers,
    SegmentKeys,
    halves,
)
from tasks.models.records import KeptAnswer, Lookup
from tasks.store.storage import Store


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def answers(numbers, text="text", arrived=1.0) -> list[KeptAnswer]:
    return [KeptAnswer(status="ok", key=key(n), response=f"{text} {n}", arrived=arrived) for n in numbers]


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


def test_answers_of_a_clock_that_was_ahead_count_as_the_oldest(kept, caplog):
    now = time.time()
    kept.write(answers([1, 2], "right", arrived=now - 3_600))
    kept.write(answers([1, 2, 3], "ahead", arrived=now + 2 * 86_400))
    kept.write(answers([1], "newest", arrived=now + 60))  # two clocks are never quite the same
    assert texts(kept, [1, 2, 3]) == ["newest 1", "right 2", "ahead 3"]
    assert texts(kept, [1, 2, 3], lookup=Lookup(not_before=now - 7_200)) == ["newest 1", "right 2", None]
    assert texts(kept, [2, 3], lookup=Lookup(not_before=now)) == [None, None], "a refresh asks again"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "3 answers in answers/identity are of a time that is yet to come" in said


def test_what_a_run_was_given_itself_counts_whatever_its_clock_says(kept, caplog):
    began = time.time() + 1_200  # the clock was put right since
    ahead, late = (answers([n], arrived=began + seconds) for n, seconds in ((1, 60), (2, -1_100)))
    kept.write([replace(answer, asker="own.a") for answer in ahead + late])
    long_before = [replace(answer, asker="own.b") for answer in answers([3, 4], arrived=began - 9 * 86_400)]
    kept.write(long_before)
    kept.write(
        [replace(answer, asker="other.a") for answer in answers([4, 5], "other", arrived=began - 1_200)]
    )
    own = Lookup(not_before=began, failed_before=began, run="own")
    assert texts(kept, [1, 2, 3, 4, 5], lookup=own) == ["text 1", "text 2", "text 3", "text 4", None]
    assert texts(kept, [1], lookup=replace(own, night="tonight")) == [None]
    assert not caplog.records
    assert texts(kept, [1, 2], lookup=replace(own, run="other")) == [None, None]
    assert texts(kept, [1, 4], lookup=Lookup(not_before=began, run=None)) == [None, None]


def test_segments_that_are_written_after_a_clock_was_set_back_by_days_are_read(kept):
    began = time.time() + 9 * 86_400
    kept.write([replace(answer, asker="own.a") for answer in answers([1], arrived=began - 8 * 86_400)])
    assert texts(kept, [1], lookup=Lookup(not_before=began, run="own")) == ["text 1"]


def read_by(kept: ModelAnswers, lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Segments that a new process reads to find answers by."""
    read: list[str] = []
    one = ModelAnswers.read
    monkeypatch.setattr(segments, "_key_cache", OrderedDict())
    monkeypatch.setattr(
        ModelAnswers, "read", lambda self, name, *rest: read.append(name) or one(self, name, *rest)
    )
    ModelAnswers(Store(kept.store.uri), kept.identity).snapshot(lookup)
    return read


def of_night(night: str | None, *numbers: int) -> list[KeptAnswer]:
    return [replace(answer, night=night) for answer in answers(numbers)]


def test_a_night_reads_no_answers_of_other_nights(kept, monkeypatch):
    for night in ("monday", "tuesday", None):
        kept.write(of_night(night, 1, 2))
    wednesday = [kept.write(of_night("wednesday", 3)), kept.write(of_night("wednesday", 4))]
    mixed = kept.write([*of_night("monday", 5), *of_night("wednesday", 6)])
    names = [*(segment.name for segment in wednesday), mixed.name]
    assert sorted(read_by(kept, Lookup(night="wednesday"), monkeypatch)) == sorted(names)
    assert len(read_by(kept, Lookup(), monkeypatch)) == 6
    kept.merge([*wednesday, mixed])
    assert texts(kept, [1, 3, 4, 6], lookup=Lookup(night="wednesday")) == [None, "text 3", "text 4", "text 6"]
    assert texts(kept, [1, 5], lookup=Lookup(night="monday")) == ["text 1", "text 5"]


def test_answers_of_many_nights_are_merged_whatever_their_row_groups(kept):
    nights = [replace(answer, night=f"n{n // 50}") for n, answer in enumerate(answers(range(300)))]
    kept.merge([kept.write(nights), kept.write(of_night("n9", 400))])
    assert len(kept.names()) == 1
    assert texts(kept, [0, 299, 400], lookup=Lookup(night="n5")) == [None, "text 299", None]
    assert texts(kept, [0, 299, 400], lookup=Lookup(night="n9")) == [None, None, "text 400"]


def test_what_was_written_long_before_it_could_count_is_not_read(kept, monkeypatch):
    old = kept.write(answers([1]))
    day = int(old.name[:13]) / 1000
    assert read_by(kept, Lookup(not_before=day + 2 * 86_400), monkeypatch) == []
    assert read_by(kept, Lookup(not_before=day + 3_600), monkeypatch) == [old.name]


def test_segments_of_before_whose_names_say_no_night_are_read(tmp_path):
    kept = AnswerStore(Store(str(tmp_path))).of_model("identity")
    path = Path(kept.path(kept.write(of_night("monday", 1)).name))
    path.rename(path.with_name("-".join(path.stem.split("-")[:2]) + ".parquet"))
    assert texts(kept, [1], lookup=Lookup(night="monday")) == ["text 1"]


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
    assert "is damaged: it was cut, or its end is altered; its answers are asked for again" in caplog.text


def damage(file: Path, place: float = 0.5) -> None:
    """Zeros over 64 bytes at this share of the file."""
    content = bytearray(file.read_bytes())
    start = int(len(content) * place)
    content[start : start + 64] = bytes(64)
    file.write_bytes(content)


@pytest.mark.parametrize("keys_known", [True, False])
def test_a_damaged_page_costs_its_own_answers_only(tmp_path, keys_known):
    kept = AnswerStore(Store(str(tmp_path))).of_model("identity")
    noise = random.Random(0)
    told = {n: "".join(noise.choices(string.ascii_letters, k=900)) for n in range(240)}
    segment = kept.write(
        [KeptAnswer(status="ok", key=key(n), response=text, arrived=1.0) for n, text in told.items()]
    )
    file = tmp_path / "answers" / "identity" / segment.name
    if keys_known:
        kept.snapshot()  # the keys are in memory now, and the rows are not
    damage(file)
    for _ in range(keys_known):
        with pytest.raises(DamagedAnswers, match="1 of 11 blocks are not what was written"):
            texts(kept, range(240))
    left = texts(kept, range(240))  # the next look finds what could be saved
    lost = [n for n, text in enumerate(left) if text is None]
    assert 0 < len(lost) <= 128
    assert all(text == told[n] for n, text in enumerate(left) if n not in lost)
    assert file.with_name(f"{file.name}.damaged").exists()


def test_a_segment_without_its_directory_is_set_aside_whole(tmp_path):
    kept = AnswerStore(Store(str(tmp_path))).of_model("identity")
    kept.write(answers([1]))
    segment = kept.write(answers([2, 3]))
    kept.snapshot()
    damage(tmp_path / "answers" / "identity" / segment.name, 0.99)
    with pytest.raises(DamagedAnswers, match="0 of its answers"):
        texts(kept, [1, 2, 3])
    assert texts(kept, [1, 2, 3]) == ["text 1", None, None]


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
    none = np.zeros(count, np.uint64)
    return SegmentKeys(high, low, np.zeros(count), none, none, np.zeros(count, bool))


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
