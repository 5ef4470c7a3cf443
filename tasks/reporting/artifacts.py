"""How a run's artifacts become the samples that people look at, one item in memory at a time.

``sample_views`` serves the report that publish writes; ``compare.folder`` gives the same records from
exported files.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from metrics.errors import NightjarError
from tasks.messages.calls import parsed_calls
from tasks.reporting.view import LabelView, ResponseView, SampleView
from tasks.rows.parts import Origin, Row, locate, resolve
from tasks.store.schemas import plain_values, row_dicts
from tasks.store.storage import ArtifactRef, Store

BATCH = 256
"""Rows that are Python's own at once: whole prompts and responses are in them."""

_REQUESTS = (
    *("item_id", "doc_id", "item_digest", "kind", "chat", "prompts", "continuations", "references_json"),
    *("gold", "choices"),
)
_RESPONSES = (
    *(
        "doc_id",
        "response",
        "status",
        "error",
        "finish_reason",
        "reasoning",
        "tool_calls_json",
        "prompt_tokens",
    ),
    *("completion_tokens", "reasoning_tokens", "inference_time", "lls", "is_greedy"),
)
_SHOWN = (
    *("response", "status", "error", "finish_reason", "reasoning", "tool_calls_json", "prompt"),
    *("prompt_tokens", "completion_tokens", "reasoning_tokens", "inference_time", "lls", "is_greedy"),
)
"""The same in the order of a ResponseView's fields; the prompt is there for transcripts alone."""
_PREDICTIONS = ("doc_id", "lls", "is_json", "prediction")
_STATISTICS = ("doc_id", "scored", "score", "details_json", "error")
_VERDICTS = ("doc_id", "label", "sample_index", "passed", "scored", "score", "details_json", "error")


@dataclass(frozen=True)
class CellArtifacts:
    """What a run made at one model × prompt × partition: ``predictions`` by filter, ``statistics`` by
    "metric,filter", ``verdicts`` of evaluation methods by name. What failed is left out."""

    origin: Origin
    requests: ArtifactRef
    responses: ArtifactRef
    predictions: Mapping[str, ArtifactRef] = field(default_factory=dict)
    statistics: Mapping[str, ArtifactRef] = field(default_factory=dict)
    verdicts: Mapping[str, ArtifactRef] = field(default_factory=dict)


def sample_views(
    store: Store,
    cells: Sequence[CellArtifacts],
    facets: Sequence[str],
    positions: Collection[int] | None = None,
) -> Iterator[SampleView]:
    """Every item of every cell, in order, with all that came of it; with ``positions`` those at these places
    alone, counted from 0 over all cells."""
    if positions is None:
        for cell in cells:
            yield from _cell_views(store, cell, facets)
        return
    ordered, start = np.sort(np.fromiter(positions, np.int64, len(positions))), 0
    for cell in cells:
        first, last = np.searchsorted(ordered, (start, start + cell.requests.rows))
        if first < last:
            doc_ids = store.table(cell.requests, ["doc_id"]).column("doc_id")
            wanted = doc_ids.take(pa.array(ordered[first:last] - start)).combine_chunks()
            yield from _cell_views(store, cell, facets, wanted)
        start += cell.requests.rows


def _cell_views(
    store: Store, cell: CellArtifacts, facets: Sequence[str], wanted: pa.Array | None = None
) -> Iterator[SampleView]:
    def batches_of(ref: ArtifactRef, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for read in store.batches(ref, columns):
            batch = read if wanted is None else read.filter(pc.is_in(read.column("doc_id"), wanted))
            for start in range(0, batch.num_rows, BATCH):
                yield batch.slice(start, BATCH)

    def rows_of(
        ref: ArtifactRef, columns: Sequence[str], made: Callable[[pa.RecordBatch], list[Any]]
    ) -> RowsByItem:
        return RowsByItem(batches_of(ref, columns), made)

    talked = cell.responses.kind == "transcript"
    responses = rows_of(cell.responses, (*_RESPONSES, "prompt") if talked else _RESPONSES, _responses)
    predictions = {name: rows_of(ref, _PREDICTIONS, _filtered) for name, ref in cell.predictions.items()}
    statistics = {name: rows_of(ref, _STATISTICS, _scores) for name, ref in cell.statistics.items()}
    verdicts = [rows_of(ref, _VERDICTS, _labels) for ref in cell.verdicts.values()]
    asked = (*_REQUESTS, "doc_json") if any(locate(facet)[0] == "document" for facet in facets) else _REQUESTS
    for batch in batches_of(cell.requests, asked):
        for request in row_dicts(batch):
            doc_id = request["doc_id"]
            scores: dict[str, list[float | None]] = {}
            details: dict[str, list[Any]] = {}
            reasons: dict[str, list[str | None]] = {}
            for name, rows in statistics.items():
                scored = rows.of(doc_id)
                scores[name] = [score for score, _, _ in scored]
                details[name] = [own for _, own, _ in scored]
                reasons[name] = [reason for _, _, reason in scored]
            yield SampleView(
                item_id=request["item_id"],
                model_name=cell.origin.model_name,
                prompt_template=cell.origin.prompt_template,
                prompt=_prompt(request),
                references=orjson.loads(request["references_json"]),
                responses=responses.of(doc_id),
                filters={name: rows.of(doc_id) for name, rows in predictions.items()},
                scores=scores,
                details=details,
                reasons=reasons,
                facets=_facets(request, cell.origin, facets) if facets else {},
                labels=[label for rows in verdicts for label in rows.of(doc_id)],
                chat=request["chat"],
                choices=request["choices"],
                gold=request["gold"],
                item_digest=request["item_digest"],
                doc_id=doc_id,
            )


class RowsByItem:
    """Rows of an artifact in the order of its items, given out item by item.

    ``made`` turns a batch into the list of what is given out for its rows; default: a mapping each.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        made: Callable[[pa.RecordBatch], list[Any]] = row_dicts,
    ) -> None:
        self._batches = iter(batches)
        self._made = made
        self._rows: list[Any] = []
        self._doc_ids: list[int] = []
        self._next = 0

    def of(self, doc_id: int) -> list[Any]:
        """The rows of ``doc_id``, maybe none; raises NightjarError for rows of an item passed over."""
        at, doc_ids = self._next, self._doc_ids
        if at + 1 < len(doc_ids) and doc_ids[at] == doc_id != doc_ids[at + 1]:  # the only one, as most are
            self._next = at + 1
            return self._rows[at : at + 1]
        found: list[Any] = []
        while self._next < len(self._doc_ids) or self._read():
            start = end = self._next
            while end < len(self._doc_ids) and self._doc_ids[end] == doc_id:
                end += 1
            if start == end:
                if self._doc_ids[start] < doc_id:
                    raise NightjarError(
                        f"rows of item number {self._doc_ids[start]} come after those of item number "
                        f"{doc_id}; the artifacts do not belong together, run again with --refresh infer"
                    )
                break
            found += self._rows[start:end]
            self._next = end
        return found

    def _read(self) -> bool:
        """Reads the next batch that has rows; False where there is none."""
        for batch in self._batches:
            if batch.num_rows:
                self._rows, self._next = self._made(batch), 0
                self._doc_ids = batch.column("doc_id").to_pylist()
                return True
        self._rows, self._doc_ids, self._next = [], [], 0
        return False


def _prompt(request: Row) -> str:
    if request["kind"] == "rolling":
        return "".join(request["continuations"])
    return str(request["prompts"][0]) if request["prompts"] else ""


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns row by row; None for those of a column that is not there."""
    known = set(batch.schema.names)
    missing: list[None] = [None] * batch.num_rows
    return zip(
        *(plain_values(batch.column(name)) if name in known else missing for name in names), strict=True
    )


def _responses(batch: pa.RecordBatch) -> list[ResponseView]:
    return [
        ResponseView(
            text, status, error, finish, reasoning, parsed_calls(calls), transcript,
            asked, written, thought, seconds, lls or (), greedy or (),
        )
        for (
            text, status, error, finish, reasoning, calls, transcript,
            asked, written, thought, seconds, lls, greedy,
        ) in _columns(batch, _SHOWN)
    ]  # fmt: skip


def _filtered(batch: pa.RecordBatch) -> list[Any]:
    return [
        lls if lls is not None else orjson.loads(text) if is_json else text
        for lls, is_json, text in _columns(batch, ("lls", "is_json", "prediction"))
    ]


def _scores(batch: pa.RecordBatch) -> list[tuple[float | None, Any, str | None]]:
    """Score, details and reason of each row. The score is None where the sample is unscored; not a number
    where the metric has none for a single sample."""
    return [
        (None if not scored else math.nan if score is None else float(score), _json(details), error)
        for scored, score, details, error in _columns(batch, ("scored", "score", "details_json", "error"))
    ]


def _labels(batch: pa.RecordBatch) -> list[LabelView]:
    return [_label(row) for row in row_dicts(batch)]


def _label(row: Row) -> LabelView:
    return LabelView(
        label=row["label"] or "",
        sample_index=row["sample_index"],
        passed=row["passed"],
        score=row["score"],
        status="ok" if row["scored"] else "unscored",
        details=_json(row["details_json"]) or ({"error": row["error"]} if row["error"] else {}),
    )


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _facets(request: Row, origin: Origin, facets: Sequence[str]) -> dict[str, Any]:
    """Facet values that all samples of the item share, beside model and prompt."""
    values: dict[str, Any] = {}
    document: Any = None
    for facet in facets:
        source, path = locate(facet)
        if source == "document":
            document = document if document is not None else orjson.loads(request["doc_json"])
            values[facet] = resolve(document, path)
        elif source == "metadata":
            values[facet] = resolve(origin.metadata, path)
    return values
