"""MLflow: one of its runs for each model, with every number and its interval, sent by its own client.

A run is found again by a tag that follows from the run's id and the model. A second time adds what is not
there; a number that has changed since gets a new value, the one that MLflow shows.
"""

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import Field

from tasks.publishers.publisher import (
    SAMPLES,
    Address,
    FinishedRun,
    Server,
    identifier,
    named_numbers,
)
from tasks.store.outputs import MANIFEST, RESULTS_JSON, samples_file

TAG: Final = "nightjar.publication"
LONGEST_NAME: Final = 240
"""Characters of a metric's name that MLflow takes (250), less those of a mark."""
AT_ONCE: Final = 100
"""Entities that one call of MLflow takes: 1,000 metrics, but 100 parameters."""
TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
QUIET: Final[Mapping[str, str]] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing leaves but what the config says
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # by itself it tries for minutes; the step has a retry of its own
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # it may say an hour
    TIMEOUT: "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # of which --json has a document
}
"""How MLflow's client is to behave where the environment does not say it."""


class MLflow(Server):
    """A tracking server, or a database of its own. Its client reads user, password and token from the
    environment."""

    extra = "mlflow"
    client = ("mlflow",)
    key_variables = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")

    tracking_uri: Address | None = Field(
        None, description="http://… or sqlite:///FILE; default: the variable MLFLOW_TRACKING_URI"
    )
    experiment: str | None = Field(
        None, min_length=1, description="Which experiment; default: the benchmark's name"
    )
    samples: bool = Field(False, description=SAMPLES)

    def destination(self, run: FinishedRun) -> str:
        """Its address, or the variable that has it: what that holds might have a password."""
        return self.tracking_uri or "$MLFLOW_TRACKING_URI"

    def send(self, run: FinishedRun) -> Sequence[str]:
        """Sends each model that has a number; says which run of MLflow has it."""
        if "timeout" in self.model_fields_set:
            os.environ[TIMEOUT] = str(math.ceil(self.timeout))
        client = _client(self.tracking_uri)
        experiment = _experiment(client, self.experiment or str(run.manifest["benchmark"]))
        where = self.destination(run)
        places = []
        for model in run.manifest["models"]:
            if numbers := named_numbers(run.numbers(model), _name):
                found = _found_or_created(client, experiment, run, model)
                _add(client, found, numbers, _parameters(run, model))
                self._add_files(client, found, run)
                client.set_terminated(found, end_time=_milliseconds(_ended(run.manifest)))
                places.append(f"{where} experiment {experiment}, run {found}")
        return places

    def _add_files(self, client: Any, found: str, run: FinishedRun) -> None:
        if not self.samples:
            client.log_dict(found, run.manifest_without_samples, MANIFEST)
            return
        for file in (MANIFEST, RESULTS_JSON, samples_file(str(run.manifest["benchmark"]))):
            client.log_artifact(found, str(run.folder / file))


def _client(tracking_uri: str | None) -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri)


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=_beside(client.tracking_uri)))


def _beside(address: str) -> str | None:
    """Where files lie whose numbers are in a database file: MLflow's own default is the working directory.
    None: a server knows its place."""
    parts = urlsplit(address)
    if parts.scheme.partition("+")[0] != "sqlite":
        return None
    return (Path(parts.path[1:]).resolve().parent / "mlruns").as_uri()


def _found_or_created(client: Any, experiment: str, run: FinishedRun, model: str) -> str:
    manifest, mark = run.manifest, identifier(run.run_id, model).hex
    found = client.search_runs([experiment], f"tags.`{TAG}` = '{mark}'", max_results=1)
    if found:
        return str(found[0].info.run_id)
    tags = {
        TAG: mark,
        "nightjar.run_id": run.run_id,
        "nightjar.benchmark": manifest["benchmark"],
        "nightjar.model": model,
        "nightjar.night": manifest.get("night"),
        "nightjar.version": manifest["versions"]["nightjar"],
        "mlflow.source.git.commit": manifest.get("git_revision"),
    }
    created = client.create_run(
        experiment,
        start_time=_milliseconds(manifest["started"]),
        tags={name: str(value) for name, value in tags.items() if value is not None},
        run_name=f"{manifest['run_name']} {model}",
    )
    return str(created.info.run_id)


def _add(client: Any, found: str, numbers: Mapping[str, float], parameters: Mapping[str, str]) -> None:
    """Adds what the run does not have, or has with another value."""
    from mlflow.entities import Metric, Param

    data, now = client.get_run(found).data, _milliseconds(time.time())
    metrics = [
        Metric(name, value, now, 0) for name, value in numbers.items() if data.metrics.get(name) != value
    ]
    params = [Param(name, value) for name, value in parameters.items() if name not in data.params]
    for start in range(0, max(len(metrics), len(params)), AT_ONCE):
        chosen = slice(start, start + AT_ONCE)
        client.log_batch(found, metrics=metrics[chosen], params=params[chosen])


def _name(parts: Sequence[str]) -> str:
    """A name that MLflow takes: a path of words, dots, dashes, blanks and colons."""
    clean = (re.sub(r"[^\w.\- :]", "_", part).strip(". ") or "_" for part in parts)
    name = "/".join(clean)
    if len(name) > LONGEST_NAME - len("/n_scored"):
        name = f"{name[: LONGEST_NAME - 40]}_{identifier(*parts).hex[:8]}"
    return name


def _parameters(run: FinishedRun, model: str) -> dict[str, str]:
    return {_name([name]): _text(value) for name, value in run.evaluated(model).items()}


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    )


def _ended(manifest: Mapping[str, Any]) -> float:
    return float(manifest["started"]) + float(manifest.get("wall_seconds") or 0)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
