"""``publish: mlflow``: a run of MLflow for each model, written and read by MLflow's own client."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.publishers.mlflow import QUIET, MLflow
from tasks.publishers.publisher import QUOTING, FinishedRun, number_name
from tests.flows.test_publishing import written

Evaluate = Callable[..., Any]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the publisher puts into the environment is gone after the test."""
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """The address of a database, and MLflow's client for it."""
    from mlflow import MlflowClient

    address = f"sqlite:///{tmp_path / 'tracked.db'}"
    client = MlflowClient(tracking_uri=address)
    client.create_experiment("sums & more", artifact_location=(tmp_path / "kept").as_uri())
    yield address, client
    client._tracking_client.store.engine.dispose()


def runs_of(client: Any) -> dict[str, Any]:
    """MLflow's runs by our model."""
    experiment = client.get_experiment_by_name("sums & more").experiment_id
    found = client.search_runs([experiment])
    assert len({run.data.tags["nightjar.model"] for run in found}) == len(found)
    return {run.data.tags["nightjar.model"]: run for run in found}


def test_each_model_has_a_run_with_every_number_and_its_interval(
    evaluate: Evaluate, tmp_path: Path, tracked: tuple[str, Any]
) -> None:
    address, client = tracked
    ran = evaluate(written(tmp_path, [{"mlflow": {"tracking_uri": address}}]), "--json")
    assert ran.code == 0, ran.err
    run, found = FinishedRun(Path(ran.document["output"])), runs_of(client)
    assert sorted(found) == ["org/one", "two"]
    for row in run.results:
        name, sent = "/".join(number_name(row)), found[row["model_name"]].data.metrics
        assert sent[name] == row["value"]
        assert [sent[f"{name}/{end}"] for end in ("ci_low", "ci_high")] == [row["ci_low"], row["ci_high"]]
        assert sent[f"{name}/stderr"] == row["stderr"]
    for model, one in found.items():
        assert len(one.data.metrics) == 5 * len(run.numbers(model))
        assert one.info.status == "FINISHED"
        assert one.data.tags["nightjar.run_id"] == run.run_id
        assert one.data.params["sampling.num_samples"] == "1"
        assert [file.path for file in client.list_artifacts(one.info.run_id)] == ["manifest.json"]
        kept = Path(client.download_artifacts(one.info.run_id, "manifest.json", str(tmp_path)))
        assert json.loads(kept.read_text()) == run.manifest_without_samples
        assert not set(run.manifest_without_samples) & set(QUOTING)
    assert f"run {found['two'].info.run_id}" in run.manifest["published"]["mlflow"]["places"][1]


def test_a_run_that_is_sent_again_stays_one_run_and_has_its_newest_numbers(
    evaluate: Evaluate, tmp_path: Path, tracked: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, client = tracked
    ran = evaluate(written(tmp_path, []), "--json")
    run, publisher = FinishedRun(Path(ran.document["output"])), MLflow(tracking_uri=address, samples=True)
    first = publisher.send(run)
    before = {name: one.data for name, one in runs_of(client).items()}
    assert publisher.send(run) == first
    (found,) = (one for name, one in runs_of(client).items() if name == "two")
    assert len(client.get_metric_history(found.info.run_id, "exact_match/none")) == 1
    assert {name: one.data.metrics for name, one in runs_of(client).items()} == {
        name: data.metrics for name, data in before.items()
    }
    assert sorted(file.path for file in client.list_artifacts(found.info.run_id)) == [
        "manifest.json",
        "results.json",
        "samples_sums & more.jsonl",
    ]

    lower = [dict(row, value=row["value"] / 2) for row in run.results]
    monkeypatch.setattr(FinishedRun, "results", lower)
    assert publisher.send(FinishedRun(run.folder)) == first
    assert runs_of(client)["two"].data.metrics["ter/none"] == before["two"].metrics["ter/none"] / 2


def test_files_of_a_run_lie_beside_the_database_and_not_where_one_happens_to_be(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    ran = evaluate(written(tmp_path, []), "--json")
    run, here, there = FinishedRun(Path(ran.document["output"])), tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    address = f"sqlite:///{there / 'tracked.db'}"
    MLflow(tracking_uri=address).send(run)
    MlflowClient(tracking_uri=address)._tracking_client.store.engine.dispose()
    assert list(here.iterdir()) == []
    assert len(list(there.glob("mlruns/*/artifacts/manifest.json"))) == 2


def test_names_that_mlflow_takes_stay_distinct(
    evaluate: Evaluate, tmp_path: Path, tracked: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, client = tracked
    ran = evaluate(written(tmp_path, []), "--json")
    run = FinishedRun(Path(ran.document["output"]))
    (row,) = (
        row for row in run.results if row["model_name"] == "two" and number_name(row) == ("bleu", "none")
    )
    strange = ["a?", "a!", "..", "", "x" * 400 + "1", "x" * 400 + "2", "ü/é"]
    rows = [{**row, "value": float(n), "facets": json.dumps({"topic": one})} for n, one in enumerate(strange)]
    monkeypatch.setattr(FinishedRun, "results", rows)
    MLflow(tracking_uri=address).send(FinishedRun(run.folder))
    sent = {name: value for name, value in runs_of(client)["two"].data.metrics.items() if "/" in name}
    values = [value for name, value in sent.items() if name.rpartition("/")[2] not in ROW]
    assert sorted(values) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


ROW = ("stderr", "ci_low", "ci_high", "n_scored")


def manifest(ran: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((Path(ran.document["output"]) / "manifest.json").read_text())
    return found
