"""What nobody sees is told: a night that never starts, a worker that is gone, a process that died."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.made_nights import record_answers, recorded_suite
from tests.waiting import until

ITEMS = 1000

pytestmark = pytest.mark.nights


@pytest.mark.usefixtures("watchful")
def test_a_night_that_never_starts_and_a_worker_that_is_gone_are_told_once_each(
    prefect: Any, told: list[dict[str, Any]], webhook: str
) -> None:
    prefect.deploy()
    with prefect.worker():
        until(lambda: prefect.ask("GET", "/work_pools/local")["status"] == "READY", "the pool is ready")
    prefect.automations(webhook)
    prefect.trigger("suite/nightly", {})
    with prefect.watch(late="10s", worker="10s", missed="40s"):
        until(lambda: len(told) >= 3, "late run, lost worker and missed night are told")
        time.sleep(30)  # another one would come now
    words = {
        "has not started": "/runs/flow-run/",
        "has no worker": "/work-pools/",
        "No night of nightly": "/deployments/",
    }
    assert len(told) == len(words), told
    for said, place in words.items():
        (message,) = [entry for entry in told if said in entry["text"]]
        assert place in message["url"]
        assert (message["verdict"], message["pairs"]) == (None, [])


def test_a_run_whose_machine_is_gone_is_crashed_by_itself_is_told_and_can_be_retried(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    form: Any,
    told: list[dict[str, Any]],
    webhook: str,
) -> None:
    endpoint = demo("--latency", "0.4")
    path = benchmark_file(120, endpoint.base_url, max_concurrency=8)
    prefect.deploy()
    prefect.automations(webhook)
    with prefect.worker("first") as worker:
        run = prefect.trigger("evaluate/evaluate", form(path))
        until(lambda: endpoint.stats()["answered"] >= 24, "inference is in its middle")
        worker.power_off()
    answered = endpoint.stats()["answered"]
    with prefect.watch(process="60s"):
        crashed = prefect.finished(run)
        until(lambda: told, "the webhook is called")
    assert (crashed["state_type"], crashed["state_name"]) == ("CRASHED", "Crashed")
    assert "no heartbeat for 60s" in crashed["state"]["message"]
    assert "its process is gone" in told[0]["text"]
    assert run in told[0]["url"]
    prefect.retry(run)
    with prefect.worker("second"):
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the second worker takes the run up")
        assert prefect.finished(run)["state_type"] == "COMPLETED"
    assert endpoint.stats()["distinct"] == 120
    assert prefect.manifest(run)["requests"]["cached"] >= answered - 8


def test_a_night_is_told_once_with_its_verdict_its_pairs_and_where_to_look(
    prefect: Any, told: list[dict[str, Any]], webhook: str, tmp_path: Path
) -> None:
    suite = recorded_suite(tmp_path, ITEMS, margin=0.05)
    prefect.deploy()
    prefect.automations(webhook)
    ended = []
    with prefect.worker():
        for night, wrong in enumerate((0, 0, 12, 500)):
            record_answers(tmp_path, ITEMS, wrong)
            parameters = {"suite": str(suite), "options": {"output": str(tmp_path / f"night{night}")}}
            ended.append(prefect.finished(prefect.trigger("suite/nightly", parameters)))
    assert len(told) == 2  # by the nights themselves, before they ended
    assert [run["state_name"] for run in ended] == ["Completed", "Completed", "Worse", "Failed"]
    assert [message["verdict"] for message in told] == ["worse", "regression"]
    for message, run in zip(told, ended[2:], strict=True):
        (pair,) = message["pairs"]
        assert (pair["benchmark"], pair["verdict"]) == ("sums", message["verdict"])
        assert run["id"] in message["url"]
        assert message["verdict"] in message["text"]
