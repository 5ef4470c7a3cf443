"""How items and rendered requests become ITEMS and REQUESTS rows, and ITEMS rows become items again.

The stages load and render write with it. A row holds an item's content as JSON text, its fields in the
dataset's order, and a digest of that content, by which two runs on the same items are joined.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from tasks.datasets.item import Item, Rendered, item_digest
from tasks.store.keys import canonical_json
from tasks.store.schemas import ITEMS, REQUESTS, row_batch, row_dicts
from tasks.store.thresholds import Threshold

CHUNK = Threshold("items_of_a_batch", 1_024)


def item_batches(items: Iterable[Item]) -> Iterator[pa.RecordBatch]:
    """Items as ITEMS rows."""
    for chunk in chunks(items):
        yield row_batch([_item_row(item) for item in chunk], ITEMS)


def read_items(batches: Iterable[pa.RecordBatch]) -> Iterator[Item]:
    """The items behind ITEMS rows."""
    for batch in batches:
        for row in row_dicts(batch):
            truth = row["ground_truth_json"]
            yield Item(
                item_id=row["item_id"],
                doc_id=row["doc_id"],
                data=orjson.loads(row["data_json"]),
                ground_truth=None if truth is None else orjson.loads(truth),
                cluster=row["cluster"],
                digest=row["item_digest"],
            )


def request_batches(prompt: str, rendered: Iterable[Rendered]) -> Iterator[pa.RecordBatch]:
    """What is asked with the named prompt template, as REQUESTS rows."""
    for chunk in chunks(rendered):
        yield row_batch([_request_row(prompt, entry) for entry in chunk], REQUESTS)


def _item_row(item: Item) -> dict[str, Any]:
    return {
        "item_id": item.item_id,
        "doc_id": item.doc_id,
        "item_digest": item_digest(item),
        "data_json": _text(dict(item.data)),
        "ground_truth_json": _truth(item),
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
        "orders": [list(order) for order in entry.orders] or None,
        "keeps_space": entry.keeps_space,
        "ground_truth_json": _truth(entry.item),
    }


def _truth(item: Item) -> str | None:
    return None if item.ground_truth is None else _text(item.ground_truth)


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
