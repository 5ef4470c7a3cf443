"""Nights in which something gives way: what was answered stays, and the night ends or says why it did not."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.nights
CRASHED = {"type": "CRASHED", "name": "Crashed", "message": "the machine is gone"}
AWAY = 25
"""Seconds that a server is away: more than its clients wait for one answer."""


class Suite:
    """A fresh suite of two benchmarks at once, of 60 and 90 items, 60 of them in common; and its endpoint."""

    def __init__(self, prefect: Any, folder: Path, endpoint: Any, benchmark_file: Any, **keys: Any) -> None:
        self.prefect, self.folder, self.endpoint = prefect, folder, endpoint
        endpoint_keys = {name: keys.pop(name) for name in ("max_retries",) if name in keys}
        paths = [
            benchmark_file(items, endpoint.base_url, name, max_concurrency=6, **endpoint_keys)
            for name, items in (("one", 60), ("two", 90))
        ]
        self.path = folder / "suite.yaml"
        document = {"name": "night", "benchmarks": [str(path) for path in paths], "answers": "fresh"}
        self.path.write_text(json.dumps({**document, "gate": {"margin": 0.1}, **keys}))

    def trigger(self, output: str) -> str:
        parameters = {"suite": str(self.path), "options": {"output": str(self.folder / output)}}
        return str(self.prefect.trigger("suite/nightly", parameters))

    def told(self, output: str) -> dict[str, Any]:
        """The night's summary."""
        return dict(json.loads((self.folder / output / "suite.json").read_text()))

    def scores(self, output: str) -> dict[tuple[str, ...], float]:
        tables = [pq.read_table(path) for path in sorted((self.folder / output).glob("*/results.parquet"))]
        rows = [row for table in tables for row in table.to_pylist()]
        return {(row["benchmark"], row["filter"], row["metric"]): row["value"] for row in rows}

    @property
    def ended(self) -> list[dict[str, Any]]:
        """The records of nights whose end is known; a night has a record from the moment that it is due."""
        return [record for record in self.records if record["ended"]]

    @property
    def records(self) -> list[dict[str, Any]]:
        files = sorted((self.prefect.folder / "store" / "suites" / "night").glob("*.json"))
        return [json.loads(file.read_text()) for file in files]


@pytest.fixture
def suite(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], tmp_path: Path
) -> Callable[..., Suite]:
    return lambda **keys: Suite(prefect, tmp_path, demo("--latency", "0.4"), benchmark_file, **keys)


@pytest.mark.parametrize("killed", ["process", "machine"])
def test_a_fresh_night_that_is_killed_and_retried_has_the_numbers_of_another(
    prefect: Any,
    suite: Callable[..., Suite],
    descendants: Callable[[int], list[int]],
    until: Callable[..., Any],
    killed: str,
) -> None:
    night = suite()
    prefect.deploy()
    with prefect.worker("first") as worker:
        run = night.trigger("killed")
        until(lambda: night.endpoint.stats()["answered"] >= 24, "inference is in its middle")
        if killed == "machine":
            worker.power_off()
            prefect.ask("POST", f"/flow_runs/{run}/set_state", {"state": CRASHED, "force": True})
        else:
            for pid in descendants(worker.running.pid):
                os.kill(pid, signal.SIGKILL)
            assert prefect.finished(run)["state_type"] == "CRASHED"
            # The worker saw it, and has left a record of the night in its stead.
            (record,) = until(lambda: night.ended, "the night's end is on record")
            assert [entry["ok"] for entry in record["evaluations"]] == [False, False]
            assert record["evaluations"][0]["message"].startswith("Crashed: ")
    stats = night.endpoint.stats()
    assert stats["distinct"] < 90
    prefect.retry(run)
    with prefect.worker("second"):
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the second worker takes the night up")
        done = prefect.finished(run)
        assert done["state_name"] == "Completed", done["state"]
        after = night.endpoint.stats()
        assert after["distinct"] == 90
        assert after["asked_again"] <= stats["peak"]  # what was in flight, at most
        assert (after["most_often_asked"], after["peak"]) == (2, stats["peak"]) or not after["asked_again"]
        again = prefect.finished(night.trigger("undisturbed"))
    assert again["state_name"] == "Completed", again["state"]
    assert night.scores("killed") == night.scores("undisturbed")
    assert len(night.scores("killed")) == 6
    assert night.told("undisturbed")["verdict"] == "pass"
    assert night.told("undisturbed")["baseline"] == [night.told("killed")["run_id"]]
    assert all(entry["ok"] for record in night.records for entry in record["evaluations"])


@pytest.mark.parametrize(
    ("prefect", "trouble"),
    [
        ("sqlite", "the server is away"),
        ("postgresql", "the server is away"),
        ("sqlite", "its database is locked"),
    ],
    indirect=["prefect"],
)
def test_a_night_lives_through_a_server_that_is_away_and_a_database_that_is_locked(
    prefect: Any, suite: Callable[..., Suite], until: Callable[..., Any], trouble: str
) -> None:
    night = suite()
    prefect.deploy()
    with prefect.worker():
        run = night.trigger("troubled")
        until(lambda: night.endpoint.stats()["answered"] >= 12, "inference is in its middle")
        if trouble == "the server is away":
            prefect.process.send(signal.SIGKILL)
            prefect.process.running.wait(20)
            time.sleep(AWAY)
            prefect.start()
        else:
            place = prefect.folder / "server" / "prefect.db"
            with closing(sqlite3.connect(place, timeout=30, isolation_level=None)) as database:
                database.execute("BEGIN EXCLUSIVE")
                time.sleep(AWAY)
                database.execute("ROLLBACK")
        done = prefect.finished(run)
    assert done["state_name"] == "Completed", done["state"]
    assert (night.endpoint.stats()["distinct"], night.endpoint.stats()["asked_again"]) == (90, 0)
    assert all(entry["ok"] for entry in night.told("troubled")["evaluations"])
    assert len(night.scores("troubled")) == 6


def test_a_night_lives_through_a_model_server_that_restarts(
    prefect: Any, suite: Callable[..., Suite], until: Callable[..., Any]
) -> None:
    night = suite()
    prefect.deploy()
    with prefect.worker():
        run = night.trigger("troubled")
        until(lambda: night.endpoint.stats()["answered"] >= 24, "inference is in its middle")
        night.endpoint.process.stop(signal.SIGKILL)
        night.endpoint.process.start()
        done = prefect.finished(run)
    assert done["state_name"] == "Completed", done["state"]
    assert all(entry["ok"] for entry in night.told("troubled")["evaluations"])
    assert len(night.scores("troubled")) == 6


def test_a_night_whose_model_server_is_gone_says_so_and_its_retry_asks_for_the_rest(
    prefect: Any, suite: Callable[..., Suite], until: Callable[..., Any]
) -> None:
    night = suite(max_retries=1)
    prefect.deploy()
    with prefect.worker():
        run = night.trigger("gone")
        until(lambda: night.endpoint.stats()["answered"] >= 24, "inference is in its middle")
        answered = night.endpoint.stats()["answered"]
        night.endpoint.process.stop(signal.SIGKILL)
        done = prefect.finished(run)
        assert done["state_type"] == "FAILED"
        assert "0 of 2 evaluations complete; failed: one × demo" in done["state"]["message"]
        assert "connection" in done["state"]["message"].lower()
        night.endpoint.process.start()
        until(lambda: responds(night.endpoint), "the model server is back")
        prefect.retry(run)
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the worker takes the night up again")
        done = prefect.finished(run)
    assert done["state_name"] == "Completed", done["state"]
    assert night.endpoint.stats()["received"] <= 90 - answered
    assert len(night.scores("gone")) == 6


@pytest.fixture
def small_store(prefect: Any) -> Iterator[Path]:
    """The store on a file system of its own, of 20 MB."""
    store = prefect.folder / "store"
    store.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(store)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a file system that is small")
    yield store
    subprocess.run(["umount", "--lazy", str(store)], check=True)


def test_a_night_whose_store_is_full_says_so_and_its_retry_asks_for_the_rest(
    prefect: Any, small_store: Path, suite: Callable[..., Suite], until: Callable[..., Any]
) -> None:
    night = suite()
    prefect.deploy()
    with prefect.worker():
        run = night.trigger("full")
        until(lambda: night.endpoint.stats()["answered"] >= 24, "inference is in its middle")
        fill(small_store / "filler")
        done = prefect.finished(run)
        assert done["state_type"] == "FAILED"
        assert "No space left on device" in done["state"]["message"]
        (small_store / "filler").unlink()
        prefect.retry(run)
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the worker takes the night up again")
        done = prefect.finished(run)
    assert done["state_name"] == "Completed", done["state"]
    stats = night.endpoint.stats()
    assert stats["distinct"] == 90
    assert stats["asked_again"] <= stats["peak"]  # what was in flight when it became full, at most
    assert len(night.scores("full")) == 6


def responds(endpoint: Any) -> bool:
    """Whether the model server is there."""
    try:
        return endpoint.stats() is not None
    except httpx.HTTPError:
        return False


def fill(path: Path) -> None:
    """Leaves no byte free."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_night_over_its_time_is_told_and_its_retry_goes_on(
    prefect: Any,
    suite: Callable[..., Suite],
    told: list[dict[str, Any]],
    webhook: str,
    until: Callable[..., Any],
) -> None:
    night = suite(timeout="6s")
    prefect.deploy()
    prefect.automations(webhook)
    with prefect.worker():
        run = night.trigger("long")
        done = prefect.finished(run)
        assert (done["state_type"], done["state_name"]) == ("FAILED", "TimedOut")
        assert "timeout: 6s is over" in done["state"]["message"]
        answered = night.endpoint.stats()["answered"]
        assert answered < 90
        (record,) = night.records
        assert {entry["ok"] for entry in record["evaluations"]} == {False}
        until(lambda: told, "the webhook is told")
        assert "TimedOut" in told[0]["text"]
        assert run in told[0]["url"]
        assert (told[0]["verdict"], told[0]["pairs"]) == (None, [])
        night.path.write_text(json.dumps({**json.loads(night.path.read_text()), "timeout": "10m"}))
        prefect.retry(run)
        until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the worker takes the night up again")
        assert prefect.finished(run)["state_name"] == "Completed"
    assert night.endpoint.stats()["distinct"] == 90
    assert night.endpoint.stats()["answered"] >= answered + 1


def test_two_workers_on_one_fresh_suite_ask_a_judge_each_request_once(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    until: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Two nights at the same time: each asks the model for itself, and the judge is asked by one of them."""
    endpoint, judge = demo("--latency", "0.1"), demo("--latency", "0.3")
    path = benchmark_file(40, endpoint.base_url, "judged")
    document = json.loads(path.read_text())
    document["sample_params"]["temperature"] = 0
    document["scorer"] = {
        "type": "llm_judge",
        "judges": [{"name": "judge", "config": {"base_url": judge.base_url, "max_concurrency": 4}}],
        "prompt": "Reference: {{ reference }}\nResponse: {{ response }}\n"
        'Reply with either "yes" or "no".\nGrade:',
        "parse": {"type": "choice", "choices": {"yes": 1, "no": 0}},
    }
    path.write_text(json.dumps(document))
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps({"name": "night", "benchmarks": [str(path)], "answers": "fresh"}))
    prefect.deploy()
    nightly = prefect.ask("GET", "/deployments/name/suite/nightly")["id"]
    prefect.ask("PATCH", f"/deployments/{nightly}", {"concurrency_limit": 2})
    with prefect.worker("first", "--limit", "1"), prefect.worker("second", "--limit", "1"):
        runs = [
            prefect.trigger(
                "suite/nightly",
                {"suite": str(suite), "options": {"output": str(tmp_path / f"night{number}")}},
            )
            for number in (1, 2)
        ]
        done = [prefect.finished(run) for run in runs]
    assert [run["state_name"] for run in done] == ["Completed", "Completed"], [run["state"] for run in done]
    asked, judged = endpoint.stats(), judge.stats()
    assert (asked["distinct"], asked["received"], asked["most_often_asked"]) == (40, 80, 2)
    assert (judged["received"], judged["asked_again"]) == (judged["distinct"], 0)
    assert judged["distinct"] >= 30  # equal answers to equal questions are one request
    tables = [pq.read_table(next((tmp_path / f"night{n}").glob("*/results.parquet"))) for n in (1, 2)]
    first, second = ([(row["metric"], row["value"]) for row in table.to_pylist()] for table in tables)
    assert first == second
    assert any(name == "llm_judge" for name, _ in first)
