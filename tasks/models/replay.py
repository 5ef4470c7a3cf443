"""The model type ``replay``: responses that were recorded before, from a file or from a field of the item.

A JSONL or Parquet file is read once to index it, 24 bytes a row, and then row by row as asked for; it may be
larger than memory. ``respond`` enters by ``replayed``, in version of the engine.
"""

import hashlib
import logging
import math
import os
import re
import threading
import weakref
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.errors import DataError
from tasks.datasets.config import field_at
from tasks.messages.calls import calls_text, recorded_calls
from tasks.models.config import ModelConfig, ReplayConfig
from tasks.models.records import InferenceOptions, PartitionResponses, RequestTally
from tasks.store.home import named_path
from tasks.store.keys import iso_time, unix_seconds
from tasks.store.schemas import RESPONSES, row_batch, row_dicts
from tasks.thresholds import Threshold

ROWS_AT_ONCE = Threshold("rows_replayed", 1_024)
SHOWN = 5  # names of models in a message
TEXTS = ("reasoning", "finish_reason", "response_id", "served_model", "system_fingerprint", "logprobs_json")
CALLS = "tool_calls"
"""What a recorded row calls the calls that its response makes."""
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
LIKELIHOODS = ("lls", "unconditional_lls")
FLAGS = ("is_greedy", "unconditional_greedy")
RECORDED_FIELDS = (*TEXTS, "inference_time", "timestamp", *COUNTS, *LIKELIHOODS, *FLAGS)
"""What a row takes over as it was recorded."""
KNOWN_FIELDS = frozenset(RECORDED_FIELDS) | {
    "item_id", "sample_id", "sample_index", "total_samples", "model_name", "prompt_template", "prompt",
    "response", "status", "error", "attempts", "metadata", "metadata_json", "timestamp_unix", CALLS,
}  # fmt: skip
"""Fields of a recorded row that mean something here; all others are its metadata."""
ASKED = ("item_id", "doc_id", "prompt_template", "kind", "prompts", "doc_json")
"""What of a request decides which recorded response answers it."""
PLAIN_FIELDS = frozenset({*("item_id", "sample_index", "model_name", "prompt_template"), "response"})
"""Of a row with no other fields only the response is taken over."""
UNSEEN = ("cached_tokens", "reasoning_tokens", "logprobs_json")
"""Columns that responses.jsonl has no field for: it shows them in a row's metadata."""
STATUSES = ("ok", "cut_off", "model_error", "infra_error")
MOST_TOKENS = 1 << 40

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedRow:
    """A recorded response: its fields, how a person finds it, and its place in its file, from 1."""

    fields: Mapping[str, Any]
    place: str = ""
    number: int | None = None


Recorded = RecordedRow | None
FindRecorded = Callable[[Mapping[str, Any], int], Recorded]


def replayed(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], options: InferenceOptions
) -> PartitionResponses:
    """Rows for the requests from what was recorded; the tally counts while they are read.

    A response that is not there is a row without one, never an empty text. Raises DataError for a file that
    can't be read.
    """
    assert isinstance(model.config, ReplayConfig)
    if model.config.path is not None:
        name, find = (
            model.config.path,
            _file_lookup(model.name, named_path(options.base_dir, model.config.path)),
        )
    else:
        name, find = f"field {model.config.field}", _field_lookup(str(model.config.field))
    tally = RequestTally()
    source = _Source(name, options.sampling.num_samples, tally)
    if model.config.path is not None:
        recording = recording_file(named_path(options.base_dir, model.config.path))
        source.may_hold_more = recording.most_samples > source.samples
        names = recording.models
        if names and model.name not in names:
            known = ", ".join(sorted(names)[:SHOWN])
            source.hint = f"; its rows are of model_name {known}, and this model is called {model.name!r}"
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


def _file_lookup(model_name: str, path: Path) -> FindRecorded:
    recordings = recording_file(path)

    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        return recordings.find(RecordedKey(model_name, row["prompt_template"], row["item_id"], sample))

    return find


def _field_lookup(path: str) -> FindRecorded:
    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        try:
            value = field_at(orjson.loads(row["doc_json"]), path)
        except KeyError:
            return None
        recorded = list(samples(value)) if value is not None else []
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
        "recorded_row": None if recorded is None else recorded.number,
        "request_key": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
        "prompt": prompt,
        **_content(request, sample, recorded, source),
    }
    source.tally.requests += 1
    source.tally.cached += row["status"] in ("ok", "cut_off")
    source.tally.model_errors += row["status"] == "model_error"
    if row["status"] == "infra_error":
        source.tally.failed += 1
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
    content, kept = _taken(recorded, flat, source)
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
    attempts = _count(flat.get("attempts"))
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


def _taken(
    recorded: RecordedRow, flat: Mapping[str, Any], source: _Source
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns that a recorded row fills, and what of it belongs into its metadata."""
    fields = recorded.fields
    content: dict[str, Any] = {}
    kept = {name: value for name, value in fields.items() if name not in KNOWN_FIELDS}
    if fields.get("metadata") is not None and not isinstance(fields["metadata"], Mapping):
        kept["metadata"] = fields["metadata"]
    for name in RECORDED_FIELDS:
        value = flat.get(name)
        if value is None:
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
        return _count(value)
    if name == "timestamp":
        return _moment(value)
    if name in LIKELIHOODS:
        numbers = isinstance(value, list) and all(map(_is_number, value))
        return list(map(float, value)) if numbers else None
    if name in FLAGS:
        return value if isinstance(value, list) and all(isinstance(flag, bool) for flag in value) else None
    return float(value) if _is_number(value) else None


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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any) -> int | None:
    whole = _is_number(value) and value == int(value) and 0 <= value < MOST_TOKENS
    return int(value) if whole else None


def _moment(value: Any) -> str | None:
    """A recorded time as ISO text: seconds since 1970 become UTC, a text stays as it is."""
    try:
        if isinstance(value, str):
            datetime.fromisoformat(value)
            return value
        return iso_time(float(value)) if _is_number(value) else None
    except (ValueError, OverflowError, OSError):
        return None


def shown(value: Any) -> str:
    """A value as a message repeats it, cut where it is long."""
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


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


JOIN_FIELDS = ("model_name", "prompt_template", "item_id", "sample_index")
OPEN_GROUPS = Threshold("recorded_groups_open", 4)


@dataclass(frozen=True)
class RecordedKey:
    """Which recorded response: model and prompt template count only where the file has them."""

    model_name: str
    prompt_template: str
    item_id: str
    sample_index: int


class RecordedRows(Protocol):
    """Rows of a file by position; ``unit`` is what a person counts in it: lines or rows."""

    unit: str

    def heads(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Every row's position, its number from 1, and its joining fields."""
        ...

    def row(self, position: int) -> Mapping[str, Any]:
        """The row at a position."""
        ...


class RecordingFile:
    """An indexed file of responses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source: RecordedRows = ParquetSource(path) if path.suffix == ".parquet" else LinesSource(path)
        self.columns: frozenset[str] = frozenset()
        self.models: Counter[str] = Counter()
        """Rows by model_name; empty for a file without such a field."""
        self.most_samples = 0
        """Of the item with the highest sample_index."""
        self._index()

    @property
    def rows(self) -> int:
        """How many responses the file holds."""
        return len(self._hashes)

    def find(self, key: RecordedKey) -> RecordedRow | None:
        """The recorded response; None when the file has none."""
        row_hash = _row_hash([getattr(key, name) if name in self.columns else None for name in JOIN_FIELDS])
        at = bisect_left(self._ordered, row_hash)
        if at == len(self._ordered) or self._ordered[at] != row_hash:
            return None
        number = int(self._numbers[at])
        place = f"{self.path}: {self._source.unit} {number}"
        return RecordedRow(self._source.row(int(self._positions[at])), place, number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ordered"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._ordered = self._hashes.data

    def _index(self) -> None:
        hashes: list[int] = []
        positions: list[int] = []
        numbers: list[int] = []
        unnumbered: dict[tuple[str | None, ...], int] = {}
        shapes: dict[tuple[bool, bool], int] = {}  # which of model and prompt a row has → the first such row
        for position, number, head in self._source.heads():
            parts = self._parts(head, number)
            model, prompt, item, index = parts
            shape = (model is not None, prompt is not None)
            if shape not in shapes:
                shapes[shape] = number
            if model is not None:
                self.models[model] += 1
            if index is None:
                group = (model, prompt, item)
                place = unnumbered[group] = unnumbered.get(group, -1) + 1
                sample_id = head.get("sample_id")
                named = _SAMPLE.search(str(sample_id)) if sample_id else None
                parts[3] = index = named[1] if named else str(place)
            if int(index) >= self.most_samples:
                self.most_samples = int(index) + 1
            hashes.append(_row_hash(parts))
            positions.append(position)
            numbers.append(number)
        self.columns = frozenset({*self._named(shapes), "item_id", "sample_index"})
        self._sort(hashes, positions, numbers)

    def _parts(self, head: Mapping[str, Any], number: int) -> list[str | None]:
        """What row ``number`` joins on, by JOIN_FIELDS; an index that it does not say is None."""
        model, prompt, item, index = parts = [head.get(name) for name in JOIN_FIELDS]
        if type(item) is str and model is None and prompt is None and index is None:
            return parts  # by far the most are such
        where = f"{self.path}: {self._source.unit} {number}"
        if item is None:
            raise DataError(f"{where} has no item_id; recorded responses join on it")
        return [_joining(where, name, value) for name, value in zip(JOIN_FIELDS, parts, strict=True)]

    def _named(self, shapes: Mapping[tuple[bool, bool], int]) -> Iterator[str]:
        """Those of model and prompt that rows name, all of them or none."""
        for at, name in enumerate(JOIN_FIELDS[:2]):
            first = {
                named: min(n for s, n in shapes.items() if s[at] is named)
                for named in {s[at] for s in shapes}
            }
            if len(first) > 1:
                unit = self._source.unit
                raise DataError(
                    f"{self.path}: {unit} {first[False]} has no {name}, and {unit} {first[True]} has one; "
                    "recorded responses join on it, so give it to all rows or to none"
                )
            if True in first:
                yield name

    def _sort(self, hashes: list[int], positions: list[int], numbers: list[int]) -> None:
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")
        self._hashes: NDArray[np.uint64] = np.array(hashes, np.uint64)[order]
        self._ordered = self._hashes.data  # one value is found sooner in it than in an array of numpy
        self._positions: NDArray[np.int64] = np.array(positions, np.int64)[order]
        self._numbers: NDArray[np.int64] = np.array(numbers, np.int64)[order]
        twice = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if len(twice):
            first, second = (self._numbers[twice[0] + offset] for offset in (0, 1))
            raise DataError(
                f"{self.path}: {self._source.unit} {first} and {self._source.unit} {second} answer the same "
                "item, sample, model and prompt; keep one of them"
            )


_SAMPLE = re.compile(r"_sample_(\d+)$")


def _joining(where: str, name: str, value: Any) -> str | None:
    """A field that rows join on as text; raises DataError where it is of a type that nothing joins on."""
    if value is None or (isinstance(value, str) and name != "sample_index"):
        return value
    if name == "sample_index":
        index = int(value) if isinstance(value, str) and value.isdecimal() else _count(value)
        if index is None:
            raise DataError(f"{where}: sample_index is {shown(value)}; expected a whole number from 0")
        return str(index)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"{where}: {name} is {shown(value)}; expected text or a number")
    return str(value)


def _row_hash(parts: Sequence[Any]) -> int:
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class LinesSource:
    """JSONL; a position is a byte offset."""

    unit = "line"

    def __reduce__(self) -> tuple[type["LinesSource"], tuple[Path]]:
        return LinesSource, (self._path,)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def heads(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """See ``RecordedRows``; raises DataError naming the line that is no JSON object."""
        position = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield position, number, self._parsed(line, number)
                position += len(line)

    def row(self, position: int) -> Mapping[str, Any]:
        """See ``RecordedRows``."""
        with self._lock:
            if self._file is None:
                self._file = self._path.open("rb")
                weakref.finalize(self, self._file.close)
            self._file.seek(position)
            line = self._file.readline()
        return self._parsed(line, 0)

    def _parsed(self, line: bytes, number: int) -> Mapping[str, Any]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{self._path}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self._path}: line {number} is not a JSON object")
        return row


class ParquetSource:
    """Parquet; a position is a row number."""

    unit = "row"

    def __reduce__(self) -> tuple[type["ParquetSource"], tuple[Path]]:
        return ParquetSource, (self._path,)

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"can't read recorded responses {path}: {error}") from error
        self._lock = threading.Lock()
        groups = range(self._file.num_row_groups)
        sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def heads(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """See ``RecordedRows``."""
        known = self._file.schema_arrow.names
        columns = [name for name in (*JOIN_FIELDS, "sample_id") if name in known]
        position = 0
        for batch in self._file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield position, position + 1, row
                position += 1

    def row(self, position: int) -> Mapping[str, Any]:
        """See ``RecordedRows``."""
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        with self._lock:
            if group not in self._groups:
                self._groups[group] = self._file.read_row_group(group)
                while len(self._groups) > OPEN_GROUPS:
                    self._groups.popitem(last=False)
            table = self._groups[group]
        rows: list[dict[str, Any]] = table.slice(position - int(self._starts[group]), 1).to_pylist()
        return rows[0]


Version = tuple[str, int, int]
_open: "OrderedDict[Version, RecordingFile]" = OrderedDict()
_open_lock = threading.Lock()


def recorded_counts(path: Path) -> tuple[int, dict[str, int]]:
    """How many responses the file holds, and how many of each model that it names. Raises DataError."""
    recording = recording_file(path)
    return recording.rows, dict(recording.models)


def recording_file(path: Path) -> RecordingFile:
    """The file's index, made once a process as long as the file does not change. Raises DataError."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # no such file, or no name that a file can have
        said = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"can't read recorded responses {path}: {said}") from error
    version = (str(path.resolve()), status.st_mtime_ns, status.st_size)
    with _open_lock:
        if version not in _open:
            _open[version] = RecordingFile(path)
            while len(_open) > OPEN_GROUPS:
                _open.popitem(last=False)
        return _open[version]


def open_recordings() -> dict[Version, RecordingFile]:
    """The indices that this process has made, as ``keep_recordings`` takes them."""
    with _open_lock:
        return dict(_open)


def keep_recordings(made: Mapping[Version, RecordingFile]) -> None:
    """Has ``recording_file`` give what another process has made, as long as the files do not change."""
    with _open_lock:
        _open.update(made)


def samples(value: Any) -> Iterable[Any]:
    """The samples in a field: a list holds one each, anything else is the only one."""
    return value if isinstance(value, list) else [value]
