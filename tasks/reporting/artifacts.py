"""How a run's artifacts become the samples that people look at, one item in memory at a time.

``sample_views`` serves the report that publish writes; ``compare.folder`` gives the same records from
exported files.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa

from metrics.errors import NightjarError
from tasks.reporting.view import LabelView, ResponseView, SampleView
from tasks.rows.parts import Origin, Row, locate, resolve
from tasks.store.storage import ArtifactRef, Store

BATCH = 256
"""Rows read at once: whole prompts and responses are in them."""


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


def sample_views(store: Store, cells: Sequence[CellArtifacts], facets: Sequence[str]) -> Iterator[SampleView]:
    """Every item of every cell, in order, with all that came of it."""
    for cell in cells:
        yield from _cell_views(store, cell, facets)


def _cell_views(store: Store, cell: CellArtifacts, facets: Sequence[str]) -> Iterator[SampleView]:
    responses = RowsByItem(store.batches(cell.responses, size=BATCH))
    predictions = {name: RowsByItem(store.batches(ref, size=BATCH)) for name, ref in cell.predictions.items()}
    statistics = {name: RowsByItem(store.batches(ref, size=BATCH)) for name, ref in cell.statistics.items()}
    verdicts = [RowsByItem(store.batches(ref, size=BATCH)) for ref in cell.verdicts.values()]
    for batch in store.batches(cell.requests, size=BATCH):
        for request in batch.to_pylist():
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
        rows = (row for batch in batches for row in batch.to_pylist())
        self._items = groupby(rows, key=itemgetter("doc_id"))
        self._waiting: tuple[int, list[Row]] | None = None

    def of(self, doc_id: int) -> list[Row]:
        """The rows of ``doc_id``, maybe none; raises NightjarError for rows of an item passed over."""
        if self._waiting is None:
            following = next(self._items, None)
            self._waiting = None if following is None else (following[0], list(following[1]))
        if self._waiting is None or self._waiting[0] > doc_id:
            return []
        if self._waiting[0] < doc_id:
            raise NightjarError(
                f"rows of item number {self._waiting[0]} come after those of item number {doc_id}; "
                "the artifacts do not belong together, run again with --refresh infer"
            )
        rows, self._waiting = self._waiting[1], None
        return rows


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
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
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
