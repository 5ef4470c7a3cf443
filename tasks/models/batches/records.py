"""The records of batches in the store: ``batches/<identity>/<name>.json`` for each job that is open, and
beside it the rows that came of it.

A record is written before its job is sent, as the intent to send it, and again with the job's id after that.
So whoever finds one without an id looks for the job before another is sent. Records go when nothing of theirs
is missing any more.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tasks.models.batches.form import Row
from tasks.models.records import Lookup, Request
from tasks.store.errors import FileDamaged, FileMissing
from tasks.store.storage import Store

FOLDER: Final = "batches"
LONGEST_DAYS: Final = 28
"""Anthropic keeps the results of a job for 29 days, OpenAI its files for 30."""
ROWS: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("status", pa.int32(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
PORTION: Final = 1_000
"""Rows written or read at once."""


@dataclass(frozen=True)
class Job:
    """One job, or the intent to send it.

    ``ids`` are its ``count`` requests, once it is fetched those that it has asked. ``since`` is when the
    first job was made that asked for these: so long is waited. ``id`` is the provider's, None as long as
    the job is intended. ``not_ours`` are jobs that were taken for it by mistake, ``cancelled`` when its end
    was asked for. All times are in seconds since 1970.
    """

    name: str
    identity: str
    created: float
    since: float
    night: str | None
    ids: tuple[str, ...]
    count: int
    path: str = ""
    file: str | None = None
    id: str | None = None
    not_ours: tuple[str, ...] = ()
    cancelled: float | None = None
    fetched: bool = False

    @property
    def place(self) -> str:
        """Its record's name in the store, without a suffix."""
        return f"{FOLDER}/{self.identity}/{self.name}"

    def given_up(self) -> "Job":
        """As a job that has ended and asked nothing."""
        return replace(self, ids=(), fetched=True)

    def serves(self, lookup: Lookup) -> bool:
        """Whether what it gives may be used where these answers are looked for."""
        return lookup.night in (None, self.night) and self.created >= lookup.not_before


def batch_id(requests: Sequence[Request]) -> str:
    """The name that requests which go in one call have in a job: 64 hexadecimal digits."""
    if len(requests) == 1:
        return requests[0].key.hex()
    return hashlib.sha256(b"".join(request.key for request in requests)).hexdigest()


@dataclass
class JobRecords:
    """The records of one model's jobs."""

    store: Store
    identity: str
    folder: str = field(init=False)

    def __post_init__(self) -> None:
        self.folder = f"{FOLDER}/{self.identity}"

    def all(self) -> list[Job]:
        """Every job, the oldest first; those whose results no provider keeps any more are removed."""
        jobs = [job for name in self.store.names(self.folder, ".json") if (job := self.get(name)) is not None]
        for job in [job for job in jobs if time.time() - job.created > LONGEST_DAYS * 86_400]:
            self.remove(job)
            jobs.remove(job)
        return sorted(jobs, key=lambda job: job.created)

    def get(self, name: str) -> Job | None:
        """A job; None where it is done, by this run or another."""
        try:
            said: dict[str, Any] = json.loads(self.store.document(f"{self.folder}/{name}.json"))
            return Job(**{**said, "ids": tuple(said["ids"]), "not_ours": tuple(said["not_ours"])})
        except (FileMissing, FileDamaged, KeyError, TypeError):
            return None

    def keep(self, job: Job) -> Job:
        """Writes a job's record, whole or not at all."""
        self.store.put_document(f"{job.place}.json", json.dumps(asdict(job)).encode())
        return job

    def remove(self, job: Job) -> None:
        """Forgets a job: what it gave is in the store, or nobody wants it."""
        for suffix in (".json", ".parquet"):
            with suppress(FileMissing):
                self.store.remove(f"{job.place}{suffix}")

    @contextmanager
    def writing_rows(self, job: Job) -> Iterator[Callable[[Row], None]]:
        """Takes what came of a job, row by row; it is kept when the block ends well."""
        pending: list[Row] = []
        with self.store.writing_table(f"{job.place}.parquet", ROWS) as writer:

            def write() -> None:
                columns = {name: [getattr(row, name) for row in pending] for name in ROWS.names}
                writer.write_table(pa.table(columns, schema=ROWS))
                pending.clear()

            def add(row: Row) -> None:
                pending.append(row)
                if len(pending) == PORTION:
                    write()

            yield add
            write()

    def rows(self, names: Collection[str], ids: Collection[str]) -> dict[str, Row]:
        """What came of some requests in these jobs."""
        wanted, found = pa.array(ids, pa.string()), dict[str, Row]()
        for name in names:
            for batch in self._batches(f"{self.folder}/{name}.parquet"):
                own = batch.filter(pc.is_in(batch.column("id"), wanted))
                found |= {row["id"]: Row(**row) for row in own.to_pylist()}
        return found

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        with suppress(FileMissing, FileDamaged), self.store.open_table(name) as table:
            yield from table.file.iter_batches(PORTION)


def covered(jobs: Collection[Job]) -> Mapping[str, Job]:
    """The job of every request that one asks, or has asked."""
    return {id: job for job in jobs for id in job.ids}
