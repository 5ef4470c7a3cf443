"""What a recorded row says: the columns that it fills, how its request ended, and what of it has no column.

Nothing is lost: what is not known, not usable or not asked for stays in the row's metadata.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from tasks.messages.calls import calls_text, recorded_calls
from tasks.messages.endings import ending
from tasks.models.providers.recordings import RecordedRow, is_number, shown, whole_number
from tasks.models.records import STATUS_BEFORE, STATUSES
from tasks.models.usage import COUNTED
from tasks.store.keys import iso_time, unix_seconds

TEXTS = ("reasoning", "finish_reason", "response_id", "served_model", "system_fingerprint", "logprobs_json")
CALLS = "tool_calls"
"""What a recorded row calls the calls that its response makes."""
LIKELIHOODS = ("lls", "unconditional_lls")
FLAGS = ("is_greedy", "unconditional_greedy")
ANY_LIKELIHOODS = frozenset((*LIKELIHOODS, *FLAGS))
UNCONDITIONAL = frozenset({"unconditional_lls", "unconditional_greedy"})
"""What a request may not ask for: a row may hold more than a run looks at."""
RECORDED_FIELDS = (*TEXTS, "inference_time", "timestamp", *COUNTED, *LIKELIHOODS, *FLAGS)
"""What a row takes over as it was recorded."""
KNOWN_FIELDS = frozenset(RECORDED_FIELDS) | {
    "item_id", "sample_id", "sample_index", "total_samples", "model_name", "prompt_template", "prompt",
    "response", "status", "error", "attempts", "metadata", "metadata_json", "timestamp_unix", CALLS,
}  # fmt: skip
"""Fields of a recorded row that mean something here; all others are its metadata."""
PLAIN_FIELDS = frozenset({*("item_id", "sample_index", "model_name", "prompt_template"), "response"})
"""Of a row with no other fields only the response is taken over."""
UNSEEN = ("cached_tokens", "reasoning_tokens", "logprobs_json")
"""Columns that responses.jsonl has no field for: it shows them in a row's metadata."""

logger = logging.getLogger(__name__)


class RecordedContent:
    """Reads recorded rows, and remembers what of them could not be used.

    ``samples`` are the samples of an item that the run asks for.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._unusable: dict[str, list[str]] = {}

    def of_generation(self, recorded: RecordedRow) -> dict[str, Any]:
        """The columns of RESPONSES that the row fills as the answer to a prompt."""
        fields = recorded.fields
        if fields.keys() <= PLAIN_FIELDS and isinstance(fields.get("response"), str):
            return {"response": fields["response"], "status": "ok", "attempts": 1}
        return self._columns(recorded, False, ANY_LIKELIHOODS)

    def of_likelihoods(self, recorded: RecordedRow, unconditional: bool) -> dict[str, Any]:
        """The columns of RESPONSES that the row fills as log-likelihoods, with ``unconditional`` ones."""
        return self._columns(recorded, True, frozenset() if unconditional else UNCONDITIONAL)

    def tell(self) -> None:
        """One warning a field that could not be used somewhere."""
        for name, places in self._unusable.items():
            more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
            logger.warning(
                "%s%s; expected %s; it stays in the row's metadata", places[0], more, _expected(name)
            )

    def _columns(self, recorded: RecordedRow, likelihood: bool, unasked: frozenset[str]) -> dict[str, Any]:
        fields = recorded.fields
        flat = {**_flattened(fields.get("metadata")), **fields}
        content, kept = self._taken(recorded, flat, unasked)
        status, error = _outcome(recorded, content, likelihood)
        response = fields.get("response")
        if status == "ok" and not likelihood:
            content["response"] = "" if response is None else text_of(response)
        elif response not in (None, ""):
            kept["response"] = response  # of a request that failed: no answer, and not to be lost
        if isinstance(fields.get("sample_id"), str):
            content["sample_id"] = fields["sample_id"]
        elif fields.get("sample_id") is not None:
            kept["sample_id"] = fields["sample_id"]
        if fields.get("prompt") is not None:
            content["prompt"] = text_of(fields["prompt"])
        if fields.get("total_samples") not in (None, self.samples):
            kept["total_samples"] = fields["total_samples"]
        if fields.get("status") not in (None, status):
            kept["status"] = fields["status"]
        attempts = whole_number(flat.get("attempts"))
        if flat.get("attempts") is not None and attempts is None:
            kept["attempts"] = flat["attempts"]
        return {
            **content,
            "status": status,
            "error": error,
            "attempts": attempts or 1,
            "metadata_json": _metadata_text(fields, kept),
        }

    def _taken(
        self, recorded: RecordedRow, flat: Mapping[str, Any], unasked: frozenset[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The columns that a recorded row fills, and what of it belongs into its metadata: what is not known,
        not usable or not asked for."""
        fields = recorded.fields
        content: dict[str, Any] = {}
        kept = {name: value for name, value in fields.items() if name not in KNOWN_FIELDS}
        if fields.get("metadata") is not None and not isinstance(fields["metadata"], Mapping):
            kept["metadata"] = fields["metadata"]
        for name in RECORDED_FIELDS:
            value = flat.get(name)
            if value is None:
                continue
            if name in unasked:
                kept |= {name: value} if name in fields else {}
                continue
            usable = usable_value(name, value)
            if usable is not None:
                content[name] = usable
            elif name in fields:
                said = f"{recorded.place}: {name} is {shown(value)}"
                self._unusable.setdefault(name, []).append(said)
            if name in fields and (usable is None or name in UNSEEN):
                kept[name] = value
        if (calls := _calls(fields)) is not None:
            content["tool_calls_json"] = calls
        elif fields.get(CALLS):
            kept[CALLS] = fields[CALLS]
        _keep_moment(fields, content, kept)
        return content, kept


def _outcome(recorded: RecordedRow, content: Mapping[str, Any], likelihood: bool) -> tuple[str, str | None]:
    """The status of a recorded response, and why it is not ok."""
    fields, where = recorded.fields, recorded.place or "the recorded row"
    said = fields.get("error")
    error = None if said is None or said is False or said == "" else text_of(said)
    calls, finish = content.get("tool_calls_json"), content.get("finish_reason")
    status = fields.get("status") or ("infra_error" if error else "ok")
    if status == STATUS_BEFORE:
        status = "refused"
    if status == "ok" and ending(finish) == "filtered":
        return "refused", error or f"{where}: the finish reason is {finish}"
    if status == "ok" and ending(finish) == "broken":
        return "infra_error", error or f"{where}: the server broke the answer off (finish reason {finish})"
    if status not in STATUSES:
        return "infra_error", error or f"{where}: status is {shown(status)}; expected {', '.join(STATUSES)}"
    if status == "ok" and likelihood and content.get("lls") is None:
        said = "has no lls" if fields.get("lls") is None else f"lls is {shown(fields['lls'])}"
        return "infra_error", error or f"{where}: {said}; expected a list of log-likelihoods"
    if status == "cut_off" and likelihood:
        return "infra_error", f"{where}: status is cut_off; expected a list of log-likelihoods"
    if status == "ok" and not likelihood and not calls:
        response, is_told = fields.get("response"), fields.get("status") is not None
        is_blank = isinstance(response, str) and not response.strip()
        if ending(finish) == "limit" and (response is None or (is_blank and not is_told)):
            return "cut_off", error or f"{where} has no response, and the finish reason {finish}"
        if response is None:
            return "infra_error", error or f"{where} has no response"
    return str(status), error


def _calls(fields: Mapping[str, Any]) -> str | None:
    """The recorded calls of tools as they are kept; None where there are none that can be read."""
    try:
        return calls_text(recorded_calls(fields.get(CALLS)))
    except ValueError:
        return None


def _keep_moment(fields: Mapping[str, Any], content: dict[str, Any], kept: dict[str, Any]) -> None:
    """Seconds stay as exact as they were recorded: the text of a time ends at microseconds."""
    seconds, moment = fields.get("timestamp_unix"), fields.get("timestamp")
    if not isinstance(moment, str) and "timestamp" in content and seconds != moment:
        if seconds is None:
            seconds = moment
        else:
            kept["timestamp"] = moment
    if seconds is None:
        return
    if "timestamp" not in content and (text := usable_value("timestamp", seconds)) is not None:
        content["timestamp"] = text
    if seconds != unix_seconds(content.get("timestamp")):
        kept["timestamp_unix"] = seconds


def usable_value(name: str, value: Any) -> Any:
    """A recorded field as its column takes it; None where it is of another type."""
    if name in TEXTS:
        return value if isinstance(value, str) else None
    if name in COUNTED:
        return whole_number(value)
    if name == "timestamp":
        return _moment(value)
    if name in LIKELIHOODS:
        numbers = isinstance(value, list) and all(map(is_number, value))
        return list(map(float, value)) if numbers else None
    if name in FLAGS:
        return value if isinstance(value, list) and all(isinstance(flag, bool) for flag in value) else None
    return float(value) if is_number(value) else None


def _expected(name: str) -> str:
    if name in TEXTS:
        return "text"
    if name in COUNTED:
        return "a whole number"
    if name == "timestamp":
        return "seconds since 1970, or a time in ISO 8601"
    if name in LIKELIHOODS:
        return "a list of numbers"
    return "a list of true and false" if name in FLAGS else "a number"


def _moment(value: Any) -> str | None:
    """A recorded time as ISO text: seconds since 1970 become UTC, a text stays as it is."""
    try:
        if isinstance(value, str):
            datetime.fromisoformat(value)
            return value
        return iso_time(float(value)) if is_number(value) else None
    except (ValueError, OverflowError, OSError):
        return None


def _metadata_text(fields: Mapping[str, Any], kept: Mapping[str, Any]) -> str | None:
    """A row's metadata with all that has no field of its own; what collides stands under ``recorded``."""
    metadata = _flattened(fields.get("metadata"))
    if not metadata and not kept:
        text: str | None = fields.get("metadata_json")
        return text
    twice = {name: value for name, value in kept.items() if name in metadata and metadata[name] != value}
    twice |= {
        name: fields[name]
        for name in (*TEXTS, "attempts")
        if name in metadata and fields.get(name) not in (None, metadata[name])
    }
    once = {name: value for name, value in kept.items() if name not in twice}
    heading = "recorded"
    while heading in metadata or heading in once:
        heading += "_"
    return orjson.dumps({**metadata, **once, **({heading: twice} if twice else {})}, default=str).decode()


def _flattened(metadata: Any) -> dict[str, Any]:
    return dict(metadata) if isinstance(metadata, Mapping) else {}


def text_of(value: Any) -> str | None:
    """A recorded value as text: what is none is JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
