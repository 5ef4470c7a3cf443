"""The deployment that keeps everything bounded, and Prefect's own database."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.history.prune import Retention

CHECKOUT = Path(__file__).resolve().parents[3]


def test_the_shipped_retention_is_the_flows_own() -> None:
    deployments = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())["deployments"]
    shipped = next(entry for entry in deployments if entry["name"] == "prune")
    retention = Retention.model_validate(shipped["parameters"]["retention"])
    assert retention == Retention()
    # As Prefect keeps parameters: a round trip through JSON.
    assert Retention.model_validate(json.loads(retention.model_dump_json())) == retention


def test_the_own_server_forgets_flow_runs_and_keeps_leases_over_a_restart() -> None:
    from prefect.settings import get_current_settings

    server = get_current_settings().server
    assert "flow_runs" in server.services.db_vacuum.enabled_vacuum_types
    assert server.services.db_vacuum.retention_period.days == 30
    assert server.concurrency.lease_storage.endswith("lease_storage.filesystem")


@pytest.mark.nights
@pytest.mark.parametrize("prefect", ["sqlite"], indirect=True)
def test_a_deployment_run_prunes_the_store_and_the_database_forgets_old_runs(
    prefect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = prefect.folder / "store"
    stray = store / "filter" / f"{'f' * 64}.{'0' * 16}.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"rows")
    prefect.deploy()
    with prefect.worker():
        run = prefect.finished(prefect.trigger("prune/prune", {}))
    assert run["state_type"] == "COMPLETED", run["state"]
    assert "removed 1 artifacts" in run["state"]["message"]
    assert not stray.exists()

    prefect.stop()
    with sqlite3.connect(prefect.folder / "server" / "prefect.db") as database:
        database.execute("UPDATE flow_run SET end_time = datetime('now', '-31 days')")
    database.close()
    monkeypatch.setenv("PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS", "2")
    prefect.start()
    body = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    deadline = time.monotonic() + 180
    while prefect.ask("POST", "/flow_runs/filter", body):
        assert time.monotonic() < deadline, "the database still has runs that ended 31 days ago"
        time.sleep(1)
