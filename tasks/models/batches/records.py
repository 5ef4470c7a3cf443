"""The records of batches in the store: ``batches/<identity>/<name>.json`` for each job that is open, and
beside it the rows that came of it.

A record is written before its job is sent, as the intent to send it, and again with the job's id after that.
So a run that finds one without an id looks for the job before another is sent. A record goes when all that
its job gave is kept as answers; one of which a part is wanted by nobody goes after ``LONGEST_DAYS``.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tasks.models.batches.form import Row
from tasks.models.config import Price
from tasks.models.limits.spending import Used, cost_of
from tasks.models.records import Lookup, Request
from tasks.store.errors import FileDamaged, FileMissing
from tasks.store.storage import Store

FOLDER: Final = "batches"
SUFFIXES: Final = (".json", ".parquet")
"""Of a job's record and of the rows that came of it."""
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
    was asked for. ``guessed``: it was taken for ours by its time and its size, and may be another's until its
    rows say whose it is. ``unread`` is how many looks met rows of it that can't be read, ``unknown`` how many
    in a row the provider did not know it at. ``first_keys`` holds for each id that stands for several
    requests the first one's key. ``prompt_tokens`` and ``completion_tokens`` are what it may use, as
    estimated before it was sent. ``run`` is the one that sent it. All times are in seconds since 1970.
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
    guessed: bool = False
    unread: int = 0
    unknown: int = 0
    first_keys: Mapping[str, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    run: str | None = None

    def forecast(self, wanted: Collection[str], price: Price | None) -> Used:
        """What it may use for the requests that are ``wanted``, of those that it asks or has asked."""
        share = len(frozenset(self.ids).intersection(wanted)) / self.count
        prompt, completion = math.ceil(self.prompt_tokens * share), math.ceil(self.completion_tokens * share)
        return Used(prompt + completion, cost_of(prompt, completion, 0, price))

    @property
    def place(self) -> str:
        """Its record's name in the store, without a suffix."""
        return f"{FOLDER}/{self.identity}/{self.name}"

    def given_up(self) -> "Job":
        """As a job that has ended and asked nothing."""
        return replace(self, ids=(), fetched=True)

    def serves(self, lookup: Lookup) -> bool:
        """Whether what it gives may be used where these answers are looked for."""
        return lookup.serves(self.night, self.created, self.run)


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row, and when and in which night it was asked for."""

    row: Row
    asked_at: float
    night: str | None


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
        return self.read(self.store, f"{self.folder}/{name}.json")

    @staticmethod
    def read(store: Store, place: str) -> Job | None:
        """A record by its name in the store; None where it can't be read."""
        try:
            said: dict[str, Any] = json.loads(store.document(place))
            return Job(**{**said, "ids": tuple(said["ids"]), "not_ours": tuple(said["not_ours"])})
        except (FileMissing, FileDamaged, KeyError, TypeError, ValueError):
            return None

    def known_ids(self) -> set[str]:
        """The providers' ids of the jobs of all models."""
        places = [entry.name for entry in self.store.all_entries(FOLDER) if entry.name.endswith(".json")]
        jobs = filter(None, (self.read(self.store, place) for place in places))
        return {job.id for job in jobs if job.id is not None}

    def keep(self, job: Job) -> Job:
        """Writes a job's record, whole or not at all."""
        self.store.put_document(f"{job.place}.json", json.dumps(asdict(job)).encode())
        return job

    def remove(self, job: Job) -> None:
        """Forgets a job."""
        for suffix in SUFFIXES:
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

    def rows(self, names: Collection[str], ids: Collection[str]) -> dict[str, KeptRow]:
        """What came of some requests in these jobs."""
        wanted, found = pa.array(ids, pa.string()), dict[str, KeptRow]()
        for job in filter(None, map(self.get, names)):
            for batch in self._batches(f"{job.place}.parquet"):
                own = batch.filter(pc.is_in(batch.column("id"), wanted))
                found |= {row["id"]: KeptRow(Row(**row), job.created, job.night) for row in own.to_pylist()}
        return found

    def paid_keys(self, job: Job) -> list[bytes]:
        """The keys of a job's requests that were answered; of several in one call the first one's."""
        paid: list[str] = []
        for batch in self._batches(f"{job.place}.parquet"):
            paid += batch.filter(pc.equal(batch.column("status"), 200)).column("id").to_pylist()
        return [bytes.fromhex(job.first_keys.get(id, id)) for id in paid]

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        with suppress(FileMissing, FileDamaged), self.store.open_table(name) as table:
            yield from table.file.iter_batches(PORTION)


def covered(jobs: Collection[Job]) -> Mapping[str, Job]:
    """The job of every request that one asks, or has asked."""
    return {id: job for job in jobs for id in job.ids}
