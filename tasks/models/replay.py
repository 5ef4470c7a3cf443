"""The model type ``replay``: responses that were recorded before, from a file or from a field of the item.

A JSONL or Parquet file is read once to index it, 16 bytes a row, and then row by row as asked for; it may be
larger than memory. ``respond`` enters by ``replayed``, in version of the engine.
"""

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from metrics.errors import DataError
from tasks.datasets.config import field_at
from tasks.models.config import ModelConfig, ReplayConfig
from tasks.models.options import InferenceOptions, PartitionResponses, RequestTally
from tasks.store.schemas import RESPONSES

ROWS_AT_ONCE = 1_024
RECORDED_FIELDS = (
    "reasoning", "finish_reason", "response_id", "served_model", "system_fingerprint", "inference_time",
    "timestamp", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens",
    "logprobs_json", "lls", "is_greedy", "unconditional_lls", "unconditional_greedy",
)  # fmt: skip
"""What a row takes over as it was recorded."""
KNOWN_FIELDS = frozenset(RECORDED_FIELDS) | {
    "item_id", "sample_id", "sample_index", "total_samples", "model_name", "prompt_template", "prompt",
    "response", "status", "error", "attempts", "doc_id", "request_key", "tokens_per_second",
    "metadata", "metadata_json",
}  # fmt: skip
"""Fields of a recorded row that mean something here; all others are its metadata."""
STATUSES = ("ok", "model_error", "infra_error")

Recorded = Mapping[str, Any] | None
Lookup = Callable[[Mapping[str, Any], int], Recorded]


def replayed(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], options: InferenceOptions
) -> PartitionResponses:
    """Rows for the requests from what was recorded; the tally counts while they are read.

    A response that is not there is a row without one, never an empty text. Raises DataError for a file that
    can't be read.
    """
    assert isinstance(model.config, ReplayConfig)
    if model.config.path is not None:
        name, find = model.config.path, _file_lookup(model.name, options.base_dir / model.config.path)
    else:
        name, find = f"field {model.config.field}", _field_lookup(str(model.config.field))
    tally = RequestTally()
    return PartitionResponses(
        _batches(requests, find, _Source(name, options.sampling.num_samples, tally)), tally
    )


class _Source:
    """Where responses come from, how many an item has, and the tally of what was read."""

    def __init__(self, name: str, samples: int, tally: RequestTally) -> None:
        self.name = name
        self.samples = samples
        self.tally = tally


def _file_lookup(model_name: str, path: Path) -> Lookup:
    recordings = recording_file(path)

    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        return recordings.find(RecordedKey(model_name, row["prompt_template"], row["item_id"], sample))

    return find


def _field_lookup(path: str) -> Lookup:
    def find(row: Mapping[str, Any], sample: int) -> Recorded:
        try:
            value = field_at(orjson.loads(row["doc_json"]), path)
        except KeyError:
            return None
        recorded = list(samples(value)) if value is not None else []
        if sample >= len(recorded) or recorded[sample] is None:
            return None
        return {"response": _text(recorded[sample])}

    return find


def _batches(requests: Iterable[pa.RecordBatch], find: Lookup, source: _Source) -> Iterator[pa.RecordBatch]:
    for batch in requests:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            rows = [
                _row(row, sample, find(row, sample), source)
                for row in batch.slice(start, ROWS_AT_ONCE).to_pylist()
                for sample in range(source.samples if row["kind"] == "generate" else 1)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=RESPONSES)


def _row(request: Mapping[str, Any], sample: int, recorded: Recorded, source: _Source) -> dict[str, Any]:
    prompt = request["prompts"][0] if request["prompts"] else ""
    identity = "\0".join((source.name, request["prompt_template"], request["item_id"], str(sample), prompt))
    row: dict[str, Any] = {
        "item_id": request["item_id"],
        "doc_id": request["doc_id"],
        "sample_id": f"{request['item_id']}_sample_{sample}",
        "sample_index": sample,
        "request_key": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
        "prompt": prompt,
        **_content(request, sample, recorded, source),
    }
    source.tally.requests += 1
    source.tally.cached += row["status"] == "ok"
    source.tally.model_errors += row["status"] == "model_error"
    if row["status"] == "infra_error":
        source.tally.failed += 1
        source.tally.errors["not recorded"] = source.tally.errors.get("not recorded", 0) + 1
    return row


def _content(request: Mapping[str, Any], sample: int, recorded: Recorded, source: _Source) -> dict[str, Any]:
    if recorded is None:
        missing = f"no recorded response to item {request['item_id']!r}, sample {sample}, in {source.name}"
        return {"status": "infra_error", "error": missing, "attempts": 0}
    flat = {**_flattened(recorded.get("metadata")), **recorded}
    content = {name: flat[name] for name in RECORDED_FIELDS if flat.get(name) is not None}
    likelihood = request["kind"] != "generate"
    text = recorded.get("response")
    error = recorded.get("error") or None
    status = recorded.get("status") or ("infra_error" if error else "ok")
    if status == "ok" and (content.get("lls") if likelihood else text) is None:
        status, error = (
            "infra_error",
            error or f"the recorded row of item {request['item_id']!r} has no response",
        )
    if status not in STATUSES:
        status, error = "infra_error", error or f"recorded with the status {status!r}"
    metadata = {name: value for name, value in recorded.items() if name not in KNOWN_FIELDS}
    return {
        **content,
        "status": status,
        "error": None if error is None else str(error),
        "attempts": int(flat.get("attempts") or 1),
        "response": _text(text) if status == "ok" and not likelihood else None,
        "metadata_json": orjson.dumps(
            {**_flattened(recorded.get("metadata")), **metadata}, default=str
        ).decode()
        if metadata or recorded.get("metadata")
        else recorded.get("metadata_json"),
    }


def _flattened(metadata: Any) -> dict[str, Any]:
    return dict(metadata) if isinstance(metadata, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


JOIN_FIELDS = ("model_name", "prompt_template", "item_id", "sample_index")
OPEN_GROUPS = 4


@dataclass(frozen=True)
class RecordedKey:
    """Which recorded response: model and prompt template count only where the file has them."""

    model_name: str
    prompt_template: str
    item_id: str
    sample_index: int


class RecordedRows(Protocol):
    """Rows of a file by position."""

    def heads(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Every row's position, how a person finds it (``line 3``), and its joining fields."""
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
        self._index()

    def find(self, key: RecordedKey) -> Mapping[str, Any] | None:
        """The recorded response; None when the file has none."""
        row_hash = self._hash(vars(key))
        at = int(np.searchsorted(self._hashes, row_hash))
        if at == len(self._hashes) or self._hashes[at] != row_hash:
            return None
        return self._source.row(int(self._positions[at]))

    def _index(self) -> None:
        hashes: list[int] = []
        positions: list[int] = []
        names: list[str] = []
        unnumbered: dict[str, int] = {}
        for position, name, head in self._source.heads():
            if not positions:
                self.columns = frozenset(column for column in JOIN_FIELDS if head.get(column) is not None)
            if head.get("item_id") is None:
                raise DataError(f"{self.path}: {name} has no item_id; recorded responses join on it")
            head = dict(head)
            if "sample_index" not in self.columns:
                group = str([head.get(column) for column in JOIN_FIELDS[:3]])
                head["sample_index"] = unnumbered[group] = unnumbered.get(group, -1) + 1
            hashes.append(self._hash(head))
            positions.append(position)
            names.append(name)
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")
        self._hashes: NDArray[np.uint64] = np.array(hashes, np.uint64)[order]
        self._positions: NDArray[np.int64] = np.array(positions, np.int64)[order]
        twice = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if len(twice):
            first, second = (names[order[twice[0] + offset]] for offset in (0, 1))
            raise DataError(
                f"{self.path}: {first} and {second} answer the same item, sample, model and prompt; "
                "keep one of them"
            )

    def _hash(self, head: Mapping[str, Any]) -> int:
        parts = [
            str(head.get(name))
            for name in JOIN_FIELDS
            if name in self.columns or name in ("item_id", "sample_index")
        ]
        return int.from_bytes(
            hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).digest(), "big"
        )


class LinesSource:
    """JSONL; a position is a byte offset."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def heads(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """See ``RecordedRows``; raises DataError naming the line that is no JSON object."""
        position = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield position, f"line {number}", self._parsed(line, number)
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

    def __init__(self, path: Path) -> None:
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"can't read recorded responses {path}: {error}") from error
        self._lock = threading.Lock()
        groups = range(self._file.num_row_groups)
        sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def heads(self) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """See ``RecordedRows``."""
        columns = [name for name in JOIN_FIELDS if name in self._file.schema_arrow.names]
        position = 0
        for batch in self._file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield position, f"row {position + 1}", row
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


_open: "OrderedDict[tuple[str, int, int], RecordingFile]" = OrderedDict()
_open_lock = threading.Lock()


def recording_file(path: Path) -> RecordingFile:
    """The file's index, made once a process as long as the file does not change. Raises DataError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"can't read recorded responses {path}: {error.strerror or error}") from error
    version = (str(path.resolve()), status.st_mtime_ns, status.st_size)
    with _open_lock:
        if version not in _open:
            _open[version] = RecordingFile(path)
            while len(_open) > OPEN_GROUPS:
                _open.popitem(last=False)
        return _open[version]


def samples(value: Any) -> Iterable[Any]:
    """The samples in a field: a list holds one each, anything else is the only one."""
    return value if isinstance(value, list) else [value]
