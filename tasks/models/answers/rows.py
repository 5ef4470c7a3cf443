"""The rows of a partition: its answers in request order, in the RESPONSES schema.

A generation is a row for each sample, log-likelihoods are a row for each item. A request without an answer
is a row that says why: never a missing row, never an empty text. ``respond`` reads its result here.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.models.answers.reading import CodecOf, read_replies
from tasks.models.answers.segments import SHARED
from tasks.models.identity import RequestExpansion
from tasks.models.records import Request, RequestFailure
from tasks.models.usage import SUMMED
from tasks.store.schemas import RESPONSES
from tasks.store.thresholds import Threshold

REQUESTS_AT_ONCE = Threshold("requests_looked_up", 4_096)
COPIED = tuple(name for name in SHARED if name not in ("error", "attempts"))


class FoundAnswers(Protocol):
    """Answers by their keys."""

    def rows(self, keys: Sequence[bytes]) -> tuple[pa.Table, np.ndarray]:
        """A table of the ANSWERS schema, and for each key its row there, −1 where there is none."""
        ...


@dataclass(frozen=True)
class ResponseRows:
    """Makes rows of kept answers.

    A request without an answer takes its failure, or ``otherwise`` where it was never asked. ``on_read`` is
    told of each portion: its requests, a row of answer for each, and whether it is there.
    """

    expansion: RequestExpansion
    codec_of: CodecOf
    answers: FoundAnswers
    failures: Mapping[bytes, RequestFailure]
    otherwise: RequestFailure
    on_read: Callable[[Sequence[Request], pa.Table, np.ndarray], None]

    def batches(self, requests: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows for REQUESTS batches."""
        for batch in requests:
            for start, rows in _in_portions(self.expansion.rows(batch)):
                part = batch.slice(start, len(rows))
                for run_start, run_end, generation in _stretches(part):
                    make = self._generations if generation else self._likelihoods
                    yield make(part.slice(run_start, run_end - run_start), rows[run_start:run_end])

    def _found(self, requests: Sequence[Request]) -> pa.Table:
        """One row of answer a request, with the failure in place of what is missing."""
        keys = [request.key for request in requests]
        table, position = self.answers.rows(keys)
        missing = np.flatnonzero(position < 0)
        table = read_replies(self.codec_of, requests, table.take(pa.array(position, mask=position < 0)))
        self.on_read(requests, table, position >= 0)
        failures = {int(at): self.failures.get(keys[at], self.otherwise) for at in missing}
        fill = {
            "status": pa.array(
                ["infra_error" if at in failures else None for at in range(len(keys))], pa.string()
            ),
            "error": pa.array(
                [failures[at].error if at in failures else None for at in range(len(keys))], pa.string()
            ),
            "attempts": pa.array(
                [failures[at].attempts if at in failures else None for at in range(len(keys))], pa.int32()
            ),
        }
        for name, values in fill.items():
            column = table.column(name).cast(values.type)
            table = table.set_column(table.schema.get_field_index(name), name, pc.coalesce(column, values))
        return table

    def _generations(self, batch: pa.RecordBatch, rows: Sequence[Sequence[Request]]) -> pa.RecordBatch:
        samples = self.expansion.params.num_samples
        requests = [request for row in rows for request in row]
        found = self._found(requests)
        items = batch.select(["item_id", "doc_id"]).take(pa.array(np.repeat(np.arange(len(rows)), samples)))
        columns: dict[str, Any] = {
            name: found.column(name) for name in (*COPIED, "status", "error", "attempts")
        }
        return _batch(
            {
                **columns,
                "item_id": items.column("item_id"),
                "doc_id": items.column("doc_id"),
                "sample_index": pa.array([request.sample_index for request in requests], pa.int32()),
                "request_key": pa.array([request.key.hex() for request in requests]),
                "prompt": pa.array([request.prompt for request in requests]),
                "timestamp": _timestamps(found.column("arrived")),
            }
        )

    def _likelihoods(self, batch: pa.RecordBatch, rows: Sequence[Sequence[Request]]) -> pa.RecordBatch:
        """One row an item: its requests' log-likelihoods as lists; one that failed makes the whole item
        unscored.
        """
        found = self._found([request for row in rows for request in row]).to_pydict()
        conditional = pc.list_value_length(batch.column("prompts")).to_pylist()
        items: list[dict[str, Any]] = []
        start = 0
        for row, count in zip(rows, conditional, strict=True):
            span = slice(start, start + len(row))
            items.append(_item({name: values[span] for name, values in found.items()}, row, count))
            start += len(row)
        columns: dict[str, Any] = {
            name: pa.array([item.get(name) for item in items], _column_type(name)) for name in items[0]
        }
        columns["timestamp"] = _timestamps(columns.pop("arrived"))
        return _batch({**columns, "item_id": batch.column("item_id"), "doc_id": batch.column("doc_id")})


def _item(
    answers: Mapping[str, Sequence[Any]], requests: Sequence[Request], conditional: int
) -> dict[str, Any]:
    """The row of an item from its requests' answers, the first ``conditional`` of which have a context."""
    statuses = answers["status"]
    status = next((name for name in ("infra_error", "refused") if name in statuses), "ok")
    first = statuses.index(status)
    ok = status == "ok"
    alone = ok and len(requests) > conditional
    keys = [request.key for request in requests]
    lengths = list(answers["ll_tokens"][:conditional])
    summed = {name: _sum(answers[name]) for name in SUMMED}
    return {
        **summed,
        "sample_index": 0,
        "request_key": (keys[0] if len(keys) == 1 else hashlib.sha256(b"".join(keys)).digest()).hex(),
        "prompt": requests[0].prompt,
        "status": status,
        "error": answers["error"][first],
        "attempts": max(answers["attempts"]),
        "served_model": answers["served_model"][first],
        "system_fingerprint": answers["system_fingerprint"][first],
        "arrived": max((value for value in answers["arrived"] if value is not None), default=None),
        "lls": list(answers["ll"][:conditional]) if ok else None,
        "is_greedy": list(answers["is_greedy"][:conditional]) if ok else None,
        "token_lengths": lengths if ok and None not in lengths else None,
        "unconditional_lls": list(answers["ll"][conditional:]) if alone else None,
        "unconditional_greedy": list(answers["is_greedy"][conditional:]) if alone else None,
    }


def _in_portions(rows: Iterator[list[Request]]) -> Iterator[tuple[int, list[list[Request]]]]:
    """Rows in portions of some thousand requests: where each starts, and its rows."""
    portion: list[list[Request]] = []
    start = held = 0
    for row in rows:
        if portion and held + len(row) > REQUESTS_AT_ONCE:
            yield start, portion
            start, portion, held = start + len(portion), [], 0
        portion.append(row)
        held += len(row)
    if portion:
        yield start, portion


def _stretches(batch: pa.RecordBatch) -> Iterator[tuple[int, int, bool]]:
    """Stretches of rows that are all generations, or all log-likelihoods."""
    flags = [kind == "generate" for kind in batch.column("kind").to_pylist()]
    start = 0
    for end in range(1, len(flags) + 1):
        if end == len(flags) or flags[end] != flags[start]:
            yield start, end, flags[start]
            start = end


def _batch(columns: dict[str, Any]) -> pa.RecordBatch:
    """A batch of the RESPONSES schema; columns that are not given are null."""
    size = len(columns["item_id"])
    columns["sample_id"] = pc.binary_join_element_wise(
        _array(columns["item_id"]), pc.cast(_array(columns["sample_index"]), pa.string()), "_sample_"
    )
    arrays = []
    for field in RESPONSES:
        column = columns.get(field.name)
        arrays.append(pa.nulls(size, field.type) if column is None else _as_type(_array(column), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=RESPONSES)


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_dictionary(kind):
        values = array.cast(kind.value_type)
        return values.dictionary_encode().cast(kind)
    return array.cast(kind)


def _array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _timestamps(seconds: Any) -> pa.Array:
    """ISO 8601 texts, UTC, of seconds since 1970."""
    micros = pc.cast(pc.round(pc.multiply(_array(seconds).cast(pa.float64()), 1e6)), pa.int64())
    return pc.strftime(micros.cast(pa.timestamp("us", tz="UTC")), format="%Y-%m-%dT%H:%M:%SZ")


def _column_type(name: str) -> pa.DataType:
    if name == "arrived":
        return pa.float64()
    kind = RESPONSES.field(name).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _sum(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
