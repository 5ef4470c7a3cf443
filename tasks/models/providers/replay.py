"""The type ``replay``: responses that were recorded before, from a file or from a field of the item.

A row takes over what its recorded row says of itself, as it is; ``recordings`` finds that row.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self

import orjson
import pyarrow as pa
from pydantic import Field, model_validator

from metrics.config import NamesFile
from metrics.errors import ConfigError
from tasks.datasets.config import field_at
from tasks.messages.calls import calls_text, recorded_calls
from tasks.models.config import Frozen
from tasks.models.providers.provider import RecordedProvider
from tasks.models.providers.recordings import (
    RecordedKey,
    RecordedRow,
    is_number,
    recording_file,
    shown,
    whole_number,
)
from tasks.models.records import STATUS_BEFORE, InferenceOptions, PartitionResponses, RequestTally
from tasks.models.registry import provider
from tasks.store.home import named_path
from tasks.store.keys import file_digest, iso_time, unix_seconds
from tasks.store.schemas import ABSENT, RESPONSES, row_batch, row_dicts
from tasks.store.thresholds import Threshold

ROWS_AT_ONCE = Threshold("rows_replayed", 1_024)
SHOWN = 5  # names of models in a message
TEXTS = ("reasoning", "finish_reason", "response_id", "served_model", "system_fingerprint", "logprobs_json")
CALLS = "tool_calls"
"""What a recorded row calls the calls that its response makes."""
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
LIKELIHOODS = ("lls", "unconditional_lls")
FLAGS = ("is_greedy", "unconditional_greedy")
UNCONDITIONAL = frozenset({"unconditional_lls", "unconditional_greedy"})
RECORDED_FIELDS = (*TEXTS, "inference_time", "timestamp", *COUNTS, *LIKELIHOODS, *FLAGS)
"""What a row takes over as it was recorded."""
KNOWN_FIELDS = frozenset(RECORDED_FIELDS) | {
    "item_id", "sample_id", "sample_index", "total_samples", "model_name", "prompt_template", "prompt",
    "response", "status", "error", "attempts", "metadata", "metadata_json", "timestamp_unix", CALLS,
}  # fmt: skip
"""Fields of a recorded row that mean something here; all others are its metadata."""
ASKED = ("item_id", "doc_id", "prompt_template", "kind", "prompts", "unconditional", "doc_json")
"""What of a request decides which recorded response answers it."""
PLAIN_FIELDS = frozenset({*("item_id", "sample_index", "model_name", "prompt_template"), "response"})
"""Of a row with no other fields only the response is taken over."""
UNSEEN = ("cached_tokens", "reasoning_tokens", "logprobs_json")
"""Columns that responses.jsonl has no field for: it shows them in a row's metadata."""
STATUSES = ("ok", "cut_off", "refused", "infra_error")

logger = logging.getLogger(__name__)


Recorded = RecordedRow | None
FindRecorded = Callable[[Mapping[str, Any], int], Recorded]


class ReplayConfig(Frozen):
    """Recorded responses: a file of rows, or a dotted field of the item itself."""

    path: Annotated[str | None, NamesFile()] = Field(
        None, description=".jsonl or .parquet with item_id, response, and optionally more"
    )
    field: str | None = Field(None, description="dotted path into the item, e.g. gpt.solution")
    prompts: dict[str, str] = Field(
        default_factory=dict, description="name of a prompt → what its rows call it"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.field is None):
            raise ValueError(
                "replay takes either config.path (a file of responses) or config.field (a field of the item)"
            )
        return self


@provider("replay")
class Replay(RecordedProvider[ReplayConfig]):
    """Responses that were recorded before."""

    schema = ReplayConfig

    def facts(self) -> dict[str, Any]:
        """The file's digest and the name that its rows are joined by, or the field's name; raises ConfigError
        for a file that can't be read."""
        path = self.recording
        if path is None:
            return {"field": self.config.field}
        try:
            # A file may hold several models' rows: the name is part of the join, so it decides answers.
            facts = {"file": file_digest(path), "model_name": self.model.name}
            return facts | ({"prompts": self.config.prompts} if self.config.prompts else {})
        except (OSError, ValueError) as error:  # no such file, or no name that a file can have
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"model {self.model.name!r}: can't read recorded responses {path}: {reason}"
            ) from error

    @property
    def recording(self) -> Path | None:
        """The file of responses; None where they are a field of the item."""
        return None if self.config.path is None else named_path(self.base_dir, self.config.path)

    def responses(self, requests: Iterable[pa.RecordBatch], options: InferenceOptions) -> PartitionResponses:
        """Rows for the requests from what was recorded; the tally counts while they are read.

        A response that is not there is a row without one, never an empty text. Raises DataError for a file
        that can't be read.
        """
        tally, path = RequestTally(), self.recording
        source = _Source(
            self.config.path or f"field {self.config.field}", options.sampling.num_samples, tally
        )
        if path is None:
            find = _field_lookup(str(self.config.field))
        else:
            find = _file_lookup(self.model.name, path, self.config.prompts)
            recording = recording_file(path)
            source.may_hold_more = recording.most_samples > source.samples
            names = recording.models
            if names and self.model.name not in names:
                known = ", ".join(sorted(names)[:SHOWN])
                source.hint = (
                    f"; its rows are of model_name {known}, and this model is called {self.model.name!r}"
                )
            elif len(recording.metadata_prompts) > 1:
                prompts = ", ".join(map(shown, recording.metadata_prompts[:SHOWN]))
                source.hint = f"; its rows are of metadata.prompt_template {prompts}"
        return PartitionResponses(_batches(requests, find, source), tally)


class _Source:
    """Where responses come from, how many an item has, what was counted, and what no column takes."""

    def __init__(self, name: str, samples: int, tally: RequestTally) -> None:
        self.name = name
        self.samples = samples
        self.tally = tally
        self.hint = ""
        self.may_hold_more = True
        self.more: list[str] = []
        self.unusable: dict[str, list[str]] = {}

    def note(self, recorded: RecordedRow, name: str) -> None:
        """Remembers a field that is of a type that means nothing here: its value stays in the metadata."""
        said = f"{recorded.place}: {name} is {shown(recorded.fields.get(name))}"
        self.unusable.setdefault(name, []).append(said)

    def tell(self) -> None:
        """One warning a field that could not be used somewhere, and one for samples that nobody asks for."""
        if self.more:
            others = f" and {len(self.more) - 1} others" if len(self.more) > 1 else ""
            said = "%s holds more than num_samples: %d samples of item %r%s; the others are not looked at"
            logger.warning(said, self.name, self.samples, self.more[0], others)
        for name, places in self.unusable.items():
            more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
            logger.warning(
                "%s%s; expected %s; it stays in the row's metadata", places[0], more, _expected(name)
            )


def _file_lookup(model_name: str, path: Path, prompts: Mapping[str, str]) -> FindRecorded:
    recordings = recording_file(path)
    only = recordings.metadata_prompts[0] if len(recordings.metadata_prompts) == 1 else None
    # Of a file with one prompt rows are found by item alone: that is right for its own prompt, and for any
    # where no other is known.
    others = only is not None and only in prompts.values()

    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        prompt = prompts.get(row["prompt_template"], row["prompt_template"])
        if others and prompt != only:
            return None
        return recordings.find(RecordedKey(model_name, prompt, row["item_id"], sample))

    return find


def _field_lookup(path: str) -> FindRecorded:
    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        try:
            value = field_at(orjson.loads(row["doc_json"]), path)
        except KeyError:
            return None
        recorded = list(_samples(value)) if value is not None else []
        if sample >= len(recorded) or recorded[sample] is None:
            return None
        return RecordedRow({"response": _text(recorded[sample])})

    return find


def _batches(
    requests: Iterable[pa.RecordBatch], find: FindRecorded, source: _Source
) -> Iterator[pa.RecordBatch]:
    for batch in requests:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            asked = row_dicts(batch.select(ASKED).slice(start, ROWS_AT_ONCE))
            if source.may_hold_more:
                source.more += [
                    row["item_id"]
                    for row in asked
                    if row["kind"] == "generate" and find(row, source.samples) is not None
                ]
            rows = [
                _row(row, sample, find(row, sample), source)
                for row in asked
                for sample in range(source.samples if row["kind"] == "generate" else 1)
            ]
            yield row_batch(rows, RESPONSES)
    source.tell()


def _row(request: Mapping[str, Any], sample: int, recorded: Recorded, source: _Source) -> dict[str, Any]:
    prompts = request["prompts"]
    prompt = (
        prompts[sample % len(prompts)] if prompts and request["kind"] == "generate" else "".join(prompts[:1])
    )
    identity = "\0".join((source.name, request["prompt_template"], request["item_id"], str(sample), prompt))
    row: dict[str, Any] = {
        "item_id": request["item_id"],
        "doc_id": request["doc_id"],
        "sample_id": f"{request['item_id']}_sample_{sample}",
        "sample_index": sample,
        "recorded_row": ABSENT if recorded is None else recorded.number,
        "request_key": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
        "prompt": prompt,
        **_content(request, sample, recorded, source),
    }
    source.tally.requests += 1
    source.tally.cached += row["status"] in ("ok", "cut_off", "refused")
    source.tally.refused += row["status"] == "refused"
    if row["status"] == "infra_error":
        source.tally.failed += 1
        source.tally.absent += recorded is None
        source.tally.errors["not recorded"] = source.tally.errors.get("not recorded", 0) + 1
    return row


def _content(request: Mapping[str, Any], sample: int, recorded: Recorded, source: _Source) -> dict[str, Any]:
    if recorded is None:
        item = request["item_id"]
        missing = f"no recorded response to item {item!r}, sample {sample}, in {source.name}{source.hint}"
        return {"status": "infra_error", "error": missing, "attempts": 0}
    fields = recorded.fields
    if (
        fields.keys() <= PLAIN_FIELDS
        and request["kind"] == "generate"
        and isinstance(fields.get("response"), str)
    ):
        return {"response": fields["response"], "status": "ok", "attempts": 1}
    flat = {**_flattened(fields.get("metadata")), **fields}
    content, kept = _taken(recorded, flat, source, _unasked(request))
    likelihood = request["kind"] != "generate"
    status, error = _outcome(recorded, content, likelihood)
    response = fields.get("response")
    if status == "ok" and not likelihood:
        content["response"] = "" if response is None else _text(response)
    elif response not in (None, ""):
        kept["response"] = response  # of a request that failed: no answer, and not to be lost
    if isinstance(fields.get("sample_id"), str):
        content["sample_id"] = fields["sample_id"]
    elif fields.get("sample_id") is not None:
        kept["sample_id"] = fields["sample_id"]
    if fields.get("prompt") is not None:
        content["prompt"] = _text(fields["prompt"])
    if fields.get("total_samples") not in (None, source.samples):
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


def _outcome(recorded: RecordedRow, content: Mapping[str, Any], likelihood: bool) -> tuple[str, str | None]:
    """The status of a recorded response, and why it is not ok."""
    fields, where = recorded.fields, recorded.place or "the recorded row"
    said = fields.get("error")
    error = None if said is None or said is False or said == "" else _text(said)
    status = fields.get("status") or ("infra_error" if error else "ok")
    if status == STATUS_BEFORE:
        status = "refused"
    if status == "ok" and content.get("finish_reason") == "content_filter":
        return "refused", error or f"{where}: the finish reason is content_filter"
    if status not in STATUSES:
        return "infra_error", error or f"{where}: status is {shown(status)}; expected {', '.join(STATUSES)}"
    if status == "ok" and likelihood and content.get("lls") is None:
        said = "has no lls" if fields.get("lls") is None else f"lls is {shown(fields['lls'])}"
        return "infra_error", error or f"{where}: {said}; expected a list of log-likelihoods"
    if status == "cut_off" and likelihood:
        return (
            "infra_error",
            f"{where}: status is cut_off; expected a list of log-likelihoods",
        )
    if status == "ok" and not likelihood and fields.get("response") is None and not _calls(fields):
        if content.get("finish_reason") == "length":
            return "cut_off", error or f"{where} has no response, and the finish reason length"
        return "infra_error", error or f"{where} has no response"
    return str(status), error


def _unasked(request: Mapping[str, Any]) -> frozenset[str]:
    """Log-likelihoods that the request does not ask for: a row may hold more than this run looks at."""
    if request["kind"] == "generate":
        return frozenset((*LIKELIHOODS, *FLAGS))
    return frozenset() if request["unconditional"] else UNCONDITIONAL


def _taken(
    recorded: RecordedRow, flat: Mapping[str, Any], source: _Source, unasked: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns that a recorded row fills, and what of it belongs into its metadata: what is not known, not
    usable or not asked for."""
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
            source.note(recorded, name)
        if name in fields and (usable is None or name in UNSEEN):
            kept[name] = value
    if (calls := _calls(fields)) is not None:
        content["tool_calls_json"] = calls
    elif fields.get(CALLS):
        kept[CALLS] = fields[CALLS]
    _keep_moment(fields, content, kept)
    return content, kept


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
    if name in COUNTS:
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
    if name in COUNTS:
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


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _samples(value: Any) -> Iterable[Any]:
    """The samples in a field: a list holds one each, anything else is the only one."""
    return value if isinstance(value, list) else [value]
