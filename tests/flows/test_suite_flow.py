"""Nights as Prefect shows them: state, labels, event, exit code."""

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import Completed, Failed

import flows.suite.flow as suite_flow
from flows.suite.plan import SuiteOptions, load_suite, plan_night
from tasks.history.nights import Night, past_nights, record_night
from tasks.models.control import RunControl
from tasks.store.storage import Store
from tests.flows.made_nights import record_answers, recorded_suite

ITEMS = 42


@pytest.fixture(scope="module")
def home(recording_home: Path) -> Path:
    """As that of the other tests, with a server that keeps events."""
    return recording_home


def events(
    prefect_api: Callable[..., Any], prefix: str, expected: int, since: datetime
) -> list[dict[str, Any]]:
    """The events of a kind, oldest first, once there are as many as expected: the server is the
    session's, and has other tests' events from before."""
    occurred = {"since": since.isoformat()}
    body = {"filter": {"event": {"prefix": [prefix]}, "occurred": occurred, "order": "ASC"}, "limit": 50}
    deadline = time.monotonic() + 60
    while len(found := prefect_api("POST", "/events/filter", body)["events"]) < expected:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return list(found)


@pytest.mark.services
def test_a_nights_state_labels_event_and_exit_code_say_its_verdict(
    suite_night: Callable[..., Any], prefect_api: Callable[..., Any], tmp_path: Path
) -> None:
    began = datetime.now(UTC)
    path = recorded_suite(tmp_path, ITEMS, margin=0.02, inconclusive_nights=2)
    found = []
    for wrong in (0, 0, 1, 2, 30):
        record_answers(tmp_path, ITEMS, wrong)
        ran = suite_night(path)
        run = prefect_api("GET", "/flow_runs/" + ran.document["flow_run_url"].rpartition("/")[2])
        found.append(
            (ran.code, run["state"]["type"], run["state"]["name"], run["labels"]["nightjar.verdict"])
        )
    assert found == [
        (0, "COMPLETED", "Completed", ""),
        (0, "COMPLETED", "Completed", "pass"),
        (3, "COMPLETED", "Inconclusive", "inconclusive"),
        (3, "FAILED", "Failed", "undecided"),
        (1, "FAILED", "Failed", "regression"),
    ]
    assert "42 items" in ran.err  # too few for the margin
    (pair,) = json.loads(run["labels"]["nightjar.pairs"])
    assert (pair["pair"], pair["verdict"]) == ("exact_match,none (recorded, default)", "regression")

    told = events(prefect_api, "nightjar.suite.", 3, began)
    assert [event["event"].rpartition(".")[2] for event in told] == [
        "inconclusive",
        "undecided",
        "regression",
    ]
    assert told[-1]["payload"]["url"] == ran.document["flow_run_url"]
    assert told[-1]["payload"]["pairs"] == [pair]

    # Results and report are assets, one each for all nights.
    made = events(prefect_api, "prefect.asset.materialization.succeeded", 10, began)
    keys = {event["resource"]["prefect.resource.id"] for event in made}
    assert {"nightjar://sums/results", "nightjar://sums/report"} <= keys
    # The server is the session's: the newest report may be another test's.
    (shown,) = (
        event["resource"]
        for event in made
        if event["resource"]["prefect.resource.id"] == "nightjar://sums/report"
        and ran.document["evaluations"][0]["run_id"] in event["resource"]["prefect.asset.description"]
    )
    assert shown["prefect.asset.url"].startswith("file:///")
    assert shown["prefect.asset.url"].endswith("/report.html")


@pytest.mark.services
def test_the_shipped_suite_held_against_itself_passes(
    suite_night: Callable[..., Any], tmp_path: Path
) -> None:
    """The demo's 42 items are too few for the shipped margins; two equal nights are equal nevertheless."""
    first, second = (suite_night("deployments/suites/nightly.yaml") for _ in range(2))
    assert (first.code, first.document["verdict"]) == (0, None)
    assert (second.code, second.document["verdict"]) == (0, "pass")
    assert second.document["baseline"] == [first.document["run_id"]]
    (entry,) = second.document["evaluations"]
    assert (entry["requests"]["sent"], entry["requests"]["cached"]) == (42, 0)
    page = (tmp_path / "night-2" / "suite.html").read_text(encoding="utf-8")
    assert 'class="chip full">pass</span>' in page
    (report,) = (tmp_path / "night-2").glob("*/report.html")
    assert f'href="{report.parent.name}/report.html"' in page
    assert first.document["run_id"] in page
    assert {pair["reason"] for pair in second.document["comparison"]["pairs"] if pair["verdict"]} == {
        "every item has the same answer and the same score"
    }


@pytest.mark.parametrize(
    ("hours", "scheduled", "told"),
    [(24, True, False), (50, True, True), (50, False, False), (None, True, False)],
)
def test_a_scheduled_night_says_that_the_one_before_it_is_too_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int | None, scheduled: bool, told: bool
) -> None:
    emitted: list[tuple[str, dict[str, Any]]] = []
    run = SimpleNamespace(auto_scheduled=scheduled, id="00000000-0000-4000-8000-000000000000")
    monkeypatch.setattr(suite_flow.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=run))
    monkeypatch.setattr(
        suite_flow, "emit_event", lambda name, resource, payload: emitted.append((name, payload))
    )
    night = plan_night(
        load_suite(recorded_suite(tmp_path, ITEMS)), SuiteOptions(store=str(tmp_path / "store")), "0123456789"
    )
    if hours is not None:
        started = (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="seconds")
        record_night(
            Store(night.store), Night(suite="night", run_id="night-0", started=started, evaluations=())
        )
    suite_flow._tell_missed(night, past_nights(Store(night.store), night.slug))
    assert [name for name, _ in emitted] == (["nightjar.suite.missed"] if told else [])
    assert not told or "night-0, was 50 hours ago" in emitted[0][1]["text"]


@pytest.mark.parametrize(
    ("retries", "failing", "asked"), [(0, 9, 1), (2, 9, 3), (2, 1, 2), (2, 0, 1)], ids=str
)
def test_an_evaluation_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, failing: int, asked: int
) -> None:
    attempts: list[str] = []

    async def evaluate(config: Any, options: Any, **_: Any) -> Any:
        attempts.append(config.name)
        return Failed(message="no") if len(attempts) <= failing else Completed()

    monkeypatch.setattr(suite_flow, "evaluate", evaluate)
    record_answers(tmp_path, ITEMS, 0)
    suite = load_suite(recorded_suite(tmp_path, ITEMS)).model_copy(
        update={"retries": retries, "retry_delay": 0}
    )
    (planned,) = plan_night(suite, SuiteOptions(store=str(tmp_path / "store")), "x").evaluations
    found = suite_flow._evaluate(suite, planned, RunControl())
    assert len(attempts) == asked
    assert (found.ok, found.message) == ((True, None) if asked > failing else (False, "no"))


@pytest.mark.parametrize("how", ["before it waits", "while it waits"])
def test_an_evaluation_that_waits_to_be_tried_again_hears_that_its_night_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    control, attempts = RunControl(), list[str]()

    async def evaluate(config: Any, options: Any, **_: Any) -> Any:
        attempts.append(config.name)
        if how == "before it waits":
            control.stop("timed out", "timeout: 30s is over")
        else:
            threading.Timer(0.05, control.stop, ("timed out", "timeout: 30s is over")).start()
        return Failed(message="no")

    monkeypatch.setattr(suite_flow, "evaluate", evaluate)
    record_answers(tmp_path, ITEMS, 0)
    suite = load_suite(recorded_suite(tmp_path, ITEMS)).model_copy(
        update={"retries": 1, "retry_delay": 3600.0}
    )
    (planned,) = plan_night(suite, SuiteOptions(store=str(tmp_path / "store")), "x").evaluations
    found = suite_flow._evaluate(suite, planned, control)
    assert (found.ok, found.message, attempts) == (False, "no", ["sums"])
