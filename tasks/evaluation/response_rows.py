"""A sample's response as people and their functions meet it: the rows of responses.jsonl."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa

from tasks.reduction.paths import RESPONSE_METADATA
from tasks.reduction.records import Origin

Row = dict[str, Any]

_LIKELIHOODS = ("lls", "is_greedy", "unconditional_lls", "unconditional_greedy")
_TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")
COLUMNS = (
    *("item_id", "doc_id", "sample_id", "sample_index", "prompt", "response", "reasoning", "status", "error"),
    *("inference_time", "timestamp", "metadata_json"),
    *(*_TOKENS, *RESPONSE_METADATA, *_LIKELIHOODS),
)
"""The columns of RESPONSES that the rows are made of."""


def response_rows(batch: pa.RecordBatch, origin: Origin) -> Iterator[Row]:
    """The rows of a batch of RESPONSES with ``COLUMNS``, in order, without ``total_samples``.

    Log-likelihoods and reasoning appear where there are any.
    """
    columns = {name: batch.column(name).to_pylist() for name in COLUMNS}
    for values in zip(*columns.values(), strict=True):
        yield _row(dict(zip(columns, values, strict=True)), origin)


def _row(sample: Mapping[str, Any], origin: Origin) -> Row:
    row: Row = {
        "item_id": sample["item_id"],
        "sample_id": sample["sample_id"],
        "sample_index": sample["sample_index"],
        "model_name": origin.model_name,
        "prompt_template": origin.prompt_template,
        "prompt": sample["prompt"],
        "response": sample["response"],
        "inference_time": sample["inference_time"],
        "timestamp": sample["timestamp"],
        "metadata": metadata(sample, origin),
        "error": sample["error"],
        "status": sample["status"],
        "tokens_per_second": _rate(sample["completion_tokens"], sample["inference_time"]),
        "total_tokens": sample["total_tokens"],
        "prompt_tokens": sample["prompt_tokens"],
        "completion_tokens": sample["completion_tokens"],
    }
    extra = {name: sample[name] for name in ("reasoning", *_LIKELIHOODS) if sample[name] is not None}
    return row | extra


def metadata(sample: Mapping[str, Any], origin: Origin) -> Row:
    """What is known of a response beside its text; what came with a recorded response wins."""
    own = {name: sample[name] for name in RESPONSE_METADATA if sample[name] is not None}
    recorded = sample["metadata_json"]
    return origin.shared_metadata | own | (orjson.loads(recorded) if recorded else {})


def _rate(tokens: int | None, seconds: float | None) -> float | None:
    return tokens / seconds if tokens is not None and seconds else None
