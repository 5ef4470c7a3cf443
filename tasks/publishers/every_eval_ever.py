"""Every Eval Ever: the common record of evaluation results, one JSON document for each model.

The documents follow version 0.3.0 of its schema, ``eval.schema.json`` of github.com/evaleval/every_eval_ever.
They are in the run's folder as its datastore lays them out:
``every_eval_ever/data/BENCHMARK/DEVELOPER/MODEL/``. All that a document says of a number is the row's own:
nothing is rounded, and nothing is made up. A bound that is not known is left out.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import Field

from metrics.registry import METRICS
from tasks.publishers.publisher import FinishedRun, Publisher, identifier, is_finite
from tasks.reduction.facets import facet_texts, parse_facets
from tasks.store.home import write_json

SCHEMA_VERSION: Final = "0.3.0"
FOLDER: Final = "every_eval_ever"
SOURCE: Final = "Nightjar"
UNKNOWN: Final = "unknown"


class EveryEvalEver(Publisher):
    """Who publishes, and what the record can't know by itself."""

    organization: str = Field(UNKNOWN, min_length=1, description="Who ran the evaluation")
    organization_url: str | None = Field(None, description="Its page")
    relationship: Literal["first_party", "third_party", "collaborative", "other"] = Field(
        "other", description="Of who ran it to who made the models"
    )
    weights: Literal["open_weights", "closed_weights", "unknown"] = Field(
        "unknown", description="Whether the weights of the models are open"
    )

    def destination(self, run: FinishedRun) -> str:
        """The folder of the documents."""
        return str(run.folder / FOLDER)

    def remedy(self) -> str:
        """What to look at."""
        return "make room for a folder there that this user may write"

    def send(self, run: FinishedRun) -> Sequence[str]:
        """Writes the documents below the run's folder, in place of those of an earlier time."""
        written = []
        for place, document in self.documents(run):
            path = run.folder / FOLDER / place
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, document)
            written.append(str(path))
        for path in _earlier(run):
            if str(path) not in written:
                path.unlink(missing_ok=True)
        return written

    def documents(self, run: FinishedRun) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each model's document under its path in the datastore. A model without a number has none."""
        manifest = run.manifest
        benchmark = str(manifest["benchmark"])
        for name, facts in manifest["models"].items():
            results = [_result(row, manifest) for row in run.numbers(name)]
            if not results:
                continue
            info = self._model(name, facts)
            stamp = str(int(_started(manifest).timestamp()))
            document = {
                "schema_version": SCHEMA_VERSION,
                "evaluation_id": f"{benchmark}/{info['id'].replace('/', '_')}/{manifest['run_id']}",
                "evaluation_timestamp": stamp,
                "retrieved_timestamp": stamp,
                "source_metadata": self._source(manifest),
                "eval_library": {"name": "nightjar", "version": manifest["versions"]["nightjar"]},
                "model_info": info,
                "evaluation_results": results,
            }
            parts = (benchmark, *_developer_and_model(info["id"]))
            name_of_file = f"{identifier(str(manifest['run_id']), name)}.json"
            yield "/".join(["data", *map(_path_part, parts), name_of_file]), document

    def _source(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        url = {"source_organization_url": self.organization_url} if self.organization_url else {}
        return {
            "source_name": SOURCE,
            "source_type": "evaluation_run",
            "source_organization_name": self.organization,
            **url,
            "evaluator_relationship": self.relationship,
            "additional_details": {"run_id": str(manifest["run_id"])},
        }

    def _model(self, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """A model as its endpoint and its weights are known; what nobody said is unknown."""
        identity = facts["identity"]
        called = str(identity.get("model") or name)
        developer = {"developer": called.partition("/")[0]} if "/" in called else {}
        served_here = "weights" in identity or "server" in identity
        return {
            "name": name,
            "id": called,
            **developer,
            "additional_details": {
                "deployment_type": "self_deployed" if served_here else UNKNOWN,
                "model_availability": self.weights,
                "sampling": _text(facts.get("sampling") or {}),
            },
        }


def _earlier(run: FinishedRun) -> Iterator[Path]:
    """The documents of this benchmark that a run of ours has left in the folder."""
    benchmark = str(run.manifest["benchmark"])
    for path in (run.folder / FOLDER / "data" / _path_part(benchmark)).rglob("*.json"):
        try:
            document = orjson.loads(path.read_bytes())
            source, named = document["source_metadata"]["source_name"], str(document["evaluation_id"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # nothing of ours
        if source == SOURCE and named.startswith(f"{benchmark}/"):
            yield path


def _result(row: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    config = manifest["config"]
    name = "/".join(filter(None, (manifest["benchmark"], row["label"])))
    details = {key: row[key] for key in ("filter", "reduction", "prompt_template", "label", "signature")}
    counts = {key: value for key, value in row.items() if key.startswith("n_") and value is not None}
    return {
        "evaluation_result_id": identifier(str(manifest["run_id"]), _text(_identity(row))).hex,
        "evaluation_name": name,
        "source_data": _dataset(config.get("dataset"), str(manifest["benchmark"])),
        "evaluation_timestamp": _started(manifest).isoformat(),
        "metric_config": {
            "evaluation_description": str(config.get("description") or name),
            "metric_name": str(row["metric"]),
            "lower_is_better": row["higher_is_better"] is False,
            **_bounds(row),
            "additional_details": {key: str(value) for key, value in details.items() if value is not None},
        },
        "score_details": {
            "score": row["value"],
            "details": {**_facets(row), **{key: str(value) for key, value in counts.items()}},
            "uncertainty": _uncertainty(row, config),
        },
    }


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model_name", "prompt_template", "filter", "metric", "reduction", "label", "facets")
    return {name: row[name] for name in names}


def _bounds(row: Mapping[str, Any]) -> dict[str, Any]:
    """The scale of a metric of ours, which its reductions by means keep; of others nobody knows it."""
    found = METRICS.get(str(row["metric"]))
    if found is None:
        return {}
    low, high = found.bounds
    if not low <= row["value"] <= high:
        return {}  # an aggregation with a scale of its own
    return {"score_type": "continuous", "min_score": _bound(low), "max_score": _bound(high)}


def _bound(value: float) -> float | str:
    """A bound as the schema writes it: the word for an endless one."""
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _uncertainty(row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"num_samples": row["n_scored"]}
    method = {"method": str(row["stderr_method"])} if row["stderr_method"] else {}
    if is_finite(row["stderr"]):
        found["standard_error"] = {"value": row["stderr"], **method}
    if is_finite(row["ci_low"]) and is_finite(row["ci_high"]):
        found["confidence_interval"] = {
            "lower": row["ci_low"],
            "upper": row["ci_high"],
            "confidence_level": float((config.get("statistics") or {}).get("ci_level", 0.95)),
        }
    return found


def _facets(row: Mapping[str, Any]) -> dict[str, str]:
    return {f"facet.{name}": text for name, text in facet_texts(parse_facets(row["facets"])).items()}


def _dataset(dataset: Any, benchmark: str) -> dict[str, Any]:
    named = dataset if isinstance(dataset, Mapping) else {"path": dataset}
    if hub := named.get("hub"):
        split = {"hf_split": str(named["split"])} if named.get("split") else {}
        return {"dataset_name": str(hub), "source_type": "hf_dataset", "hf_repo": str(hub), **split}
    return {"dataset_name": benchmark, "source_type": "other"}


def _started(manifest: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(manifest["started"], UTC)


def _developer_and_model(called: str) -> tuple[str, str]:
    developer, slash, model = called.partition("/")
    return (developer, model) if slash else (UNKNOWN, called)


def _path_part(text: str) -> str:
    """A name as a folder that every file system takes, and that leads nowhere else."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or UNKNOWN


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
