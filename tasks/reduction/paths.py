"""Dotted paths into responses and evaluation results, and which artifact holds what a path names."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from tasks.store.schemas import RESPONSES

Source = Literal["origin", "request", "document", "response", "metadata", "statistic", "details"]

UNKNOWN: Final = "unknown"
"""The facet value of rows that have none."""

_REQUEST_COLUMNS: Final = frozenset({"item_id", "doc_id", "item_digest", "cluster"})
_STATISTIC_COLUMNS: Final = frozenset({"passed", "scored", "score", "sample_index"})
_RESPONSE_COLUMNS: Final = frozenset(RESPONSES.names) - {"metadata_json", "logprobs_json"}
RESPONSE_METADATA: Final = ("finish_reason", "response_id", "attempts", "served_model", "system_fingerprint")
"""Columns of RESPONSES that an exported response carries inside its ``metadata``."""


def locate(path: str) -> tuple[Source, str]:
    """Where the value of a facet path is read: the source, and the column or the path within it.

    >>> locate("item.subject"), locate("metadata.sampling.temperature")
    (('document', 'subject'), ('metadata', 'sampling.temperature'))
    """
    head, _, rest = path.partition(".")
    if path in ("model_name", "prompt_template"):
        return "origin", path
    if head == "item" and rest:
        return "document", rest
    if rest.startswith("custom_fields.") and head == "metadata":
        return "details", rest
    if head == "metadata" and rest:
        return ("response", rest) if rest in RESPONSE_METADATA else ("metadata", rest)
    if head in ("detailed_results", "custom_fields") and rest:
        return "details", path
    if path in _REQUEST_COLUMNS:
        return "request", path
    if path in _STATISTIC_COLUMNS:
        return "statistic", path
    return ("response", path) if path in _RESPONSE_COLUMNS else ("metadata", path)


def resolve(record: Any, path: str) -> Any:
    """The value at a dotted path; None where a step is missing. A key that holds the dots itself wins.

    >>> resolve({"a": {"b": 1}, "a.c": 2}, "a.b"), resolve({"a.c": 2}, "a.c"), resolve({}, "a.b")
    (1, 2, None)
    """
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    return resolve(record.get(head), rest) if rest else None


def resolve_json(text: str | None, path: str) -> Any:
    """``resolve`` in JSON text; None where there is no text."""
    return None if text is None else resolve(orjson.loads(text), path)
