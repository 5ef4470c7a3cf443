"""A run that takes too long or is stopped in its middle: how it ends, what it leaves behind."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State, StateDetails, StateType

from flows.eval.flow import apply_state
from tasks.models.control import RunControl
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import Serving, serve


def _config(folder: Path, **keys: Any) -> Path:
    rows = (json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(60))
    (folder / "items.jsonl").write_text("".join(rows))
    config = {
        "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
        "prompt_template": "Question: {{question}}\nAnswer:", "metric_list": ["exact_match"],
        "models": [{"name": "demo", "type": "demo", "config": {"latency": 0.5, "max_concurrency": 2}}],
        **keys,
    }  # fmt: skip
    path = folder / "sums.yaml"
    path.write_text(json.dumps(config))
    return path


def _record(store: Path) -> dict[str, Any]:
    (path,) = (store / "runs").glob("*.json")
    return dict(json.loads(path.read_text()))


@pytest.mark.services
def test_a_run_that_takes_too_long_ends_under_that_name_and_the_next_asks_only_for_the_rest(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    ran = evaluate(_config(tmp_path, timeout="4s"), "--json")
    assert ran.code == 1
    assert ran.document["status"] == "TimedOut"
    assert "timeout: 4s is over" in ran.document["message"]
    record = _record(tmp_path / "store")
    assert (record["status"], record["benchmark"]) == ("TimedOut", "sums")
    again = evaluate(_config(tmp_path), "--json")
    assert again.code == 0
    assert again.document["requests"]["cached"] > 0
    assert again.document["requests"]["sent"] + again.document["requests"]["cached"] == 60


@pytest.mark.parametrize("runner", ["threads", pytest.param("processes", marks=pytest.mark.services)])
def test_a_run_cancelled_in_the_ui_without_a_worker_ends_cancelled(
    evaluate: Callable[..., Any], prefect_api: Callable[..., Any], tmp_path: Path, runner: str
) -> None:
    def cancel(endpoint: Serving) -> None:
        deadline = time.monotonic() + 60
        while endpoint.stats()["received"] < 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        query = {"flow_runs": {"name": {"any_": [f"to be cancelled ({runner})"]}}}
        (found,) = prefect_api("POST", "/flow_runs/filter", query)
        state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        prefect_api("POST", f"/flow_runs/{found['id']}/set_state", state)

    with serve(DemoOptions(latency=0.5)) as endpoint:
        asked = {"base_url": endpoint.base_url, "model": "demo", "max_concurrency": 2}
        config = _config(tmp_path, models=[{"name": "demo", "config": asked}])
        thread = threading.Thread(target=cancel, args=(endpoint,))
        thread.start()
        named = ["--run-name", f"to be cancelled ({runner})", "--task-runner", runner]
        ran = evaluate(config, "--json", *named)
        thread.join()
        assert endpoint.stats()["received"] < 60
    assert (ran.code, ran.document["status"]) == (1, "Cancelled")
    assert _record(tmp_path / "store")["status"] == "Cancelled"
    assert "the run was cancelled" in _record(tmp_path / "store")["message"]


@pytest.mark.parametrize(
    ("kind", "name", "details", "stopped", "paused"),
    [
        (StateType.RUNNING, "Running", {}, None, False),
        (StateType.RUNNING, "Retrying", {}, None, False),
        (StateType.CANCELLING, "Cancelling", {}, "cancelled", False),
        (StateType.CANCELLED, "Cancelled", {}, "cancelled", False),
        (StateType.PAUSED, "Paused", {}, None, True),
        (StateType.PAUSED, "Suspended", {"pause_reschedule": True}, "suspended", True),
        (StateType.FAILED, "Failed", {}, "cancelled", False),  # somebody set it
        (StateType.CRASHED, "Crashed", {}, "cancelled", False),
    ],
)
def test_a_state_in_the_ui_is_passed_on(
    kind: StateType, name: str, details: dict[str, Any], stopped: str | None, paused: bool
) -> None:
    control = RunControl()
    apply_state(State(type=kind, name=name, state_details=StateDetails(**details)), control)
    assert (control.stopped.kind if control.stopped else None, control.paused) == (stopped, paused)
    apply_state(State(type=StateType.RUNNING, name="Running"), control)
    assert not control.paused
    assert (control.stopped is None) == (stopped is None)
