"""How responses pass through a filter pipeline and become PREDICTIONS rows.

The responses of an item pass together. A failed response does not pass: where a pipeline chooses among an
item's responses and needs one that failed, all it gives for that item is unscored. One that was cut off has
no prediction: a pipeline that gives one a response never sees it, one that chooses sees that there is none.
Whether that is wrong or unscored is not decided here. The stage filter writes with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa

from scorers.filters import FilterPipeline
from scorers.filters.pipeline import UserStep
from scorers.letters import Reading
from tasks.killable.process import GaveUp
from tasks.rows.limited import LimitedPipeline
from tasks.rows.outcomes import outcome_of, outcome_of_all
from tasks.store.schemas import PREDICTIONS, row_dicts

REQUEST_COLUMNS = ("item_id", "doc_id", "doc_json", "choices", "gold", "orders")
RESPONSE_COLUMNS = (
    "item_id", "sample_index", "status", "response", "tool_calls_json", "finish_reason", "lls", "is_greedy",
    "unconditional_lls", "unconditional_greedy", "token_lengths", "logprobs_json",
)  # fmt: skip
Read = Callable[[Mapping[str, Any], Sequence[str]], Reading]
"""Reads a row of RESPONSES as one of the choices, which stand in the order that they were shown in."""


@dataclass(frozen=True)
class ItemResponses:
    """One item with its responses in the order of their samples."""

    item_id: str
    doc_id: int
    doc_json: str
    responses: Sequence[Mapping[str, Any]]


def _as_choices(item: ItemResponses, request: Mapping[str, Any], read: Read) -> ItemResponses:
    """The item with every answer read as a choice: ``choice`` is its index in the item's own order, whatever
    order it was shown in, and ``reading`` how it was read."""
    found = []
    for row in item.responses:
        order = request["orders"][row["sample_index"] % len(request["orders"])]
        if row["status"] == "ok":
            reading = read(row, [request["choices"][choice] for choice in order])
            choice = None if reading.position is None else order[reading.position]
            row = {**row, "choice": choice, "reading": reading.record(order, request["gold"])}
        found.append(row)
    return replace(item, responses=found)


def prediction_batches(
    limited: LimitedPipeline,
    requests: Iterable[pa.RecordBatch],
    responses: Iterable[pa.RecordBatch],
    cut_as_text: bool = False,
    read: Read | None = None,
) -> Iterator[pa.RecordBatch]:
    """PREDICTIONS rows in the order of the requests; raises FilterError from a user's step.

    What a step gave up is unscored, with the reason. ``cut_as_text``: a response that was cut off passes as
    the empty text, as lm-evaluation-harness has it. ``read``: responses are read as choices first, and the
    pipeline is given their indices.
    """
    pipeline = limited.pipeline
    passing = Passing.of(pipeline, cut_as_text)
    for chunk in _item_chunks(requests, responses, read):
        selected = [_selected(pipeline, item.responses, passing) for item in chunk]
        given = [passing.given(rows, pipeline.keeps(len(rows))) for rows, _ in selected]
        ready = [index for index, (rows, ok) in enumerate(selected) if ok]
        docs = [orjson.loads(chunk[index].doc_json) for index in ready]
        filtered = dict(
            zip(ready, _apply(limited, [given[index] for index in ready], docs, passing), strict=True)
        )
        rows = [
            row
            for index, item in enumerate(chunk)
            for row in _rows(item, selected[index][0], filtered.get(index), given[index])
        ]  # fmt: skip
        yield pa.RecordBatch.from_pylist(rows, schema=PREDICTIONS)


@dataclass(frozen=True)
class Passing:
    """Which responses a pipeline is given, and as what one that was cut off.

    ``cut_as`` is the empty text for lm-evaluation-harness and for users' functions, which expect texts, and
    None, no prediction, for our own steps.
    """

    cut_as: str | None
    cut_as_text: bool

    @classmethod
    def of(cls, pipeline: FilterPipeline, cut_as_text: bool) -> "Passing":
        """How responses pass through this pipeline."""
        users = any(isinstance(step.run, UserStep) for step in pipeline.steps)
        return cls("" if cut_as_text or users else None, cut_as_text)

    def given(self, responses: Sequence[Mapping[str, Any]], keeps: int | None) -> list[Mapping[str, Any]]:
        """The responses that a pipeline looks at which keeps so many of them. One that keeps all gives each
        its own prediction, and needs none of what was cut off.
        """
        cut = self.cut_as_text or keeps != len(responses)
        return [row for row in responses if row["status"] == "ok" or (cut and row["status"] == "cut_off")]

    def text(self, response: Mapping[str, Any]) -> Any:
        """What the pipeline is given of the response."""
        if "reading" in response:
            return response["choice"]
        text: str | None = response["response"]
        return text if response["status"] == "ok" else self.cut_as


def _selected(
    pipeline: FilterPipeline, responses: Sequence[Mapping[str, Any]], passing: Passing
) -> tuple[list[Mapping[str, Any]], bool]:
    """The responses that the pipeline looks at, and whether it can be given them."""
    inputs = list(responses)
    for step in pipeline.steps:
        # A pipeline that begins by taking the first k never sees the others, failed or not.
        if step.keeps != "first":
            break
        inputs = inputs[: step.first()]
    keeps = pipeline.keeps(len(inputs))
    given = passing.given(inputs, keeps)
    return inputs, bool(given) and (len(given) == len(inputs) or keeps == len(inputs))


def _apply(
    limited: LimitedPipeline,
    rows: list[list[Mapping[str, Any]]],
    docs: list[Mapping[str, Any]],
    passing: Passing,
) -> list[list[Any] | GaveUp]:
    """What the pipeline makes of each item's responses; log-likelihoods are filtered choice by choice."""
    if not rows:
        return []
    if rows[0][0]["lls"] is None:
        return limited.apply([[passing.text(row) for row in item] for item in rows], docs)
    return [_filter_choices(limited.pipeline, item, doc) for item, doc in zip(rows, docs, strict=True)]


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
            "token_lengths": item[repeat]["token_lengths"],
        }
        for repeat in range(repeats)
    ]


def _rows(
    item: ItemResponses,
    inputs: Sequence[Mapping[str, Any]],
    filtered: Sequence[Any] | GaveUp | None,
    given: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    base = {"item_id": item.item_id, "doc_id": item.doc_id}
    if filtered is None:
        yield from (base | _unanswered(row) for row in inputs)
        return
    if isinstance(filtered, GaveUp):
        yield from (base | _unanswered(row) | {"error": filtered.reason} for row in inputs)
        return
    # A pipeline that gives one prediction a response keeps their numbers; one that chooses numbers its own.
    own = len(filtered) == len(given)
    for index, prediction in enumerate(filtered):
        number = given[index]["sample_index"] if own else index
        outcome = outcome_of(given[index]) if own else outcome_of_all(given)
        if isinstance(prediction, GaveUp):
            yield base | _unanswered(given[index]) | {"error": prediction.reason}
            continue
        known = {"sample_index": number, "scored": outcome != "cut_off", "outcome": outcome}
        if own and "reading" in given[index]:
            known["reading_json"] = orjson.dumps(given[index]["reading"]).decode()
        yield base | known | _prediction(prediction)
    if own:
        passed = {row["sample_index"] for row in given}
        yield from (base | _unanswered(row) for row in inputs if row["sample_index"] not in passed)


def _unanswered(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a response of which there is nothing to score."""
    number = row["sample_index"]
    return {"sample_index": number, "scored": False, "outcome": outcome_of(row), "is_json": False}


def _prediction(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and "lls" in value and "is_greedy" in value:
        names = ("lls", "is_greedy", "unconditional_lls", "unconditional_greedy", "token_lengths")
        return {"is_json": False} | {name: value[name] for name in names}
    if value is None or isinstance(value, str):
        return {"prediction": value, "is_json": False}
    return {"prediction": orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode(), "is_json": True}


def _item_chunks(
    requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch], read: Read | None = None
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
            item = ItemResponses(row["item_id"], row["doc_id"], row["doc_json"], rows)
            chunk.append(item if read is None else _as_choices(item, row, read))
        yield chunk


def _grouped(responses: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    current: tuple[str, list[dict[str, Any]]] | None = None
    for batch in responses:
        for row in row_dicts(batch):
            if current is None or row["item_id"] != current[0]:
                if current is not None:
                    yield current
                current = (row["item_id"], [])
            current[1].append(row)
    if current is not None:
        yield current
