"""What the watch makes of a server's states: what it tells, once, what it mends, what it never touches."""

import json
import os
import shlex
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from flows.server.memory import Memory
from flows.server.view import View
from flows.suite.plan import SuiteOptions, load_suite, plan_night
from flows.suite.telling import begin, notice, record_judged
from flows.watch.__main__ import SECONDS
from flows.watch.look import Times
from flows.watch.watch import LOOKED, Watch
from metrics.errors import ConfigError
from tasks.history.nights import Night, Notice, find_night, past_nights, record_night
from tasks.history.notices import NotDelivered, Unanswered, deliver, outstanding, post_to
from tasks.store.storage import Store
from tests.flows.made_nights import DONE, suite_file

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HERE = "this-machine"


def at(minutes_ago: float) -> str:
    return (NOW - timedelta(minutes=minutes_ago)).isoformat()


@dataclass
class Server:
    """A Prefect server as far as the watch asks it, with the states that a test gives it."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    deployments: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    signs: dict[str, str] = field(default_factory=dict)
    changed: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    emitted: list[str] = field(default_factory=list)
    beats: list[dict[str, Any]] = field(default_factory=list)
    shows_beats: bool = True
    away: bool = False
    obeys: bool = False
    most: int = 200

    def ask(self, path: str, body: Any = None) -> Any:
        if self.away:
            raise ConnectionRefusedError("connection refused")
        name, _, rest = path.removeprefix("/").partition("/")
        if rest.endswith("/set_state"):
            run = rest.removesuffix("/set_state")
            self.changed.append((run, body["state"]))
            if self.obeys:
                state = body["state"]
                self.runs[run] |= {"state_type": state["type"], "state_name": state["name"], "state": state}
            return {"status": "ACCEPT"}
        if name == "flow_runs" and body is None:
            return self.runs[rest]
        if name == "flow_runs":
            return self._filtered(body)
        if name == "events":
            return self._event(rest, body)
        answers: dict[str, Any] = {
            "health": True,
            "task_runs": self.tasks.get(rest),
            "deployments": self.deployments,
            "logs": [],
            "work_pools": self.workers
            if rest.endswith("workers/filter")
            else [
                {"name": kind, "type": kind.replace("local", "process"), "created": at(9999)}
                for kind in ("local", "kubernetes")
            ],
        }
        return answers[name]

    def _event(self, rest: str, body: Any) -> Any:
        if not rest:
            self.emitted += [event["event"] for event in body]
            if self.shows_beats:
                self.beats += [event for event in body if event["event"] == LOOKED]
            return None
        if "event" in body["filter"] and "resource" not in body["filter"]:
            since = body["filter"]["occurred"]["since"]
            return {"events": [beat for beat in self.beats if beat["occurred"] >= since]}
        run = body["filter"]["resource"]["id"][0].rpartition(".")[2]
        return {"events": [{"occurred": self.signs[run]}] if run in self.signs else []}

    def _filtered(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = body["flow_runs"]
        names = wanted["state"].get("name", {}).get("any_")
        after = wanted.get("end_time", {}).get("after_", "")
        only = body.get("deployments", {}).get("id", {}).get("any_")
        found = [
            run
            for run in self.runs.values()
            if run["state_type"] in wanted["state"]["type"]["any_"]
            and (names is None or run["state_name"] in names)
            and str(run["end_time"] or "9") > after
            and (only is None or run["deployment_id"] in only)
            and (run["deployment_id"] is not None or "deployment_id" not in wanted)
        ]
        return found[body.get("offset", 0) :][: min(body["limit"], self.most)]

    def add(
        self, kind: str, minutes: float, name: str | None = None, worker: str | None = HERE,
        pool: str = "local", **about: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A run that has been in a state for so many minutes."""
        run_id, name = str(uuid4()), name or kind.capitalize()
        labels = {"prefect.worker.name": worker, "prefect.work-pool.name": pool} if worker else {}
        state = {"type": kind, "name": name, "timestamp": at(minutes), "message": "said so",
                 "state_details": {"scheduled_time": at(minutes)}}  # fmt: skip
        ended = kind in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        self.runs[run_id] = {
            "id": run_id, "name": "nightly 02:30", "flow_id": str(uuid4()), "state_type": kind,
            "state_name": name, "state_id": str(uuid4()), "state": state, "labels": labels,
            "deployment_id": DEPLOYMENT, "run_count": 1, "work_pool_name": pool,
            "parameters": {}, "parent_task_run_id": None,
            "expected_start_time": at(minutes), "end_time": at(minutes) if ended else None, **about,
        }  # fmt: skip
        return self.runs[run_id]


DEPLOYMENT = str(uuid4())


@pytest.fixture
def server() -> Server:
    """One deployment, whose last night ended an hour ago, and one worker that lives."""
    made = Server()
    made.deployments.append(
        {"id": DEPLOYMENT, "name": "nightly", "entrypoint": "flows.eval.evaluate", "tags": ["nightly"],
         "work_pool_name": "local", "schedules": [{"active": True}], "created": at(9999), "parameters": {}}
    )  # fmt: skip
    made.workers.append({"name": HERE, "last_heartbeat_time": at(0.1), "heartbeat_interval_seconds": 30})
    made.add("COMPLETED", 60)
    return made


@dataclass
class Looking:
    """A watch, and how it looks at a moment."""

    server: Server
    watch: Watch
    living: list[str] = field(default_factory=list)

    def look(self, minutes: float = 0) -> bool:
        """Looks at the server, ``minutes`` later."""
        moment = NOW + timedelta(minutes=minutes)
        processes = lambda run: [1] if run in self.living else []  # noqa: E731
        return self.watch.look(View(self.server.ask, "http://ui", moment, processes, HERE))


@pytest.fixture
def watch(server: Server, webhook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looking:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    memory = Memory(since=at(24 * 60))
    made = Watch(Times.from_environment(), memory, lambda: webhook, tmp_path / "dlq")
    made.answers_since = NOW - timedelta(hours=1)
    return Looking(server, made)


def texts(told: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in told]


def test_a_quiet_server_is_told_nothing_and_says_that_it_was_looked_at(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    assert watch.look()
    assert (told, server.changed) == ([], [])
    assert server.emitted == ["nightjar.watch.looked"]
    assert Memory.load().looked == NOW.isoformat()


@pytest.mark.parametrize(
    ("kind", "minutes", "name", "said", "place"),
    [
        ("SCHEDULED", 11, "Late", "is 10m late and has not started", "runs/flow-run"),
        ("PENDING", 30, None, "has been Pending for 30 minutes", "runs/flow-run"),
        ("FAILED", 5, None, "nightly 02:30 ended Failed: said so", "runs/flow-run"),
        ("CRASHED", 5, None, "nightly 02:30 ended Crashed: said so", "runs/flow-run"),
        ("FAILED", 5, "TimedOut", "nightly 02:30 ended TimedOut: said so", "runs/flow-run"),
        ("COMPLETED", 5, "Worse", "nightly 02:30 ended Worse: said so", "runs/flow-run"),
    ],
)
def test_a_run_that_needs_somebody_is_told_once(
    watch: Looking, server: Server, told: list[dict[str, Any]],
    kind: str, minutes: float, name: str | None, said: str, place: str,
) -> None:  # fmt: skip
    run = server.add(kind, minutes, name)
    watch.living.append(run["id"])
    for minute in range(3):
        watch.look(minute / 60)
    (message,) = told
    assert said in message["text"]
    assert message["url"] == f"http://ui/{place}/{run['id']}"
    assert set(message) == {"key", "text", "url", "verdict", "pairs", "cost"}


@pytest.mark.parametrize(
    ("kind", "minutes", "name"),
    [
        ("SCHEDULED", 9, "Late"),
        ("SCHEDULED", 600, "AwaitingConcurrencySlot"),
        ("SCHEDULED", 600, "AwaitingRetry"),
        ("PENDING", 1, None),
        ("RUNNING", 600, None),
        ("PAUSED", 600, "Paused"),
        ("PAUSED", 600, "Suspended"),
        ("COMPLETED", 5, None),
        ("CANCELLED", 5, None),
    ],
)
def test_a_run_that_is_as_it_should_be_is_left_alone(
    watch: Looking, server: Server, told: list[dict[str, Any]], kind: str, minutes: float, name: str | None
) -> None:
    run = server.add(kind, minutes, name)
    if kind == "RUNNING":
        watch.living.append(run["id"])
    watch.look()
    assert (told, server.changed) == ([], [])


@pytest.mark.parametrize(("beat", "looks"), [(5, 1), (0.1, 2)])
def test_a_run_that_a_lost_worker_left_is_told_within_a_look_if_no_other_takes_it(
    watch: Looking, server: Server, told: list[dict[str, Any]], beat: float, looks: int
) -> None:
    server.workers[0]["last_heartbeat_time"] = at(beat)
    run = server.add("PENDING", 2)
    for minute in range(3):
        watch.look(minute)
        for changed, state in server.changed:
            server.runs[changed] |= {"state_type": state["type"], "state_name": "Late", "state": state}
        server.changed.clear()
        if minute == 0 and looks == 1:
            watch.look(minute + 0.1)
    (message,) = [entry for entry in told if entry["key"] == f"late:{run['id']}"]
    assert "was left Pending by a worker that is gone, and no other has taken it" in message["text"]


THREE_MINUTES = 180
TAKEN_SECONDS = 13
"""A worker asks for runs every ten seconds, or three later."""


@pytest.mark.parametrize("others", ["no other worker", "one that takes it", "one that takes nothing"])
@pytest.mark.parametrize("worker", [HERE, "another-machine"])
@pytest.mark.parametrize("first", range(0, 60, 5))
def test_a_night_whose_worker_is_killed_while_it_is_pending_runs_or_is_told_within_three_minutes(
    watch: Looking, server: Server, told: list[dict[str, Any]], first: int, worker: str, others: str
) -> None:
    """With the usual times, whenever the watch looks; the worker's last heartbeat was just before."""
    server.obeys = True
    run = server.add("PENDING", 0, worker=worker)
    beat = {"last_heartbeat_time": at(0), "heartbeat_interval_seconds": 30}
    server.workers[:] = [{"name": worker, **beat}]
    if others != "no other worker":
        server.workers.append({"name": "other", **beat, "last_heartbeat_time": at(-9)})
    takes, seconds = others == "one that takes it", float(first)
    while seconds < THREE_MINUTES:
        watch.look(seconds / 60)
        if told or (takes and server.changed):
            break
        seconds += watch.watch.seconds_to_next_look(SECONDS)
    assert seconds + (TAKEN_SECONDS if takes else 0) < THREE_MINUTES
    assert [entry["key"] for entry in told] == ([] if takes else [f"late:{run['id']}"])


def test_a_suspended_run_stays_so_whatever_beats_follow(watch: Looking, server: Server) -> None:
    run = server.add("PAUSED", 30, "Suspended")
    server.signs[run["id"]] = at(20)  # after it was suspended, and long ago
    watch.look()
    assert server.changed == []


def test_a_late_run_that_is_deleted_is_not_spoken_of(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    run = server.add("SCHEDULED", 9, "Late")
    watch.look()
    del server.runs[run["id"]]
    watch.look(2)
    assert told == []


def test_a_pending_run_whose_worker_is_gone_is_taken_again_and_told_if_that_does_not_help(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    server.workers[0]["last_heartbeat_time"] = at(2)
    run = server.add("PENDING", 2, worker="another-machine")
    watch.look()
    ((changed, state),) = server.changed
    assert (changed, state["type"]) == (run["id"], "SCHEDULED")
    watch.look(0.1)
    watch.look(0.2)
    assert len(server.changed) == 2
    assert [text for text in texts(told) if "Pending" in text] == [
        "nightly 02:30 has been Pending for 2 minutes: "
        "look at its worker's log, then cancel it or restart the worker"
    ]


def test_a_pending_job_of_a_cluster_is_told_and_not_taken_again(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    server.add("PENDING", 8, worker="gone", pool="kubernetes")
    watch.look()
    assert server.changed == []
    assert "has been Pending for 8 minutes" in texts(told)[0]


def test_a_pending_run_without_a_process_is_taken_again_where_its_worker_was_started_anew(
    watch: Looking, server: Server
) -> None:
    run = server.add("PENDING", 2)  # a worker of that name lives: another process
    watch.look()
    assert [changed for changed, _ in server.changed] == [run["id"]]


@pytest.mark.parametrize("place", ["process", "worker"])
def test_a_pending_run_that_is_about_to_start_is_left_alone(
    watch: Looking, server: Server, place: str
) -> None:
    server.workers.append({"name": "another", "last_heartbeat_time": at(0.1)})
    run = server.add("PENDING", 2, worker="another")
    if place == "process":
        server.workers.pop()
        watch.living.append(run["id"])
    watch.look()
    assert server.changed == []


@pytest.mark.parametrize(
    ("worker", "sign", "living", "dead"),
    [
        (HERE, None, False, "this machine has none of it"),
        (HERE, 20, False, "this machine has none of it"),
        (HERE, 1, False, None),  # a process that is not seen from here may live
        (HERE, 20, True, None),  # beats are lost, the process is there
        ("another", 20, False, "no heartbeat for 5m"),
        ("another", 1, False, None),
        ("another", None, False, None),  # nothing is known of it
    ],
)
def test_a_running_run_is_crashed_only_if_nothing_of_it_lives(
    watch: Looking, server: Server, worker: str, sign: float | None, living: bool, dead: str | None
) -> None:
    run = server.add("RUNNING", 60, worker=worker)
    if sign is not None:
        server.signs[run["id"]] = at(sign)
    if living:
        watch.living.append(run["id"])
    watch.look()
    assert [state["type"] for _, state in server.changed] == ([] if dead is None else ["CRASHED"])
    assert dead is None or dead in server.changed[0][1]["message"]


def test_a_run_whose_state_changes_while_it_is_looked_at_is_left_alone(
    watch: Looking, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.add("RUNNING", 60)
    real = Server._event

    def suspended_meanwhile(self: Server, rest: str, body: Any) -> Any:
        server.runs[run["id"]] = {**run, "state_type": "PAUSED", "state_id": "another"}
        return real(self, rest, body)

    monkeypatch.setattr(Server, "_event", suspended_meanwhile)
    watch.look()
    assert server.changed == []


@pytest.mark.parametrize(("whole", "ended"), [("RUNNING", False), ("CRASHED", True), ("PAUSED", False)])
def test_an_evaluation_of_a_night_ends_with_the_night(
    watch: Looking, server: Server, whole: str, ended: bool
) -> None:
    night = server.add(whole, 60)
    watch.living.append(night["id"])
    server.tasks["task"] = {"flow_run_id": night["id"]}
    part = server.add("RUNNING", 60, worker=None, deployment_id=None, parent_task_run_id="task")
    watch.look()
    assert [run for run, _ in server.changed] == ([part["id"]] if ended else [])


def test_a_run_that_the_server_can_not_tell_of_keeps_no_other_from_being_ended(
    watch: Looking, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("RUNNING", 60, worker=None, deployment_id=None, parent_task_run_id="deleted")
    lost = server.add("RUNNING", 60)
    real = Server.ask

    def ask(self: Server, path: str, body: Any = None) -> Any:
        if path == "/task_runs/deleted":
            raise OSError("HTTP Error 404: Not Found")
        return real(self, path, body)

    monkeypatch.setattr(Server, "ask", ask)
    assert not watch.look(), "it says that something could not be looked at"
    assert [run for run, _ in server.changed] == [lost["id"]]


def test_no_run_is_taken_for_dead_right_after_the_server_was_away(watch: Looking, server: Server) -> None:
    run = server.add("RUNNING", 60, worker="another")
    server.signs[run["id"]] = at(20)
    server.away = True
    assert not watch.look()
    server.away = False
    assert watch.look(1)
    assert server.changed == []
    watch.look(10)
    assert len(server.changed) == 1


@pytest.mark.parametrize("kind", ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"])
def test_any_night_that_ended_counts_as_one_that_came(
    watch: Looking, server: Server, told: list[dict[str, Any]], kind: str
) -> None:
    server.runs.clear()
    server.add(kind, 25 * 60)
    watch.look()
    assert told == []
    watch.look(2 * 60)
    watch.look(3 * 60)
    assert [text for text in texts(told) if "No night" in text] == [
        "No night of nightly has ended for 26h: is it scheduled, and is there a worker?"
    ]


def test_a_night_under_way_is_not_missed_and_an_inactive_schedule_is_not_waited_for(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    server.runs.clear()
    run = server.add("RUNNING", 30 * 60)
    watch.living.append(run["id"])
    watch.look()
    server.runs.clear()
    server.deployments[0]["schedules"] = [{"active": False}]
    watch.look()
    assert told == []


@pytest.mark.parametrize(("hours", "missed"), [(27, False), (33, False), (35, True)])
def test_a_weekly_night_is_missed_once_one_that_was_due_has_not_ended(
    watch: Looking, server: Server, told: list[dict[str, Any]], hours: int, missed: bool
) -> None:
    weekly = {"cron": "30 2 * * 0", "timezone": "UTC"}  # NOW is 33.5 hours after a night was due
    server.deployments[0]["schedules"] = [{"active": True, "schedule": weekly}]
    server.runs.clear()
    server.add("COMPLETED", hours * 60)
    watch.look()
    assert bool(told) == missed


@pytest.mark.parametrize("changed", ["deployment", "schedule"])
def test_no_night_is_missed_of_the_time_before_a_deployment_was_resumed_or_its_schedule_changed(
    watch: Looking, server: Server, told: list[dict[str, Any]], changed: str
) -> None:
    plan = {"active": True, "schedule": {"cron": "30 2 * * *", "timezone": "UTC"}}
    server.deployments[0]["schedules"] = [plan]
    server.runs.clear()
    server.add("COMPLETED", 5 * 24 * 60)
    (server.deployments[0] if changed == "deployment" else plan)["updated"] = at(60)
    watch.look()
    watch.look(14 * 60)  # before the next night is due
    watch.look(17 * 60)
    assert [text for text in texts(told) if "No night" in text] == []
    watch.look(26 * 60)
    assert [text for text in texts(told) if "No night" in text] == [
        "No night of nightly has ended for 26h: is it scheduled, and is there a worker?"
    ]


def test_a_monthly_night_whose_run_the_server_has_forgotten_is_not_missed_until_the_next_one_is_due(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    monthly = {"cron": "30 2 1 * *", "timezone": "UTC"}
    server.deployments[0] |= {"schedules": [{"active": True, "schedule": monthly}], "created": at(144_000)}
    server.runs.clear()
    watch.look()
    assert told == []
    watch.look((7 * 24 + 13) * 60)  # on the first, before it is due
    assert [text for text in texts(told) if "No night" in text] == []
    watch.look((7 * 24 + 17) * 60)
    assert [text for text in texts(told) if "No night" in text] == [
        "No night of nightly has ended for 26h: is it scheduled, and is there a worker?"
    ]


def test_a_pool_without_a_worker_is_told_once_and_anew_when_it_happens_again(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    for beat in (6, 6, -20, -20):
        server.workers[0]["last_heartbeat_time"] = at(beat)
        watch.look()
    server.workers[0]["last_heartbeat_time"] = at(6)
    watch.look()
    said = "The work pool local has no worker: prefect worker start --pool local"
    assert texts(told) == [said, said]


@pytest.mark.parametrize("name", ["gpu pool", "a/b?c#d", "Größe"])
def test_a_pool_may_have_any_name_that_the_server_takes(
    watch: Looking, server: Server, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[str] = []
    real = Server.ask

    def ask(self: Server, path: str, body: Any = None) -> Any:
        asked.append(path)
        if path == "/work_pools/filter":
            return [{"name": name, "type": "process", "created": at(9999)}]
        return real(self, path, body)

    monkeypatch.setattr(Server, "ask", ask)
    server.deployments[0]["work_pool_name"] = name
    server.workers[0]["last_heartbeat_time"] = at(6)
    watch.look()
    (message,) = told
    said = f"The work pool {name} has no worker: prefect worker start --pool {shlex.quote(name)}"
    assert message["text"] == said
    assert message["url"] == f"http://ui/work-pools/work-pool/{quote(name, safe='')}"
    assert f"/work_pools/{quote(name, safe='')}/workers/filter" in asked


@pytest.mark.parametrize("look", ["late_runs", "pools_without_a_worker", "missed_nights"])
def test_a_look_that_fails_does_not_keep_those_behind_it_from_looking(
    watch: Looking, tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    (tmp_path / "dlq").mkdir()
    (tmp_path / "dlq" / "event").touch()

    def refused(*_: Any) -> None:
        raise OSError("503: database is locked")

    monkeypatch.setattr(f"flows.watch.look.{look}", refused)
    assert not watch.look()
    (text,) = texts(told)
    assert "gave up 1 events" in text


def test_events_that_the_server_gave_up_are_told_once_a_day(
    watch: Looking, tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    (tmp_path / "dlq").mkdir()
    (tmp_path / "dlq" / "event").touch()
    for minute in (0, 1):
        watch.look(minute)
    (text,) = texts(told)
    assert "gave up 1 events" in text


def test_a_server_that_stays_away_is_told_once_and_looked_for_again(
    watch: Looking, server: Server, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.look()
    server.away = True
    monkeypatch.setattr("flows.watch.watch.GONE_SECONDS", 0.0)
    for _ in range(3):
        assert not watch.look()
    assert texts(told) == ["The Prefect server does not answer at http://ui"]
    server.away = False
    assert watch.look()


def test_what_the_webhook_refused_is_told_at_the_next_look(
    watch: Looking, server: Server, told: list[dict[str, Any]], refusing: threading.Event
) -> None:
    server.add("FAILED", 5)
    server.add("SCHEDULED", 30, "Late")
    refusing.set()
    watch.look()
    refusing.clear()
    watch.look(0.5)
    watch.look(1)
    assert len(told) == 2


def test_a_finding_that_was_sent_and_not_answered_is_not_sent_again_at_each_look(
    watch: Looking, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def post(message: Any) -> None:
        asked.append(message["text"])
        raise Unanswered("no answer in time")

    monkeypatch.setattr("flows.watch.watch.post_to", lambda address: post)
    server.add("FAILED", 5)
    server.add("SCHEDULED", 30, "Late")
    for minute in range(3):
        watch.look(minute)
    assert len(asked) == len(set(asked)) == 2
    monkeypatch.setattr("flows.watch.watch.pause_after", lambda tries: timedelta(0))
    watch.look(3)
    assert len(asked) == 4


def test_a_finding_that_comes_again_after_it_was_told_waits_as_a_new_one_does(
    watch: Looking, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes, paused = threading.Event(), list[int]()

    def post(message: Any) -> None:
        if not takes.is_set():
            raise Unanswered("no answer in time")

    def pause_after(tries: int) -> timedelta:
        paused.append(tries)
        return timedelta(0)

    monkeypatch.setattr("flows.watch.watch.post_to", lambda address: post)
    monkeypatch.setattr("flows.watch.watch.pause_after", pause_after)
    run = server.add("SCHEDULED", 30, "Late")
    watch.look()
    takes.set()
    watch.look()
    del server.runs[run["id"]]
    watch.look()
    takes.clear()
    server.runs[run["id"]] = run
    watch.look()
    watch.look()
    assert paused == [1, 1]


@pytest.mark.parametrize(("kind", "name"), [("FAILED", None), ("COMPLETED", "Worse")])
def test_runs_that_need_somebody_are_told_however_many_they_are(
    watch: Looking, server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, name: str | None
) -> None:
    asked = set[str]()
    server.most = 5
    monkeypatch.setattr("flows.server.view.PAGE", server.most)
    monkeypatch.setattr("flows.watch.watch.post_to", lambda _: lambda message: asked.add(message["url"]))
    runs = [server.add(kind, 5, name) for _ in range(12)]
    watch.look()
    assert asked == {f"http://ui/runs/flow-run/{run['id']}" for run in runs}


def test_a_watch_that_is_started_anew_tells_nothing_twice(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    server.add("FAILED", 5)
    server.add("SCHEDULED", 30, "Late")
    watch.look()
    watch.watch.memory = Memory.load()
    watch.look()
    assert len(told) == 2


def beat(server: Server, minutes_ago: float, began: str = "2026-01-01T00:00:00+00:00") -> None:
    """Another watch looked."""
    server.beats.append({"occurred": at(minutes_ago), "payload": {"watch": "other", "began": began}})


def test_a_younger_watch_mends_and_leaves_telling_to_the_elder_one(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    server.add("SCHEDULED", 30, "Late")
    lost = server.add("RUNNING", 30)
    beat(server, 0)
    watch.look()
    assert told == []
    assert [run for run, _ in server.changed] == [lost["id"]]


def test_what_an_elder_watch_did_not_live_to_tell_is_told_by_the_next_and_nothing_twice(
    watch: Looking, server: Server, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted_at(minutes_ago: float) -> None:
        monkeypatch.setattr("flows.watch.watch.this_moment", lambda: at(minutes_ago))

    beat(server, 0)
    server.add("SCHEDULED", 30, "Late")  # the elder one told it before it looked the last time
    noted_at(1)
    watch.look()
    failed = server.add("FAILED", 5)  # which it did not live to see
    noted_at(-1)
    watch.look(1)
    assert told == []
    server.workers[0]["last_heartbeat_time"] = at(-5)
    watch.look(5)
    assert [message["url"] for message in told] == [f"http://ui/runs/flow-run/{failed['id']}"]


def test_a_watch_that_is_younger_than_nobody_tells_from_its_second_look_on(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    watch.watch.stands_by = True
    server.add("SCHEDULED", 30, "Late")
    beat(server, 0, "2999-01-01T00:00:00+00:00")  # it began later, and leaves it to this one
    watch.look()
    assert told == []
    for minute in (1, 2):
        watch.look(minute)
    assert len(told) == 1


def test_a_watch_waits_for_its_own_look_to_be_shown_before_it_takes_others_for_absent(
    watch: Looking, server: Server, told: list[dict[str, Any]]
) -> None:
    """A busy server shows events late; one that shows none at all keeps nobody from telling."""
    watch.watch.stands_by = True
    watch.watch.began = at(0)
    server.shows_beats = False
    server.add("FAILED", 5)
    for minute in (0, 1, 2):
        watch.look(minute)
    assert told == []
    watch.look(4)
    assert texts(told) == ["nightly 02:30 ended Failed: said so"]


def test_a_watch_that_can_not_see_others_tells_all_the_same(
    watch: Looking, server: Server, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.watch.stands_by = True
    server.add("FAILED", 5)

    def refused(*_: Any) -> Any:
        raise OSError("503: database is locked")

    monkeypatch.setattr(View, "events", refused)
    for minute in (0, 1, 2):
        watch.look(minute)
    assert texts(told) == ["nightly 02:30 ended Failed: said so"]


def test_a_step_that_fails_does_not_keep_the_others_from_looking(
    watch: Looking, server: Server, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("FAILED", 5)

    def locked(*_: Any) -> None:
        raise OSError("503: database is locked")

    monkeypatch.setattr("flows.watch.mend.pending_runs", locked)
    assert not watch.look()
    assert texts(told) == ["nightly 02:30 ended Failed: said so"]


@pytest.mark.parametrize("text", ["ten minutes", "0m", "5"])
def test_a_time_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_LATE_AFTER", text)
    with pytest.raises(ConfigError, match="NIGHTJAR_LATE_AFTER"):
        Times.from_environment()


@pytest.fixture
def suite(server: Server, tmp_path: Path) -> dict[str, Any]:
    """A suite that the deployment runs: its parameters."""
    file = suite_file(tmp_path, items=1)
    parameters = {"suite": str(file), "options": {"store": str(tmp_path / "store")}}
    server.deployments[0] |= {"entrypoint": "flows.suite.run_suite", "parameters": parameters}
    return parameters


def test_messages_that_nights_could_not_deliver_are_delivered_once(
    watch: Looking, suite: dict[str, Any], told: list[dict[str, Any]], refusing: threading.Event
) -> None:
    store = Store(suite["options"]["store"])
    notice = Notice(
        key="night-1:worse", text="night ended Worse", verdict="worse", written=datetime.now(UTC).isoformat()
    )
    record_night(
        store, Night(suite="night", run_id="night-1", started=at(60), evaluations=DONE, notices=(notice,))
    )
    refusing.set()
    watch.look()
    refusing.clear()
    for minute in (1, 2):
        watch.look(minute)
    assert [(message["key"], message["verdict"]) for message in told] == [("night-1:worse", "worse")]
    night = find_night(store, "night", "night-1")
    assert night is not None
    assert not outstanding(night)
    assert watch.watch.memory.delivered is not None


def test_a_message_that_the_webhook_refuses_keeps_no_other_night_or_suite_waiting(
    watch: Looking, server: Server, suite: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = json.loads(Path(suite["suite"]).read_text()) | {"name": "other"}
    (tmp_path / "other.yaml").write_text(json.dumps(second))
    server.deployments.append(
        server.deployments[0]
        | {"id": str(uuid4()), "parameters": suite | {"suite": f"{tmp_path}/other.yaml"}}
    )
    for name, run_id in (("night", "a"), ("night", "b"), ("other", "c")):
        notice = Notice(key=run_id, text="Worse", written=datetime.now(UTC).isoformat())
        night = Night(suite=name, run_id=run_id, started=at(60), evaluations=DONE, notices=(notice,))
        record_night(Store(suite["options"]["store"]), night)
    asked: list[str] = []

    def post(message: Any) -> None:
        asked.append(message["key"])
        if message["key"] == "a":
            raise NotDelivered("the webhook did not take the message (HTTP 413); it is sent again later")

    monkeypatch.setattr("flows.watch.watch.post_to", lambda address: post)
    for minute in range(3):
        assert watch.look(minute) is False, "it says that something was refused"
    assert [asked.count(key) for key in "abc"] == [3, 1, 1]
    assert watch.watch.memory.delivered is not None


def test_a_night_whose_machine_died_is_recorded_and_told_by_the_watch(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    run = server.add("CRASHED", 5, parameters=suite)
    planned = plan_night(load_suite(suite["suite"]), SuiteOptions(store=suite["options"]["store"]), run["id"])
    begin(planned, at(60))
    for minute in range(2):
        watch.look(minute)
    assert [(message["key"], message["text"]) for message in told] == [
        (f"{run['id']}:Crashed", "night 2026-11-23 11:55 UTC ended Crashed: said so")
    ]
    night = find_night(Store(planned.store), "night", planned.run_id)
    assert night is not None
    assert night.ended


@pytest.mark.parametrize("now_called", ["aaa", "zzz"])
def test_a_crash_of_a_retry_is_told_where_its_suite_was_renamed_since_the_first_attempt(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]], now_called: str
) -> None:
    run = server.add("CRASHED", 5, parameters=suite)
    judged(run, suite)
    content = json.loads(Path(suite["suite"]).read_text())
    Path(suite["suite"]).write_text(json.dumps(content | {"name": now_called}))
    planned = plan_night(load_suite(suite["suite"]), SuiteOptions(store=suite["options"]["store"]), run["id"])
    begin(planned, at(60))
    for minute in range(2):
        watch.look(minute)
    assert f"{now_called} 2026-11-23 11:55 UTC ended Crashed: said so" in texts(told)


def test_a_night_whose_suite_is_gone_is_told_all_the_same_under_the_key_that_it_would_have(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    run = server.add("FAILED", 5, parameters={"suite": "/nowhere/suite.yaml"})
    for minute in range(2):
        watch.look(minute)
    assert texts(told) == ["nightly 02:30 ended Failed: said so"]
    assert [message["key"] for message in told] == [f"{run['id']}:Failed"]


def judged(run: dict[str, Any], suite: dict[str, Any]) -> Night:
    """The night of a run, recorded with a message that nobody was told."""
    planned = plan_night(load_suite(suite["suite"]), SuiteOptions(store=suite["options"]["store"]), run["id"])
    flow_run = FlowRun.model_validate(run)
    begun = begin(planned, at(60))
    night = begun.own.model_copy(update={"ended": True, "verdict": "worse"})
    record_judged(planned, night, notice(flow_run, night, "worse", "Worse: lost", verdict="worse"))
    return night


def test_a_night_whose_message_was_not_answered_is_told_later_though_no_deployment_names_its_suite(
    watch: Looking, server: Server, suite: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def post(message: Any) -> None:
        asked.append(message["key"])
        if len(asked) == 1:
            raise Unanswered("no answer in time")

    monkeypatch.setattr("flows.watch.watch.post_to", lambda address: post)
    run = server.add("COMPLETED", 5, "Worse", parameters=suite, labels={"nightjar.verdict": "worse"})
    night = judged(run, suite)
    server.deployments[0]["parameters"] = {}
    for minute in range(2):
        watch.look(minute)
    assert len(asked) == 1
    monkeypatch.setattr("tasks.history.notices.pause_after", lambda tries: timedelta(0))
    for minute in range(2, 4):
        watch.look(minute)
    assert asked == [f"{run['id']}:worse"] * 2
    found = find_night(Store(suite["options"]["store"]), "night", night.run_id)
    assert found is not None
    assert not outstanding(found)


@pytest.mark.parametrize("delivered", [True, False])
def test_a_night_that_told_its_verdict_is_not_told_again_because_its_suite_is_gone(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]], webhook: str,
    delivered: bool,
) -> None:  # fmt: skip
    labels = {"nightjar.verdict": "worse", "nightjar.pairs": "[]"}
    run = server.add("COMPLETED", 5, "Worse", parameters=suite, labels=labels)
    night = judged(run, suite)
    if delivered:
        deliver(Store(suite["options"]["store"]), "night", night.run_id, post_to(webhook))
    Path(suite["suite"]).unlink()
    for minute in range(2):
        watch.look(minute)
    assert [message["key"] for message in told] == [f"{run['id']}:worse"]


def test_a_verdict_whose_record_is_in_another_store_is_told_as_the_server_says_it_under_the_nights_key(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    labels = {"nightjar.verdict": "regression", "nightjar.pairs": "[]"}
    run = server.add("FAILED", 5, parameters=suite, labels=labels)
    for minute in range(2):
        watch.look(minute)
    assert [(message["key"], message["text"], message["verdict"]) for message in told] == [
        (f"{run['id']}:regression", "nightly 02:30 ended Failed: said so", "regression")
    ]
    assert past_nights(Store(suite["options"]["store"]), "night") == []


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "no parameter 'suite'"),
        ({"suit": "suite.yaml"}, "no parameter 'suite'"),
        ({"suite": "suite.yaml", "options": {"former": 1}}, "options.former: 'former' is not a key here"),
    ],
)
def test_a_night_whose_parameters_are_no_suites_is_told_and_keeps_no_other_run_untold(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]],
    parameters: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server.add("CRASHED", 5, parameters=parameters)
    server.deployments.append(
        server.deployments[0] | {"id": str(uuid4()), "entrypoint": "flows.eval.evaluate"}
    )
    other = {"deployment_id": server.deployments[-1]["id"]}
    server.add("FAILED", 5, **other)
    server.add("COMPLETED", 5, "Worse", **other)
    for minute in range(2):
        watch.look(minute)
    assert texts(told) == [f"nightly 02:30 ended {name}: said so" for name in ("Crashed", "Failed", "Worse")]
    assert said in capsys.readouterr().err


def test_a_night_that_can_not_be_settled_for_whatever_reason_keeps_no_other_run_untold(
    watch: Looking, server: Server, suite: dict[str, Any], told: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("flows.watch.watch.settle_night", broken)
    server.add("CRASHED", 5, parameters=suite)
    server.add("FAILED", 5, parameters=suite)
    for minute in range(2):
        watch.look(minute)
    assert texts(told) == [f"nightly 02:30 ended {name}: said so" for name in ("Crashed", "Failed")]


def test_the_outside_switch_is_asked_after_each_whole_look_and_not_after_others(
    watch: Looking, server: Server, suite: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Answer:
        def __enter__(self) -> None:
            """Nothing to read."""

        def __exit__(self, *_: object) -> None:
            """Nothing to close."""

    def urlopen(address: str, timeout: float) -> Answer:
        asked.append(address)
        return Answer()

    monkeypatch.setattr("flows.watch.watch.urllib.request.urlopen", urlopen)
    path = Path(suite["suite"])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"watch": {"ping_url": "http://switch/1"}}))
    watch.look()
    server.away = True
    watch.look()
    assert asked == ["http://switch/1"]


def test_a_watch_that_is_there_before_its_server_keeps_the_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.server.boundary import credential
    from flows.watch.__main__ import connected

    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path))
    own = credential()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", own)
    assert connected() is None
    assert os.environ["PREFECT_API_AUTH_STRING"] == own
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "somebody:else")
    assert connected() == "http://127.0.0.1:9"
