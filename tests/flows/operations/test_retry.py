"""Retry from the Prefect UI: only what failed runs again, and nothing is asked twice."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_stop_when_decided import benchmark, counting
from tests.waiting import until


@pytest.mark.services
@pytest.mark.parametrize("prefect", ["sqlite", "postgresql"], indirect=True)
def test_retry_of_a_failed_pair_runs_that_pair_and_what_hangs_on_it(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    server, endpoint = prefect, demo()
    path = benchmark_file(12, endpoint.base_url)
    (path.parent / "broken").touch()
    server.deploy()
    with server.worker():
        run = server.trigger("evaluate/evaluate", form(path))
        failed = server.finished(run)
        assert (failed["state_type"], server.manifest(run)["requests"]["sent"]) == ("FAILED", 12)
        assert "fragile,number" in failed["state"]["message"]
        assert "broken for now" in failed["state"]["message"]

        (path.parent / "broken").unlink()
        server.retry(run)
        time.sleep(3)  # the worker has to take it up; until then its state is final and old
        done = server.finished(run)
    assert done["state_type"] == "COMPLETED", done["state"]
    assert done["run_count"] == 2
    assert endpoint.stats()["received"] == 12
    steps = server.manifest(run)["steps"]
    computed = {stage: counts["computed"] for stage, counts in steps.items() if counts["computed"]}
    assert computed == {"score": 1, "reduce": 1, "aggregate": 1}
    assert not any(counts["failed"] for counts in steps.values())
    assert server.manifest(run)["requests"]["sent"] == 0


@pytest.mark.nights
def test_prefects_own_command_retries_a_run_of_a_deployment(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    """``prefect flow-run retry``, on a server that asks for its credential."""
    endpoint = demo()
    path = benchmark_file(6, endpoint.base_url)
    (path.parent / "broken").touch()
    prefect.deploy()
    with prefect.worker():
        run = prefect.trigger("evaluate/evaluate", form(path))
        assert prefect.finished(run)["state_type"] == "FAILED"
        (path.parent / "broken").unlink()
        prefect.command("flow-run", "retry", run)
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the worker takes the run up again")
        done = prefect.finished(run)
    assert done["state_type"] == "COMPLETED", done["state"]
    assert endpoint.stats()["received"] == 6


@pytest.mark.nights
def test_retry_after_a_worker_was_killed_asks_only_what_was_not_answered(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    server, endpoint = prefect, demo("--latency", "0.4")
    path = benchmark_file(120, endpoint.base_url, max_concurrency=8)
    server.deploy()
    with server.worker("first") as worker:
        run = server.trigger("evaluate/evaluate", form(path))
        until(lambda: endpoint.stats()["answered"] >= 24, "inference is in its middle")
        worker.power_off()
    answered = endpoint.stats()["answered"]
    assert answered < 120
    # The worker that would have said so is dead: a person marks the run in the UI, and retries it.
    crashed = {"type": "CRASHED", "name": "Crashed", "message": "the machine is gone"}
    server.ask("POST", f"/flow_runs/{run}/set_state", {"state": crashed, "force": True})
    server.retry(run)
    with server.worker("second"):
        until(lambda: server.flow_run(run)["run_count"] >= 2, "the second worker takes the run up")
        done = server.finished(run)
    assert done["state_type"] == "COMPLETED", done["state"]
    stats = endpoint.stats()
    assert stats["distinct"] == 120
    # Eight were in flight; what the endpoint answered but nobody was there to write down is asked again.
    assert stats["asked_again"] <= 8
    assert server.manifest(run)["requests"]["cached"] >= answered - 8


@pytest.mark.nights
def test_a_killed_flow_process_is_marked_crashed_by_its_worker_and_can_be_retried(
    prefect: Any,
    descendants: Callable[[int], list[int]],
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    form: Any,
) -> None:
    server, endpoint = prefect, demo("--latency", "0.4")
    path = benchmark_file(80, endpoint.base_url, max_concurrency=8)
    server.deploy()
    with server.worker() as worker:
        run = server.trigger("evaluate/evaluate", form(path))
        until(lambda: endpoint.stats()["answered"] >= 16, "inference is in its middle")
        for pid in descendants(worker.running.pid):
            os.kill(pid, signal.SIGKILL)
        assert server.finished(run)["state_type"] == "CRASHED"
        server.retry(run)
        until(lambda: server.flow_run(run)["run_count"] >= 2, "the worker takes the run up again")
        done = server.finished(run)
    assert done["state_type"] == "COMPLETED", done["state"]
    assert endpoint.stats()["distinct"] == 80
    assert endpoint.stats()["asked_again"] <= 8


@pytest.mark.services
@pytest.mark.parametrize("prefect", ["sqlite", "postgresql"], indirect=True)
def test_a_night_that_stopped_is_retried_against_its_own_rolling_baseline_asks_nothing_and_is_told_once(
    prefect: Any, tmp_path: Path, told: list[dict[str, Any]], webhook: str
) -> None:
    """Every second night asks all; since the retried one, another has become part of the rolling baseline."""
    gate = {"margin": 0.1, "stop": {"when": "decided", "blocks": 10, "full_every": 2}}
    suite = {"name": "stops", "gate": gate, "answers": "fresh", "seed": 3, "baseline": "rolling", "nights": 3}
    right = [4]
    runs: list[str] = []

    def ended(night: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The night's flow run once it is over, and what it left."""
        run = prefect.finished(runs[night])
        return run, json.loads((tmp_path / f"night{night}" / "suite.json").read_text())

    prefect.deploy()
    prefect.automations(webhook)
    with counting(lambda number: number % 5 < right[0]) as (address, asked), prefect.worker():
        config = benchmark(tmp_path, address, "base", items=300)
        (tmp_path / "suite.yaml").write_text(json.dumps({**suite, "benchmarks": [config.name]}))
        nights = []
        for night, right[0] in enumerate((4, 2, 4)):
            options = {
                "suite": str(tmp_path / "suite.yaml"),
                "options": {"output": f"{tmp_path}/night{night}"},
            }
            runs.append(prefect.trigger("suite/nightly", options))
            nights.append(ended(night))
        before = sum(asked.values())
        prefect.retry(runs[1])
        until(lambda: prefect.flow_run(runs[1])["run_count"] >= 2, "the worker takes the run up again")
        nights.append(ended(1))
        assert sum(asked.values()) == before
    assert [run["state_type"] for run, _ in nights] == ["COMPLETED", "FAILED", "COMPLETED", "FAILED"]
    first = nights[0][1]["run_id"]
    assert [left["baseline"] for _, left in nights[1:]] == [[first]] * 3
    stopped = [left["evaluations"][0]["stopped"] for _, left in nights]
    assert [bool(entry) for entry in stopped] == [False, True, False, True]
    assert stopped[3] == stopped[1]
    assert nights[3][1]["evaluations"][0]["requests"]["sent"] == 0
    compared = [left["comparison"]["pairs"][0] for _, left in (nights[1], nights[3])]
    assert compared[0]["verdict"] == "regression"
    assert compared[0] == compared[1]
    assert [message["key"] for message in told] == [f"{runs[1]}:regression"]
