"""Verdicts as rows: one evaluation method runs over one part's responses, streaming (``evaluate``), and
what methods said of each response is read again as people and metrics meet it, the rows of
evaluation_results.jsonl.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from metrics.errors import NightjarError
from metrics.types import CutOff
from tasks.rows.outcomes import LACKING, OUTCOME_COLUMNS, outcome_of
from tasks.rows.parts import RESPONSE_METADATA, BatchSource, Origin, Part
from tasks.store.keys import iso_time
from tasks.store.schemas import ABSENT, STATISTICS, TEXT, row_dicts
from tasks.verdicts.labels import Verdict
from tasks.verdicts.methods import (
    COLUMNS_WITH_DOCUMENTS,
    RATE,
    SECONDS,
    EvaluationMethod,
    Judgement,
    RequestCursor,
    RequestRow,
    metadata,
)

_READ = ("item_id", "doc_id", "sample_index", "recorded_row", *OUTCOME_COLUMNS)


def evaluate(
    method: EvaluationMethod,
    origin: Origin,
    requests: BatchSource,
    responses: BatchSource,
    cut_off: CutOff = "wrong",
) -> Iterator[pa.RecordBatch]:
    """One row (STATISTICS) a sample × label, in the order of the responses.

    A response whose request failed, or on which the method failed, is unscored. Its label is the built-in's,
    and null where only the user's function could have named it: reductions count it under every label of the
    method. One that was cut off or refused has not passed a built-in; a user's function judges the empty
    text. A sample
    that its recording does not hold has no row: there is nothing that a method could have judged.
    """
    cursor = RequestCursor(requests(method.request_columns))
    columns = list(dict.fromkeys((*_READ, *method.response_columns)))
    for batch in responses(columns):
        present = _without_absent(batch)
        if len(present):
            yield _evaluate_batch(method, origin, cursor, present, cut_off)


def _without_absent(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The responses that were asked for, or that their recording holds."""
    absent = pc.fill_null(pc.equal(batch.column("recorded_row"), ABSENT), False)
    return batch.filter(pc.invert(absent)) if pc.any(absent).as_py() else batch


@dataclass
class VerdictTally:
    """How many rows there are, how many responses were judged, on how many the method failed, the first
    reason, and the labels it gave to others."""

    rows: int = 0
    judged: int = 0
    failed: int = 0
    unreadable: int = 0
    reason: str | None = None
    labels: dict[str, None] = field(default_factory=dict)

    def failure(self, method: str, max_rate: float) -> str | None:
        """Why the method's numbers are not available; None: they are.

        A method that judged nothing has failed, and so has one that raised, or whose labels could not be
        read, on a larger share of the responses than ``max_rate``. One without a row had nothing to judge.
        """
        if not self.rows:
            return None
        if not self.judged or (self.failed < self.judged and self.unreadable <= max_rate * self.judged):
            return None
        of = "every one" if self.failed == self.judged else f"{self.failed}"
        return (
            f"evaluation method {method!r} failed on {of} of {self.judged} responses, more than "
            f"errors.max_rate: {max_rate:g} allows; the first: {self.reason}"
        )


TALLIED = ("doc_id", "sample_index", "label", "error", "evaluation_time")


def tally_verdicts(tally: VerdictTally, batches: Iterable[pa.RecordBatch]) -> None:
    """Counts the verdicts of batches that hold ``TALLIED`` of STATISTICS."""
    for batch in batches:
        tally.rows += len(batch)
        rows = batch.filter(batch.column("evaluation_time").is_valid())
        known = rows.column("label").cast(pa.string())
        tally.labels |= dict.fromkeys(known.drop_null().unique().to_pylist())
        samples = zip(rows.column("doc_id").to_pylist(), rows.column("sample_index").to_pylist(), strict=True)
        tally.judged += len(set(samples))
        lost = rows.column("error").is_valid()
        tally.failed += int(pc.sum(lost).as_py() or 0)
        tally.unreadable += int(pc.sum(pc.and_(lost, known.is_null())).as_py() or 0)
        if tally.reason is None and tally.failed:
            tally.reason = rows.filter(lost).column("error")[0].as_py()


def _evaluate_batch(
    method: EvaluationMethod,
    origin: Origin,
    cursor: RequestCursor,
    batch: pa.RecordBatch,
    cut_off: CutOff,
) -> pa.RecordBatch:
    status = batch.column("status").cast(pa.string())
    wrong = np.zeros(len(batch), dtype=bool)
    counted = ["refused"] if cut_off == "unscored" else ["cut_off", "refused"]
    lacking = pc.is_in(status, pa.array(counted))
    if pc.any(lacking).as_py():
        if cut_off != "text" and method.function is None:
            wrong = lacking.to_numpy(zero_copy_only=False)
        else:
            batch = _with_empty_texts(batch, lacking)
            status = pc.if_else(lacking, "ok", status)
    answered = pc.equal(status, "ok")
    present = answered.to_numpy(zero_copy_only=False)
    whole = bool(present.all())
    asked = [cursor.find(doc_id) for doc_id in batch.column("doc_id").to_pylist()]
    kept = asked if whole else [asked[row] for row in np.flatnonzero(present).tolist()]
    judgements = method.judge(batch if whole else batch.filter(answered), kept, origin)
    failed: Judgement = ([Verdict(method.default_label)], 0.0)
    not_passed: Judgement = ([Verdict(method.default_label, passed=False, score=0.0)], 0.0)
    rows = _Rows()
    for number, (is_there, is_wrong) in enumerate(zip(present.tolist(), wrong.tolist(), strict=True)):
        judgement = next(judgements) if is_there else not_passed if is_wrong else failed
        rows.add(number, *judgement, judged=is_there or is_wrong)
    return rows.batch(batch)


def _with_empty_texts(batch: pa.RecordBatch, where: pa.Array) -> pa.RecordBatch:
    """The responses with the empty text in these places."""
    texts = pc.if_else(where, "", batch.column("response"))
    return batch.set_column(batch.schema.get_field_index("response"), "response", texts)


class _Rows:
    """The rows of one batch, column by column; ``sample`` is the row of the response."""

    def __init__(self) -> None:
        self.sample: list[int] = []
        self.verdicts: list[Verdict] = []
        self.seconds: list[float | None] = []
        self.judged: list[bool] = []
        self.evaluated_at: list[float | None] = []

    def add(self, sample: int, verdicts: list[Verdict], seconds: float, judged: bool) -> None:
        """Takes in what was said about one response."""
        now = time.time() if judged else None
        for verdict in verdicts:
            self.evaluated_at.append(now)
            self.sample.append(sample)
            self.verdicts.append(verdict)
            self.seconds.append(seconds if judged else None)
            self.judged.append(judged and verdict.error is None)

    def batch(self, responses: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as a STATISTICS batch; scores are their own statistics."""
        identity = responses.select(["item_id", "doc_id", "sample_index"])
        if self.sample != list(range(len(responses))):
            identity = identity.take(pa.array(self.sample, pa.int64()))
        outcomes = [outcome_of(row) for row in row_dicts(responses.select(list(OUTCOME_COLUMNS)))]
        score = pa.array([verdict.score for verdict in self.verdicts], pa.float64())
        columns: dict[str, Any] = {
            **{name: identity.column(name) for name in identity.schema.names},
            "label": pa.array([verdict.label for verdict in self.verdicts], pa.string()).dictionary_encode(),
            "scored": pa.array(self.judged, pa.bool_()),
            "outcome": pa.array([outcomes[row] for row in self.sample], pa.string()).cast(TEXT),
            "score": score,
            "statistics": _as_vectors(score),
            "value_json": pa.nulls(len(score), pa.string()),
            "code": pa.array(np.full(len(score), -1, dtype=np.int64)),
            "passed": pa.array([verdict.passed for verdict in self.verdicts], pa.bool_()),
            "details_json": pa.array([verdict.details for verdict in self.verdicts], pa.string()),
            "error": pa.array([verdict.error for verdict in self.verdicts], pa.string()),
            "evaluation_time": pa.array(self.seconds, pa.float64()),
            "evaluated_at": pa.array(self.evaluated_at, pa.float64()),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in STATISTICS.names], schema=STATISTICS)


def _as_vectors(score: pa.Array) -> pa.Array:
    """Each score as a vector of length one; null where there is none."""
    present = score.is_valid()
    offsets = np.concatenate([[0], np.cumsum(present.to_numpy(zero_copy_only=False))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), score.drop_null(), mask=pc.invert(present))


Row = dict[str, Any]

_VERDICTS = (
    *("doc_id", "sample_index", "label", "scored", "score", "passed", "details_json", "error"),
    *("evaluation_time", "evaluated_at"),
)
_RESPONSES = (
    *("item_id", "doc_id", "sample_id", "sample_index", "status", "error", "metadata_json", "recorded_row"),
    *RESPONSE_METADATA,
)


@dataclass(frozen=True)
class JudgedPart:
    """One part of one evaluation method, and what the rows say about the method.

    ``labels`` are those under which a sample without a label of its own is listed (the method's, over all
    parts); ``description`` and ``params`` are the method's in the config.
    """

    part: Part
    labels: Sequence[str]
    description: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def evaluation_rows(judged: JudgedPart) -> Iterator[Row]:
    """The rows of one part in the order of its responses: one a sample × label.

    ``item`` holds the item's own fields. A sample whose request failed, or that could not be judged, has
    neither passed nor score: its ``status`` is the request's or ``unscored``, and ``error`` says why. The
    status of one that was cut off is ``cut_off``, of a refused one ``refused``, judged or not.
    """
    return (row for _, row in placed_rows(judged))


def placed_rows(judged: JudgedPart) -> Iterator[tuple[int | None, Row]]:
    """``evaluation_rows``, beside each its response's place in the file that it was recorded in."""
    part = judged.part
    responses = _rows(part.responses(_RESPONSES))
    cursor = RequestCursor(part.requests(COLUMNS_WITH_DOCUMENTS))
    response: Row | None = None
    for verdict in _rows(part.statistics(_VERDICTS)):
        while response is None or not _same(response, verdict):
            response = next(responses, None)
            if response is None:
                raise NightjarError(
                    f"the verdict on item number {verdict['doc_id']} belongs to no response; "
                    "the artifacts do not belong together, run again with --refresh score"
                )
        shared = _shared(judged, response, cursor.find(verdict["doc_id"]))
        labels = judged.labels if verdict["label"] is None else [verdict["label"]]
        for label in labels or [part.method]:
            yield response["recorded_row"], _row(judged, label, verdict, response, shared)


def is_scored(row: Mapping[str, Any]) -> bool:
    """Whether a row of evaluation results was judged."""
    return row["status"] == "ok" or (row["status"] in LACKING and row["evaluation_time"] is not None)


def method_labels(parts: Sequence[Part]) -> dict[str, list[str]]:
    """The labels that each method gave, in order of appearance; its own name where it gave none."""
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        own = found.setdefault(part.method or "", {})
        for batch in part.statistics(["label"]):
            own |= dict.fromkeys(
                label for label in batch.column("label").unique().to_pylist() if label is not None
            )
    return {method: list(labels) or [method] for method, labels in found.items()}


def _rows(batches: Any) -> Iterator[Row]:
    batch: pa.RecordBatch
    for batch in batches:
        yield from row_dicts(batch)


def _same(response: Mapping[str, Any], verdict: Mapping[str, Any]) -> bool:
    return bool(
        response["doc_id"] == verdict["doc_id"] and response["sample_index"] == verdict["sample_index"]
    )


@dataclass(frozen=True)
class _Shared:
    """What the rows of all labels of one response have in common."""

    metadata: Row
    item: Any


def _shared(judged: JudgedPart, response: Row, asked: RequestRow) -> _Shared:
    method = {"name": judged.part.method, "description": judged.description, "params": dict(judged.params)}
    shown = {key: value for key, value in method.items() if value}
    known = metadata(response, judged.part.origin)
    for name in (RATE, SECONDS):  # the response's own line has them
        known.pop(name, None)
    return _Shared(
        metadata=known | {"evaluation_method": shown},
        item=orjson.loads(asked.document) if asked.document else {},
    )


def _row(judged: JudgedPart, label: str | None, verdict: Row, response: Row, shared: _Shared) -> Row:
    details = orjson.loads(verdict["details_json"]) if verdict["details_json"] else {}
    custom = details.get("custom_fields")
    failed = response["status"] != "ok"
    return {
        "item_id": response["item_id"],
        "sample_id": response["sample_id"],
        "sample_index": response["sample_index"],
        "label": label,
        "model_name": judged.part.origin.model_name,
        "prompt_template": judged.part.origin.prompt_template,
        "passed": verdict["passed"],
        "score": verdict["score"],
        "status": response["status"] if failed else "ok" if verdict["scored"] else "unscored",
        "error": response["error"] if failed else verdict["error"],
        "detailed_results": details.get("detailed_results", {}),
        "evaluation_time": verdict["evaluation_time"],
        "timestamp": iso_time(verdict["evaluated_at"]),
        "timestamp_unix": verdict["evaluated_at"],
        "metadata": shared.metadata | ({"custom_fields": custom} if custom else {}),
        "item": shared.item,
    }
