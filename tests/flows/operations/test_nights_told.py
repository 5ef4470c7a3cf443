"""Through the real scheduler and worker: nights go in order, tell their verdict once, lost ones are found."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flows.server.view import local_processes
from tasks.history.nights import past_nights
from tasks.store.storage import Store
from tests.flows.made_nights import record_answers, recorded_suite

ITEMS = 200


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return recorded_suite(tmp_path, ITEMS, margin=0.05)


def schedule(prefect: Any, suite: Path, count: int, seconds: int = 5) -> list[str]:
    """Has Prefect's scheduler make nights that are due one after the other, soon; their ids in that order."""
    nightly = prefect.ask("GET", "/deployments/name/suite/nightly")["id"]
    first = datetime.now(UTC) + timedelta(seconds=seconds)
    rule = f"DTSTART:{first:%Y%m%dT%H%M%S}\nRRULE:FREQ=SECONDLY;INTERVAL=1;COUNT={count}"
    plan = {"schedule": {"rrule": rule, "timezone": "UTC"}, "active": True, "slug": "every-night"}
    parameters = {"suite": str(suite), "options": {"output": str(suite.parent / "out")}}
    prefect.ask("PATCH", f"/deployments/{nightly}", {"parameters": parameters, "schedules": [plan]})
    body = {
        "deployments": {"id": {"any_": [nightly]}},
        "flow_runs": {"expected_start_time": {"after_": first.replace(microsecond=0).isoformat()}},
        "sort": "EXPECTED_START_TIME_ASC",
    }
    for _ in range(600):
        found = [run for run in prefect.ask("POST", "/flow_runs/filter", body) if run["auto_scheduled"]]
        if len(found) == count:
            return [str(run["id"]) for run in found]
    raise AssertionError("the scheduler made no nights")


def bring_forward(prefect: Any, ids: list[str]) -> None:
    """Has nights that are due later begin now: they were due when they were, and Prefect keeps that."""
    for run in ids:
        now = datetime.now(UTC).isoformat()
        state = {"type": "SCHEDULED", "name": "Scheduled", "state_details": {"scheduled_time": now}}
        prefect.ask("POST", f"/flow_runs/{run}/set_state", {"state": state, "force": True})


NEAR, FAR = 5, 1800
"""Seconds ahead that nights are scheduled: what the server keeps of their events differs below 5 minutes."""


@pytest.mark.services
@pytest.mark.parametrize("ahead", [NEAR, pytest.param(FAR, marks=pytest.mark.nights)])
def test_five_waiting_nights_run_in_the_order_in_which_they_were_due_and_tell_their_verdict_once(
    prefect: Any, suite: Path, told: list[dict[str, Any]], webhook: str, ahead: int
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    record_answers(suite.parent, ITEMS, 0)
    with prefect.worker():
        first = prefect.finished(prefect.trigger("suite/nightly", {"suite": str(suite)}))
        assert first["state_name"] == "Completed", first["state"]
        record_answers(suite.parent, ITEMS, 100)
        ids = schedule(prefect, suite, 5, ahead)
        if ahead == FAR:
            bring_forward(prefect, ids)
        ended = [prefect.finished(run, patience=600) for run in ids]
    assert [run["state_name"] for run in ended] == ["Failed"] * 5, [run["state"] for run in ended]
    nights = past_nights(Store(str(prefect.folder / "store")), "night")[1:]
    assert [night.run_id for night in nights] == [f"night-{UUID(run).hex}" for run in ids]
    assert [night.started for night in nights] == sorted(night.started for night in nights)
    assert {night.baseline for night in nights} == {(f"night-{UUID(first['id']).hex}",)}
    assert [message["key"] for message in told] == [f"{run}:regression" for run in ids]
    receipts = [notice.delivered for night in nights for notice in night.notices]
    assert len(receipts) == len(ended)
    assert all(told_at < run["end_time"] for told_at, run in zip(receipts, ended, strict=True))


@pytest.mark.services
def test_a_run_that_a_lost_worker_left_pending_gives_its_place_back_and_is_taken_again(
    prefect: Any, suite: Path, until: Callable[..., Any]
) -> None:
    prefect.deploy()
    record_answers(suite.parent, ITEMS, 0)
    run = prefect.trigger("suite/nightly", {"suite": str(suite)})
    # What a worker does before it starts a process; then it is killed.
    prefect.set_state(run, {"type": "PENDING", "name": "Pending"})
    with prefect.watch(pending="5s"):
        until(lambda: prefect.flow_run(run)["state_type"] == "SCHEDULED", "the run is scheduled anew")
        with prefect.worker():
            assert prefect.finished(run)["state_name"] == "Completed"


@pytest.fixture
def left_pending(prefect: Any, suite: Path, until: Callable[..., Any]) -> str:
    """A night whose worker was killed, with all that it had started, before the night ran."""
    prefect.deploy()
    record_answers(suite.parent, ITEMS, 0)
    nightly = prefect.ask("GET", "/deployments/name/suite/nightly")["id"]

    def start_with(variables: dict[str, str]) -> None:
        prefect.ask("PATCH", f"/deployments/{nightly}", {"job_variables": variables})

    start_with({"command": "sleep 600"})  # as long as it takes: the process is there, and says nothing yet
    run = str(prefect.trigger("suite/nightly", {"suite": str(suite)}))
    with prefect.worker("lost") as worker:
        until(lambda: local_processes(run), "the worker has started the night's process")
        assert prefect.flow_run(run)["state_type"] == "PENDING"
        worker.power_off()
    start_with({})
    assert prefect.flow_run(run)["state_type"] == "PENDING"
    return run


@pytest.mark.services
@pytest.mark.parametrize("prefect", ["sqlite", "postgresql"], indirect=True)
def test_the_night_of_a_worker_that_was_killed_while_it_was_pending_runs(
    prefect: Any, left_pending: str, suite: Path
) -> None:
    prefect.ask("DELETE", "/work_pools/local/workers/lost")  # its heartbeats would count for 15 s
    with prefect.worker("next"), prefect.watch(pending="5s"):
        assert prefect.finished(left_pending)["state_name"] == "Completed"
    (night,) = past_nights(Store(str(prefect.folder / "store")), "night")
    assert night.run_id == f"night-{UUID(left_pending).hex}"


@pytest.mark.services
def test_that_no_worker_takes_the_night_of_one_that_was_killed_is_told_once(
    prefect: Any, left_pending: str, told: list[dict[str, Any]], webhook: str, until: Callable[..., Any]
) -> None:
    prefect.automations(webhook)
    with prefect.watch(pending="5s"):
        until(lambda: told, "somebody is told")
        looked = _events(prefect)
        until(lambda: _events(prefect) != looked, "the watch looks again")
    (message,) = told
    assert left_pending in message["url"]
    assert "was left Pending by a worker that is gone" in message["text"]


@pytest.mark.services
def test_two_watches_on_one_server_tell_what_they_find_once(
    prefect: Any, suite: Path, told: list[dict[str, Any]], webhook: str, until: Callable[..., Any]
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    run = prefect.trigger("suite/nightly", {"suite": str(suite)})
    with prefect.watch(late="5s"), prefect.watch("other", late="5s"):
        until(lambda: told, "one of them tells")
        before = len(_looks(prefect))
        until(lambda: len(_looks(prefect)) >= before + 4, "both look again")
    (message,) = told
    assert run in message["url"]


@pytest.mark.services
def test_a_verdict_that_nobody_could_be_told_is_told_once_by_the_watch_after_a_restart_of_the_server(
    prefect: Any,
    suite: Path,
    told: list[dict[str, Any]],
    refusing: Any,
    webhook: str,
    until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    parameters = {"suite": str(suite)}
    nightly = prefect.ask("GET", "/deployments/name/suite/nightly")["id"]
    prefect.ask("PATCH", f"/deployments/{nightly}", {"parameters": parameters})
    refusing.set()
    with prefect.worker():
        for wrong, state in ((0, "Completed"), (100, "Failed")):
            record_answers(suite.parent, ITEMS, wrong)
            run = prefect.finished(prefect.trigger("suite/nightly", parameters), patience=400)
            assert run["state_name"] == state, run["state"]
    assert told == []
    with prefect.watch():
        prefect.stop()
        refusing.clear()
        prefect.start()
        until(lambda: told, "the watch delivers what is outstanding")
        until(lambda: "watch.looked" in _events(prefect), "it looks again")
    assert [message["verdict"] for message in told] == ["regression"]


@contextmanager
def frozen(prefect: Any) -> Iterator[None]:
    """The server's process stands still."""
    prefect.process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        prefect.process.send(signal.SIGCONT)


@contextmanager
def locked(prefect: Any) -> Iterator[None]:
    """Whatever the server would write, SQLite says that it is busy."""
    with closing(sqlite3.connect(prefect.folder / "server" / "prefect.db", timeout=60)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.rollback()


@contextmanager
def restarted(prefect: Any) -> Iterator[None]:
    """The server is gone, and comes back."""
    prefect.stop()
    yield
    prefect.start()


@pytest.mark.nights
@pytest.mark.parametrize(
    ("prefect", "trouble", "seconds"),
    [
        ("sqlite", frozen, 75),
        ("sqlite", locked, 60),
        ("sqlite", restarted, 20),
        ("postgresql", frozen, 75),
        ("postgresql", restarted, 20),
    ],
    indirect=["prefect"],
)
def test_a_verdict_is_told_once_whatever_the_server_goes_through(
    prefect: Any,
    suite: Path,
    told: list[dict[str, Any]],
    webhook: str,
    until: Callable[..., Any],
    trouble: Callable[[Any], AbstractContextManager[None]],
    seconds: float,
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    parameters = {"suite": str(suite)}
    with prefect.worker(), prefect.watch():
        record_answers(suite.parent, ITEMS, 0)
        first = prefect.finished(prefect.trigger("suite/nightly", parameters), patience=400)
        assert first["state_name"] == "Completed", first["state"]
        record_answers(suite.parent, ITEMS, 100)
        run = prefect.trigger("suite/nightly", parameters)
        until(lambda: prefect.flow_run(run)["state_type"] == "RUNNING", "the night has begun")
        with trouble(prefect):
            time.sleep(seconds)
        ended = prefect.finished(run, patience=600)
        until(lambda: told, "the night is told")
        time.sleep(30)  # another message would come now
    assert ended["state_name"] == "Failed", ended["state"]
    assert [message["verdict"] for message in told] == ["regression"], told


@pytest.mark.nights
def test_twenty_nights_in_a_row_end_while_the_machine_is_busy(
    prefect: Any, suite: Path, told: list[dict[str, Any]], webhook: str
) -> None:
    prefect.deploy()
    prefect.automations(webhook)
    record_answers(suite.parent, ITEMS, 0)
    with burners(4), prefect.worker(), prefect.watch():
        ids = schedule(prefect, suite, 20)
        ended = [prefect.finished(run, patience=900) for run in ids]
    assert [run["state_name"] for run in ended] == ["Completed"] * 20, [run["state"] for run in ended]
    nights = past_nights(Store(str(prefect.folder / "store")), "night")
    assert [night.run_id for night in nights] == [f"night-{UUID(run).hex}" for run in ids]
    assert told == []


@contextmanager
def burners(count: int) -> Iterator[None]:
    """Processes that take all the cores that they get."""
    code = "while True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in started:
            burner.kill()
            burner.wait(20)


def _events(prefect: Any) -> str:
    return json.dumps(_looks(prefect)[:5])


def _looks(prefect: Any) -> list[dict[str, Any]]:
    body = {"filter": {"event": {"name": ["nightjar.watch.looked"]}}, "limit": 50}
    return list(prefect.ask("POST", "/events/filter", body)["events"])
