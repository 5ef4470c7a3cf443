"""A destination that is away leaves a Completed run and a red step; the UI's Retry sends again, and asks
nothing."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tasks.publishers import ExportForm, PublishConfig
from tasks.publishers.mlflow import QUIET
from tests.flows.operations.conftest import until
from tests.flows.test_export_inspect import logs_of
from tests.flows.test_publishing import documents
from tests.flows.test_publishing_hub import standing_in
from tests.flows.test_publishing_mlflow import runs_of
from tests.flows.test_publishing_otel import collecting
from tests.flows.test_publishing_wandb import kept


@pytest.mark.services
def test_every_destination_that_was_away_has_its_numbers_after_a_retry(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    form: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow import MlflowClient

    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HUB_TOKEN", "hf_of_ours")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    endpoint, path, output = demo(), benchmark_file(6, "http://127.0.0.1:9"), tmp_path / "output"
    database, ready = tmp_path / "tracking", tmp_path / "ready"
    ready.mkdir()
    client = MlflowClient(tracking_uri=f"sqlite:///{ready / 'kept.db'}")
    client.create_experiment("sums & more", artifact_location=(tmp_path / "artifacts").as_uri())
    client._tracking_client.store.engine.dispose()
    with collecting() as collector, standing_in() as hub:
        destinations = {
            "every_eval_ever": {},
            "mlflow": {"tracking_uri": f"sqlite:///{database / 'kept.db'}", "experiment": "sums & more"},
            "wandb": {"project": "nights", "mode": "offline"},
            "hub": {
                "repo": "lab/demo",
                "dataset": "lab/sums",
                "endpoint": hub.address,
                "token_env": "HUB_TOKEN",
            },
            "otel": {"endpoint": collector.address},
        }
        assert set(destinations) == set(PublishConfig.model_fields)
        config = yaml.safe_load(path.read_text())
        config["models"][0]["config"]["base_url"] = endpoint.base_url
        config |= {
            "publish": [{name: keys} for name, keys in destinations.items()],
            "export": list(get_args(ExportForm)),
        }
        path.write_text(yaml.safe_dump(config))

        output.mkdir()
        in_the_way = [output / "every_eval_ever", output / "wandb", output / "inspect", database]
        for blocked in in_the_way:
            blocked.write_text("in the way")
        collector.status, hub.away = 400, True

        prefect.deploy()
        steps = [f"publish to {name}" for name in destinations] + [
            f"export {name}" for name in config["export"]
        ]
        with prefect.worker():
            run = prefect.trigger("evaluate/evaluate", form(path) | {"options": {"output": str(output)}})
            first = prefect.finished(run)
            assert first["state_type"] == "COMPLETED", first["state"]
            until(lambda: ended(prefect.tasks(run), steps) == {"Failed"}, "the server has heard of red steps")
            assert all(f"not published to {name}" in first["state"]["message"] for name in destinations)
            assert endpoint.stats()["received"] == 6

            for blocked in in_the_way:
                blocked.unlink()
            shutil.copytree(ready, database)
            collector.status, hub.away = 200, False
            prefect.retry(run)
            until(lambda: prefect.flow_run(run)["run_count"] >= 2, "the worker takes the run up again")
            time.sleep(1)
            second = prefect.finished(run)
        assert second["state_type"] == "COMPLETED", second["state"]
        assert "not published" not in second["state"]["message"]
        until(
            lambda: ended(prefect.tasks(run, run_count=2), steps) == {"Completed"},
            "the server has heard of green steps",
        )
        assert endpoint.stats()["received"] == 6
        assert len(documents(output)) == 1
        assert list(runs_of(MlflowClient(tracking_uri=destinations["mlflow"]["tracking_uri"]))) == ["demo"]
        assert sorted(span.name for span in collector.spans().values()) == ["chat demo"] * 6 + [
            "evaluate sums"
        ]
        assert list(kept(output)) == ["demo"]
        assert [one.commits for one in hub.repositories.values()] == [1]
        assert list(logs_of(output)) == ["demo"]


def ended(states: Mapping[str, str], steps: Sequence[str]) -> set[str | None]:
    """How the steps ended, as far as the server has heard."""
    return {states.get(step) for step in steps}
