"""Items and what is asked about them, as rows."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from scorers.base import SampleScores
from tasks.benchmarks.records import Rendered
from tasks.datasets.item import Item
from tasks.store.keys import canonical_json, digest, value_text
from tasks.store.schemas import ITEMS, REQUESTS, STATISTICS, TEXT

CHUNK = 1_024


def item_batches(items: Iterable[Item]) -> Iterator[pa.RecordBatch]:
    """Items as ITEMS rows."""
    for chunk in chunks(items):
        yield pa.RecordBatch.from_pylist([_item_row(item) for item in chunk], schema=ITEMS)


def read_items(batches: Iterable[pa.RecordBatch]) -> Iterator[Item]:
    """The items behind ITEMS rows."""
    for batch in batches:
        for row in batch.to_pylist():
            truth = row["ground_truth_json"]
            yield Item(
                item_id=row["item_id"],
                doc_id=row["doc_id"],
                data=orjson.loads(row["data_json"]),
                ground_truth=None if truth is None else orjson.loads(truth),
                cluster=row["cluster"],
            )


def request_batches(prompt: str, rendered: Iterable[Rendered]) -> Iterator[pa.RecordBatch]:
    """What is asked with the named prompt template, as REQUESTS rows."""
    for chunk in chunks(rendered):
        yield pa.RecordBatch.from_pylist([_request_row(prompt, entry) for entry in chunk], schema=REQUESTS)


def item_digest(item: Item) -> str:
    """Digest of an item's content, by which two runs on the same items are joined."""
    return digest({"data": dict(item.data), "ground_truth": item.ground_truth})


def _item_row(item: Item) -> dict[str, Any]:
    return {
        "item_id": item.item_id,
        "doc_id": item.doc_id,
        "item_digest": item_digest(item),
        "data_json": _text(dict(item.data)),
        "ground_truth_json": None if item.ground_truth is None else _text(item.ground_truth),
        "cluster": item.cluster,
    }


def _request_row(prompt: str, entry: Rendered) -> dict[str, Any]:
    return {
        "item_id": entry.item.item_id,
        "doc_id": entry.item.doc_id,
        "item_digest": item_digest(entry.item),
        "cluster": entry.item.cluster,
        "prompt_template": prompt,
        "kind": entry.kind,
        "chat": entry.chat,
        "prompts": list(entry.prompts),
        "continuations": list(entry.continuations),
        "unconditional": list(entry.unconditional),
        "references_json": canonical_json(list(entry.references)).decode(),
        "gold": list(entry.gold),
        "choices": list(entry.choices),
        "doc_json": _text(dict(entry.doc)),
        "first_sample": 0,
    }


def _text(value: Any) -> str:
    # The order of an object's fields is the dataset's and is kept.
    return orjson.dumps(
        value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str
    ).decode()


def chunks(entries: Iterable[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """Consecutive lists of up to ``size`` entries."""
    waiting = iter(entries)
    while chunk := list(islice(waiting, size)):
        yield chunk


def statistics_batch(samples: pa.Table, scored: SampleScores) -> pa.RecordBatch:
    """STATISTICS rows of a batch; ``samples`` has its item_id, doc_id and sample_index, row for row."""
    scores, n = scored.scores, len(scored)
    absent = pa.nulls(n, pa.string())
    columns = {
        "item_id": samples.column("item_id").combine_chunks(),
        "doc_id": samples.column("doc_id").combine_chunks(),
        "sample_index": samples.column("sample_index").combine_chunks(),
        "label": pa.nulls(n, pa.string()).dictionary_encode().cast(TEXT),
        "scored": pa.array(scored.scored),
        "score": pa.array(scores.score, mask=~scored.scored | np.isnan(scores.score)),
        "statistics": _vectors(scored),
        "value_json": absent
        if scores.values is None
        else pa.array(_texts(scores.values, scored, value_text), pa.string()),
        "code": pa.array(scored.codes, pa.int64()),
        "passed": pa.nulls(n, pa.bool_()),
        "details_json": absent
        if scores.details is None
        else pa.array(_texts(scores.details, scored, _detail_text), pa.string()),
        "error": pa.array(list(scored.errors), pa.string()),
        "evaluation_time": pa.nulls(n, pa.float64()),
        "evaluated_at": pa.nulls(n, pa.float64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in STATISTICS.names], schema=STATISTICS)


def _vectors(scored: SampleScores) -> pa.Array:
    """The statistics as lists; null where a sample is unscored or the metric keeps values."""
    statistics, n = scored.scores.statistics, len(scored)
    if statistics is None:
        return pa.nulls(n, pa.list_(pa.float64()))
    width = statistics.shape[1]
    present = np.asarray(scored.scored, dtype=bool)
    offsets = np.concatenate([[0], np.cumsum(present * width)]).astype(np.int32)
    flat = pa.array(np.ascontiguousarray(statistics[present]).ravel(), pa.float64())
    mask = None if present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=mask)


def _texts(values: Any, scored: SampleScores, write: Callable[[Any], str]) -> list[str | None]:
    return [
        write(value) if value is not None and kept else None
        for value, kept in zip(values, scored.scored, strict=True)
    ]


def _detail_text(value: Any) -> str:
    """Details are for people and for other programs: JSON as everyone reads it."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, option=options, default=str).decode()
