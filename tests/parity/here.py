"""The numbers of a made file by this project: its rows are written, replayed, judged, reduced, aggregated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from metrics.config import StatisticsConfig
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers.provider import provider_of
from tasks.models.records import InferenceOptions
from tasks.reduction.verdict_metrics import (
    aggregate_metric,
    build_evaluation_metric,
    call_metric,
    reduce_metric,
)
from tasks.reporting.exports import metric_line
from tasks.rows.parts import Origin, Part, from_batches
from tasks.store.schemas import REQUESTS
from tasks.verdicts.config import EvaluationMethodConfig, EvaluationMetricConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import JudgedPart, evaluate, method_labels
from tests.parity.made import MadeFile, Row, judge, own
from tests.parity.rules import Group

OPTIONS = StatisticsConfig(bootstrap_iters=0)
METHOD = EvaluationMethodConfig.model_validate({"name": "j", "function": "made.py:judge"})


def computed(file: MadeFile, folder: Path) -> dict[Group, Row]:
    """Every line of metrics.jsonl by its group."""
    parts = []
    for recording, models in enumerate([[name] for name in file.models] if file.apart else [file.models]):
        path = folder / f"{file.seed}-{recording}.jsonl"
        own = [row for row in file.rows if row["model_name"] in models]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in own), "utf-8")
        parts += [_part(file, path, recording, model, prompt) for model in models for prompt in file.prompts]
        path.unlink()
    lines: dict[Group, Row] = {}
    for config in file.metrics:
        for line in _lines(config, parts):
            values = tuple(str(line[facet]) for facet in config["facets"])
            key = (config["name"], line["label"], values)
            assert key not in lines, f"two rows for {key}"
            lines[key] = line
    return lines


def _part(file: MadeFile, path: Path, recording: int, model: str, prompt: str | None) -> Part:
    name = prompt or "default"
    metadata = {"model_id": model, "prompt_template": name}
    origin = Origin(model, name, metadata, recording)
    requests = pa.RecordBatch.from_pylist(
        [_request(number, item, name) for number, item in enumerate(file.items)], schema=REQUESTS
    )
    named = {prompt: prompt for prompt in file.prompts if prompt is not None}
    entry = {"name": model, "type": "replay", "config": {"path": path.name, "prompts": named}}
    provider: Any = provider_of(ModelConfig.model_validate(entry), path.parent)
    options = InferenceOptions(
        sampling=SampleParams(num_samples=file.num_samples), journal_dir=path.parent, base_dir=path.parent
    )
    responses = list(provider.responses([requests], options).batches)
    asked, answered = from_batches([requests]), from_batches(responses)
    method = build_method(METHOD, lambda _: judge)
    return Part(origin, from_batches(list(evaluate(method, origin, asked, answered))), asked, answered, "j")


def _request(number: int, item: str, prompt: str) -> Row:
    return {
        "item_id": item, "doc_id": number, "item_digest": item, "cluster": None, "prompt_template": prompt,
        "kind": "generate", "chat": False, "prompts": ["?"], "continuations": [""], "unconditional": [],
        "references_json": "[]", "gold": [], "choices": [], "doc_json": "{}", "first_sample": 0,
        "orders": None,
    }  # fmt: skip


def _lines(config: Row, parts: list[Part]) -> Iterator[Row]:
    entry = dict(config)
    users = entry["type"] == "own"
    if users:
        entry = {name: value for name, value in entry.items() if name != "type"} | {"function": "made.py:own"}
    metric = build_evaluation_metric(EvaluationMetricConfig.model_validate(entry), lambda _: own, [])
    if users:
        labels = method_labels(parts)
        rows = call_metric(metric, "made", [JudgedPart(part, labels["j"]) for part in parts])
    else:
        rows = aggregate_metric(metric, "made", reduce_metric(metric, "made", parts), OPTIONS)
    for batch in rows:
        assert orjson.dumps(batch.to_pylist())
        yield from map(metric_line, batch.to_pylist())


def differences(wanted: dict[Group, Row | None], found: dict[Group, Row]) -> Iterator[str]:
    """What differs, in words: groups, failures, numbers."""
    for key in wanted.keys() ^ found.keys():
        yield f"{key} is only {'expected' if key in wanted else 'computed'}"
    for key in wanted.keys() & found.keys():
        values, line = wanted[key], found[key]
        if values is None:
            if (line["status"], line["value"]) != ("failed", None):
                yield f"{key} has too few samples and says {line['value']}"
            continue
        if line["status"] != "ok":
            yield f"{key} has failed: {line['error']}"
        for name, value in values.items():
            if name not in line or abs(line[name] - value) > 1e-9:
                yield f"{key} {name}: {line.get(name)} instead of {value}"
