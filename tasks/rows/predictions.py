"""Responses through a filter pipeline: PREDICTIONS rows.

The responses of an item go through the pipeline together. What failed does not: where a pipeline chooses
among an item's responses and needed one that failed, all it gives for that item is unscored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrics.types import ChoiceBatch
from scorers.base import Batch
from scorers.choices import ChoiceColumns, choice_batch
from scorers.filters import FilterPipeline
from tasks.store.schemas import PREDICTIONS
from tasks.store.storage import ArtifactRef, Store

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
        kept = [_selected(pipeline, item.responses) for item in chunk]
        ready = [index for index, (rows, ok) in enumerate(kept) if ok]
        docs = [orjson.loads(chunk[index].doc_json) for index in ready]
        filtered = dict(zip(ready, _apply(pipeline, [kept[index][0] for index in ready], docs), strict=True))
        rows = [
            row
            for index, item in enumerate(chunk)
            for row in _rows(item, kept[index][0], filtered.get(index))
        ]  # fmt: skip
        yield pa.RecordBatch.from_pylist(rows, schema=PREDICTIONS)


def _selected(
    pipeline: FilterPipeline, responses: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], bool]:
    """The responses that the pipeline looks at, and whether it can be given them."""
    looked_at = list(responses)
    for step in pipeline.steps:
        # A pipeline that begins by taking the first k never sees the others, failed or not.
        if step.keeps != "first":
            break
        looked_at = looked_at[: step.first()]
    answered = [response for response in looked_at if response["status"] == "ok"]
    if len(answered) == len(looked_at):
        return looked_at, bool(looked_at)
    each_for_itself = pipeline.keeps(len(looked_at)) == len(looked_at)
    return looked_at, each_for_itself and bool(answered)


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
    repeats = min(len(kept) for kept in filtered)
    return [
        {
            "lls": [kept[repeat][0] for kept in filtered],
            "is_greedy": [bool(kept[repeat][1]) for kept in filtered],
            "unconditional_lls": item[repeat]["unconditional_lls"],
            "unconditional_greedy": item[repeat]["unconditional_greedy"],
        }
        for repeat in range(repeats)
    ]


def _rows(
    item: ItemResponses, looked_at: Sequence[Mapping[str, Any]], filtered: Sequence[Any] | None
) -> Iterator[dict[str, Any]]:
    base = {"item_id": item.item_id, "doc_id": item.doc_id}
    if filtered is None:
        for row in looked_at:
            yield base | {"sample_index": row["sample_index"], "scored": False, "is_json": False}
        return
    answered = [row for row in looked_at if row["status"] == "ok"]
    # A pipeline that gives one prediction a response keeps their numbers; one that chooses numbers its own.
    own = len(filtered) == len(answered)
    for index, prediction in enumerate(filtered):
        number = answered[index]["sample_index"] if own else index
        yield base | {"sample_index": number, "scored": True} | _prediction(prediction)
    if own:
        for row in looked_at:
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


PROMPT_COLUMNS = (
    *("item_id", "doc_id", "kind", "references_json", "doc_json"),
    *("gold", "choices", "continuations", "unconditional"),
)


PREDICTION_COLUMNS = (
    *("item_id", "doc_id", "sample_index", "scored", "prediction", "is_json"),
    *("lls", "is_greedy", "unconditional_lls"),
)


@dataclass(frozen=True)
class ScorerInput:
    """Some items' samples: the predictions' own columns, and the batch that a scorer looks at, row for
    row."""

    samples: pa.Table
    batch: Batch


def joined_batches(
    store: Store, requests: ArtifactRef, predictions: ArtifactRef, responses: ArtifactRef
) -> Iterator[ScorerInput]:
    """What scorers look at, for one model, prompt and partition, in the order of the items.

    A request batch without a sample gives an empty batch, so that the streams of several filters keep step.
    """
    asked = store.batches(requests, PROMPT_COLUMNS)
    filtered = store.batches(predictions, PREDICTION_COLUMNS)
    unfiltered = store.batches(responses, ("doc_id", "sample_index", "response"))
    for (items, samples), (_, texts) in zip(
        joined(asked, filtered), joined(store.batches(requests, ("doc_id",)), unfiltered), strict=True
    ):
        yield ScorerInput(samples, scorer_batch(items, samples, response_texts(samples, texts)))


class JsonColumn(Sequence[Any]):
    """A column of JSON texts, each read when it is looked at."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        return orjson.loads(self._texts[index].as_py())

    def __iter__(self) -> Iterator[Any]:
        return (orjson.loads(text) for text in self._texts.to_pylist())


def joined(
    requests: Iterable[pa.RecordBatch], rows: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Pairs each request batch with the rows of its items: both tables have a row a sample.

    Both come in the order of the items (``doc_id`` rises), so that one batch of each is in memory.
    """
    waiting = iter(rows)
    held: list[pa.RecordBatch] = []
    for batch in requests:
        doc_ids = _integers(batch.column("doc_id"))
        while len(doc_ids) and (not held or _last(held[-1]) <= doc_ids[-1]):
            following = next(waiting, None)
            if following is None:
                break
            if following.num_rows:
                held.append(following)
        if not held or not len(doc_ids):
            continue
        table = pa.Table.from_batches(held)
        here = int(np.searchsorted(_integers(table.column("doc_id")), doc_ids[-1], side="right"))
        part, rest = table.slice(0, here), table.slice(here)
        held = rest.to_batches() if rest.num_rows else []
        positions = np.searchsorted(doc_ids, _integers(part.column("doc_id")))
        yield pa.Table.from_batches([batch]).take(pa.array(positions)), part
    if held:
        raise ValueError("predictions of items that are not among the requests")


def scorer_batch(
    requests: pa.Table, predictions: pa.Table, responses: Sequence[str | None] | None = None
) -> Batch:
    """One batch for a scorer, from tables that stand beside each other."""
    kind = requests.column("kind")[0].as_py() if requests.num_rows else "generate"
    with_choices = kind != "generate"
    return Batch(
        item_ids=requests.column("item_id").to_pylist(),
        sample_index=predictions.column("sample_index").to_numpy(),
        scored=predictions.column("scored").to_numpy(),
        predictions=[None] * predictions.num_rows if with_choices else _predictions(predictions),
        references=JsonColumn(_one_array(requests.column("references_json"))),
        docs=JsonColumn(_one_array(requests.column("doc_json"))),
        responses=responses if responses is not None else [None] * predictions.num_rows,
        choices=_choices(requests, predictions, kind) if with_choices else None,
    )


def _choices(requests: pa.Table, predictions: pa.Table, kind: str) -> ChoiceBatch:
    columns = ChoiceColumns(
        item_ids=requests.column("item_id").to_pylist(),
        scored=predictions.column("scored").to_numpy(),
        lls=predictions.column("lls"),
        is_greedy=predictions.column("is_greedy"),
        gold=requests.column("gold"),
        continuations=requests.column("continuations"),
        choices=requests.column("choices"),
        unconditional=requests.column("unconditional"),
        unconditional_lls=predictions.column("unconditional_lls"),
    )
    return choice_batch(columns, rolling=kind == "rolling")


def response_texts(predictions: pa.Table, responses: pa.Table) -> list[str | None]:
    """The unfiltered response beside each prediction, of the same sample where there is one."""
    found = dict(
        zip(
            zip(
                responses.column("doc_id").to_pylist(),
                responses.column("sample_index").to_pylist(),
                strict=True,
            ),
            responses.column("response").to_pylist(),
            strict=True,
        )
    )
    keys = zip(
        predictions.column("doc_id").to_pylist(), predictions.column("sample_index").to_pylist(), strict=True
    )
    return [found.get(key) for key in keys]


def _predictions(table: pa.Table) -> list[Any]:
    values: list[Any] = table.column("prediction").to_pylist()
    for row in np.flatnonzero(table.column("is_json").to_numpy()):
        values[row] = orjson.loads(values[row])
    return values


def _integers(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _last(batch: pa.RecordBatch) -> int:
    return int(batch.column("doc_id")[-1].as_py())


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pc.cast(combined, pa.string())
