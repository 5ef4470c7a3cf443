"""How a run's artifacts become the samples that people look at, one item in memory at a time.

``sample_views`` serves the report that publish writes; ``compare.folder`` gives the same records from
exported files.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from tasks.store.schemas import row_dicts
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

    def rows_of(ref: ArtifactRef, columns: Sequence[str]) -> RowsByItem:
        return RowsByItem(batches_of(ref, columns))

    talked = cell.responses.kind == "transcript"
    responses = rows_of(cell.responses, (*_RESPONSES, "prompt") if talked else _RESPONSES)
    predictions = {name: rows_of(ref, _PREDICTIONS) for name, ref in cell.predictions.items()}
    statistics = {name: rows_of(ref, _STATISTICS) for name, ref in cell.statistics.items()}
    verdicts = [rows_of(ref, _VERDICTS) for ref in cell.verdicts.values()]
    asked = (*_REQUESTS, "doc_json") if any(locate(facet)[0] == "document" for facet in facets) else _REQUESTS
    for batch in batches_of(cell.requests, asked):
        for request in row_dicts(batch):
            doc_id = request["doc_id"]
            scored = {name: rows.of(doc_id) for name, rows in statistics.items()}
            yield SampleView(
                item_id=request["item_id"],
                model_name=cell.origin.model_name,
                prompt_template=cell.origin.prompt_template,
                prompt=_prompt(request),
                references=orjson.loads(request["references_json"]),
                responses=[_response(row) for row in responses.of(doc_id)],
                filters={
                    name: [_prediction(row) for row in rows.of(doc_id)] for name, rows in predictions.items()
                },
                scores={name: [_score(row) for row in rows] for name, rows in scored.items()},
                details={name: [_json(row["details_json"]) for row in rows] for name, rows in scored.items()},
                reasons={name: [row["error"] for row in rows] for name, rows in scored.items()},
                facets=_facets(request, cell.origin, facets),
                labels=[_label(row) for rows in verdicts for row in rows.of(doc_id)],
                chat=request["chat"],
                choices=request["choices"],
                gold=request["gold"],
                item_digest=request["item_digest"],
                doc_id=doc_id,
            )


class RowsByItem:
    """Rows of an artifact in the order of its items, given out item by item."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rows: list[Row] = []
        self._next = 0

    def of(self, doc_id: int) -> list[Row]:
        """The rows of ``doc_id``, maybe none; raises NightjarError for rows of an item passed over."""
        found: list[Row] = []
        while self._next < len(self._rows) or self._read():
            row = self._rows[self._next]
            if row["doc_id"] != doc_id:
                if row["doc_id"] < doc_id:
                    raise NightjarError(
                        f"rows of item number {row['doc_id']} come after those of item number {doc_id}; "
                        "the artifacts do not belong together, run again with --refresh infer"
                    )
                break
            found.append(row)
            self._next += 1
        return found

    def _read(self) -> bool:
        """Reads the next batch that has rows; False where there is none."""
        for batch in self._batches:
            self._rows, self._next = row_dicts(batch), 0
            if self._rows:
                return True
        self._rows, self._next = [], 0
        return False


def _prompt(request: Row) -> str:
    if request["kind"] == "rolling":
        return "".join(request["continuations"])
    return str(request["prompts"][0]) if request["prompts"] else ""


def _response(row: Row) -> ResponseView:
    return ResponseView(
        text=row["response"],
        status=row["status"],
        error=row["error"],
        finish_reason=row["finish_reason"],
        reasoning=row["reasoning"],
        tool_calls=parsed_calls(row["tool_calls_json"]),
        transcript=row.get("prompt"),
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        seconds=row["inference_time"],
        lls=row["lls"] or (),
        is_greedy=row["is_greedy"] or (),
    )


def _prediction(row: Row) -> Any:
    if row["lls"] is not None:
        return row["lls"]
    return orjson.loads(row["prediction"]) if row["is_json"] else row["prediction"]


def _score(row: Row) -> float | None:
    """None where the sample is unscored; not a number where the metric has none for a single sample."""
    if not row["scored"]:
        return None
    return math.nan if row["score"] is None else float(row["score"])


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
