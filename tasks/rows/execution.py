"""Programs of a partition: run as many at once as there are cores, each different one once, and kept; and
what a benchmark's own function asks about programs, and is told.

An outcome is kept under a key of the program, its tests, its limits and the interpreter: an equal program
runs once, no matter who wrote it and how often it is asked about. It is in the journal before it counts, so
that after a kill only those in flight run again. What a sandbox failed at is not kept.

A benchmark's function is called once for each row while its questions are collected (``asked_by_row``),
so that it is known which row waits for which program; ``AskedVerdicts`` answers it. A row one of whose
programs the sandbox could not run is unscored.
"""

import hashlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from metrics.errors import NightjarError
from metrics.metric import Metric
from scorers.base import Batch, SampleScores, Scorer
from scorers.config import Program, ProgramOutcome
from tasks.models.answers.journal import FLUSH_SECONDS, Journal, encode, restore
from tasks.models.answers.segments import AnswerStore, ModelAnswers, Segment
from tasks.models.records import KeptAnswer, Lookup
from tasks.sandboxes.interpreters import interpreter_at
from tasks.sandboxes.judges import end_free_judges
from tasks.sandboxes.kinds import Sandbox
from tasks.sandboxes.run import VERSION, run_program
from tasks.store.keys import canonical_json, digest
from tasks.store.storage import ArtifactRef, Store
from tasks.usercode.evaluate import Asked, CodeVerdict, collecting
from tasks.usercode.surroundings import stand_ins

CORES: Final = os.cpu_count() or 1
_cores = threading.BoundedSemaphore(CORES)
"""Programs that run at once in this process, whatever partitions they are of."""


def program_key(program: Program) -> bytes:
    """What the outcome of a program depends on, 32 bytes; raises SandboxError for an interpreter that is not
    there."""
    texts = [program.text, *(program.inputs or ()), *program.expected]
    about = {
        "sandbox": VERSION,
        "interpreter": interpreter_at(program.interpreter).about,
        "limits": program.limits.model_dump(mode="json"),
        "compare": program.compare,
        "cases": None if program.inputs is None else len(program.inputs),
        "script": program.script,
        "lengths": [len(text) for text in texts],
    }
    total = hashlib.sha256(canonical_json(about))
    for text in texts:
        total.update(text.encode("utf-8", "surrogatepass"))  # models write halves of characters, too
    return total.digest()


@dataclass(frozen=True)
class RunnerProgress:
    """How many programs are through, how many of those were known, and how many the sandbox failed at."""

    done: int
    cached: int
    failed: int


class ProgramRunner(AbstractContextManager["ProgramRunner"]):
    """Runs the programs of one partition, batch by batch; as a context manager it keeps what it learned."""

    def __init__(
        self,
        kept: "OutcomeStore",
        sandbox: Callable[[], Sandbox],
        report: Callable[[RunnerProgress], None] = lambda _: None,
    ) -> None:
        self._kept = kept
        self._sandbox = sandbox
        self._report = report
        self._done = self._cached = self._failed = 0

    def __exit__(self, *_: object) -> None:
        end_free_judges()
        self._kept.close()

    def run(self, programs: Sequence[Program | None]) -> list[ProgramOutcome | None]:
        """Beside each program its outcome; None beside None. Raises StoreError where nothing can be kept, and
        SandboxError where no sandbox works here."""
        keys = [None if program is None else program_key(program) for program in programs]
        wanted = {
            key: program for key, program in zip(keys, programs, strict=True) if key is not None and program
        }
        known = self._kept.find(list(wanted))
        self._cached += len(known)
        self._count(len(known))
        missing = {key: program for key, program in wanted.items() if key not in known}
        for key, outcome in self._execute(missing):
            known[key] = outcome
            self._failed += outcome.verdict == "sandbox_error"
            self._count(1)
        return [None if key is None else known[key] for key in keys]

    def _count(self, more: int) -> None:
        self._done += more
        self._report(RunnerProgress(self._done, self._cached, self._failed))

    def _execute(self, programs: dict[bytes, Program]) -> Iterator[tuple[bytes, ProgramOutcome]]:
        if not programs:
            return
        sandbox, waiting = self._sandbox(), iter(programs.items())
        stopped = threading.Event()

        def one(key: bytes, program: Program) -> tuple[bytes, ProgramOutcome] | None:
            with _cores:
                if stopped.is_set():
                    return None
                outcome = run_program(program, sandbox)
            if outcome.verdict != "sandbox_error":
                self._kept.keep(key, outcome)
            return key, outcome

        pool = ThreadPoolExecutor(CORES, thread_name_prefix="programs")
        running: set[Future[tuple[bytes, ProgramOutcome] | None]] = set()
        try:
            while True:
                while len(running) < 2 * CORES and (entry := next(waiting, None)) is not None:
                    running.add(pool.submit(one, *entry))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    if (found := future.result()) is not None:
                        yield found
                self._kept.flush_in_time()
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)


class OutcomeStore:
    """Kept outcomes: a journal on local disk for each before it counts, segments in the store.

    Thread-safe. They are beside kept answers, under an identity of their own. Those kept before
    ``not_before`` (seconds since 1970) are not found.
    """

    def __init__(self, store: Store, journal_dir: Path, not_before: float = 0.0) -> None:
        self._not_before = not_before
        self._kept: ModelAnswers = AnswerStore(store).of_model(digest({"programs": VERSION}))
        self._folder = journal_dir / self._kept.identity[:32]
        self._journal: Journal | None = None
        self._pending: list[KeptAnswer] = []
        self._segments: list[Segment] = []
        self._lock = threading.Lock()
        self._flushed = time.monotonic()
        restore(self._kept, journal_dir)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, ProgramOutcome]:
        """The outcomes that are known, by key."""
        table, rows = self._kept.snapshot(Lookup(not_before=self._not_before)).rows(keys)
        texts = table.column("response").to_pylist()
        found = {}
        for key, row in zip(keys, rows.tolist(), strict=True):
            if row >= 0:
                with suppress(ValueError, TypeError, KeyError):  # not what it was: the program runs again
                    found[key] = ProgramOutcome.from_dict(orjson.loads(texts[row]))
        return found

    def keep(self, key: bytes, outcome: ProgramOutcome) -> None:
        """Logs an outcome; from here on no crash of the process loses it. Raises StoreError."""
        text = orjson.dumps(outcome.as_dict()).decode()
        kept = KeptAnswer(status="ok", key=key, response=text, arrived=time.time())
        with self._lock:
            if self._journal is None:
                self._journal = Journal(self._folder)
            self._journal.append(encode(kept))
            self._pending.append(kept)

    def flush_in_time(self) -> None:
        """Moves what was logged to the store, every few seconds."""
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._flush()

    def close(self) -> None:
        """Moves what is left to the store."""
        self._flush()
        if len(self._segments) > 1:
            self._kept.merge(self._segments)
            self._segments = []

    def _flush(self) -> None:
        with self._lock:
            journal, kept = self._journal, self._pending
            self._journal, self._pending = None, []
        self._flushed = time.monotonic()
        if journal is None:
            return
        try:
            self._segments.append(self._kept.write(kept))
        except BaseException:
            journal.release()
            raise
        journal.remove()


Sample = tuple[str, int]
READ: Final = ("item_id", "sample_index", "digest", "verdict", "stderr", "error")


def asked_by_row(scorer: Scorer, metric: Metric, batch: Batch) -> list[Asked]:
    """The programs that scoring each row asks about; none for a row that is not scored.

    What the function raises is not looked at: it is called again with the verdicts, and then it counts.
    """
    found: list[Asked] = []
    for row in range(len(batch)):
        with collecting() as asked, stand_ins(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if batch.scored[row]:
                with suppress(NightjarError):
                    scorer.score(batch.only(row), metric)
        found.append(asked)
    return found


@dataclass(frozen=True)
class AskedVerdicts:
    """What came of the programs: ``known`` by digest; ``lost`` says of samples why one of theirs could not
    be run."""

    known: dict[str, CodeVerdict]
    lost: dict[Sample, str]

    @classmethod
    def read(cls, store: Store, executed: ArtifactRef) -> "AskedVerdicts":
        """The verdicts of an artifact of ASKED rows."""
        known: dict[str, CodeVerdict] = {}
        lost: dict[Sample, str] = {}
        for batch in store.batches(executed, READ):
            for row in batch.to_pylist():
                error = row["error"] if row["verdict"] == "sandbox_error" else None
                known[row["digest"]] = CodeVerdict(
                    row["verdict"] == "passed", _in_words(row["verdict"], row["stderr"]), error
                )
                if error is not None and row["item_id"] is not None:
                    lost[row["item_id"], row["sample_index"]] = error
        return cls(known, lost)

    def without_lost(self, batch: Batch) -> tuple[Batch, list[str | None]]:
        """The batch, in which rows are not scored that wait for a program that could not be run; beside each
        row why."""
        samples = zip(batch.item_ids, batch.sample_index.tolist(), strict=True)
        errors = [
            self.lost.get(sample) if ok else None
            for sample, ok in zip(samples, batch.scored.tolist(), strict=True)
        ]
        if not any(errors):
            return batch, errors
        scored = batch.scored & np.array([error is None for error in errors], dtype=np.bool_)
        return replace(batch, scored=scored), errors

    @staticmethod
    def with_reasons(scored: SampleScores, errors: Sequence[str | None]) -> SampleScores:
        """The scores, with the reasons of rows that wait for a program that could not be run."""
        return replace(
            scored, errors=[error or own for error, own in zip(errors, scored.errors, strict=True)]
        )


def _in_words(verdict: str, stderr: str | None) -> str:
    """A verdict in the words of the library."""
    if verdict == "passed":
        return "passed"
    if verdict == "timeout":
        return "timed out"
    lines = (stderr or "").strip().splitlines()
    return f"failed: {lines[-1] if lines else verdict}"
