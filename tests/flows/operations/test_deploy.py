"""Deployments: what prefect.yaml registers, that schedules fire, what people are told, no key kept."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from tests.waiting import until

CHECKOUT = Path(__file__).resolve().parents[3]
PREFECT_YAML = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())
SECRET = "sk-nightjar-7f3a9c51d2"


@pytest.mark.services
def test_the_server_can_be_imported_with_the_pinned_libraries() -> None:
    code = "from prefect.server.api.server import create_app; create_app(ephemeral=True)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("deployment", PREFECT_YAML["deployments"], ids=lambda entry: str(entry["name"]))
def test_an_entrypoint_is_a_flow_that_takes_the_deployments_parameters(deployment: dict[str, Any]) -> None:
    module, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(import_module(module), name)
    assert set(deployment.get("parameters", {})) <= set(flow.parameters.properties)


def test_the_nightly_suite_is_one_that_loads() -> None:
    from flows.suite.plan import load_suite

    nightly = next(entry for entry in PREFECT_YAML["deployments"] if entry["name"] == "nightly")
    assert load_suite(CHECKOUT / nightly["parameters"]["suite"]).gate is not None


@pytest.mark.services
def test_a_deployed_cron_yields_scheduled_runs_in_its_time_zone(deployed: Any) -> None:
    deployment = deployed.ask("GET", "/deployments/name/suite/nightly")
    body = {
        "deployments": {"id": {"any_": [deployment["id"]]}},
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
    }
    found: list[dict[str, Any]] = []

    def scheduled() -> bool:
        found[:] = deployed.ask("POST", "/flow_runs/filter", body)
        return len(found) >= 3

    until(scheduled, "the scheduler schedules nights")
    zone = ZoneInfo("Europe/Berlin")
    times = {
        datetime.fromisoformat(run["expected_start_time"]).astimezone(zone).strftime("%H:%M") for run in found
    }
    assert times == {"02:30"}
    assert deployment["global_concurrency_limit"]["limit"] == 1
    assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"


@pytest.mark.services
def test_the_form_of_an_evaluation_is_its_config(deployed: Any) -> None:
    schema = deployed.ask("GET", "/deployments/name/evaluate/evaluate")["parameter_openapi_schema"]
    fields = schema["definitions"]["EvalConfig"]["properties"]
    assert {"models", "dataset", "filter_list", "statistics"} <= set(fields)
    assert fields["models"]["description"]
    run = {"config": {"name": "x", "datasett": "y"}}
    deployment = deployed.ask("GET", "/deployments/name/evaluate/evaluate")["id"]
    with pytest.raises(AssertionError, match="datasett"):
        deployed.ask("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": run})


@pytest.mark.services
@pytest.mark.parametrize("prefect", ["sqlite"], indirect=True)
def test_no_key_is_in_the_database_a_log_or_a_file_of_the_run(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    endpoint = demo("--api-key", SECRET)
    path = benchmark_file(6, endpoint.base_url, api_key_env="NIGHTJAR_TEST_KEY")
    prefect.deploy()
    os.environ["NIGHTJAR_TEST_KEY"] = SECRET
    try:
        with prefect.worker():
            run = prefect.finished(prefect.trigger("evaluate/evaluate", form(path)))
    finally:
        del os.environ["NIGHTJAR_TEST_KEY"]
    assert run["state_type"] == "COMPLETED", run["state"]
    places = [prefect.folder, Path(prefect.manifest(run["id"])["output"])]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    # The server's database and its write-ahead log are among them, and the logs of server and worker.
    assert {"prefect.db", "server.log", "worker.log", "manifest.json"} <= {file.name for file in files}
    assert [str(file) for file in files if SECRET.encode() in file.read_bytes()] == []


@pytest.mark.services
def test_automations_that_told_of_nights_before_are_removed(deployed: Any, webhook: str) -> None:
    old = {
        "name": "nightjar-night-ended",
        "trigger": {
            "type": "event", "posture": "Reactive", "expect": ["prefect.flow-run.Failed"], "threshold": 1,
            "within": 0,
        },
        "actions": [{"type": "do-nothing"}],
    }  # fmt: skip
    own = {**old, "name": "somebody-elses"}

    def names() -> list[str]:
        return sorted(entry["name"] for entry in deployed.ask("POST", "/automations/filter", {}))

    for address, left in (("", []), (webhook, ["nightjar-watch-gone"]), ("", ["nightjar-watch-gone"])):
        deployed.ask("POST", "/automations/", old)
        deployed.ask("POST", "/automations/", own)
        deployed.automations(address)
        assert [name for name in names() if name != "somebody-elses"] == left


@pytest.mark.services
def test_a_run_that_fails_is_told_to_the_webhook_in_words(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    form: Any,
    told: list[dict[str, Any]],
    webhook: str,
) -> None:
    path = benchmark_file(4, demo().base_url)
    (path.parent / "broken").touch()
    prefect.deploy()
    prefect.automations(webhook)
    with prefect.worker(), prefect.watch():
        until(lambda: (prefect.folder / "nightjar" / "watch.json").exists(), "the watch has looked")
        prefect.finished(prefect.trigger("evaluate/evaluate", form(path)))
        until(lambda: told, "the webhook is called")
    assert len(told) == 1
    assert "ended Failed" in told[0]["text"]
    assert "fragile,number" in told[0]["text"]
    assert "/runs/flow-run/" in told[0]["url"]
    assert (told[0]["verdict"], told[0]["pairs"]) == (None, [])
