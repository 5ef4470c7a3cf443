"""Inference over a partition: what is missing is asked, and all its answers come back in request order.

Requests stream: keys are computed and looked up some thousands at a time, what is missing goes through the
engine's window, each answer is kept under its key, and the rows are then read from what is kept. Memory
holds an index of keys and what is in flight, never the partition's texts.
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
from tasks.models.answers.shelf import AnswerStore, ShelfView
from tasks.models.config import ModelConfig
from tasks.models.connecting import ServedIdentity, probe
from tasks.models.identity import Expansion, model_identity
from tasks.models.limits import ConcurrencyLimiter
from tasks.models.options import InferenceOptions, Progress, RequestTally, Responded, cost_of, spending_of
from tasks.models.records import Failure, Request
from tasks.models.work import Interrupted, Work, interrupted
from tasks.process import collect_rarely


class Spool:
    """Batches in a temporary file."""

    def __init__(self, batches: Iterator[pa.RecordBatch], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the spool)
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
    """The batches themselves if they can be read again, else a spool of them in ``folder``."""
    return Spool(batches, folder) if isinstance(batches, Iterator) else batches


EVERY_SECONDS = 0.5


class Reporter:
    """Calls ``progress`` with what ``work`` has come to."""

    def __init__(self, work: Work, expected: int | None, progress: Callable[[Progress], None]) -> None:
        self._work = work
        self._expected = expected
        self._progress = progress
        self._start = time.monotonic()
        self._last = self._start
        self.gate: ConcurrencyLimiter | None = None

    def tick(self) -> None:
        """Reports when it is time to."""
        if time.monotonic() - self._last >= EVERY_SECONDS:
            self.close()

    def close(self) -> None:
        """Reports now."""
        self._last = time.monotonic()
        seconds = max(1e-6, self._last - self._start)
        tally, failed = self._work.tally, len(self._work.failures)
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
                in_flight=self.gate.in_flight if self.gate else 0,
                concurrency=self.gate.limit if self.gate else 0,
                rate=rate,
                tokens_per_second=tally.total_tokens / seconds,
                cost=tally.cost,
                seconds_left=left,
            )
        )


__all__ = [
    "AnswerStore",
    "InferenceOptions",
    "Interrupted",
    "Progress",
    "RequestTally",
    "Responded",
    "ServedIdentity",
    "interrupted",
    "missing",
    "model_identity",
    "probe",
    "respond",
]  # fmt: skip

ROWS_AT_ONCE = 1_024
SAVED = ["prompt_tokens", "completion_tokens", "cached_tokens", "inference_time"]


def respond(
    model: ModelConfig,
    requests: Iterable[pa.RecordBatch],
    answers: AnswerStore,
    options: InferenceOptions,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Responded:
    """Asks the model for every answer that is not kept yet, and returns all of them as rows.

    ``requests`` are REQUESTS batches; an iterator that can be read only once is spooled to the journal
    folder. Nothing is contacted when nothing is missing. The tally is complete, what the cache saved
    excepted, which counts up while the batches are read. Raises StoreError when answers can't be kept,
    ModelError when the model can't be asked at all, and Interrupted.
    """
    if model.type == "replay":
        from tasks.models.replay import replayed

        return replayed(model, requests, options)
    source = rereadable(requests, options.journal_dir)
    expansion = Expansion.of(model, options.sampling, options.base_dir)
    shelf = answers.shelf(expansion.identity)
    restore(shelf, options.journal_dir)
    tally = RequestTally()
    started = time.monotonic()
    since = _since(options)
    missing = Missing(expansion, shelf.view(since), tally)
    first = next(units := missing.units(source), None)
    work = Work(
        AnswerWriter(shelf, options.journal_dir),
        tally,
        spending_of(options.run_id, options.limits),
        options.price,
    )
    if first is not None:
        collect_rarely()
        reporter = Reporter(work, options.expected, progress)
        asyncio.run(_ask(model, options, work, itertools.chain([first], units), reporter))
        collections.deque(units, maxlen=0)  # a run that stopped early still counts what it did not ask
    tally.wall_seconds = time.monotonic() - started
    tally.stopped = work.stopped
    rows = _rows(expansion, shelf.view(since), work, missing)
    return Responded(_closing(rows.batches(source), source), tally)


def missing(
    model: ModelConfig, requests: Iterable[pa.RecordBatch], answers: AnswerStore, options: InferenceOptions
) -> int:
    """How many requests ``respond`` would send, sending none."""
    if model.type == "replay":
        return 0
    expansion = Expansion.of(model, options.sampling, options.base_dir)
    shelf = answers.shelf(expansion.identity)
    restore(shelf, options.journal_dir)
    found = Missing(expansion, shelf.view(_since(options)), RequestTally())
    return sum(len(unit) for unit in found.units(requests))


class Missing:
    """Finds the requests without a kept answer; of equal ones only the first is asked."""

    def __init__(self, expansion: Expansion, kept: ShelfView, tally: RequestTally) -> None:
        self._expansion = expansion
        self._kept = kept
        self._tally = tally
        self.asked: set[bytes] = set()

    def units(self, source: Iterable[pa.RecordBatch]) -> Iterator[Sequence[Request]]:
        """Requests to send, those that go in one call together."""
        together = self._expansion.params.n or 1
        for batch in source:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                rows = list(self._expansion.rows(batch.slice(start, ROWS_AT_ONCE)))
                kept = iter(self._kept.holds([request.key for row in rows for request in row]))
                for row in rows:
                    wanted = [request for request in row if self._wanted(request, next(kept))]
                    size = together if row and row[0].kind == "generate" else 1
                    for at in range(0, len(wanted), size):
                        yield wanted[at : at + size]

    def _wanted(self, request: Request, kept: bool) -> bool:
        self._tally.requests += 1
        if kept or request.key in self.asked:
            self._tally.cached += 1
            return False
        self.asked.add(request.key)
        return True


async def _ask(
    model: ModelConfig,
    options: InferenceOptions,
    work: Work,
    units: Iterator[Sequence[Request]],
    reporter: Reporter,
) -> None:
    from tasks.models.connecting import connected  # loads aiohttp: only when something is asked
    from tasks.models.engine import Engine

    try:
        async with connected(model, options) as connection:
            reporter.gate = connection.endpoint.gate
            asked = await connection.prepared(units)
            await Engine(connection.endpoint, work).run(asked, reporter.tick)
    finally:
        try:
            await work.writer.close()
        except BaseException:
            work.writer.abandon()
            raise
        finally:
            reporter.close()


def _rows(expansion: Expansion, kept: ShelfView, work: Work, missing: Missing) -> ResponseRows:
    tally = work.tally
    tally.failed = tally.retryable = sum(not found for found in _held(kept, missing.asked))

    def count_saved(keys: Sequence[bytes], table: pa.Table, position: np.ndarray) -> None:
        cached = [
            at
            for at, key in zip(position.tolist(), keys, strict=True)
            if at >= 0 and key not in missing.asked
        ]
        counts = table.select(SAVED).take(pa.array(cached, pa.int64()))
        prompt, completion, hit, seconds = (
            sum(filter(None, column.to_pylist())) for column in counts.columns
        )
        tally.saved_tokens += prompt + completion
        tally.saved_seconds += seconds
        tally.saved_cost += cost_of(prompt, completion, hit, work.price)

    otherwise = Failure(work.stopped or "not asked: the run stopped before this request", 0)
    return ResponseRows(expansion, kept, work.failures, otherwise, count_saved)


def _held(kept: ShelfView, keys: Iterable[bytes]) -> Iterator[bool]:
    remaining = iter(keys)
    while portion := list(itertools.islice(remaining, 65_536)):
        yield from kept.holds(portion)


def _closing(batches: Iterator[pa.RecordBatch], source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    finally:
        if isinstance(source, Spool):
            source.close()


def _since(options: InferenceOptions) -> float:
    """When an answer must have arrived to count, in seconds since 1970."""
    return options.not_before or (time.time() if options.refresh else 0.0)
