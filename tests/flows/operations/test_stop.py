"""Stop means stop: what people cancel or pause in the UI asks no more, in all evaluations of a suite."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flows.server.view import local_processes

pytestmark = pytest.mark.nights
CANCELLING = {"type": "CANCELLING", "name": "Cancelling", "message": "cancelled in the UI"}
SUSPENDED = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_reschedule": True}}
PAUSED = {"type": "PAUSED", "name": "Paused"}


@pytest.fixture
def suite(
    demo: Callable[..., Any], benchmark_file: Callable[..., Path], tmp_path: Path
) -> tuple[dict[str, Any], Any]:
    """Parameters of a suite of two benchmarks at once, some minutes long, and its endpoint."""
    endpoint = demo("--latency", "0.5")
    paths = [benchmark_file(300, endpoint.base_url, name, max_concurrency=2) for name in ("one", "two")]
    path = tmp_path / "suite.yaml"
    path.write_text(json.dumps({"name": "night", "benchmarks": [str(path) for path in paths], "parallel": 2}))
    return {"suite": str(path), "options": {"output": str(tmp_path / "night")}}, endpoint


def _stands_still(endpoint: Any) -> None:
    """What is in flight ends within the five seconds that are promised; nothing new comes after them."""
    time.sleep(5)
    received = endpoint.stats()["received"]
    time.sleep(5)
    assert endpoint.stats()["received"] == received < 600


def test_cancelling_a_suite_stops_its_evaluations_and_leaves_a_record(
    prefect: Any, suite: tuple[dict[str, Any], Any], until: Callable[..., Any]
) -> None:
    parameters, endpoint = suite
    prefect.deploy()
    with prefect.worker():
        run = prefect.trigger("suite/nightly", parameters)
        until(lambda: endpoint.stats()["answered"] >= 16, "inference is in its middle")
        prefect.set_state(run, CANCELLING)
        _stands_still(endpoint)
        assert prefect.finished(run)["state_type"] == "CANCELLED"
        (night,) = until(lambda: _ended(prefect), "the night's end is on record")
        assert night["evaluations"]
        assert not any(entry["ok"] for entry in night["evaluations"])
        answered = endpoint.stats()["answered"]
        prefect.retry(run)
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the run is taken up again")
        until(lambda: endpoint.stats()["answered"] > answered, "it goes on")
    until(lambda: not local_processes(run), "the run's process ends", 30)
    assert endpoint.stats()["asked_again"] <= 4


def test_a_suspended_suite_asks_nothing_until_it_is_resumed_and_then_goes_on_whatever_beats_follow(
    prefect: Any,
    suite: tuple[dict[str, Any], Any],
    told: list[dict[str, Any]],
    webhook: str,
    until: Callable[..., Any],
) -> None:
    parameters, endpoint = suite
    prefect.deploy()
    prefect.automations(webhook)
    with prefect.worker(), prefect.watch(process="3s", missed="1h"):
        run = prefect.trigger("suite/nightly", parameters)
        until(lambda: endpoint.stats()["answered"] >= 16, "inference is in its middle")
        prefect.set_state(run, SUSPENDED)
        _beat(prefect, run)
        _stands_still(endpoint)  # longer than a run without a sign of life is taken for alive
        assert prefect.flow_run(run)["state_name"] == "Suspended"
        assert told == []
        answered = endpoint.stats()["answered"]
        prefect.ask("POST", f"/flow_runs/{run}/resume", {})
        until(lambda: endpoint.stats()["answered"] > answered, "it goes on")
        assert endpoint.stats()["asked_again"] <= 4
    until(lambda: not local_processes(run), "the run's process ends", 30)


def _beat(prefect: Any, flow_run: str) -> None:
    """What a run's process sends now and then, and may send once more after its run was suspended."""
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run}"}
    beat = {"event": "prefect.flow-run.heartbeat", "resource": resource, "id": str(uuid4())}
    prefect.ask("POST", "/events", [{**beat, "occurred": datetime.now(UTC).isoformat()}])


def test_a_paused_evaluation_goes_on_in_its_process(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    form: Any,
    until: Callable[..., Any],
) -> None:
    endpoint = demo("--latency", "0.2")
    prefect.deploy()
    with prefect.worker():
        run = prefect.trigger(
            "evaluate/evaluate", form(benchmark_file(100, endpoint.base_url, max_concurrency=2))
        )
        until(lambda: endpoint.stats()["answered"] >= 10, "inference is in its middle")
        prefect.set_state(run, PAUSED)
        _stands_still(endpoint)
        prefect.ask("POST", f"/flow_runs/{run}/resume", {})
        assert prefect.finished(run)["state_type"] == "COMPLETED"
    until(lambda: not local_processes(run), "the run's process ends", 30)
    assert endpoint.stats()["asked_again"] == 0


def _ended(prefect: Any) -> list[dict[str, Any]]:
    return [night for night in _records(prefect, "suites/night") if night["ended"]]


def _records(prefect: Any, folder: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (prefect.folder / "store" / folder).glob("*.json")]
