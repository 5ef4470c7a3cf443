"""However many nights there were, reading them opens one file and the records that are newer than it, and one
night's evaluations are opened by their names."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tasks.comparison.runs import open_night
from tasks.history.layout import FORGOTTEN, RUNS
from tasks.history.nights import (
    INDEX,
    LOOSE_NIGHTS,
    Night,
    NightEvaluation,
    past_nights,
    read_nights,
    record_night,
)
from tasks.store.storage import Store

NIGHTS = 300
FILE = f"{INDEX}/night.json"


def night(number: int, verdict: str = "pass") -> Night:
    return Night(
        suite="night", run_id=f"night-{number}", started="", evaluations=(), verdict=verdict,
        due=f"2026-{number // 28 + 1:02}-{number % 28 + 1:02}T02:30:00+00:00",
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "store"))
    for number in range(NIGHTS):
        record_night(made, night(number))
    return made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of a store was read."""
    found: Counter[str] = Counter()
    read = Store.read

    def counted(self: Store, name: str) -> bytes:
        found[name] += 1
        return read(self, name)

    monkeypatch.setattr(Store, "read", counted)
    return found


def test_300_nights_are_one_file_from_the_second_time_on(store: Store, opened: Counter[str]) -> None:
    first = past_nights(store, "night")
    assert (len(first), set(opened.values())) == (NIGHTS, {1})
    opened.clear()
    assert past_nights(store, "night") == first
    assert opened == {FILE: 1}


def test_records_that_are_newer_than_the_file_are_read_by_themselves(
    store: Store, opened: Counter[str]
) -> None:
    read_nights(store, "night")
    record_night(store, night(7, "worse"))
    record_night(store, night(NIGHTS))
    opened.clear()
    found = read_nights(store, "night").found
    assert (len(found), found["night-7"].verdict) == (NIGHTS + 1, "worse")
    assert opened == {FILE: 1, "suites/night/night-7.json": 1, f"suites/night/night-{NIGHTS}.json": 1}


def test_the_file_is_written_anew_once_many_records_are_newer(store: Store, opened: Counter[str]) -> None:
    read_nights(store, "night")
    for number in range(LOOSE_NIGHTS + 1):
        record_night(store, night(NIGHTS + number))
    read_nights(store, "night")
    opened.clear()
    assert len(read_nights(store, "night").found) == NIGHTS + LOOSE_NIGHTS + 1
    assert opened == {FILE: 1}


def test_a_record_that_is_gone_is_gone_from_the_nights(store: Store) -> None:
    read_nights(store, "night")
    store.remove("suites/night/night-7.json")
    assert "night-7" not in read_nights(store, "night").found


@pytest.mark.parametrize("content", [b"{", b'{"nights": []}', b'{"nights": {"night-1.json": {}}}'])
def test_a_damaged_file_costs_itself_only_and_is_made_anew(
    store: Store, opened: Counter[str], content: bytes
) -> None:
    read_nights(store, "night")
    store.put_bytes(FILE, content)
    opened.clear()
    assert len(read_nights(store, "night").found) == NIGHTS
    assert opened["suites/night/night-1.json"] == 1
    opened.clear()
    assert len(read_nights(store, "night").found) == NIGHTS
    assert opened == {FILE: 1}


def test_keys_that_a_later_version_adds_to_a_record_stay_in_the_file(store: Store) -> None:
    later = night(0).model_dump_json().encode()
    store.put_document("suites/night/night-0.json", later.replace(b"{", b'{"novelty": 1, ', 1))
    read_nights(store, "night")
    assert b"novelty" in store.document(FILE)


def test_nights_of_a_store_that_nobody_may_write_are_read_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.store.errors import StoreError

    def refused(*_: object) -> None:
        raise StoreError("read-only")

    monkeypatch.setattr(Store, "put_document", refused)
    assert len(read_nights(store, "night").found) == NIGHTS


RUN = "first-a77e42f5"
WRITTEN = Path(__file__).parents[2] / "fixtures" / "store-0.1.0" / "store"


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
def test_a_nights_evaluations_are_opened_without_a_look_at_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """A folder that happens to have a run's name is none of the night's, wherever the command is called."""
    store = Store(str(shutil.copytree(WRITTEN, tmp_path / "store")))
    if not kept:
        forgotten = tmp_path / "store" / FORGOTTEN
        forgotten.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / RUNS / f"{RUN}.json").rename(forgotten / f"{RUN}.json")
    (tmp_path / RUN).mkdir()
    monkeypatch.chdir(tmp_path)
    listed: list[str] = []
    monkeypatch.setattr(Store, "entries", lambda _, folder: listed.append(folder) or [])
    evaluations = tuple(NightEvaluation(name=name, run_id=name) for name in (RUN, "gone"))
    opened, gone = open_night(night(1).model_copy(update={"evaluations": evaluations}), store).values()
    assert opened.manifest["run_id"] == RUN
    assert opened.results
    assert not gone.results
    assert list(gone.unread) == ["gone"]
    assert listed == []
