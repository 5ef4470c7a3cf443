"""Tells how far inference is, twice a second."""

import time
from collections.abc import Callable

from tasks.models.gate import Gate
from tasks.models.options import Progress
from tasks.models.work import Work

EVERY_SECONDS = 0.5


class Reporter:
    """Calls ``progress`` with what ``work`` has come to."""

    def __init__(self, work: Work, expected: int | None, progress: Callable[[Progress], None]) -> None:
        self._work = work
        self._expected = expected
        self._progress = progress
        self._start = time.monotonic()
        self._last = self._start
        self.gate: Gate | None = None

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
