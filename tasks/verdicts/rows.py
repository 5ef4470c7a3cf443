"""What methods said of each response, as people and metrics meet it: evaluation_results.jsonl's rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from metrics.errors import NightjarError
from tasks.rows.parts import RESPONSE_METADATA, Part
from tasks.store.keys import iso_time
from tasks.store.schemas import row_dicts
from tasks.verdicts.methods import (
    COLUMNS_WITH_DOCUMENTS,
    RATE,
    SECONDS,
    RequestCursor,
    RequestRow,
    metadata,
)

Row = dict[str, Any]

_VERDICTS = (
    *("doc_id", "sample_index", "label", "scored", "score", "passed", "details_json", "error"),
    *("evaluation_time", "evaluated_at"),
)
_RESPONSES = (
    *("item_id", "doc_id", "sample_id", "sample_index", "status", "error", "metadata_json"),
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
    status of one that was cut off is ``cut_off``, judged or not.
    """
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
            yield _row(judged, label, verdict, response, shared)


def is_scored(row: Mapping[str, Any]) -> bool:
    """Whether a row of evaluation results was judged."""
    return row["status"] == "ok" or (row["status"] == "cut_off" and row["evaluation_time"] is not None)


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
