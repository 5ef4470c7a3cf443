"""Responses to verdicts: runs one evaluation method over one part, streaming."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metrics.types import CutOff
from tasks.rows.outcomes import OUTCOME_COLUMNS, outcome_of
from tasks.rows.parts import BatchSource, Origin
from tasks.store.schemas import STATISTICS, TEXT, row_dicts
from tasks.verdicts.labels import Verdict
from tasks.verdicts.methods import EvaluationMethod, Judgement, RequestCursor

_READ = ("item_id", "doc_id", "sample_index", *OUTCOME_COLUMNS)


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
    method. One that was cut off has not passed a built-in; a user's function judges the empty text.
    """
    cursor = RequestCursor(requests(method.request_columns))
    columns = list(dict.fromkeys((*_READ, *method.response_columns)))
    for batch in responses(columns):
        if len(batch):
            yield _evaluate_batch(method, origin, cursor, batch, cut_off)


@dataclass
class VerdictTally:
    """How many responses were judged, on how many the method failed, the first reason, and the labels it
    gave to others."""

    judged: int = 0
    failed: int = 0
    unreadable: int = 0
    reason: str | None = None
    labels: dict[str, None] = field(default_factory=dict)

    def failure(self, method: str, max_rate: float) -> str | None:
        """Why the method's numbers can't be had; None: they can.

        A method that judged nothing has failed, and so has one that raised, or whose labels could not be
        read, on a larger share of the responses than ``max_rate``.
        """
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
    if cut_off != "unscored" and pc.any(was_cut := pc.equal(status, "cut_off")).as_py():
        if cut_off == "wrong" and method.function is None:
            wrong = was_cut.to_numpy(zero_copy_only=False)
        else:
            batch = _with_empty_texts(batch, was_cut)
            status = pc.if_else(was_cut, "ok", status)
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
