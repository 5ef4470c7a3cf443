"""What the embedded server counts."""

import hashlib
import time
from collections import Counter
from typing import Any


class Stats:
    """What came in: requests by path, the most in flight at once, faults shown, and what was answered
    again.
    """

    def __init__(self) -> None:
        self.received = 0
        self.answered = 0
        self.in_flight = 0
        self.peak = 0
        self.tokens = 0
        self.paths: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.first: float | None = None
        self.last = 0.0
        self._asked: Counter[bytes] = Counter()
        self._answers: Counter[bytes] = Counter()

    def arrive(self, path: str, body: bytes) -> bytes:
        """Counts a request; returns the mark under which its answer is counted."""
        self.received += 1
        self.first = self.first or time.monotonic()
        self.paths[path] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        mark = hashlib.blake2b(body, digest_size=12).digest()
        self._asked[mark] += 1
        return mark

    def answer(self, mark: bytes) -> None:
        """Counts an answer that was given in full."""
        self.answered += 1
        self.last = time.monotonic()
        self._answers[mark] += 1

    def snapshot(self) -> dict[str, Any]:
        """The counts as ``/stats`` shows them; ``seconds`` go from the first request to the last answer,
        ``asked_again`` counts requests beyond the first of equal ones, ``answered_again`` those of them
        that had been answered before.
        """
        return {
            "received": self.received,
            "answered": self.answered,
            "distinct": len(self._asked),
            "asked_again": self.received - len(self._asked),
            "answered_again": sum(count - 1 for count in self._answers.values() if count > 1),
            "most_often_asked": max(self._asked.values(), default=0),
            "seconds": self.last - self.first if self.first is not None and self.answered else 0.0,
            "in_flight": self.in_flight,
            "peak": self.peak,
            "tokens": self.tokens,
            "paths": dict(self.paths),
            "faults": dict(self.faults),
        }
