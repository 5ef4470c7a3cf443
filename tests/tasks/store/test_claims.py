"""Claims: the same step by one at a time, whatever became of the others."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.store import claims
from tasks.store.claims import Claim, claim, wait_until_free
from tasks.store.errors import StoreError
from tasks.store.home import PROJECT
from tasks.store.machine import has_ended, lives_here, this_process
from tasks.store.storage import Store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "STALE_SECONDS", 0.5)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def leave(store: Store, host: str, pid: int) -> None:
    """A claim whose owner will never take it away."""
    content = json.dumps({"host": host, "pid": pid, "beat": 0}).encode()
    store.put_bytes(f"claims/step/{0:020d}-dead.json", content)


def test_a_step_that_nobody_does_is_done_at_once_and_leaves_nothing(store: Store) -> None:
    with claim(store, "step") as waited:
        assert not waited
        assert len(store.fs.ls(store.path("claims/step"))) == 1
    assert store.fs.ls(store.path("claims/step")) == []


def test_the_second_waits_until_the_first_is_done(store: Store) -> None:
    order: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with claim(store, "step"):
            begun.set()
            may_end.wait(30)
            order.append("first")

    running = threading.Thread(target=first)
    running.start()
    begun.wait(30)
    threading.Timer(0.3, may_end.set).start()
    with claim(store, "step") as waited:
        order.append("second")
    running.join(30)
    assert (order, waited) == (["first", "second"], True)


def test_another_step_waits_for_nobody(store: Store) -> None:
    with claim(store, "step"), claim(store, "other") as waited:
        assert not waited


def test_the_claim_of_a_dead_process_of_this_machine_holds_nobody_up(store: Store) -> None:
    leave(store, this_process()["host"], 2**22 + 1)
    with claim(store, "step") as waited:
        assert waited


def test_a_process_that_has_ended_is_gone_though_its_parent_has_not_asked_how() -> None:
    code = "import json; from tasks.store.machine import this_process; print(json.dumps(this_process()))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        process = json.load(child.stdout)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(process)
        assert not lives_here(process)


def test_a_process_that_this_one_can_not_see_is_not_called_dead() -> None:
    """In a container with the host's name, under a number that no process has here."""
    code = "import json; from tasks.store.machine import this_process; print(json.dumps(this_process()))"
    contained = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    try:
        done = subprocess.run([*contained, sys.executable, "-c", code], cwd=PROJECT, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this system has no unshare")
    if done.returncode:
        pytest.skip("this system makes no namespaces for its users")
    process = json.loads(done.stdout)
    assert process["host"].startswith(socket.gethostname())
    assert not has_ended({**process, "pid": 2**22 + 1})
    assert has_ended({**this_process(), "pid": 2**22 + 1})
    assert not has_ended(this_process())


def test_the_claim_of_a_machine_that_is_gone_goes_stale(store: Store) -> None:
    leave(store, "a-machine-that-is-gone", 1)
    with claim(store, "step") as waited:
        assert waited
    assert store.fs.ls(store.path("claims/step")) == []


@pytest.mark.parametrize("host", ["this one", "a-machine-that-is-gone"])
def test_a_dead_claim_that_can_not_be_removed_holds_nobody_up(
    store: Store, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that all may write to, as /tmp is, what another user left stays."""
    leave(store, this_process()["host"] if host == "this one" else host, 2**22 + 1)
    removed = store.remove

    def remove(name: str, patience: float | None = None) -> None:
        if "dead" in name:
            raise StoreError(f"can't remove {name}: Operation not permitted")
        removed(name, patience)

    monkeypatch.setattr(store, "remove", remove)
    waited: list[bool] = []

    def go() -> None:
        waited.append(wait_until_free(store, "step"))
        with claim(store, "step") as was_there:
            waited.append(was_there)

    running = threading.Thread(target=go, daemon=True)
    running.start()
    running.join(30)
    assert waited == [True, True], "who waits never goes on"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_will_do(
    store: Store, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with claim(store, "step") as waited:
        assert not waited
    with claim(store, "step") as waited:
        assert not waited


def test_a_lock_that_fails_names_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match=r"store /.*: can't lock .*claims/\.lock: Input/output error"):
        claim(store, "step").__enter__()


def test_who_waits_for_long_says_for_whom(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "NOTICE_SECONDS", 0.1)
    leave(store, "another-machine pid:[4026531836] its-boot", 17)
    with claim(store, "step"):
        pass
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (f"store {store.uri}: waits for process 17 of another-machine, which holds the claim step")


def test_a_living_claim_outlasts_staleness(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "is_dead", lambda content: False)
    order: list[str] = []

    def first() -> None:
        with claim(store, "step"):
            begun.set()
            threading.Event().wait(1.2)  # twice as long as a claim without heartbeat would live
            order.append("first")

    begun = threading.Event()
    running = threading.Thread(target=first)
    running.start()
    begun.wait(30)
    with claim(store, "step"):
        order.append("second")
    running.join(30)
    assert order == ["first", "second"]


def test_an_error_gives_the_turn_back(store: Store) -> None:
    with pytest.raises(RuntimeError, match="broken"), claim(store, "step"):
        raise RuntimeError("broken")
    with claim(store, "step") as waited:
        assert not waited


def test_a_claim_is_renewed_after_an_error_that_nobody_foresaw(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renewed, write = threading.Event(), Claim.write

    def broken_once(own: Claim, beat: int, patience: float | None = None) -> None:
        if beat == 1:
            raise ValueError("a library's own")
        write(own, beat, patience)
        if beat > 1:
            renewed.set()

    monkeypatch.setattr(Claim, "write", broken_once)
    with claim(store, "step"):
        assert renewed.wait(10), "its owner was taken for dead"
    assert "goes on after an error" in caplog.text
