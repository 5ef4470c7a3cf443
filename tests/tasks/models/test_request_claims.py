"""Claims of requests: each key by one worker at a time, whatever became of the others."""

import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.models.answers.segments import AnswerStore, claim_keys
from tasks.store import claims
from tasks.store.machine import this_process
from tasks.store.storage import Store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "STALE_SECONDS", 0.5)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}")


def claim(store: Store, model: str, keys: set[bytes], night: str | None = None) -> Any:
    return claim_keys(AnswerStore(store).of_model(model), keys, night)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def keys(*numbers: int) -> set[bytes]:
    return {key(number) for number in numbers}


def entries(store: Store) -> list[str]:
    names = (
        str(path).rsplit("/", 1)[-1] for path in store.fs.ls(store.path("claims/answers/model"), detail=False)
    )
    return sorted(name for name in names if not name.startswith("."))


def leave(store: Store, host: str, pid: int, held: set[bytes], night: str | None = None) -> None:
    """A claim whose owner will never take it away."""
    owner = json.dumps({"host": host, "pid": pid, "night": night, "beat": 0}).encode()
    store.put_bytes(f"claims/answers/model/{0:020d}-dead.bin", b"".join(key[:16] for key in held))
    store.put_bytes(f"claims/answers/model/{0:020d}-dead.json", owner)


def always() -> bool:
    return True


def test_who_is_alone_holds_all_and_leaves_nothing(store: Store) -> None:
    with claim(store, "model", keys(1, 2)) as claimed:
        assert claimed.others == set()
        assert claimed.wait(always)
        assert len(entries(store)) == 2
    assert entries(store) == []


def test_the_second_may_ask_for_the_rest_at_once_and_waits_for_what_the_first_holds(store: Store) -> None:
    order: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with claim(store, "model", keys(1, 2)):
            begun.set()
            may_end.wait(30)
            order.append("first")

    running = threading.Thread(target=first)
    running.start()
    begun.wait(30)
    with claim(store, "model", keys(2, 3)) as claimed:
        assert claimed.others == keys(2)
        threading.Timer(0.3, may_end.set).start()
        assert claimed.wait(always)
        order.append("second")
    running.join(30)
    assert order == ["first", "second"]


def test_who_holds_other_keys_or_another_model_s_is_not_waited_for(store: Store) -> None:
    with (
        claim(store, "model", keys(1)),
        claim(store, "other", keys(2)),
        claim(store, "model", keys(2)) as claimed,
    ):
        assert claimed.others == set()
        assert claimed.wait(always)


def test_a_night_of_its_own_minds_only_its_own_claims_and_who_takes_any_answer_minds_all(
    store: Store,
) -> None:
    with claim(store, "model", keys(1), "monday"):
        with claim(store, "model", keys(1), "tuesday") as tuesday:
            assert tuesday.others == set()
            with claim(store, "model", keys(1), "tuesday") as second:
                assert second.others == keys(1)
        with claim(store, "model", keys(1)) as whoever:
            assert whoever.others == keys(1)


def test_waiting_ends_when_it_is_no_longer_worth_it(store: Store) -> None:
    with claim(store, "model", keys(1)), claim(store, "model", keys(1)) as second:
        assert not second.wait(lambda: False)


def test_the_claim_of_a_dead_process_of_this_machine_holds_nobody_up(store: Store) -> None:
    leave(store, this_process()["host"], 2**22 + 1, keys(1))
    with claim(store, "model", keys(1)) as claimed:
        assert claimed.others == set()
        assert len(entries(store)) == 2
    assert entries(store) == []


def test_the_claim_of_a_machine_that_is_gone_goes_stale(store: Store) -> None:
    leave(store, "a-machine-that-is-gone", 1, keys(1))
    with claim(store, "model", keys(1)) as claimed:
        assert claimed.others == keys(1)
        assert claimed.wait(always)
    assert entries(store) == []


def test_a_living_claim_outlasts_staleness(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "is_dead", lambda content: False)
    order: list[str] = []

    def first() -> None:
        with claim(store, "model", keys(1)):
            begun.set()
            threading.Event().wait(1.2)  # twice as long as a claim without heartbeat would live
            order.append("first")

    begun = threading.Event()
    running = threading.Thread(target=first)
    running.start()
    begun.wait(30)
    with claim(store, "model", keys(1)) as claimed:
        assert claimed.wait(always)
        order.append("second")
    running.join(30)
    assert order == ["first", "second"]


def test_whose_clock_is_behind_comes_after_who_was_there_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time_ns
    with claim(store, "model", keys(1, 2)) as first:
        monkeypatch.setattr(claims.time, "time_ns", lambda: clock() - 3_000_000_000)
        with claim(store, "model", keys(1, 2)) as second, claim(store, "model", keys(1, 2, 3)) as third:
            assert (first.others, second.others, third.others) == (set(), keys(1, 2), keys(1, 2))


def test_whose_claim_was_taken_for_a_dead_one_s_is_told(store: Store) -> None:
    """As a process that was stopped and goes on: who waited has removed its claim."""
    with claim(store, "model", keys(1)) as claimed, claim(store, "model", keys(2)) as other:
        deadline = time.monotonic() + 30
        while not claimed.lost:
            assert time.monotonic() < deadline
            (mine, *_) = entries(store)
            store.remove(f"claims/answers/model/{mine.rpartition('.')[0]}.json")
            time.sleep(0.01)
        assert not other.lost


def test_an_error_gives_the_keys_back(store: Store) -> None:
    with pytest.raises(RuntimeError, match="broken"), claim(store, "model", keys(1)):
        raise RuntimeError("broken")
    with claim(store, "model", keys(1)) as claimed:
        assert claimed.others == set()


def _hold(uri: str, start: threading.Barrier, alone: "multiprocessing.Queue[bool]") -> None:
    store = Store(uri)
    start.wait(60)
    with claim(store, "model", keys(1)) as claimed:
        alone.put(not claimed.others)
        start.wait(60)


def test_of_processes_that_claim_in_the_same_moment_one_holds_the_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    alone, start = context.Queue(), context.Barrier(4)
    workers = [
        context.Process(target=_hold, args=(str(tmp_path), start, alone), daemon=True) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    assert sorted(alone.get(timeout=60) for _ in workers) == [False, False, False, True]
    for worker in workers:
        worker.join(60)
