"""Parts of a pair in memory: items, their samples and what a metric made of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tasks.rows.parts import Origin, Part, from_batches
from tasks.store.schemas import REQUESTS, RESPONSES, STATISTICS

ORIGIN = Origin("model", "plain")
REQUEST = {
    "prompt_template": "plain",
    "kind": "generate",
    "chat": False,
    "prompts": ["?"],
    "continuations": [""],
    "unconditional": [],
    "references_json": '["1"]',
    "gold": [],
    "choices": [],
    "first_sample": 0,
}
ITEM = {"doc": {}, "cluster": None, "samples": []}


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema)


def _part(items: Sequence[Mapping[str, Any]], origin: Origin = ORIGIN, method: str | None = None) -> Part:
    """Items as ``{"doc_id", "samples", "doc", "cluster"}``; a sample is a score, None or columns."""
    requests, responses, statistics = [], [], []
    for item in ({**ITEM, **item} for item in items):
        own = {"item_id": f"item{item['doc_id']}", "doc_id": item["doc_id"]}
        digest = {"item_digest": f"digest{item['doc_id']}", "cluster": item["cluster"]}
        requests.append({**REQUEST, **own, **digest, "doc_json": orjson.dumps(item["doc"]).decode()})
        for index, sample in enumerate(item["samples"]):
            given = sample if isinstance(sample, Mapping) else {"score": sample}
            score = given.get("score")
            made = {"scored": score is not None, "statistics": None if score is None else [score], "code": -1}
            known = {name: given[name] for name in given if name in STATISTICS.names}
            statistics.append({**own, "sample_index": index, **made, **known})
            said = {name: given[name] for name in given if name in RESPONSES.names}
            asked = {"sample_id": "s", "request_key": "k", "prompt": "?", "status": "ok", "attempts": 1}
            responses.append({**own, "sample_index": index, **asked, **said})
    return Part(
        origin,
        from_batches([_batch(statistics, STATISTICS)]),
        from_batches([_batch(requests, REQUESTS)]),
        from_batches([_batch(responses, RESPONSES)]),
        method=method,
    )


@pytest.fixture
def part() -> Callable[..., Part]:
    return _part
