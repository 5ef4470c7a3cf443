"""The model type ``replay``: responses that were recorded before, from a file or from a field of the item."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from tasks.models.config import ModelConfig, ReplayConfig
from tasks.models.options import InferenceOptions, Responded
from tasks.models.recordings import Wanted, recordings_at, samples
from tasks.models.tally import Tally
from tasks.paths import field_at
from tasks.store.schemas import RESPONSES

ROWS_AT_ONCE = 1_024
TAKEN = (
    "reasoning", "finish_reason", "response_id", "served_model", "system_fingerprint", "inference_time",
    "timestamp", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens",
    "logprobs_json", "lls", "is_greedy", "unconditional_lls", "unconditional_greedy",
)  # fmt: skip
"""What a row takes over as it was recorded."""
OWN = frozenset(TAKEN) | {
    "item_id", "sample_id", "sample_index", "total_samples", "model_name", "prompt_template", "prompt",
    "response", "status", "error", "attempts", "doc_id", "request_key", "tokens_per_second",
    "metadata", "metadata_json",
}  # fmt: skip
"""Fields of a recorded row that mean something here; all others are its metadata."""
STATUSES = ("ok", "model_error", "infra_error")

Recorded = Mapping[str, Any] | None
Lookup = Callable[[Mapping[str, Any], int], Recorded]


def replayed(model: ModelConfig, requests: Iterable[pa.RecordBatch], options: InferenceOptions) -> Responded:
    """Rows for the requests from what was recorded; the tally counts while they are read.

    A response that is not there is a row without one, never an empty text. Raises DataError for a file that
    can't be read.
    """
    assert isinstance(model.config, ReplayConfig)
    if model.config.path is not None:
        source, find = model.config.path, _file_lookup(model.name, options.base_dir / model.config.path)
    else:
        source, find = f"field {model.config.field}", _field_lookup(str(model.config.field))
    tally = Tally()
    return Responded(_batches(requests, find, _Context(source, options.sampling.num_samples, tally)), tally)


class _Context:
    """Where responses come from, how many an item has, and the counts."""

    def __init__(self, source: str, samples: int, tally: Tally) -> None:
        self.source = source
        self.samples = samples
        self.tally = tally


def _file_lookup(model_name: str, path: Path) -> Lookup:
    recordings = recordings_at(path)

    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        return recordings.find(Wanted(model_name, row["prompt_template"], row["item_id"], sample))

    return find


def _field_lookup(path: str) -> Lookup:
    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        try:
            value = field_at(orjson.loads(row["doc_json"]), path)
        except KeyError:
            return None
        held = list(samples(value)) if value is not None else []
        if sample >= len(held) or held[sample] is None:
            return None
        text = held[sample] if isinstance(held[sample], str) else orjson.dumps(held[sample]).decode()
        return {"response": text}

    return find


def _batches(requests: Iterable[pa.RecordBatch], find: Lookup, context: _Context) -> Iterator[pa.RecordBatch]:
    for batch in requests:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            made = [
                _row(row, sample, find(row, sample), context)
                for row in batch.slice(start, ROWS_AT_ONCE).to_pylist()
                for sample in range(context.samples if row["kind"] == "generate" else 1)
            ]
            yield pa.RecordBatch.from_pylist(made, schema=RESPONSES)


def _row(request: Mapping[str, Any], sample: int, recorded: Recorded, context: _Context) -> dict[str, Any]:
    prompt = request["prompts"][0] if request["prompts"] else ""
    identity = "\0".join(
        (context.source, request["prompt_template"], request["item_id"], str(sample), prompt)
    )
    row: dict[str, Any] = {
        "item_id": request["item_id"],
        "doc_id": request["doc_id"],
        "sample_id": f"{request['item_id']}_sample_{sample}",
        "sample_index": sample,
        "request_key": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
        "prompt": prompt,
        **_content(request, sample, recorded, context),
    }
    context.tally.requests += 1
    context.tally.cached += row["status"] == "ok"
    context.tally.model_errors += row["status"] == "model_error"
    if row["status"] == "infra_error":
        context.tally.failed += 1
        context.tally.errors["not recorded"] = context.tally.errors.get("not recorded", 0) + 1
    return row


def _content(
    request: Mapping[str, Any], sample: int, recorded: Recorded, context: _Context
) -> dict[str, Any]:
    if recorded is None:
        missing = f"no recorded response to item {request['item_id']!r}, sample {sample}, in {context.source}"
        return {"status": "infra_error", "error": missing, "attempts": 0}
    flat = {**_flattened(recorded.get("metadata")), **recorded}
    content = {name: flat[name] for name in TAKEN if flat.get(name) is not None}
    likelihood = request["kind"] != "generate"
    text = recorded.get("response")
    error = recorded.get("error") or None
    status = recorded.get("status") or ("infra_error" if error else "ok")
    if status == "ok" and (content.get("lls") if likelihood else text) is None:
        status, error = (
            "infra_error",
            error or f"the recorded row of item {request['item_id']!r} has no response",
        )
    if status not in STATUSES:
        status, error = "infra_error", error or f"recorded with the status {status!r}"
    metadata = {name: value for name, value in recorded.items() if name not in OWN}
    return {
        **content,
        "status": status,
        "error": None if error is None else str(error),
        "attempts": int(flat.get("attempts") or 1),
        "response": _text(text) if status == "ok" and not likelihood else None,
        "metadata_json": orjson.dumps(
            {**_flattened(recorded.get("metadata")), **metadata}, default=str
        ).decode()
        if metadata or recorded.get("metadata")
        else recorded.get("metadata_json"),
    }


def _flattened(metadata: Any) -> dict[str, Any]:
    return dict(metadata) if isinstance(metadata, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
