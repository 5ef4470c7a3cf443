"""The life of batches: what is unanswered is sent as few jobs, these are looked at until they have ended, and
what came of them is kept for the inference that takes it as replies.

Each function is short; who waits between them sleeps in the flow. A kill at any moment leaves a record in the
store, and ``send_jobs`` goes on from that: it looks for the job of an intent before it sends another. Runs
that want the same answers share the jobs.
"""

import asyncio
import random
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from tasks.models.answers.segments import AnswerStore
from tasks.models.batches.form import NOT_ASKED, BatchForm, JobStatus, SentFile, Sought
from tasks.models.batches.records import Job, JobRecords, batch_id, covered
from tasks.models.config import ModelConfig, Price
from tasks.models.connection import UNKNOWN_COMPLETION, Connection, open_connection
from tasks.models.control import check_interrupted, check_run
from tasks.models.errors import (
    AccessDenied,
    MalformedBody,
    ModelError,
    NotServed,
    Overloaded,
    PermanentError,
    RateLimited,
    RequestError,
    ServerFault,
    TransientError,
)
from tasks.models.limits.spending import CHARACTERS_A_TOKEN, Used, cost_of
from tasks.models.providers.provider import AskedProvider, provider_of
from tasks.models.records import Call, InferenceOptions, Lookup, Request
from tasks.models.respond import Inference
from tasks.store.claims import claim
from tasks.store.home import private_folder

if TYPE_CHECKING:
    from tasks.models.http import HttpTransport

CANCEL_SECONDS: Final = 900.0
"""How long a job may take to end after it was cancelled; OpenAI says ten minutes. So long after the time to
wait a provider that does not answer is asked for it."""
READINGS: Final = 3
"""How often results are read of which some can't be, before the others are taken: they may have been cut on
their way. So often in a row a job is looked for that the provider does not know."""
T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """What of a model is asked by jobs: their ``names``, how many ``requests`` they have and how many of
    these are ``done``, how many jobs are ``open``, since when is waited and until when (seconds since 1970).
    ``expired`` requests can be sent once more. ``said`` is what went wrong in the last look, ``commands``
    are what a person runs to have open jobs answered, ``left_out`` is why what the jobs do not ask or answer
    is not asked at all.
    """

    names: tuple[str, ...] = ()
    requests: int = 0
    done: int = 0
    open: int = 0
    since: float = 0.0
    until: float = 0.0
    expired: int = 0
    said: str | None = None
    commands: tuple[str, ...] = ()
    left_out: str | None = None


def send_jobs(
    model: ModelConfig,
    requests: Iterable[pa.RecordBatch],
    answers: AnswerStore,
    options: InferenceOptions,
    since: float | None = None,
) -> Waiting:
    """Sends what has no answer and is in no job yet; ``requests`` can be read more than once. ``since`` is
    when these were first sent, where that was before. Raises ModelError where the endpoint takes no batches,
    and StoreError."""
    batches = Batches.of(model, answers, options)
    inference = batches.inference
    # Who waits here finds the jobs of who was before.
    with claim(answers.store, f"batches/{batches.records.identity}"):
        missing = inference.find_missing(requests)
        check_run(options.run_id)
        groups = partial(inference.groups, requests)
        return asyncio.run(batches.send(missing, groups, since))


def look_at_jobs(
    model: ModelConfig, names: Sequence[str], answers: AnswerStore, options: InferenceOptions
) -> Waiting:
    """How far jobs are; the rows of those that have ended are kept. Raises ModelError for one that failed
    as a whole, and StoreError."""
    return asyncio.run(Batches.of(model, answers, options).look(names))


def close_jobs(
    model: ModelConfig, names: Sequence[str], answers: AnswerStore, options: InferenceOptions
) -> None:
    """Forgets jobs whose rows are all answers now; what others want of a job stays."""
    batches = Batches.of(model, answers, options)
    for job in filter(None, map(batches.records.get, names)):
        if batches.is_taken(job):
            batches.records.remove(job)


class NotOurs(Exception):
    """A job that was guessed turns out to be another's."""


@dataclass(frozen=True)
class Batches:
    """The jobs of one model."""

    provider: AskedProvider[Any]
    form: BatchForm
    records: JobRecords
    inference: Inference
    options: InferenceOptions
    wait: float

    @classmethod
    def of(cls, model: ModelConfig, answers: AnswerStore, options: InferenceOptions) -> "Batches":
        """Of a model whose config says ``batch``."""
        provider = provider_of(model, options.base_dir)
        assert isinstance(provider, AskedProvider), "it is asked"
        form = provider.batch_form
        assert form is not None, "checked when it is made"
        # A share of the limit between processes is for requests in flight: a job is none.
        options = replace(options, lease=None)
        inference = Inference.of(provider, answers, options)
        records = JobRecords(answers.store, inference.kept.identity)
        return cls(provider, form, records, inference, options, provider.config.batch.wait)

    @property
    def price(self) -> Price | None:
        """What tokens cost in a batch."""
        return None if self.options.price is None else self.options.price.of_batches()

    def is_taken(self, job: Job) -> bool:
        """Whether a job has ended and each of its replies is kept as an answer."""
        if not job.fetched:
            return False
        keys = self.records.paid_keys(job)
        kept = self.inference.kept
        lookup = Lookup(night=job.night, not_before=job.created, run=job.run)
        return all(kept.snapshot(lookup).holds(keys))

    async def send(
        self,
        missing: set[bytes],
        groups: Callable[[set[bytes]], Iterator[Sequence[Request]]],
        since: float | None,
    ) -> Waiting:
        """Takes up the jobs that there are, and sends the rest of the ``missing`` requests."""
        wanted = {batch_id(group) for group in groups(set(missing))}
        kept = self.records.all()
        for job in kept:
            # Of one that is wanted still, the requests that failed are asked alone.
            if wanted.isdisjoint(job.ids) and self.is_taken(job):
                self.records.remove(job)
        own = [job for job in kept if job.serves(self.options.lookup) and not wanted.isdisjoint(job.ids)]
        if not wanted:
            return Waiting()
        async with self._connected() as exchange:
            jobs = [found for job in own if (found := await exchange.taken_up(job)) is not None]
            if self._by_hand(jobs):  # nobody waits for them
                jobs = [job if job.fetched else (await exchange.looked_at(job))[0] for job in jobs]
            for job in jobs:
                self.inference.state.spending.promise(job.name, job.forecast(wanted, self.price))
            asked = covered(jobs)
            since = min((job.since for job in own), default=time.time()) if since is None else since
            left = (group for group in groups(set(missing)) if batch_id(group) not in asked)
            if len(wanted) > len(asked.keys() & wanted):
                jobs += [job async for job in exchange.sent(left, since)]
        waiting = self._waiting(jobs, said=exchange.said)
        return replace(waiting, left_out=exchange.left_out or waiting.left_out)

    async def look(self, names: Sequence[str]) -> Waiting:
        """Looks at each job that is open."""
        jobs, done, said = [], 0, None
        async with self._connected() as exchange:
            for name in names:
                if (job := self.records.get(name)) is None:
                    continue  # another run has taken its answers
                if not job.fetched:
                    try:
                        job, count = await exchange.looked_at(job)
                        done += 0 if job.fetched else count
                    except TransientError as error:
                        said = f"the last look failed: {error}"
                        if time.time() > job.since + self.wait + CANCEL_SECONDS:
                            job = self.records.keep(job.given_up())
                jobs.append(job)
        return self._waiting(jobs, done, said or exchange.said)

    def _waiting(self, jobs: Sequence[Job], done: int = 0, said: str | None = None) -> Waiting:
        fetched = [job for job in jobs if job.fetched]
        since = min((job.since for job in jobs), default=0.0)
        commands = self._by_hand(jobs)
        waits = not commands or time.time() <= since + self.wait
        return Waiting(
            names=tuple(job.name for job in jobs),
            requests=sum(job.count for job in jobs),
            done=done + sum(job.count for job in fetched),
            open=len(jobs) - len(fetched) if waits else 0,
            since=since,
            until=since + self.wait,
            expired=sum(job.count - len(job.ids) for job in fetched),
            said=said,
            commands=commands,
            left_out=self._left_to_others(commands) if jobs else None,
        )

    def _left_to_others(self, commands: Sequence[str]) -> str | None:
        """Why what the jobs did not answer is asked in no other way."""
        if commands:
            return f"not asked yet: run `{' && '.join(commands)}`, then run this again"
        return "not asked: the batch gave no answer; run again to send another" if self.form.by_hand else None

    def _by_hand(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        """The commands that a person runs for jobs that have not ended."""
        ids = [job.id for job in jobs if job.id is not None and not job.fetched]
        return tuple(filter(None, map(self.form.command, ids)))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["Exchange"]:
        async with open_connection(self.provider, self.options) as connection:
            http = self.provider.http(connection.served, 2)
            try:
                yield Exchange(self, connection, http)
            except (AccessDenied, NotServed, PermanentError) as error:
                raise ModelError(
                    f"model {self.provider.model.name!r}: {connection.served.base_url} refused a batch "
                    f"({error}); leave config.batch out to ask by single requests"
                ) from error
            except RequestError as error:
                raise ModelError(
                    f"model {self.provider.model.name!r}: what was asked about a batch got no "
                    f"answer from {connection.served.base_url} ({error}); run again to go on from there"
                ) from error
            finally:
                await http.close()


@dataclass
class Exchange:
    """The exchanges about one model's jobs with its provider; ``left_out`` says which limit left requests out
    of them, ``said`` what could not be read of them."""

    batches: Batches
    connection: Connection
    http: "HttpTransport"
    draw: random.Random = field(default_factory=random.Random)
    left_out: str | None = None
    said: str | None = None

    async def taken_up(self, job: Job) -> Job | None:
        """A job of an earlier run; an intent's is looked for. None where it was never made: then its record
        goes, too."""
        if job.id is not None or job.fetched:
            return job
        found = await self._with_retries(lambda: self.found(job))
        if found is None:
            self.batches.records.remove(job)
            return None
        return self.batches.records.keep(found)

    async def sent(self, groups: Iterator[Sequence[Request]], since: float) -> AsyncIterator[Job]:
        """Sends requests in as few jobs as the provider's limits allow, and as many requests as the run's
        do."""
        form, limits = self.batches.form, self.batches.inference.state
        with LocalFile(form, self.batches.options.journal_dir) as file:
            for codec, requests in await self.connection.prepare(groups):
                try:
                    calls = codec.calls(requests)
                except PermanentError:
                    continue  # asked alone it says what is wrong
                if len(calls) != 1:
                    continue
                id = batch_id(requests)
                line = form.line(id, calls[0])
                tokens = self._tokens(calls[0], len(requests))
                self.left_out = limits.limit_reached(self._used(file, *tokens))
                if self.left_out is not None:
                    break
                if not file.has_room(line):
                    yield await self._send(file, since)
                    file.clear()
                file.add(id, line, calls[0].path, *tokens)
                if len(requests) > 1:
                    file.first_keys[id] = requests[0].key.hex()
                check_interrupted()
            if file.ids:
                yield await self._send(file, since)

    def _tokens(self, call: Call, answers: int) -> tuple[int, int]:
        """Tokens of a call's prompt, by its characters, and of its answers, as many as they may have."""
        batches = self.batches
        longest = batches.provider.longest_answer(batches.options.sampling) or UNKNOWN_COMPLETION
        return (len(call.content) - call.media) // CHARACTERS_A_TOKEN, answers * longest

    def _used(self, file: "LocalFile", prompt: int, completion: int) -> Used:
        """What the job may use with one request more."""
        prompt, completion = file.prompt_tokens + prompt, file.completion_tokens + completion
        return Used(prompt + completion, cost_of(prompt, completion, 0, self.batches.price))

    async def _send(self, file: "LocalFile", since: float) -> Job:
        batches, records = self.batches, self.batches.records
        now = time.time()
        job = Job(
            uuid.uuid4().hex, records.identity, now, min(since, now), batches.options.night, tuple(file.ids),
            len(file.ids), file.path, first_keys=file.first_keys,
            prompt_tokens=file.prompt_tokens, completion_tokens=file.completion_tokens,
            run=batches.options.lookup.run,
        )  # fmt: skip
        batches.inference.state.spending.promise(job.name, job.forecast(job.ids, batches.price))
        job = records.keep(job)
        sent = SentFile(job.name, self.connection.served.model, job.path, file.whole())
        creation = Creation(self, job, sent)
        try:
            if batches.form.uploads:
                uploaded = await self._with_retries(lambda: batches.form.upload(self.http, sent))
                job, sent = records.keep(replace(job, file=uploaded)), replace(sent, file=uploaded)
                creation = Creation(self, job, sent)
            return records.keep(await self._with_retries(creation.attempt))
        except RequestError as error:
            if not creation.unclear or isinstance(error, AccessDenied | NotServed | PermanentError):
                records.remove(job)  # it was refused: there is none
            raise

    async def found(self, job: Job) -> Job | None:
        """The job that was made for an intent, if there is one."""
        form, others = self.batches.form, set(job.not_ours)
        if not form.marks:
            others |= self.batches.records.known_ids()
        sought = Sought(job.name, job.created, job.count, job.file, others)
        id = await form.find(self.http, sought)
        return None if id is None else replace(job, id=id, guessed=not form.marks)

    async def _with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Tries until it works, as the config says of retries."""
        start, attempts = time.monotonic(), 0
        while True:
            try:
                return await attempt()
            except TransientError as error:
                attempts += 1
                retry = self.connection.endpoint.retry
                wait = retry.wait(attempts, time.monotonic() - start, error, self.draw)
                if wait is None:
                    raise
                check_run(self.batches.options.run_id)
                await asyncio.sleep(wait)

    async def looked_at(self, job: Job) -> tuple[Job, int]:
        """The job, and how many of its requests are done. Its rows are kept once it has ended; after the time
        to wait it is cancelled, and what is answered is taken."""
        form, records = self.batches.form, self.batches.records
        if (id := job.id) is None:
            return job, 0
        try:
            status = await form.look(self.http, id)
        except NotServed as error:
            if not error.absent:
                raise
            job = records.keep(replace(job, unknown=job.unknown + 1))
            if job.unknown < READINGS and not form.by_hand:  # it is paid for, and may be there in a moment
                raise ServerFault(f"the provider does not know the batch {id} ({error})") from error
            self.said = f"the provider no longer knows the batch {id} ({error}); its requests are sent again"
            return records.keep(job.given_up()), job.count
        if job.unknown:
            job = records.keep(replace(job, unknown=0))
        if status.state == "ended":
            return await self._fetched(job, status), status.done
        if status.state == "failed":
            records.remove(job)
            raise ModelError(
                f"model {self.batches.provider.model.name!r}: the batch {job.id} failed: {status.said}; run "
                "again to send it once more, or leave config.batch out to ask by single requests"
            )
        now = time.time()
        if form.by_hand:
            return job, status.done
        if job.cancelled is None and now > job.since + self.batches.wait:
            if job.guessed:  # it may be another's
                return records.keep(job.given_up()), status.done
            with suppress(PermanentError):  # it has ended in this moment
                await form.cancel(self.http, id)
            return records.keep(replace(job, cancelled=now)), status.done
        if job.cancelled is not None and now > job.cancelled + CANCEL_SECONDS:
            return records.keep(job.given_up()), status.done
        return job, status.done

    async def _fetched(self, job: Job, status: JobStatus) -> Job:
        """Keeps the rows of a job that has ended, the first for each request; of another's job nothing.

        Raises MalformedBody where some can't be read, unless that was tried before and others can, and
        ModelError where they are refused: they are paid for, and the next run looks for them again.
        """
        records, ours, seen, asked = self.batches.records, frozenset(job.ids), set[str](), list[str]()
        unread = list[MalformedBody]()
        assert job.id is not None
        try:
            with records.writing_rows(job) as add:
                async for row in self.batches.form.rows(self.http, job.id, status):
                    if isinstance(row, MalformedBody):
                        unread.append(row)
                        continue
                    if row.id not in ours or row.id in seen:
                        continue  # nobody asked for it
                    seen.add(row.id)
                    if row.status != NOT_ASKED:
                        asked.append(row.id)
                        # What went wrong may become an error text; an answer stays as it came.
                        hidden = row.content if row.status == 200 else self.http.redaction.hide(row.content)
                        add(replace(row, content=hidden))
                if unread:
                    if records.keep(replace(job, unread=job.unread + 1)).unread < READINGS or not seen:
                        raise unread[0]
                    self.said = (
                        f"{len(unread):,} of the rows of the batch {job.id} can't be read ({unread[0]}); "
                        "what has none is asked again"
                    )
                if job.guessed and not seen:
                    raise NotOurs
        except NotOurs:
            other = replace(job, id=None, not_ours=(*job.not_ours, job.id), unread=0)
            late = time.time() > job.since + self.batches.wait
            found = None if late else await self.found(other)
            # Where there is none, it was never made, and all of it is asked again.
            return records.keep(found or other.given_up())
        except (AccessDenied, NotServed, PermanentError) as error:
            raise ModelError(
                f"model {self.batches.provider.model.name!r}: the results of the batch {job.id} can't be "
                f"fetched ({error}); run again when they can, or leave config.batch out to send single "
                "requests"
            ) from error
        return records.keep(replace(job, ids=tuple(asked), fetched=True))


class Creation:
    """Attempts to make a job. One of which nothing was heard may have made it: then it is looked for before
    the next attempt."""

    def __init__(self, exchange: Exchange, job: Job, sent: SentFile) -> None:
        self._exchange = exchange
        self._job = job
        self._sent = sent
        self.unclear = False

    async def attempt(self) -> Job:
        """One attempt; raises RequestError."""
        exchange, form = self._exchange, self._exchange.batches.form
        if self.unclear and (found := await exchange.found(self._job)) is not None:
            return found
        self.unclear = True
        try:
            id = await form.create(exchange.http, self._sent)
        except (RateLimited, Overloaded):
            # The server has not begun it. Without a mark, what is found now is somebody else's.
            self.unclear = form.marks
            raise
        return replace(self._job, id=id)


class LocalFile(AbstractContextManager["LocalFile"]):
    """A job's requests on their way: a file on this machine, within the limits of a form."""

    def __init__(self, form: BatchForm, folder: Path) -> None:
        self._form = form
        self._file = tempfile.NamedTemporaryFile(dir=private_folder(folder), suffix=".batch")  # noqa: SIM115
        self.clear()

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def clear(self) -> None:
        """Begins the next job's."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._form.opening)
        self.ids: list[str] = []
        self.first_keys: dict[str, str] = {}
        self.prompt_tokens = self.completion_tokens = 0
        self.path = ""

    def has_room(self, line: bytes) -> bool:
        """Whether a request goes into the job, too; the first one always does."""
        form = self._form
        size = self._file.tell() + len(form.between) + len(line) + len(form.closing)
        return not self.ids or (len(self.ids) < form.most_requests and size <= form.most_bytes)

    def add(self, id: str, line: bytes, path: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Takes a request that may use so many tokens."""
        self._file.write((self._form.between if self.ids else b"") + line)
        self.ids.append(id)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.path = path

    def whole(self) -> Path:
        """Where the file is, complete."""
        self._file.write(self._form.closing)
        self._file.flush()
        return Path(self._file.name)
