"""How responses pass through a filter pipeline and become PREDICTIONS rows.

The responses of an item pass together. A failed response does not pass: where a pipeline chooses among an
item's responses and needs one that failed, all it gives for that item is unscored. One that was cut off
has no prediction: a pipeline that gives one a response never sees it, one that chooses sees that there is
none. Whether that is wrong or unscored is not decided here. The stage filter writes with it.

Where a pattern may run away, what takes too much is given up (``LimitedPipeline``). A step whose patterns
are sure to end soon on the texts it gets runs here, any other in a process that can be killed. A response
is given up alone where every step gives each its own prediction, else the item is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Literal, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from metrics.types import OutputType
from scorers.config import ITEM_SECONDS, FilterConfig
from scorers.filters import FilterPipeline
from scorers.filters.pipeline import UserStep
from scorers.letters import Reading, read_first_token, read_letter
from tasks.rows.outcomes import LACKING, outcome, outcome_of, outcome_of_all
from tasks.rows.scoring import samples_of_requests
from tasks.sandboxes.killable import ItemTimeout, KillableProcess
from tasks.store.keys import Unkeyed
from tasks.store.schemas import ANSWERS, LIKELIHOODS, PREDICTIONS, TEXT, row_batch, row_dicts
from tasks.usercode.load import resolver

Given = list[Any] | ItemTimeout


class LimitedPipeline(AbstractContextManager["LimitedPipeline"]):
    """A pipeline and its config; an item may take ``seconds`` of CPU time in a step. A context manager: its
    processes end with the block."""

    def __init__(self, pipeline: FilterPipeline, config: FilterConfig, seconds: float) -> None:
        self.pipeline = pipeline
        self._processes = [
            KillableProcess("scorers.filters.pipeline:step_alone", [step], seconds) for step in config.filter
        ]
        self._each_alone = all(
            step.keeps == "all" and not isinstance(step.run, UserStep) for step in pipeline.steps
        )

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()

    def apply(
        self, items: Sequence[Sequence[Any]], docs: Sequence[Mapping[str, Any]]
    ) -> list[list[Any] | ItemTimeout]:
        """The predictions of each item, ItemTimeout among them or in their place; raises FilterError."""
        if not any(step.patterns for step in self.pipeline.steps):
            return list(self.pipeline.apply(items, docs))
        if not self._each_alone:
            return self._steps([list(item) for item in items], docs)
        alone: list[Given] = [[response] for item in items for response in item]
        own_docs = [doc for item, doc in zip(items, docs, strict=True) for _ in item]
        found = iter(self._steps(alone, own_docs))
        return [
            [given if isinstance(given := next(found), ItemTimeout) else given[0] for _ in item]
            for item in items
        ]

    def _steps(self, items: Iterable[Given], docs: Sequence[Mapping[str, Any]]) -> list[Given]:
        now: list[Given] = list(items)
        for step, process in zip(self.pipeline.steps, self._processes, strict=True):
            left = [(place, item) for place, item in enumerate(now) if not isinstance(item, ItemTimeout)]
            calm = {place: item for place, item in left if step.bounded(item)}
            doubtful = {place: item for place, item in left if place not in calm}
            done = step.run(list(calm.values()), [docs[place] for place in calm])
            late = process.map([(item, docs[place]) for place, item in doubtful.items()])
            for place, given in [*zip(calm, done, strict=True), *zip(doubtful, late, strict=True)]:
                now[place] = given
        return now


REQUEST_COLUMNS = ("item_id", "doc_id", "doc_json", "kind", "choices", "gold", "orders")
RESPONSE_COLUMNS = tuple(name for name in ANSWERS if name not in ("error", "metadata_json"))
Read = Callable[[Mapping[str, Any], Sequence[str]], Reading]
"""Reads a row of RESPONSES as one of the choices, which stand in the order that they were shown in."""


class FilterSetup(Unkeyed):
    """The pipeline's config and the folder that its functions are relative to.

    ``own_modules``: its functions' files are imported for it alone (see ``UserModules``).
    """

    config: FilterConfig
    output_type: OutputType
    base_dir: str
    own_modules: bool = False
    letters: Literal["letter", "first_token"] | None = None
    """How choices that were asked for by their letters are read."""
    coverage: float = 0.0
    """Of first tokens: the least probability of all letters together."""
    cut_as_text: bool = False
    """A response that was cut off passes as the empty text."""
    item_timeout: float = ITEM_SECONDS
    """Seconds of CPU that a pattern may take for one item."""

    def read(self) -> Read | None:
        """What reads a response as a choice; None where choices are not asked for by letters."""
        if self.letters is None:
            return None
        coverage = self.coverage
        if self.letters == "letter":
            return lambda response, choices: read_letter(response["response"], choices)
        return lambda response, choices: read_first_token(
            response["logprobs_json"] and orjson.loads(response["logprobs_json"]), len(choices), coverage
        )

    def pipeline(self) -> FilterPipeline:
        """The pipeline, ready to be applied."""
        resolve = resolver(self.base_dir, own=self.own_modules)
        return FilterPipeline.build(self.config, resolve, self.output_type)


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
    """PREDICTIONS rows in the order of the requests, an item's in that of its samples.

    What a step gave up is unscored, with the reason. ``cut_as_text``: a response that was cut off passes as
    the empty text, as lm-evaluation-harness has it. ``read``: responses are read as choices first, and the
    pipeline is given their indices. Raises FilterError from a user's step.
    """
    passing = Passing.of(limited.pipeline, cut_as_text)
    for batch, table in samples_of_requests(requests, responses):
        if table is None:
            _check_same_items(batch, ())
        elif read is None and _all_answered(batch, table, limited.pipeline):
            yield _of_columns(limited, batch, table)
        else:
            yield _of_rows(limited, _items(batch, table, read), passing)


def _all_answered(requests: pa.RecordBatch, responses: pa.Table, pipeline: FilterPipeline) -> bool:
    """Whether every item has responses, all of them texts, and the pipeline is given all of them."""
    if responses.column("lls").null_count < responses.num_rows:
        return False
    if not pc.all(pc.equal(responses.column("status").cast(pa.string()), "ok")).as_py():
        return False
    several = responses.num_rows > requests.num_rows
    first = bool(pipeline.steps) and pipeline.steps[0].keeps == "first"
    return not (several and first) and requests.num_rows == pc.count_distinct(responses["doc_id"]).as_py()


def _of_columns(limited: LimitedPipeline, requests: pa.RecordBatch, responses: pa.Table) -> pa.RecordBatch:
    """PREDICTIONS rows of items that were all answered with text, without a record for each response."""
    doc_ids = responses.column("doc_id").to_numpy()
    ends = np.searchsorted(doc_ids, requests.column("doc_id").to_numpy(), side="right").tolist()
    starts = [0, *ends[:-1]]
    item_ids = responses.column("item_id").combine_chunks()
    _check_same_items(requests, item_ids.take(pa.array(starts)))
    texts = responses.column("response").to_pylist()
    outcomes = _outcomes(texts, responses)
    found: pa.Array = responses.column("response").combine_chunks()
    is_json = np.zeros(len(texts), dtype=np.bool_)
    if limited.pipeline.steps:
        items = [texts[start:end] for start, end in zip(starts, ends, strict=True)]
        docs = [orjson.loads(text) for text in requests.column("doc_json").to_pylist()]
        for item in items:
            limited.pipeline.keeps(len(item))  # raises where a step needs more repeats than there are
        filtered = limited.apply(items, docs)
        if not all(_one_a_response(given, item) for given, item in zip(filtered, items, strict=True)):
            rows = [
                row
                for item, given in zip(_items(requests, responses), filtered, strict=True)
                for row in _rows(item, item.responses, given, item.responses)
            ]
            return row_batch(rows, PREDICTIONS)
        predictions = [_prediction(prediction) for given in filtered for prediction in cast(list[Any], given)]
        found = pa.array([row["prediction"] for row in predictions], pa.string())
        is_json = np.array([row["is_json"] for row in predictions], dtype=np.bool_)
    columns = {
        "item_id": item_ids,
        "doc_id": responses.column("doc_id").combine_chunks(),
        "sample_index": responses.column("sample_index").combine_chunks(),
        "scored": pa.array(np.ones(len(texts), dtype=np.bool_)),
        "prediction": found,
        "outcome": outcomes,
        "is_json": pa.array(is_json),
    }
    nothing = {field.name: pa.nulls(len(texts), field.type) for field in PREDICTIONS}
    return pa.RecordBatch.from_pydict({**nothing, **columns}, schema=PREDICTIONS)


def _one_a_response(given: list[Any] | ItemTimeout, item: Sequence[Any]) -> bool:
    """Whether a pipeline gave each response of an item a prediction that is text or other JSON."""
    return (
        not isinstance(given, ItemTimeout)
        and len(given) == len(item)
        and not any(isinstance(prediction, (ItemTimeout, Mapping)) for prediction in given)
    )


def _outcomes(texts: Sequence[str | None], responses: pa.Table) -> pa.Array:
    """The outcomes of responses that succeeded."""
    names = ["answered" if text and not text.isspace() else "empty" for text in texts]
    if "empty" in names:
        reasons = (responses.column(name).to_pylist() for name in ("finish_reason", "tool_calls_json"))
        names = [
            outcome("ok", text, finish, is_text=calls is None)
            for text, finish, calls in zip(texts, *reasons, strict=True)
        ]
    return pa.array(names, pa.string()).dictionary_encode().cast(TEXT)


def _of_rows(limited: LimitedPipeline, chunk: Sequence[ItemResponses], passing: "Passing") -> pa.RecordBatch:
    """PREDICTIONS rows of any items, from a record for each response."""
    pipeline = limited.pipeline
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
    ]
    return row_batch(rows, PREDICTIONS)


@dataclass(frozen=True)
class Passing:
    """Which responses a pipeline is given, and as what one that was cut off or refused.

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
        its own prediction, and needs none of what was cut off or refused. Log-likelihoods that were refused
        are not there at all.
        """
        lacking = self.cut_as_text or keeps != len(responses)
        return [
            row
            for row in responses
            if row["status"] == "ok" or (lacking and row["is_text"] and row["status"] in LACKING)
        ]

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
) -> list[list[Any] | ItemTimeout]:
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
    filtered: Sequence[Any] | ItemTimeout | None,
    given: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """An item's rows in the order of its samples: readers find the response of a prediction at its place."""
    return sorted(_passed_first(item, inputs, filtered, given), key=itemgetter("sample_index"))


def _passed_first(
    item: ItemResponses,
    inputs: Sequence[Mapping[str, Any]],
    filtered: Sequence[Any] | ItemTimeout | None,
    given: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    base = {"item_id": item.item_id, "doc_id": item.doc_id}
    if filtered is None:
        yield from (base | _unanswered(row) for row in inputs)
        return
    if isinstance(filtered, ItemTimeout):
        yield from (base | _unanswered(row) | {"error": filtered.reason} for row in inputs)
        return
    # A pipeline that gives one prediction a response keeps their numbers; one that chooses numbers its own.
    own = len(filtered) == len(given)
    for index, prediction in enumerate(filtered):
        number = given[index]["sample_index"] if own else index
        outcome = outcome_of(given[index]) if own else outcome_of_all(given)
        if isinstance(prediction, ItemTimeout):
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
        return {"is_json": False} | {name: value[name] for name in (*LIKELIHOODS, "token_lengths")}
    if value is None or isinstance(value, str):
        return {"prediction": value, "is_json": False}
    return {"prediction": orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode(), "is_json": True}


def _items(requests: pa.RecordBatch, responses: pa.Table, read: Read | None = None) -> list[ItemResponses]:
    """The items of a batch of requests with their responses, read as choices where ``read`` says how."""
    own: dict[str, list[dict[str, Any]]] = {}
    for batch in responses.to_batches():
        for row in row_dicts(batch):
            own.setdefault(row["item_id"], []).append(row)
    _check_same_items(requests, own)
    found = []
    for row in row_dicts(requests):
        for response in own[row["item_id"]]:
            response["is_text"] = row["kind"] == "generate"
        item = ItemResponses(row["item_id"], row["doc_id"], row["doc_json"], own[row["item_id"]])
        found.append(item if read is None else _as_choices(item, row, read))
    return found


def _check_same_items(requests: pa.RecordBatch, answered: Iterable[Any]) -> None:
    """Raises ValueError where the items of the responses are not, one by one, those of the requests."""
    found = answered.to_pylist() if isinstance(answered, pa.Array) else list(answered)
    for asked, name in zip_longest(requests.column("item_id").to_pylist(), found):
        if asked != name:
            raise ValueError(f"responses and requests differ at item {asked!r} (found {name!r})")
