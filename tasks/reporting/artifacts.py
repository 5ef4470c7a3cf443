"""How a run's artifacts become the samples that people look at, one item in memory at a time.

``sample_views`` serves the report that publish writes; ``compare.folder`` gives the same records from
exported files.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from tasks.reduction import Origin
from tasks.reporting.view import LabelView, ResponseView, SampleView
from tasks.rows.parts import locate, resolve
from tasks.store.storage import ArtifactRef, Store

Row = dict[str, Any]
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
    responses = _ByItem(store.batches(cell.responses, size=BATCH))
    predictions = {name: _ByItem(store.batches(ref, size=BATCH)) for name, ref in cell.predictions.items()}
    statistics = {name: _ByItem(store.batches(ref, size=BATCH)) for name, ref in cell.statistics.items()}
    verdicts = [_ByItem(store.batches(ref, size=BATCH)) for ref in cell.verdicts.values()]
    for batch in store.batches(cell.requests, size=BATCH):
        for asked in batch.to_pylist():
            doc_id = asked["doc_id"]
            scored = {name: rows.take(doc_id) for name, rows in statistics.items()}
            yield SampleView(
                item_id=asked["item_id"],
                model_name=cell.origin.model_name,
                prompt_template=cell.origin.prompt_template,
                prompt=_prompt(asked),
                references=orjson.loads(asked["references_json"]),
                responses=[_response(row) for row in responses.take(doc_id)],
                filters={
                    name: [_prediction(row) for row in rows.take(doc_id)]
                    for name, rows in predictions.items()
                },
                scores={name: [_score(row) for row in rows] for name, rows in scored.items()},
                details={name: [_json(row["details_json"]) for row in rows] for name, rows in scored.items()},
                reasons={name: [row["error"] for row in rows] for name, rows in scored.items()},
                facets=_facets(asked, cell.origin, facets),
                labels=[_label(row) for rows in verdicts for row in rows.take(doc_id)],
                chat=asked["chat"],
                choices=asked["choices"],
                gold=asked["gold"],
                item_digest=asked["item_digest"],
            )


class _ByItem:
    """Rows in the order of the items, handed out item by item."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._rows = (row for batch in batches for row in batch.to_pylist())
        self._next: Row | None = next(self._rows, None)

    def take(self, doc_id: int) -> list[Row]:
        """The item's rows; those of items before it that nobody asked for are passed over."""
        taken = []
        while self._next is not None and self._next["doc_id"] <= doc_id:
            if self._next["doc_id"] == doc_id:
                taken.append(self._next)
            self._next = next(self._rows, None)
        return taken


def _prompt(asked: Row) -> str:
    if asked["kind"] == "rolling":
        return "".join(asked["continuations"])
    return str(asked["prompts"][0]) if asked["prompts"] else ""


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


def _facets(asked: Row, origin: Origin, facets: Sequence[str]) -> dict[str, Any]:
    """Facet values that all samples of the item share, beside model and prompt."""
    values: dict[str, Any] = {}
    document: Any = None
    for facet in facets:
        source, path = locate(facet)
        if source == "document":
            document = document if document is not None else orjson.loads(asked["doc_json"])
            values[facet] = resolve(document, path)
        elif source == "metadata":
            values[facet] = resolve(origin.metadata, path)
    return values
