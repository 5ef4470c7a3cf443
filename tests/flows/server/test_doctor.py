"""What the doctor says of a server, and whether anything is to be done."""

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flows.server.doctor import diagnose
from flows.server.memory import Memory
from flows.server.view import View
from tasks.history.nights import Night, Notice, record_night
from tasks.store.storage import Store

RUN = {"id": "r1", "name": "nightly 02:30", "deployment_id": "d1"}


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


class Server:
    """A server that is well, until a test makes it otherwise."""

    def __init__(self) -> None:
        self.version = version("prefect")
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self.beat = ago(5)
        self.slots = 0
        self.away = False

    def ask(self, path: str, body: Any = None) -> Any:
        if self.away:
            raise ConnectionRefusedError("connection refused")
        if path == "/flow_runs/filter":
            wanted = body["flow_runs"]["state"]["type"]["any_"]
            return [run for kind in wanted for run in self.runs.get(kind, ())]
        limits = [{"name": "deployment:d1", "limit": 1, "active_slots": self.slots}]
        return {
            "/admin/version": self.version,
            "/v2/concurrency_limits/filter": limits,
            "/deployments/filter": [{"id": "d1", "name": "nightly"}],
            "/events/filter": {"events": [{"occurred": self.beat}]},
            "/logs/filter": [],
        }[path]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NIGHTJAR_STORE", str(tmp_path / "store"))
    Memory(looked=ago(30)).save()
    return Server()


def bad(server: Server, tmp_path: Path) -> list[str]:
    """What is to be done, in the doctor's words."""
    view = View(server.ask, "http://ui", processes=lambda run: [])
    found = diagnose(view, tmp_path / "dlq")
    assert [entry for entry in found if entry.advice == ""] == []
    return [f"{entry.about}: {entry.said}" for entry in found if entry.advice]


def test_a_server_that_is_well_needs_nothing(server: Server, tmp_path: Path) -> None:
    server.runs["RUNNING"] = [RUN]
    server.slots = 1
    assert bad(server, tmp_path) == []


@pytest.mark.parametrize(("name", "holds"), [("AwaitingRetry", True), ("Scheduled", False)])
def test_a_run_that_waits_for_its_retry_holds_its_place(
    server: Server, tmp_path: Path, name: str, holds: bool
) -> None:
    server.runs["SCHEDULED"] = [RUN | {"state": {"name": name}}]
    server.slots = 1
    assert (bad(server, tmp_path) == []) == holds


def test_each_trouble_is_said_with_what_to_do(server: Server, tmp_path: Path) -> None:
    server.version = "3.0.0"
    server.runs = {"PENDING": [RUN | {"state": {"timestamp": ago(600)}}], "RUNNING": [RUN]}
    server.beat = ago(1200)
    server.slots = 3
    (tmp_path / "dlq").mkdir()
    (tmp_path / "dlq" / "event").touch()
    Memory(looked=ago(900), slow=[f"{ago(60)} 61 s", f"{ago(900_000)} 61 s"]).save()
    notice = Notice(key="n1:worse", text="worse", written=ago(60))
    night = Night(suite="s", run_id="n1", started=ago(60), evaluations=(), notices=(notice,))
    record_night(Store(str(tmp_path / "store")), night)
    said = "\n".join(bad(server, tmp_path))
    for words in (
        "the server has 3.0.0", "Pending for 10 minutes", "nothing was heard of it for 20 minutes",
        "3 of 1 of nightly, by 2 runs", "1 events given up", "looked 900 s ago", "1 in a day",
        "1 outstanding",
    ):  # fmt: skip
        assert words in said, said


def test_a_server_that_is_away_is_one_trouble_and_the_rest_is_looked_at(
    server: Server, tmp_path: Path
) -> None:
    server.away = True
    (said,) = bad(server, tmp_path)
    assert "does not answer at http://ui" in said


def test_a_watch_that_never_looked_is_trouble(server: Server, tmp_path: Path) -> None:
    (tmp_path / "home" / "watch.json").unlink()
    (said,) = bad(server, tmp_path)
    assert "has never looked" in said
