"""Obtains the responses of a partition: asks the model for every answer that is not kept yet.

Requests stream: their keys are computed and looked up some thousands at a time, what is missing goes through
the engine, each answer is kept under its key, and the rows are then read from the kept answers in request
order. Memory holds an index of keys and what is in flight, never the partition's texts. The infer stage
enters by ``respond``, the forecast by ``count_missing``.
"""

import asyncio
import collections
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.models.answers.journal import AnswerWriter, restore
from tasks.models.answers.rows import ResponseRows
from tasks.models.answers.segments import AnswerSnapshot, AnswerStore
from tasks.models.config import ModelConfig
from tasks.models.connection import open_connection
from tasks.models.engine import Engine, InferenceState
from tasks.models.identity import RequestExpansion
from tasks.models.limits import ConcurrencyLimiter
from tasks.models.options import (
    InferenceOptions,
    PartitionResponses,
    Progress,
    RequestTally,
    cost_of,
    spending_of,
)
from tasks.models.records import Request, RequestFailure
from tasks.process import collect_rarely

ROWS_AT_ONCE = 1_024
REPORT_SECONDS = 0.5
SAVED_COLUMNS = ["prompt_tokens", "completion_tokens", "cached_tokens", "inference_time"]


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
    if model.type == "replay":
        from tasks.models.replay import replayed

        return replayed(model, requests, options)
    source = rereadable(requests, options.journal_dir)
    expansion = RequestExpansion.of(model, options.sampling, options.base_dir)
    kept = answers.of_model(expansion.identity)
    restore(kept, options.journal_dir)
    tally = RequestTally()
    started = time.monotonic()
    since = _since(options)
    missing = MissingRequests(expansion, kept.snapshot(*since), tally)
    first = next(groups := missing.groups(source), None)
    state = InferenceState(
        AnswerWriter(kept, options.journal_dir),
        tally,
        spending_of(options.run_id, options.limits),
        options.price,
    )
    if first is not None:
        collect_rarely()
        reporter = ProgressReporter(state, options.expected, progress)
        asyncio.run(_ask(model, options, state, itertools.chain([first], groups), reporter))
        collections.deque(groups, maxlen=0)  # a run that stopped early still counts what it did not ask
    tally.wall_seconds = time.monotonic() - started
    tally.stopped = state.stopped
    rows = _rows(expansion, kept.snapshot(*since), state, missing)
    return PartitionResponses(_closing(rows.batches(source), source), tally)


def count_missing(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], answers: AnswerStore, options: InferenceOptions
) -> int:
    """How many requests ``respond`` would send, sending none."""
    if model.type == "replay":
        return 0
    expansion = RequestExpansion.of(model, options.sampling, options.base_dir)
    kept = answers.of_model(expansion.identity)
    restore(kept, options.journal_dir)
    found = MissingRequests(expansion, kept.snapshot(*_since(options)), RequestTally())
    return sum(len(group) for group in found.groups(requests))


class MissingRequests:
    """Finds the requests without a kept answer, of equal ones only the first; ``keys`` are theirs."""

    def __init__(self, expansion: RequestExpansion, kept: AnswerSnapshot, tally: RequestTally) -> None:
        self._expansion = expansion
        self._kept = kept
        self._tally = tally
        self.keys: set[bytes] = set()

    def groups(self, source: Iterable[pa.RecordBatch]) -> Iterator[Sequence[Request]]:
        """Requests to send, those that go in one call as a group."""
        together = self._expansion.params.n or 1
        for batch in source:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                rows = list(self._expansion.rows(batch.slice(start, ROWS_AT_ONCE)))
                kept = iter(self._kept.holds([request.key for row in rows for request in row]))
                for row in rows:
                    lacking = [request for request in row if self._is_missing(request, next(kept))]
                    size = together if row and row[0].kind == "generate" else 1
                    for at in range(0, len(lacking), size):
                        yield lacking[at : at + size]

    def _is_missing(self, request: Request, kept: bool) -> bool:
        self._tally.requests += 1
        if kept or request.key in self.keys:
            self._tally.cached += 1
            return False
        self.keys.add(request.key)
        return True


class ProgressReporter:
    """Tells how far the inference is, twice a second."""

    def __init__(
        self, state: InferenceState, expected: int | None, progress: Callable[[Progress], None]
    ) -> None:
        self._state = state
        self._expected = expected
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
        left = None if self._expected is None or not rate else max(0, self._expected - done) / rate
        self._progress(
            Progress(
                done=done,
                expected=self._expected,
                cached=tally.cached,
                failed=failed,
                model_errors=tally.model_errors,
                retries=tally.retries,
                in_flight=self.limiter.in_flight if self.limiter else 0,
                concurrency=self.limiter.limit if self.limiter else 0,
                rate=rate,
                tokens_per_second=tally.total_tokens / seconds,
                tokens=tally.total_tokens,
                cost=tally.cost,
                seconds_left=left,
            )
        )


async def _ask(
    model: ModelConfig,
    options: InferenceOptions,
    state: InferenceState,
    groups: Iterator[Sequence[Request]],
    reporter: ProgressReporter,
) -> None:
    try:
        async with open_connection(model, options) as connection:
            reporter.limiter = connection.endpoint.concurrency
            await Engine(connection.endpoint, state).run(await connection.prepare(groups), reporter.tick)
    finally:
        try:
            await state.writer.close()
        except BaseException:
            state.writer.abandon()
            raise
        finally:
            reporter.close()


def _rows(
    expansion: RequestExpansion, kept: AnswerSnapshot, state: InferenceState, missing: MissingRequests
) -> ResponseRows:
    tally = state.tally
    tally.failed = tally.retryable = sum(not found for found in _found(kept, missing.keys))

    def count_saved(keys: Sequence[bytes], table: pa.Table, position: np.ndarray) -> None:
        cached = [
            at for at, key in zip(position.tolist(), keys, strict=True) if at >= 0 and key not in missing.keys
        ]
        counts = table.select(SAVED_COLUMNS).take(pa.array(cached, pa.int64()))
        prompt, completion, hit, seconds = (
            sum(filter(None, column.to_pylist())) for column in counts.columns
        )
        tally.saved_tokens += prompt + completion
        tally.saved_seconds += seconds
        tally.saved_cost += cost_of(prompt, completion, hit, state.price)

    otherwise = RequestFailure(state.stopped or "not asked: the run stopped before this request", 0)
    return ResponseRows(expansion, kept, state.failures, otherwise, count_saved)


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


def _since(options: InferenceOptions) -> tuple[float, float]:
    """When an answer must have arrived to count, and when an error of the model, in seconds since 1970."""
    return options.not_before or (time.time() if options.refresh else 0.0), options.failed_before


class SpilledBatches:
    """Batches that can be read only once, spilled to a temporary file so that they can be read again."""

    def __init__(self, batches: Iterator[pa.RecordBatch], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
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
