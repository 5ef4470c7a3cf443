"""A night on a worker: as the scheduler makes it, beside faults, with one broken benchmark among others."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from tasks.history.nights import past_nights
from tasks.history.query import query
from tasks.store.storage import Store

FAULTS = "error_500=0.02,error_429=0.01,malformed=0.01,cut=0.01,retry_after=0"


def suite_file(folder: Path, benchmarks: list[Path], endpoints: list[str], **keys: Any) -> Path:
    models = [
        {
            "name": f"model{number}",
            "type": "openai",
            "config": {"model": "demo", "base_url": url, "timeout": 20},
        }
        for number, url in enumerate(endpoints)
    ]
    document = {"name": "night", "benchmarks": [str(path) for path in benchmarks], "models": models, **keys}
    path = folder / "suite.yaml"
    path.write_text(json.dumps(document))
    return path


def night(server: Any, suite: Path, output: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A deployment run of the suite: the flow run, and what it left in its folder."""
    parameters = {"suite": str(suite), "options": {"output": str(output), **options}}
    run = server.finished(server.trigger("suite/nightly", parameters), patience=400)
    return run, json.loads((output / "suite.json").read_text())


def scores(output: Path) -> dict[tuple[str, ...], float]:
    tables = [pq.read_table(path).to_pylist() for path in sorted(output.glob("*/results.parquet"))]
    return {
        (row["benchmark"], row["model_name"], row["filter"], row["metric"]): row["value"]
        for table in tables
        for row in table
    }


@pytest.mark.nights
def test_a_night_with_faults_has_the_scores_of_a_night_without(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], tmp_path: Path
) -> None:
    clean, faulty = demo(), [demo("--faults", f"{FAULTS},seed={seed}") for seed in (1, 2)]
    benchmarks = [
        benchmark_file(items, clean.base_url, name) for items, name in ((40, "a"), (30, "b"), (50, "c"))
    ]
    prefect.deploy()
    with prefect.worker():
        suite = suite_file(tmp_path, benchmarks, [clean.base_url, clean.base_url], baseline="last")
        _, first = night(prefect, suite, tmp_path / "clean")
        suite = suite_file(tmp_path, benchmarks, [server.base_url for server in faulty], baseline="last")
        run, second = night(prefect, suite, tmp_path / "faulty")
    assert run["state_type"] == "COMPLETED", run["state"]
    assert len(second["evaluations"]) == 6
    assert all(entry["ok"] for entry in [*first["evaluations"], *second["evaluations"]])
    assert sum(sum(server.stats()["faults"].values()) for server in faulty) > 0
    assert scores(tmp_path / "faulty") == scores(tmp_path / "clean")
    assert len(scores(tmp_path / "clean")) == 3 * 2 * 3


@pytest.mark.nights
def test_a_broken_benchmark_leaves_the_others_and_a_regression_is_named(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], tmp_path: Path
) -> None:
    good, worse = demo("--error-rate", "0.05"), demo("--error-rate", "0.7")
    sums = benchmark_file(120, good.base_url, "sums")
    other = benchmark_file(10, good.base_url, "other")
    gate = {"margin": 0.05, "pairs": {"exact_match,number": {}}}
    prefect.deploy()
    with prefect.worker():
        suite = suite_file(tmp_path, [sums, other], [good.base_url], gate=gate)
        run, first = night(prefect, suite, tmp_path / "first")
        assert (run["state_type"], first["verdict"], first["passed"]) == ("COMPLETED", None, True)

        (other.parent / "items.jsonl").write_text("{not json\n")
        suite = suite_file(tmp_path, [sums, other], [worse.base_url], gate=gate)
        run, second = night(prefect, suite, tmp_path / "second")
    assert run["state_type"] == "FAILED"
    states = {entry["name"].split(" ")[0]: entry["ok"] for entry in second["evaluations"]}
    assert states == {"sums": True, "other": False}
    assert second["baseline"] == [first["run_id"]]
    assert second["verdict"] == "regression"
    kinds = [change["kind"] for change in second["comparison"]["changes"]]
    assert "model identity" in kinds
    assert "regression" in run["state"]["message"]
    page = prefect.ask("POST", "/artifacts/filter", {"artifacts": {"key": {"any_": ["suite-night"]}}})
    assert any("regression" in artifact["data"] for artifact in page)


@pytest.mark.services
def test_nights_that_the_scheduler_makes_in_one_go_are_nights_of_their_own(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    until: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three nights of one rule, made by Prefect's own scheduler in one go and taken by a worker in turn."""
    monkeypatch.setenv("NIGHTJAR_RESULTS", str(tmp_path / "results"))
    endpoint = demo()
    suite = suite_file(
        tmp_path, [benchmark_file(30, endpoint.base_url)], [endpoint.base_url], answers="fresh",
        gate={"margin": 0.3},
    )  # fmt: skip
    prefect.deploy()
    nightly = prefect.ask("GET", "/deployments/name/suite/nightly")["id"]
    first = datetime.now(UTC) + timedelta(seconds=8)
    rule = f"DTSTART:{first:%Y%m%dT%H%M%S}\nRRULE:FREQ=SECONDLY;INTERVAL=3;COUNT=3"
    schedule = {"schedule": {"rrule": rule, "timezone": "UTC"}, "active": True, "slug": "every-night"}
    prefect.ask(
        "PATCH", f"/deployments/{nightly}", {"parameters": {"suite": str(suite)}, "schedules": [schedule]}
    )
    body = {"deployments": {"id": {"any_": [nightly]}}, "sort": "EXPECTED_START_TIME_ASC"}

    def made() -> list[dict[str, Any]]:
        return list(prefect.ask("POST", "/flow_runs/filter", body))

    runs = until(lambda: found if len(found := made()) == 3 else None, "the scheduler makes three nights")
    ids = [run["id"] for run in runs]
    assert all(run["auto_scheduled"] for run in runs)
    assert len({run_id[:8] for run_id in ids}) < 3  # made at the same time, and the time is all they hold
    with prefect.worker("worker", "--limit", "1"):
        ended = [prefect.finished(run_id) for run_id in ids]
    assert [run["state_name"] for run in ended] == ["Completed"] * 3, [run["state"] for run in ended]

    store = Store(str(prefect.folder / "store"))
    nights = past_nights(store, "night")
    assert [night.run_id for night in nights] == [f"night-{UUID(run_id).hex}" for run_id in ids]
    assert [night.baseline for night in nights] == [(), (nights[0].run_id,), (nights[1].run_id,)]
    assert [night.verdict for night in nights] == [None, "pass", "pass"]
    assert endpoint.stats()["received"] == 3 * 30
    rows = query(store, "SELECT run_id, sent, cached FROM runs ORDER BY started").rows
    assert rows == [(night.evaluations[0].run_id, 30, 0) for night in nights]
    reports = [tmp_path / "results" / night.run_id / "sums-model0" / "report.html" for night in nights]
    assert [path.is_file() for path in reports] == [True] * 3
    names = [run["name"] for run in ended]
    assert names == sorted(set(names))  # by the time that each was due
