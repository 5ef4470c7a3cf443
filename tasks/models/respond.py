"""Obtains the responses of a partition: asks the model for every answer that is not kept yet.

Requests stream: their keys are computed and looked up some thousands at a time, what is missing is claimed
and goes through the engine (what another worker is asking for is waited for), each answer is kept under its
key, and the rows are then read from the kept answers in request order. Memory holds an index of keys and what
is in flight, never the partition's texts. The infer stage enters by ``respond``, the forecast by
``count_missing`` and ``kept_responses``, the check of a cached record by ``given_answers``.
"""

import asyncio
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.datasets.item import RequestKind
from tasks.models.answers.first import FirstAnswers
from tasks.models.answers.journal import AnswerWriter, restore
from tasks.models.answers.rows import ResponseRows
from tasks.models.answers.segments import (
    AnswerSnapshot,
    AnswerStore,
    ClaimedKeys,
    DamagedAnswers,
    ModelAnswers,
    claim_keys,
)
from tasks.models.batches.records import JobRecords, KeptRow, batch_id
from tasks.models.config import ModelConfig
from tasks.models.connection import open_connection
from tasks.models.control import check_interrupted, control_of
from tasks.models.engine import Engine, InferenceState, RequestGroup
from tasks.models.identity import RequestExpansion
from tasks.models.limits.limiters import ConcurrencyLimiter
from tasks.models.limits.spending import NOTHING, spending_of
from tasks.models.progress import Progress
from tasks.models.providers.provider import AskedProvider, provider_of
from tasks.models.records import Codec, InferenceOptions, Lookup, Request, RequestFailure
from tasks.models.tally import (
    GivenAnswers,
    PartitionResponses,
    RequestTally,
    asked_characters,
    note_spent,
)
from tasks.models.wire import Wire
from tasks.processes.garbage import collect_rarely
from tasks.store.home import private_folder
from tasks.store.thresholds import Threshold

ROWS_AT_ONCE = Threshold("rows_asked", 1_024)
REPORT_SECONDS = 0.5


def respond(
    model: ModelConfig,
    requests: Iterable[pa.RecordBatch],
    answers: AnswerStore,
    options: InferenceOptions,
    progress: Callable[[Progress], None] = lambda _: None,
) -> PartitionResponses:
    """Asks the model for every answer that is not kept yet, and returns all of them as rows.

    ``requests`` are REQUESTS batches; an iterator that can be read only once is spilled to the journal
    folder. Nothing is contacted when nothing is missing. The tally is complete, what the cache saved
    excepted, which counts up while the batches are read. Raises StoreError when answers can't be kept,
    ModelError when the model can't be asked at all, and Interrupted.
    """
    provider = provider_of(model, options.base_dir)
    if isinstance(provider, AskedProvider):
        source = rereadable(requests, options.journal_dir)
        return Inference.of(provider, answers, options).respond(source, progress)
    return provider.responses(requests, options)


class MissingRequests(NamedTuple):
    """Requests without an answer: those that would be sent, others ``equal`` to one of them, and those that
    can't be asked."""

    sent: int
    equal: int = 0
    unaskable: int = 0


def count_missing(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], answers: AnswerStore, options: InferenceOptions
) -> MissingRequests:
    """How many requests ``respond`` would send, sending none."""
    provider = provider_of(model, options.base_dir)
    if not isinstance(provider, AskedProvider):
        return MissingRequests(0)
    inference = Inference.of(provider, answers, options)
    sent = len(inference.find_missing(requests))
    return MissingRequests(sent, inference.equal, len(inference.unaskable))


def kept_responses(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], answers: AnswerStore, options: InferenceOptions
) -> tuple[MissingRequests, Iterator[pa.RecordBatch]]:
    """How many requests ``respond`` would send, and the rows of what is kept, sending none: a request without
    an answer has a row with status infra_error."""
    provider = provider_of(model, options.base_dir)
    if not isinstance(provider, AskedProvider):
        return MissingRequests(0), iter(provider.responses(requests, options).batches)
    source = rereadable(requests, options.journal_dir)
    inference = Inference.of(provider, answers, options)
    missing = inference.find_missing(source)
    rows = inference.rows(missing, GivenAnswers()).batches(source)
    lacking = MissingRequests(len(missing), inference.equal, len(inference.unaskable))
    return lacking, _closing(rows, source)


def given_answers(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], answers: AnswerStore, options: InferenceOptions
) -> str:
    """Digest of the answers that ``respond`` would give now without asking: ``PartitionResponses.given``."""
    given, provider = GivenAnswers(), provider_of(model, options.base_dir)
    if isinstance(provider, AskedProvider):
        inference = Inference.of(provider, answers, options)
        snapshot = inference.snapshot()
        for rows in inference.expanded(requests):
            given.add(snapshot.asked_at([request.key for row in rows for request in row]))
    return given.hexdigest()


@dataclass
class Inference:
    """One partition's requests to one model: which answers are kept, and what asking for the others came to.

    ``asked`` are the keys of the requests that were handed to the engine; ``equal`` counts the requests
    without an answer that repeat another one; ``unaskable`` are those that can't be asked, and why.
    """

    provider: AskedProvider[Any]
    options: InferenceOptions
    expansion: RequestExpansion
    kept: ModelAnswers
    lookup: Lookup
    state: InferenceState
    asked: set[bytes] = field(default_factory=set)
    equal: int = 0
    unaskable: dict[bytes, str] = field(default_factory=dict)

    @classmethod
    def of(cls, provider: AskedProvider[Any], answers: AnswerStore, options: InferenceOptions) -> "Inference":
        """Nothing looked up and nothing asked yet."""
        expansion = RequestExpansion.of(provider.model, options.sampling, provider.base_dir)
        kept = answers.of_model(expansion.identity)
        check = provider.model.check_weights
        state = InferenceState(
            AnswerWriter(kept, options.journal_dir, options.night, options.asker, check),
            RequestTally(),
            spending_of(options.account, options.limits),
            options.price,
            control_of(options.run_id),
        )
        lookup = replace(options.lookup, not_before=time.time()) if options.refresh else options.lookup
        return cls(provider, options, expansion, kept, lookup, state)

    def respond(
        self, source: Iterable[pa.RecordBatch], progress: Callable[[Progress], None]
    ) -> PartitionResponses:
        """Asks for what is missing; see the function of this name."""
        started = time.monotonic()
        wanted = self.find_missing(source)
        if wanted:
            collect_rarely()
        try:
            self.ask_all(source, wanted, progress)
        except Exception as error:
            note_spent(error, self.state.tally)
            raise
        self.state.tally.wall_seconds = time.monotonic() - started
        self.state.tally.stopped = self.state.stopped
        given = GivenAnswers()
        rows = self.rows(wanted, given)
        return PartitionResponses(_closing(rows.batches(source), source), self.state.tally, given)

    def ask_all(
        self, source: Iterable[pa.RecordBatch], wanted: set[bytes], progress: Callable[[Progress], None]
    ) -> None:
        """Asks for what is ``wanted``, and waits for what others ask for."""
        left = wanted
        while left:  # a second time only where the claim was lost
            with claim_keys(self.kept, left, self.lookup.night) as claimed:
                # Looked up once more: somebody may have answered, and left, just before the claim was made.
                own, left = self.still_missing(left - claimed.others), set[bytes]()
                left |= self.ask(source, own, claimed, progress)
                if claimed.others and claimed.wait(self.may_go_on):
                    left |= self.ask(source, self.still_missing(claimed.others), claimed, progress)

    def codec_of(self, kind: RequestKind) -> Codec:
        """What reads the replies to requests of a kind, kept ones too."""
        return self.provider.codec(kind, self.options.sampling)

    def snapshot(self) -> AnswerSnapshot:
        """The kept answers that serve now."""
        return self.kept.snapshot(self.lookup)

    def expanded(self, source: Iterable[pa.RecordBatch]) -> Iterator[list[list[Request]]]:
        """The requests of each row, some thousand rows at a time."""
        for batch in source:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield list(self.expansion.rows(batch.slice(start, ROWS_AT_ONCE)))

    def find_missing(self, source: Iterable[pa.RecordBatch]) -> set[bytes]:
        """Keys of the requests without an answer; the others, and repeats, count as cached."""
        restore(self.kept, self.options.journal_dir)
        kept, tally = self.snapshot(), self.state.tally
        missing: set[bytes] = set()
        for rows in self.expanded(source):
            keys = [request.key for row in rows for request in row if request.error is None]
            unaskable = {one.key: one.error for row in rows for one in row if one.error is not None}
            self.unaskable |= unaskable
            tally.requests += len(keys) + len(unaskable)
            before = len(missing)
            lacking = [key for key, there in zip(keys, kept.holds(keys), strict=True) if not there]
            missing.update(lacking)
            self.equal += len(lacking) - (len(missing) - before)
            tally.cached += len(keys) - (len(missing) - before)
        return missing

    def still_missing(self, keys: set[bytes]) -> set[bytes]:
        """Those of ``keys`` that have no answer by now either; the others count as cached."""
        # Who has held them may have been killed, or could not store what it was answered.
        restore(self.kept, self.options.journal_dir)
        ordered = list(keys)
        there = zip(ordered, _found(self.snapshot(), ordered), strict=True)
        lacking = {key for key, found in there if not found}
        self.state.tally.cached += len(keys) - len(lacking)
        return lacking

    def ask(
        self,
        source: Iterable[pa.RecordBatch],
        keys: set[bytes],
        claimed: ClaimedKeys,
        progress: Callable[[Progress], None],
    ) -> set[bytes]:
        """Asks for the answers to these requests as long as they are ``claimed``; gives what it left."""
        left = set[bytes]()
        if keys:
            self._count_earlier(source, keys)
            self.asked |= keys
            if self.state.first is None:
                sampled = self.expansion, self.codec_of, source, keys, self.snapshot, self.state.failures
                self.state.first = FirstAnswers(*sampled)
            reporter = ProgressReporter(self.state, progress)
            batched = self._batched(source, keys)
            groups = self.groups(source, set(keys))
            claim = HeldClaim(claimed, left)
            asyncio.run(_ask(self.provider, self.options, self.state, groups, batched, claim, reporter))
            self.asked -= left
        return left

    def _count_earlier(self, source: Iterable[pa.RecordBatch], missing: set[bytes]) -> None:
        """Counts against the limits what a process that was killed had spent on these requests."""
        asker, spending = self.options.asker, self.state.spending
        if (
            asker is None
            or asker in self.options.counted
            or not spending.begins(asker)
            or not self.state.tally.cached
        ):
            return
        earlier = RequestTally()
        counted = KeptCounts(self.options, earlier, GivenAnswers(), set(), missing)
        lacking = RequestFailure("not asked yet", 0)
        rows = ResponseRows(self.expansion, self.codec_of, self.snapshot(), {}, lacking, counted.add)
        with suppress(DamagedAnswers):  # what was lost is asked for again, and counts then
            for _ in rows.batches(source):
                pass
        spending.add(counted.used.tokens, counted.used.cost)
        spending.began(counted.began)
        self.state.is_over()

    def _batched(self, source: Iterable[pa.RecordBatch], keys: set[bytes]) -> dict[str, KeptRow]:
        """What came of these requests in batches."""
        for name in self.options.batches:  # from here on counts what they have used
            self.state.spending.release(name)
        if not self.options.batches:
            return {}
        ids = [batch_id(group) for group in self.groups(source, set(keys))]
        return JobRecords(self.kept.store, self.kept.identity).rows(self.options.batches, ids)

    def groups(self, source: Iterable[pa.RecordBatch], keys: set[bytes]) -> Iterator[Sequence[Request]]:
        """The requests with these keys, each once; those that go in one call as a group."""
        together = self.expansion.params.n or 1
        for rows in self.expanded(source):
            for row in rows:
                size = together if row and row[0].kind == "generate" else 1
                group: list[Request] = []
                for request in row:
                    if not _taken(keys, request.key):
                        continue
                    if group and (len(group) == size or not _continues(group[-1], request)):
                        yield group
                        group = []
                    group.append(request)
                if group:
                    yield group

    def may_go_on(self) -> bool:
        """Whether waiting for others is worth it: not where a limit is reached or the endpoint is dead.

        Raises Interrupted.
        """
        check_interrupted()
        self.state.control.check()
        return not self.state.is_over()

    def rows(self, wanted: set[bytes], given: GivenAnswers) -> ResponseRows:
        """Makes rows of what is kept now, told to ``given``; ``wanted`` were missing at first."""
        kept, state, ordered = self.snapshot(), self.state, list(wanted)
        there = zip(ordered, _found(kept, ordered), strict=True)
        unanswered = {key for key, found in there if not found}
        state.tally.failed = state.tally.retryable = len(unanswered)
        for key, error in self.unaskable.items():
            state.failures[key] = RequestFailure(error, 0)
            state.tally.failed += 1
            state.tally.count_error(error)
        otherwise = RequestFailure(state.stopped or "not asked: the run stopped before this request", 0)
        counted = KeptCounts(self.options, state.tally, given, self.asked, unanswered | self.unaskable.keys())
        return ResponseRows(self.expansion, self.codec_of, kept, state.failures, otherwise, counted.add)


class KeptCounts:
    """Counts answers that were kept before, and notes which were given, while rows are made of them.

    Only those of ``unanswered`` may be missing by now.
    """

    def __init__(
        self,
        options: InferenceOptions,
        tally: RequestTally,
        given: GivenAnswers,
        asked: set[bytes],
        unanswered: set[bytes],
    ) -> None:
        self._options = options
        self._tally = tally
        self._given = given
        self._asked = asked
        self._unanswered = unanswered
        self._repeated: set[bytes] = set()
        self.used = NOTHING
        """What a process that was killed has used."""
        self.began = math.inf
        """When a process that was killed asked its first single request, in seconds since 1970. A batch was
        asked before the run waited for it."""

    def add(self, requests: Sequence[Request], table: pa.Table, there: np.ndarray) -> None:
        """Takes a portion: requests, a row of answer for each, and whether it is there.

        Raises DamagedAnswers for an answer that was there when it was looked up.
        """
        keys = [request.key for request in requests]
        if lost := {keys[at] for at in np.flatnonzero(~there).tolist()} - self._unanswered:
            raise DamagedAnswers(
                f"{len(lost)} kept answers were removed from the store before they were read; "
                "run again: it asks for them"
            )
        asked_at = np.full(len(keys), np.nan)
        asked_at[there] = table.column("asked_at").to_numpy()[there]
        self._given.add(asked_at)
        nights, askers = table.column("night").to_pylist(), table.column("asker").to_pylist()
        reused: list[int] = []
        for at in np.flatnonzero(there).tolist():
            key = keys[at]
            if key not in self._asked and askers[at] in self._options.counted:
                self._tally.recognise(table.slice(at, 1))
                self._asked.add(key)
            if key not in self._asked and askers[at] is not None and askers[at] == self._options.asker:
                answer = table.slice(at, 1)
                (asked,) = asked_characters([requests[at]])
                self.used += self._tally.take_over(answer, self._options.price, asked)
                if answer["inference_time"][0].is_valid:
                    self.began = min(self.began, float(asked_at[at]))
                self._asked.add(key)
            if key not in self._asked:
                reused.append(at)
                self._tally.same_night += nights[at] is not None and nights[at] == self._options.night
            else:
                self._tally.same_night += key in self._repeated
                self._repeated.add(key)
        unreadable = table.column("status").to_pylist().count("infra_error")
        self._tally.failed += unreadable
        self._tally.retryable += unreadable
        if reused:
            self._tally.count_reused(table.take(pa.array(reused, pa.int64())), self._options.price)


def _continues(last: Request, request: Request) -> bool:
    """Whether a request has the seed that a server counts on to, where it has one: behind a gap it would be
    drawn with the seed of a sample that is there."""
    return request.seed is None or last.seed is None or request.seed == last.seed + 1


def _taken(keys: set[bytes], key: bytes) -> bool:
    """Takes a key out; whether it was there."""
    if key not in keys:
        return False
    keys.remove(key)
    return True


@dataclass
class HeldClaim:
    """What is asked under a claim: ``left`` are the keys of requests that nobody had begun when it was
    lost."""

    claimed: ClaimedKeys
    left: set[bytes]

    def while_held(self, groups: Iterator[RequestGroup]) -> Iterator[RequestGroup]:
        """The groups that come before the claim is lost."""
        for group in groups:
            if self.claimed.lost:
                self.left.update(request.key for request in group[1])
            else:
                yield group


class ProgressReporter:
    """Tells how far the inference is, twice a second."""

    def __init__(self, state: InferenceState, progress: Callable[[Progress], None]) -> None:
        self._state = state
        self._progress = progress
        self._start = time.monotonic()
        self._last = self._start
        self.limiter: ConcurrencyLimiter | None = None

    def tick(self) -> None:
        """Reports when it is time to."""
        if time.monotonic() - self._last >= REPORT_SECONDS:
            self.close()

    def close(self) -> None:
        """Reports now."""
        self._last = time.monotonic()
        seconds = max(1e-6, self._last - self._start)
        tally, failed = self._state.tally, len(self._state.failures)
        answered = tally.answered
        rate = (answered + failed) / seconds
        done = tally.cached + answered + failed
        left = max(0, tally.requests - done) / rate if rate else None
        self._progress(
            Progress(
                done=done,
                expected=tally.requests,
                cached=tally.cached,
                failed=failed,
                retries=tally.retries,
                in_flight=self.limiter.in_flight if self.limiter else 0,
                concurrency=self.limiter.limit if self.limiter else 0,
                rate=rate,
                tokens_per_second=tally.total_tokens / seconds,
                tokens=tally.total_tokens,
                cost=tally.cost,
                seconds_left=left,
                first=self._state.first.settled if self._state.first else None,
            )
        )


async def _ask(
    provider: AskedProvider[Any],
    options: InferenceOptions,
    state: InferenceState,
    groups: Iterator[Sequence[Request]],
    batched: dict[str, KeptRow],
    claim: HeldClaim,
    reporter: ProgressReporter,
) -> None:
    try:
        async with open_connection(provider, options) as connection:
            reporter.limiter = connection.endpoint.concurrency
            engine, prepared = Engine(connection.endpoint, state), await connection.prepare(groups)
            if batched:
                prepared = await engine.take(prepared, batched, provider.wire() or Wire())
            if options.left_out is not None and (rest := next(prepared, None)) is not None:
                state.stopped, prepared = options.left_out, iter((rest,))
            await engine.run(claim.while_held(prepared), reporter.tick)
    finally:
        try:
            await state.writer.close()
        except BaseException:
            state.writer.abandon()
            raise
        finally:
            reporter.close()


def _found(kept: AnswerSnapshot, keys: Iterable[bytes]) -> Iterator[bool]:
    remaining = iter(keys)
    while portion := list(itertools.islice(remaining, 65_536)):
        yield from kept.holds(portion)


def _closing(batches: Iterator[pa.RecordBatch], source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    finally:
        if isinstance(source, SpilledBatches):
            source.close()


class SpilledBatches:
    """Batches that can be read only once, spilled to a temporary file so that they can be read again."""

    def __init__(self, batches: Iterator[pa.RecordBatch], folder: Path) -> None:
        private_folder(folder)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the batches)
        writer = None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(self._file, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
        self._empty = writer is None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._empty:
            return
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Gives the disk space back."""
        self._file.close()


def rereadable(batches: Iterable[pa.RecordBatch], folder: Path) -> Iterable[pa.RecordBatch]:
    """The batches themselves if they can be read again, else a copy of them spilled to ``folder``."""
    return SpilledBatches(batches, folder) if isinstance(batches, Iterator) else batches
