"""The store of kept answers: append-only Parquet segments, one folder for each model identity.

Workers never share a file: every segment has a name of its own, so two of them writing at once do no harm,
and one that finishes merges only its own small segments. A segment's name says when it was written and,
where its answers are of one night, which: those that a ``Lookup`` passes over are not read. A key is found
by an index in memory, 32 bytes a key; which of several answers under one key counts is said by the
``Lookup``.

When answers were last used is kept segment by segment: a *mark* beside them,
``answers/<identity>/used/<segment>.json``, holds the day on which a run last took an answer from one.
Segments without a mark, those of stores from before marks, count as used when the store came to have its
present format.

Workers that want the same answers at once share them out. Before it asks, a worker claims the keys that
it lacks, model by model. A key belongs to the oldest claim that lives and holds it; who came later asks
for the rest, waits until that claim ends, and looks again at what is there. So nobody waits for a later
one, and a killed worker holds nobody up.
"""

import hashlib
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.models.errors import is_settled
from tasks.models.records import (
    EVERY,
    READ_FIELDS,
    STATUS_BEFORE,
    Answer,
    KeptAnswer,
    Lookup,
    believed,
    run_of,
)
from tasks.models.usage import COUNTED
from tasks.store import claims
from tasks.store.claims import Claim, Watch, is_dead, owner_of
from tasks.store.errors import STORE_LOG, FileDamaged, FileMissing, StoreError
from tasks.store.schemas import RESPONSES, TEXT
from tasks.store.seals import FINE_BLOCK
from tasks.store.storage import DAMAGED, Store, Table
from tasks.store.thresholds import Threshold

FOLDER: Final = "answers"
_noted: set[tuple[str, str, str]] = set()
_told: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class AnswerFile:
    """A segment of answers that is not needed: its name and its mark's below the store's root, and its
    size."""

    name: str
    mark: str
    bytes: int


def note_use(store: Store, identity: str, segment: str) -> None:
    """Keeps that answers of a segment were used today; once a day and process.

    Serves retention alone: where the store can't be written, the run goes on without.
    """
    today = datetime.now(UTC).date().isoformat()
    if (note := (store.uri, f"{identity}/{segment}", today)) not in _noted:
        _noted.add(note)
        with suppress(StoreError):
            store.put_document(_mark(identity, segment), json.dumps({"used": today}).encode())


def unneeded_answers(
    store: Store, now: datetime, unused: timedelta | None, age: timedelta | None
) -> Iterator[AnswerFile]:
    """Segments that no run has used for ``unused``, or whose newest answer is older than ``age``; None: no
    such limit."""
    since = store.format()[1] or now
    for path, entry in sorted(_segments(store).items()):
        identity, segment = path.split("/")[1:]
        written = _written(segment)
        if written is None:
            continue
        mark = _mark(identity, segment)
        used = max(written, _used(store, mark) or since)
        if (unused is not None and now - used > unused) or (age is not None and now - written > age):
            yield AnswerFile(path, mark, entry)


def _mark(identity: str, segment: str) -> str:
    return f"{FOLDER}/{identity}/used/{segment.partition('.')[0]}.json"


def _segments(store: Store) -> dict[str, int]:
    """Name and size of every segment, those set aside as damaged included."""
    return {
        entry.name: entry.bytes
        for entry in store.all_entries(FOLDER)
        if entry.name.count("/") == 2 and entry.name.endswith((".parquet", f".parquet{DAMAGED}"))
    }


def _written(segment: str) -> datetime | None:
    """When a segment was written, as its name says: none of its answers arrived later."""
    milliseconds = segment[:13]
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC) if milliseconds.isdigit() else None


def _only_night(tables: Sequence[pa.Table]) -> str:
    """What the name of a segment says of its night, where all its answers are of one."""
    nights = {night for table in tables for night in pc.unique(table.column("night")).to_pylist()}
    return f"-{number_of(nights.pop()):016x}" if len(nights) == 1 else ""


def _may_count(segment: str, lookup: Lookup) -> bool:
    """Whether answers of a segment may be among those that count, as far as its name tells."""
    night = segment.partition(".")[0].split("-")[2:]
    if lookup.night is not None and night and night != [f"{number_of(lookup.night):016x}"]:
        return False
    written = _written(segment)
    return written is None or written.timestamp() >= lookup.not_before - CLOCKS_DIFFER_SECONDS


def _used(store: Store, mark: str) -> datetime | None:
    """The end of the day on which a segment was last used; None where no mark says it."""
    try:
        day = datetime.fromisoformat(json.loads(store.document(mark))["used"])
    except (FileMissing, FileDamaged, ValueError, KeyError, TypeError):
        return None
    return day.replace(tzinfo=UTC) + timedelta(days=1)


CLOCKS_DIFFER_SECONDS: Final = 86_400.0
"""By so much a segment's name may be before the time at which an answer in it was asked for."""
CACHED_KEYS = Threshold("keys_cached", 2_000_000)
"""Keys of segments held in memory by the process: some 80 MB."""
OPEN_GROUPS = Threshold("answer_groups_open", 512)
MERGED_BYTES = 32 << 20
"""Segments are merged up to this size."""

ROW_GROUP = 64
"""A damaged byte costs the answers of the row groups whose block it is in (``seals.FINE_BLOCK``)."""

SHARED: Final = (
    "response", "reasoning", "error", "attempts", "finish_reason", "response_id", "served_model",
    "system_fingerprint", "inference_time", *COUNTED, "tool_calls_json", "thoughts_json", "logprobs_json",
)  # fmt: skip
"""Columns that responses have, too. Calls are null in version 0.1.0, thoughts before version 4."""

ANSWERS: Final = pa.schema(
    [
        pa.field("key", pa.binary(32), nullable=False),  # the request key
        pa.field("arrived", pa.float64(), nullable=False),  # seconds since 1970
        pa.field("asked_at", pa.float64()),  # when it was asked for; null in version 0.1.0: when it arrived
        pa.field("night", TEXT),  # the night that asked for it
        pa.field("asker", TEXT),  # the inference that asked for it, and in which attempt at its run
        pa.field("status", TEXT, nullable=False),  # ok | cut_off | refused; other failures are not kept
        *map(RESPONSES.field, SHARED),
        pa.field("ll", pa.float64()),
        pa.field("is_greedy", pa.bool_()),
        pa.field("ll_tokens", pa.int32()),  # tokens that ll is the sum of; null in version 0.1.0
        # The reply as it came, which response to ll_tokens are read from; else null, and they were read when
        # kept.
        pa.field("reply_json", pa.string()),
    ]
)
INDEXED: Final = ["key", "arrived", "asked_at", "night", "asker"]
"""Columns that a key is found by."""
PLAIN_COLUMNS: Final = tuple(field.name for field in fields(KeptAnswer) if field.name != "logprobs")

_key_cache: "OrderedDict[tuple[str, str], SegmentKeys]" = OrderedDict()
_key_cache_lock = threading.Lock()


@dataclass(frozen=True)
class Segment:
    """A file of answers and its size."""

    name: str
    bytes: int


class DamagedAnswers(StoreError):
    """Kept answers can't be read any more; the others are saved, and these count as missing from now on."""


class AnswerStore:
    """The answers that a store keeps, model by model."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def of_model(self, identity: str) -> "ModelAnswers":
        """The answers of one model; ``identity`` is the digest of its identity."""
        return ModelAnswers(self.store, identity)


class ModelAnswers:
    """The segments with one model's answers."""

    def __init__(self, store: Store, identity: str) -> None:
        self.store = store
        self.identity = identity
        self.folder = f"answers/{identity}"
        self.written: set[str] = set()

    def snapshot(self, lookup: Lookup = EVERY) -> "AnswerSnapshot":
        """The answers that are there now and count."""
        return AnswerSnapshot(self, lookup)

    def names(self) -> list[str]:
        """The segments there are, oldest first."""
        return [f"{name}.parquet" for name in self.store.names(self.folder, ".parquet")]

    def write(self, answers: Sequence[KeptAnswer]) -> Segment:
        """Writes answers as a segment of their own; raises StoreError."""
        return self._write([table_of(answers)])

    def merge(self, segments: Sequence[Segment]) -> None:
        """Replaces small segments by larger ones, at most ``MERGED_BYTES`` in memory at a time."""
        group: list[Segment] = []
        for segment in [*segments, None]:
            full = segment is None or sum(part.bytes for part in group) + segment.bytes > MERGED_BYTES
            if full and len(group) > 1:
                self._write([self.read(part.name) for part in group])
                for part in group:
                    self.store.remove(f"{self.folder}/{part.name}")
            if full:
                group = []
            if segment is not None:
                group.append(segment)

    def path(self, name: str) -> str:
        """Where a segment lies."""
        return self.store.path(f"{self.folder}/{name}")

    def _opened(self, name: str) -> AbstractContextManager[Table]:
        return self.store.open_table(f"{self.folder}/{name}", page_checksum_verification=True)

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A segment's rows; raises FileMissing and FileDamaged."""
        with self._opened(name) as table:
            wanted = ANSWERS if columns is None else pa.schema([ANSWERS.field(name) for name in columns])
            return _complete(table, table.file.read(columns=columns), wanted)

    def note_use(self, name: str) -> None:
        """Keeps that answers of a segment are used: what nobody uses for long is removed one day."""
        note_use(self.store, self.identity, name)

    def group_sizes(self, name: str) -> list[int]:
        """Rows in each row group of a segment."""
        with self._opened(name) as table:
            metadata = table.file.metadata
            return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def groups(self, name: str, row_groups: Sequence[int]) -> dict[int, pa.Table]:
        """Some row groups of a segment by their numbers; raises FileMissing and FileDamaged."""
        with self._opened(name) as table:
            return {
                group: _complete(table, table.file.read_row_group(group), ANSWERS) for group in row_groups
            }

    def seal(self, name: str) -> None:
        """Writes a segment of a version before seals again, under its name; raises FileDamaged."""
        self._write_as(name, [self.read(name)])

    def repair(self, name: str) -> int:
        """Sets a damaged segment aside, and the answers in it that are proven to be what was written in a new
        one; returns how many those are."""
        proven = self.store.proven_rows(f"{self.folder}/{name}", ANSWERS)
        if proven:
            self._write(proven)
        self.store.set_aside(f"{self.folder}/{name}")
        return sum(map(len, proven))

    def keys(self, name: str) -> "SegmentKeys | None":
        """A segment's keys, from memory if they were read before; None when it is damaged or gone."""
        cache_key = (self.path(name), self.store.uri)
        with _key_cache_lock:
            if (known := _key_cache.get(cache_key)) is not None:
                _key_cache.move_to_end(cache_key)
                return known
        try:
            keys = self._read_keys(name)
        except FileMissing:
            return None
        except FileDamaged as error:
            with suppress(StoreError):
                STORE_LOG.warning("%s; %d of them are saved", error, self.repair(name))
            return None
        with _key_cache_lock:
            _key_cache[cache_key] = keys
            while len(_key_cache) > 1 and sum(len(part.high) for part in _key_cache.values()) > CACHED_KEYS:
                _key_cache.popitem(last=False)
        return keys

    def _read_keys(self, name: str) -> "SegmentKeys":
        table = self.read(name, [*INDEXED, "status"])
        refused = pa.array(["refused", STATUS_BEFORE])
        failed = pc.is_in(table.column("status").cast(pa.string()), refused)
        if not pc.any(failed).as_py():
            return SegmentKeys.of(table)
        errors = self.read(name, ["error"]).column("error")
        return SegmentKeys.of(table.append_column("error", pc.if_else(failed, errors, None)))

    def _write(self, tables: Sequence[pa.Table]) -> Segment:
        # Names sort by time and never meet: two workers may write in the same millisecond.
        name = f"{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex[:12]}{_only_night(tables)}.parquet"
        return self._write_as(name, tables)

    def _write_as(self, name: str, tables: Sequence[pa.Table]) -> Segment:
        place = f"{self.folder}/{name}"
        with self.store.writing_table(
            place, ANSWERS, FINE_BLOCK, write_page_checksum=True, use_dictionary=_DICTIONARY_COLUMNS
        ) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP)
        self.written.add(name)
        return Segment(name, self.store.size(place))


class AnswerSnapshot:
    """A model's answers at one moment: an index in memory, the rows on disk."""

    def __init__(self, answers: ModelAnswers, lookup: Lookup) -> None:
        self._answers = answers
        self._lookup = lookup
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._load()

    def _load(self) -> None:
        self._row_groups: dict[str, np.ndarray] = {}
        named = self._keys()
        if any(keys is None for _, keys in named):  # what could be saved of it is in a segment of its own
            named = self._keys()
        present = [(name, keys) for name, keys in named if keys is not None]
        self._names = [name for name, _ in present]
        self._asked_at = [keys.asked_at for _, keys in present]
        self._index = KeyIndex([keys for _, keys in present], self._lookup)
        self._tell_of_wrong_clock([keys for _, keys in present])

    def _tell_of_wrong_clock(self, segments: Sequence["SegmentKeys"]) -> None:
        """Says once a process that answers of others are of a time that is yet to come."""
        ahead = sum(
            int(np.sum((believed(part.asked_at) < part.asked_at) & ~part.asked_by(self._lookup.run)))
            for part in segments
        )
        uri, folder = place = self._answers.store.uri, self._answers.folder
        if ahead and place not in _told:
            _told.add(place)
            STORE_LOG.warning(
                "store %s: %d answers in %s are of a time that is yet to come: the clock of the machine that"
                " asked was ahead, or this one's is behind; they count as the oldest",
                uri,
                ahead,
                folder,
            )

    def _keys(self) -> list[tuple[str, "SegmentKeys | None"]]:
        """The keys of every segment of which answers may count, oldest first; of one written here no name
        says that they don't."""
        names, written = self._answers.names(), self._answers.written
        counting = (name for name in names if name in written or _may_count(name, self._lookup))
        return [(name, self._answers.keys(name)) for name in counting]

    def __len__(self) -> int:
        return len(self._index)

    def holds(self, keys: Sequence[bytes]) -> list[bool]:
        """For each key whether its answer is there."""
        if not keys:
            return []
        found: list[bool] = (self._index.find(keys)[0] >= 0).tolist()
        return found

    def asked_at(self, keys: Sequence[bytes]) -> NDArray[np.float64]:
        """For each key when its answer was asked for, in seconds since 1970; NaN where there is none."""
        times = np.full(len(keys), np.nan)
        if keys:
            segments, rows = self._index.find(keys)
            for segment in np.unique(segments[segments >= 0]):
                at = np.flatnonzero(segments == segment)
                times[at] = self._asked_at[segment][rows[at]]
                self._answers.note_use(self._names[segment])
        return times

    def rows(self, keys: Sequence[bytes]) -> tuple[pa.Table, np.ndarray]:
        """The answers to some keys: a table of the ANSWERS schema, and for each key its row there, −1 where
        there is none.
        """
        for attempt in range(4):
            try:
                return self._rows(keys)
            except FileMissing:
                if attempt == 3:
                    raise
                self._load()  # another worker merged its segments
        raise AssertionError

    def _rows(self, keys: Sequence[bytes]) -> tuple[pa.Table, np.ndarray]:
        position = np.full(len(keys), -1, np.int64)
        if not keys:
            return ANSWERS.empty_table(), position
        segments, rows = self._index.find(keys)
        parts: list[pa.Table] = []
        placed = 0
        for segment in np.unique(segments[segments >= 0]):
            at = np.flatnonzero(segments == segment)
            self._answers.note_use(self._names[segment])
            for taken, table in self._rows_by_group(self._names[segment], rows[at]):
                position[at[taken]] = placed + np.arange(len(taken))
                parts.append(table)
                placed += len(taken)
        return pa.concat_tables(parts) if parts else ANSWERS.empty_table(), position

    def _rows_by_group(self, name: str, rows: np.ndarray) -> list[tuple[np.ndarray, pa.Table]]:
        """Rows of a segment, row group by row group: positions in ``rows``, and the rows."""
        bounds = self._group_starts(name)
        group_of = np.searchsorted(bounds, rows, side="right") - 1
        groups = np.unique(group_of)
        tables = self._tables(name, groups.tolist())
        order = np.argsort(group_of, kind="stable")
        cuts = np.searchsorted(group_of[order], groups)
        return [
            (where, tables[int(group)].take(pa.array(rows[where] - bounds[group])))
            for group, where in zip(groups, np.split(order, cuts[1:]), strict=True)
        ]

    def _group_starts(self, name: str) -> np.ndarray:
        """The first row of each row group."""
        known = self._row_groups.get(name)
        if known is None:
            with self._repaired(name):
                sizes = self._answers.group_sizes(name)
            known = self._row_groups[name] = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return known

    def _tables(self, name: str, groups: Sequence[int]) -> dict[int, pa.Table]:
        """The row groups of a segment; raises DamagedAnswers where one can't be read any more."""
        known = {group: self._groups[name, group] for group in groups if (name, group) in self._groups}
        unread = [group for group in groups if group not in known]
        if unread:
            with self._repaired(name):
                read = self._answers.groups(name, unread)
            self._groups.update({(name, group): table for group, table in read.items()})
            known |= read
        for group in groups:
            self._groups.move_to_end((name, group))
        while len(self._groups) > OPEN_GROUPS:
            self._groups.popitem(last=False)
        return known

    @contextmanager
    def _repaired(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileDamaged as error:
            kept = self._answers.repair(name)
            raise DamagedAnswers(
                f"{error}; it is set aside, {kept} of its answers are saved; run again to ask for the others"
            ) from error


@dataclass(frozen=True)
class SegmentKeys:
    """A segment's keys: the first 16 of their 32 bytes as two numbers each, when each answer was asked for,
    the numbers of the night and of the run that asked, and whether it is an error of the model."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    asked_at: NDArray[np.float64]
    night: NDArray[np.uint64]
    run: NDArray[np.uint64]
    failed: NDArray[np.bool_]

    @classmethod
    def of(cls, table: pa.Table) -> "SegmentKeys":
        """From the columns ``INDEXED`` and, where there are any, error of the model's errors.

        Version 0.1.0 kept errors that a repaired server would not give: those were never asked for.
        """
        high, low = halves(table.column("key").combine_chunks())
        asked_at = table.column("asked_at").to_numpy()
        failed = np.zeros(len(asked_at), np.bool_)
        if "error" in table.schema.names:
            errors = table.column("error").to_pylist()
            failed = np.array([error is not None for error in errors], np.bool_)
            asked_at = np.where([not error or is_settled(error) for error in errors], asked_at, -np.inf)
        nights = _numbers(table.column("night"), lambda name: name)
        return cls(high, low, asked_at, nights, _numbers(table.column("asker"), run_of), failed)

    def asked_by(self, run: str | None) -> NDArray[np.bool_]:
        """Which of them a run asked for; None: nobody knows which run that is."""
        own: NDArray[np.bool_] = self.run == np.uint64(number_of(run))
        return own if run is not None else np.zeros_like(own)


def number_of(name: str | None) -> int:
    """The name of a night or a run as a number of 64 bits; 0: none."""
    return 0 if name is None else int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def _numbers(column: pa.ChunkedArray, named: Callable[[str | None], str | None]) -> NDArray[np.uint64]:
    """Of each row the number of what is named there."""
    names = column.unify_dictionaries().combine_chunks()
    numbers = np.array([number_of(named(name)) for name in (*names.dictionary.to_pylist(), None)], np.uint64)
    found: NDArray[np.uint64] = numbers[names.indices.fill_null(len(numbers) - 1).to_numpy()]
    return found


def halves(keys: pa.FixedSizeBinaryArray | pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first and second eight bytes of 32-byte keys."""
    array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], pa.binary(32))
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint64) if len(array) else np.empty(0, np.uint64)
    words = raw[array.offset * 4 : (array.offset + len(array)) * 4].reshape(-1, 4)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


class KeyIndex:
    """Finds keys among segments; of equal keys the one counts that was asked for last, as is ``believed``:
    by the run itself, where it did."""

    def __init__(self, segments: Sequence[SegmentKeys], lookup: Lookup = EVERY) -> None:
        high = np.concatenate([np.empty(0, np.uint64), *(part.high for part in segments)])
        low = np.concatenate([np.empty(0, np.uint64), *(part.low for part in segments)])
        asked_at = believed(np.concatenate([np.empty(0), *(part.asked_at for part in segments)]))
        segment = np.repeat(np.arange(len(segments), dtype=np.int32), [len(part.high) for part in segments])
        row = np.concatenate(
            [np.empty(0, np.int32), *(np.arange(len(part.high), dtype=np.int32) for part in segments)]
        )
        failed = np.concatenate([np.empty(0, np.bool_), *(part.failed for part in segments)])
        own = np.concatenate([np.empty(0, np.bool_), *(part.asked_by(lookup.run) for part in segments)])
        counts = own | ((asked_at >= lookup.not_before) & (~failed | (asked_at >= lookup.failed_before)))
        if lookup.night is not None:
            nights = np.concatenate([np.empty(0, np.uint64), *(part.night for part in segments)])
            counts &= nights == np.uint64(number_of(lookup.night))
        chosen = np.flatnonzero(counts)
        order = chosen[np.lexsort((asked_at[chosen], own[chosen], low[chosen], high[chosen]))]
        high, low = high[order], low[order]
        last = np.ones(len(order), bool)
        last[:-1] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self._high, self._low = high[last], low[last]
        self._segment, self._row = segment[order][last], row[order][last]

    def __len__(self) -> int:
        return len(self._high)

    def find(self, keys: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Segment and row of each key, −1 where there is none; shapes (n,)."""
        words = np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 4)
        high, low = words[:, 0], words[:, 1]
        at = np.searchsorted(self._high, high)
        segment, row = np.full(len(keys), -1, np.int32), np.full(len(keys), -1, np.int32)
        pending = np.arange(len(keys))
        while len(pending):  # a second round only where first halves are equal and second ones are not
            pending = pending[at[pending] < len(self._high)]
            pending = pending[self._high[at[pending]] == high[pending]]
            hit = self._low[at[pending]] == low[pending]
            found = pending[hit]
            segment[found], row[found] = self._segment[at[found]], self._row[at[found]]
            pending = pending[~hit]
            at[pending] += 1
        return segment, row


def table_of(answers: Sequence[KeptAnswer]) -> pa.Table:
    """Answers as a table of the ANSWERS schema; what their replies say is not in it twice."""
    columns: dict[str, list[Any]] = {
        name: [getattr(answer, name) for answer in answers]
        for name in PLAIN_COLUMNS
        if name not in READ_FIELDS
    }
    columns["asked_at"] = [answer.asked_at or answer.arrived for answer in answers]
    read = [None if answer.reply_json is not None else answer for answer in answers]
    columns |= read_columns(read)
    return pa.table(
        {name: pa.array(columns[name], type=ANSWERS.field(name).type) for name in ANSWERS.names},
        schema=ANSWERS,
    )


def read_columns(answers: Sequence[Answer | KeptAnswer | None]) -> dict[str, list[Any]]:
    """The columns of what was read of replies; null where nothing was."""
    columns: dict[str, list[Any]] = {
        name: [None if answer is None else getattr(answer, name) for answer in answers]
        for name in READ_FIELDS
    }
    columns["logprobs_json"] = [
        None if given is None else orjson.dumps(given).decode() for given in columns.pop("logprobs")
    ]
    return columns


def _complete(table: Table, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the columns of ``schema``, ANSWERS or some of it, by the version that the segment declares; in
    version 0.1.0 an answer was asked for when it arrived."""
    if schema is ANSWERS and rows.schema.equals(ANSWERS):
        return rows
    held = table.file.schema_arrow
    table.complete(held.empty_table(), ANSWERS)
    rows = table.complete(rows, schema)
    if "asked_at" in schema.names and "asked_at" not in held.names:
        place = rows.schema.get_field_index("asked_at")
        rows = rows.set_column(place, ANSWERS.field("asked_at"), rows.column("arrived"))
    return rows


_DICTIONARY_COLUMNS = [
    "status",
    "finish_reason",
    "served_model",
    "system_fingerprint",
    "attempts",
    "night",
    "asker",
]


KEY_BYTES = 16
"""Bytes of a key that a claim holds: enough to tell keys apart."""


@contextmanager
def claim_keys(
    answers: ModelAnswers, keys: Collection[bytes], night: str | None = None
) -> Iterator["ClaimedKeys"]:
    """Claims ``keys`` until the block ends, and gives which of them others are at already.

    ``night`` is given by whom only answers of this night serve: claims of other nights then don't count.
    Raises StoreError.
    """
    held = b"".join(key[:KEY_BYTES] for key in keys)
    with Claim.made(answers.store, answers.folder, {"night": night}, held) as own:
        yield ClaimedKeys(own, keys, night)


class ClaimedKeys:
    """A worker's keys; ``others`` are those that earlier claims hold."""

    def __init__(self, own: Claim, keys: Collection[bytes], night: str | None) -> None:
        self._own = own
        self._watch = Watch(own)
        by_start = {key[:KEY_BYTES]: key for key in keys}
        held: dict[str, set[bytes]] = {}
        for entry in own.earlier():
            content = own.content(entry)
            if content is not None and is_dead(content):
                own.remove(entry)
            elif content is not None and night in (None, owner_of(content).get("night")):
                held[entry] = {by_start[start] for start in _starts(own.attached(entry)) if start in by_start}
        self._earlier = [entry for entry, theirs in held.items() if theirs]
        self.others: set[bytes] = {key for theirs in held.values() for key in theirs}

    @property
    def lost(self) -> bool:
        """Whether others go on in the worker's place: it was stopped for long."""
        return self._own.lost.is_set()

    def wait(self, may_go_on: Callable[[], bool]) -> bool:
        """Waits until the claims that hold ``others`` have ended; False where ``may_go_on`` said no."""
        while self._alive():
            if not may_go_on():
                return False
            time.sleep(claims.POLL_SECONDS)
        return True

    def _alive(self) -> bool:
        self._earlier = [entry for entry in self._earlier if self._watch.lives(entry)]
        return bool(self._earlier)


def _starts(held: bytes) -> Iterator[bytes]:
    return (held[start : start + KEY_BYTES] for start in range(0, len(held), KEY_BYTES))
