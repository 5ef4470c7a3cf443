"""How responses pass through a filter pipeline and become PREDICTIONS rows.

The responses of an item pass together. A failed response does not pass: where a pipeline chooses among an
item's responses and needs one that failed, all it gives for that item is unscored. The stage filter writes
with it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from scorers.filters import FilterPipeline
from tasks.store.schemas import PREDICTIONS

REQUEST_COLUMNS = ("item_id", "doc_id", "doc_json")
RESPONSE_COLUMNS = (
    "item_id", "sample_index", "status", "response", "lls", "is_greedy", "unconditional_lls",
    "unconditional_greedy",
)  # fmt: skip


@dataclass(frozen=True)
class ItemResponses:
    """One item with its responses in the order of their samples."""

    item_id: str
    doc_id: int
    doc_json: str
    responses: Sequence[Mapping[str, Any]]


def prediction_batches(
    pipeline: FilterPipeline, requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """PREDICTIONS rows in the order of the requests; raises FilterError from a user's step."""
    for chunk in _item_chunks(requests, responses):
        selected = [_selected(pipeline, item.responses) for item in chunk]
        ready = [index for index, (rows, ok) in enumerate(selected) if ok]
        docs = [orjson.loads(chunk[index].doc_json) for index in ready]
        filtered = dict(
            zip(ready, _apply(pipeline, [selected[index][0] for index in ready], docs), strict=True)
        )
        rows = [
            row
            for index, item in enumerate(chunk)
            for row in _rows(item, selected[index][0], filtered.get(index))
        ]  # fmt: skip
        yield pa.RecordBatch.from_pylist(rows, schema=PREDICTIONS)


def _selected(
    pipeline: FilterPipeline, responses: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], bool]:
    """The responses that the pipeline looks at, and whether it can be given them."""
    inputs = list(responses)
    for step in pipeline.steps:
        # A pipeline that begins by taking the first k never sees the others, failed or not.
        if step.keeps != "first":
            break
        inputs = inputs[: step.first()]
    answered = [response for response in inputs if response["status"] == "ok"]
    if len(answered) == len(inputs):
        return inputs, bool(inputs)
    each_for_itself = pipeline.keeps(len(inputs)) == len(inputs)
    return inputs, each_for_itself and bool(answered)


def _apply(
    pipeline: FilterPipeline, rows: list[list[Mapping[str, Any]]], docs: list[Mapping[str, Any]]
) -> list[list[Any]]:
    """What the pipeline makes of each item's answered responses; log-likelihoods are filtered choice by
    choice."""
    if not rows:
        return []
    answered = [[row for row in item if row["status"] == "ok"] for item in rows]
    if answered[0][0]["lls"] is None:
        return pipeline.apply([[row["response"] for row in item] for item in answered], docs)
    return [_filter_choices(pipeline, item, doc) for item, doc in zip(answered, docs, strict=True)]


def _filter_choices(
    pipeline: FilterPipeline, item: list[Mapping[str, Any]], doc: Mapping[str, Any]
) -> list[Any]:
    if all(step.keeps in ("first", "all") for step in pipeline.steps):
        return list(item)
    choices = [
        [(row["lls"][choice], row["is_greedy"][choice]) for row in item]
        for choice in range(len(item[0]["lls"]))
    ]
    filtered = pipeline.apply(choices, [doc] * len(choices))
    repeats = min(len(results) for results in filtered)
    return [
        {
            "lls": [results[repeat][0] for results in filtered],
            "is_greedy": [bool(results[repeat][1]) for results in filtered],
            "unconditional_lls": item[repeat]["unconditional_lls"],
            "unconditional_greedy": item[repeat]["unconditional_greedy"],
        }
        for repeat in range(repeats)
    ]


def _rows(
    item: ItemResponses, inputs: Sequence[Mapping[str, Any]], filtered: Sequence[Any] | None
) -> Iterator[dict[str, Any]]:
    base = {"item_id": item.item_id, "doc_id": item.doc_id}
    if filtered is None:
        for row in inputs:
            yield base | {"sample_index": row["sample_index"], "scored": False, "is_json": False}
        return
    answered = [row for row in inputs if row["status"] == "ok"]
    # A pipeline that gives one prediction a response keeps their numbers; one that chooses numbers its own.
    own = len(filtered) == len(answered)
    for index, prediction in enumerate(filtered):
        number = answered[index]["sample_index"] if own else index
        yield base | {"sample_index": number, "scored": True} | _prediction(prediction)
    if own:
        for row in inputs:
            if row["status"] != "ok":
                yield base | {"sample_index": row["sample_index"], "scored": False, "is_json": False}


def _prediction(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and "lls" in value and "is_greedy" in value:
        names = ("lls", "is_greedy", "unconditional_lls", "unconditional_greedy")
        return {"is_json": False} | {name: value[name] for name in names}
    if value is None or isinstance(value, str):
        return {"prediction": value, "is_json": False}
    return {"prediction": orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode(), "is_json": True}


def _item_chunks(
    requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch]
) -> Iterator[list[ItemResponses]]:
    """Items with their responses, a batch of requests at a time; both artifacts are in the order of the
    items."""
    waiting = _grouped(responses)
    for batch in requests:
        chunk = []
        for row in batch.to_pylist():
            item_id, rows = next(waiting, (None, []))
            if item_id != row["item_id"]:
                raise ValueError(
                    f"responses and requests differ at item {row['item_id']!r} (found {item_id!r})"
                )
            chunk.append(ItemResponses(row["item_id"], row["doc_id"], row["doc_json"], rows))
        yield chunk


def _grouped(responses: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    current: tuple[str, list[dict[str, Any]]] | None = None
    for batch in responses:
        for row in batch.to_pylist():
            if current is None or row["item_id"] != current[0]:
                if current is not None:
                    yield current
                current = (row["item_id"], [])
            current[1].append(row)
    if current is not None:
        yield current
