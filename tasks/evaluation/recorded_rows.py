"""One recorded response, from this program or from elsewhere, read into the columns of RESPONSES."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from metrics.errors import NightjarError
from tasks.reduction.paths import RESPONSE_METADATA
from tasks.store.keys import canonical_json

Row = dict[str, Any]

STATUSES: Final = ("ok", "model_error", "infra_error")
_TEXTS: Final = ("prompt", "reasoning", "timestamp", "error")
_NUMBERS: Final = (
    *("inference_time", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
    "reasoning_tokens",
)
_LIKELIHOODS: Final = ("lls", "is_greedy", "unconditional_lls")
# Said again by others: by the group, by counting, by dividing; or true of one run only.
_DERIVED: Final = (
    "model_name",
    "prompt_template",
    "total_samples",
    "tokens_per_second",
    "doc_id",
    "request_key",
)
_METADATA: Final = ("metadata", "metadata_json", "logprobs_json")
_OWN: Final = frozenset(
    (
        *("item_id", "sample_id", "sample_index", "response", "status"),
        *(*_TEXTS, *_NUMBERS, *_LIKELIHOODS, *RESPONSE_METADATA, *_DERIVED, *_METADATA),
    )
)


def item_of(row: Mapping[str, Any], where: str) -> str:
    """The item that a recorded response belongs to; ``where`` names file and line in the error."""
    item_id = row.get("item_id")
    if isinstance(item_id, bool) or not isinstance(item_id, (str, int)) or item_id == "":
        raise NightjarError(f"{where}: expected a response with an item_id (text), found {item_id!r}")
    return str(item_id)


def sample_of(row: Mapping[str, Any], item_id: str, where: str) -> int | None:
    """The sample index: as recorded, else from the sample_id, else None (the caller counts)."""
    index = row.get("sample_index")
    if index is None:
        prefix, _, suffix = str(row.get("sample_id") or "").rpartition("_sample_")
        return int(suffix) if prefix == item_id and suffix.isdigit() else None
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise NightjarError(f"{where}: expected sample_index to be a whole number from 0, found {index!r}")
    return index


def response_columns(row: Mapping[str, Any], item_id: str, sample_index: int, where: str) -> Row:
    """The columns of RESPONSES besides ``doc_id`` and ``request_key``, which a run's requests decide.

    What is not a field of responses.jsonl is kept as metadata. A row without a response, without
    log-likelihoods and without a status is a failed request and not an empty answer.
    """
    response = row.get("response")
    if response is not None and not isinstance(response, str):
        response = canonical_json(response).decode()
    answered = response is not None or row.get("lls") is not None
    status = row.get("status") or ("ok" if answered else "infra_error")
    if status not in STATUSES:
        raise NightjarError(f"{where}: status {status!r} is not known; expected one of {', '.join(STATUSES)}")
    error = row.get("error")
    if status != "ok" and not error:
        error = "recorded without a response"
    metadata = _metadata(row)
    known = {
        name: row[name] if row.get(name) is not None else metadata.get(name) for name in RESPONSE_METADATA
    }
    return {
        "item_id": item_id,
        "sample_id": f"{item_id}_sample_{sample_index}",
        "sample_index": sample_index,
        **{name: row.get(name) for name in (*_TEXTS, *_NUMBERS, *_LIKELIHOODS)},
        **{name: None if value is None else str(value) for name, value in known.items()},
        "prompt": _prompt(row.get("prompt")),
        "response": response if status == "ok" else None,
        "status": status,
        "error": error,
        "attempts": known["attempts"] if isinstance(known["attempts"], int) else 1,
        "logprobs_json": None,
        "metadata_json": canonical_json(metadata).decode() if metadata else None,
    }


def _metadata(row: Mapping[str, Any]) -> Row:
    """What came with the response: an object, its JSON text, or any other value under its own name."""
    held = row.get("metadata")
    if held is None and isinstance(row.get("metadata_json"), str):
        held = orjson.loads(row["metadata_json"])
    if held is not None and not isinstance(held, Mapping):
        held = {"metadata": held}
    rest = {name: value for name, value in row.items() if name not in _OWN and value is not None}
    return {**rest, **(held or {})}


def _prompt(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "" if prompt is None else canonical_json(prompt).decode()
