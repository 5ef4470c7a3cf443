"""How a conversation goes on: from a turn's requests and answers to the requests of the next one.

``next_requests`` adds the answer and the user's next words to what was said before; the request's key is that
of the whole transcript, so that a change in a later turn asks nothing of the earlier ones. ``last_answers``
takes of each conversation the row of the turn that it ended with.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson
import pyarrow as pa

from tasks.benchmarks.prompts import Template
from tasks.datasets.config import UnfitItem
from tasks.datasets.item import Item
from tasks.messages.calls import call_id, parsed_calls, said_calls
from tasks.messages.chat import THOUGHTS, Message, chat_body, chat_text, content_text
from tasks.models.usage import SUMMED
from tasks.store.schemas import REQUESTS, RESPONSES, row_batch
from tasks.store.thresholds import Threshold

Row = dict[str, Any]
Sample = tuple[int, int]
"""The number of an item, and of one of its samples."""


@dataclass(frozen=True)
class Continuation:
    """What is said next: the role, and a template over the item's fields, ``answer``, ``answers``, ``turn``
    and ``transcript``; of a tool also ``call``."""

    role: str
    template: Template

    def messages(self, row: Row, response: Row, said: Sequence[Message], turn: int) -> list[Message]:
        """The messages that follow an answer; none where the template says nothing of this item, or there is
        no call to give a result of."""
        item, names = item_of(row), spoken(said, turn)
        if self.role != "tool":
            text = self.template.text(item, names)
            return [{"role": self.role, "content": text}] if text.strip() else []
        return [
            {
                "role": "tool",
                "tool_call_id": call_id(place),
                "content": self.template.text(item, {**names, "call": call}),
            }
            for place, call in enumerate(parsed_calls(response["tool_calls_json"]))
        ]


def item_of(row: Row) -> Item:
    """The item of a row of REQUESTS, as templates see it."""
    doc = orjson.loads(row["doc_json"])
    return Item(row["item_id"], row["doc_id"], doc, doc.get("ground_truth"))


def spoken(said: Sequence[Message], turn: int) -> dict[str, Any]:
    """The names of a conversation that templates may use beside the item's fields."""
    answers = [content_text(message.get("content")) for message in said if message["role"] == "assistant"]
    lines = (f"{message['role']}: {content_text(message.get('content'))}" for message in said)
    return {
        "answer": answers[-1] if answers else "",
        "answers": answers,
        "turn": turn,
        "transcript": "\n".join(line for line in lines if not line.startswith(("system:", "developer:"))),
    }


AT_ONCE: Final = Threshold("requests_of_a_turn", 256)
"""Requests of a batch: each holds all that was said before."""
TURN_NAMES: Final = frozenset({"answer", "answers", "turn", "transcript", "call"})


def next_requests(
    said: Continuation,
    turn: int,
    requests: Iterable[pa.RecordBatch],
    responses: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """REQUESTS rows of the turn number ``turn`` (the first is 1), one a sample that was answered before."""

    def going_on(row: Row, response: Row, before: Sequence[Message]) -> Row | None:
        following = said.messages(row, response, before, turn)
        return _next(row, response, [*before, *following]) if following else None

    return _asked(going_on, requests, responses)


def user_requests(
    template: Template, turn: int, requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a simulated user is asked: REQUESTS rows, one a sample whose answer before was one."""

    def asking(row: Row, response: Row, before: Sequence[Message]) -> Row:
        prompt = template.text(item_of(row), spoken(before, turn))
        return {**row, "prompts": [prompt], "chat": False, "first_sample": response["sample_index"]}

    return _asked(asking, requests, responses)


def _asked(
    asking: Callable[[Row, Row, Sequence[Message]], Row | None],
    requests: Iterable[pa.RecordBatch],
    responses: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """REQUESTS rows of the conversations that go on. One whose template fails on what was said has the error
    in its row: it alone failed."""

    def rows() -> Iterator[Row]:
        for row, response, before in answered(requests, responses):
            try:
                asked = asking(row, response, before)
            except UnfitItem as error:
                asked = {**_next(row, response, before), "error": str(error)}
            if asked is not None:
                yield asked

    return _batches(rows())


def replied_requests(
    stop: Any,
    requests: Iterable[pa.RecordBatch],
    responses: Iterable[pa.RecordBatch],
    replies: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """REQUESTS rows of the next turn from what simulated users said; none where one said the end (``stop``,
    a compiled pattern) or nothing."""
    texts = {(row["doc_id"], row["sample_index"]): row["response"] for row in _rows(replies)}

    def following() -> Iterator[Row]:
        for row, response, before in answered(requests, responses):
            text = (texts.get((row["doc_id"], response["sample_index"])) or "").strip()
            if text and not stop.search(text):
                yield _next(row, response, [*before, {"role": "user", "content": text}])

    return _batches(following())


def answered(
    requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch]
) -> Iterator[tuple[Row, Row, list[Message]]]:
    """Each request row with a response to it that is an answer, and all that was said up to it."""
    asked: dict[Sample, Row] = {}
    by_item: dict[int, Row] = {}
    for row in _rows(requests):
        asked[row["doc_id"], row["first_sample"]] = row
        by_item.setdefault(row["doc_id"], row)
    for response in _rows(responses):
        if response["status"] != "ok":
            continue
        row = asked.get((response["doc_id"], response["sample_index"])) or by_item[response["doc_id"]]
        chat = chat_body(row["prompts"][0])
        message: Message = {"role": "assistant", "content": response["response"]}
        if response["tool_calls_json"] is not None:
            message["tool_calls"] = said_calls(response["tool_calls_json"])
        if response["thoughts_json"] is not None:
            message[THOUGHTS] = orjson.loads(response["thoughts_json"])
        yield row, response, [*chat["messages"], message]


def _next(row: Row, response: Row, messages: Sequence[Mapping[str, Any]]) -> Row:
    tools = chat_body(row["prompts"][0]).get("tools") or ()
    return {**row, "prompts": [chat_text(messages, tools)], "first_sample": response["sample_index"]}


def last_answers(
    turns: Sequence[Iterable[pa.RecordBatch]], users: Sequence[Iterable[pa.RecordBatch]] = ()
) -> Iterator[pa.RecordBatch]:
    """RESPONSES rows, one a conversation: that of its last turn, with the tokens of all of them.

    ``users`` are the replies of a simulated user, one after each turn but the last. Where one failed the
    conversation did: it is no answer.
    """
    last: dict[Sample, Row] = {}
    for number, responses in enumerate(turns):
        for row in _rows(responses):
            place = row["doc_id"], row["sample_index"]
            before = last.get(place)
            last[place] = row if before is None else {**row, **_summed(before, row)}
        for reply in _rows(users[number]) if number < len(users) else ():
            place = reply["doc_id"], reply["sample_index"]
            if reply["status"] != "ok":
                said = f"the simulated user gave no reply in turn {number + 2}: {reply['error']}"
                last[place] = {**last[place], "status": "infra_error", "response": None, "error": said}
    rows = [last[place] for place in sorted(last)]
    for start in range(0, len(rows), 1024):
        yield row_batch(rows[start : start + 1024], RESPONSES)


def _summed(before: Row, row: Row) -> Row:
    if row["status"] == "infra_error":  # what it used is known seldom, what those before it used always
        return {
            name: row[name] if before[name] is None else before[name] + (row[name] or 0) for name in SUMMED
        }
    return {name: None if row[name] is None else row[name] + (before[name] or 0) for name in SUMMED}


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    return (row for batch in batches for row in batch.to_pylist())


def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    while portion := list(islice(rows, AT_ONCE)):
        yield row_batch(portion, REQUESTS)
