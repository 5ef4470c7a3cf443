"""The limiters of an endpoint, shared by every model, thread and flow of the process that asks it.

``ConcurrencyLimiter`` decides how many requests are in flight, ``RateLimiter`` how many requests or tokens go
out a minute, in evenly spaced slots. The engine waits at both before each attempt.

The limit of requests in flight starts small and triples each round (slow start) until the endpoint objects,
then grows by one a round, by more after several rounds without objection. A round is as many answers as the
limit allows in flight. Objections (429, 503, time-outs, lost connections) cut it by half of their share of
the round, as DCTCP does with marked packets (Alizadeh et al., 2010): one stray 429 costs little, a round of
nothing else halves it. Two rounds of tripled latency and fewer answers a second cut it too, down to a quarter
of the ceiling. When most of what comes back is 429, the whole endpoint is left alone for as long as
``Retry-After`` says.
"""

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass

INITIAL = 64
SLOW_START_STEP = 2
"""How much an answer without objection adds during slow start: the limit triples each round."""
SLOWER = 3.0
"""Latency counts as rising beyond this multiple of what it was."""


@dataclass(slots=True)
class AttemptOutcome:
    """How an attempt ended, as far as the limiter learns from it; ``seconds`` is what it took."""

    seconds: float
    ok: bool = True
    congested: bool = False
    retry_after: float | None = None


class ConcurrencyLimiter:
    """Admits requests to one endpoint. All methods may be called from any thread; ``enter`` from any event
    loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._ceilings: list[int] = []
        self._ceiling = INITIAL
        self._limit = float(INITIAL)
        self._slow_start = True
        self._slowed = False
        self._clean_rounds = 0
        self._closed_until = 0.0
        self._window = Round()
        self.in_flight = 0
        self.failures = 0  # since the last success
        self.last_success = time.monotonic()
        self.dead_until = 0.0

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return max(1, int(min(self._limit, self._ceiling)))

    def register(self, ceiling: int) -> None:
        """A user of the endpoint that allows ``ceiling`` requests in flight; the smallest of all users'
        holds.
        """
        with self._lock:
            self._ceilings.append(ceiling)
            self._ceiling = min(self._ceilings)

    def unregister(self, ceiling: int) -> None:
        """The user is gone."""
        with self._lock:
            self._ceilings.remove(ceiling)
            self._ceiling = min(self._ceilings, default=INITIAL)
            self._admit()

    async def enter(self) -> float:
        """Waits for a slot and returns 0; ``leave`` must follow. While the endpoint wants no requests it
        returns the seconds until it does, and no slot is taken.
        """
        if (wait := self._closed_until - time.monotonic()) > 0:
            return wait
        with self._lock:
            if self.in_flight < self.limit and not self._waiting:
                self.in_flight += 1
                return 0.0
            loop = asyncio.get_running_loop()
            slot: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, slot))
        try:
            await slot
        except asyncio.CancelledError:
            self._give_back(slot)
            raise
        if (wait := self._closed_until - time.monotonic()) > 0:
            self.leave(None)
            return wait
        return 0.0

    def leave(self, outcome: AttemptOutcome | None) -> None:
        """Frees a slot; None: nothing was sent."""
        with self._lock:
            self.in_flight -= 1
            if outcome is not None:
                self._learn(outcome)
            self._admit()

    def _give_back(self, slot: "asyncio.Future[None]") -> None:
        with self._lock:
            for entry in self._waiting:
                if entry[1] is slot:
                    self._waiting.remove(entry)
                    return
            self.in_flight -= 1  # admitted in the very moment of the cancellation
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_flight < self.limit:
            loop, slot = self._waiting.popleft()
            self.in_flight += 1
            if loop is _running_loop():
                _let_in(slot)
                continue
            try:
                loop.call_soon_threadsafe(_let_in, slot)
            except RuntimeError:  # that loop is closed
                self.in_flight -= 1

    def _learn(self, outcome: AttemptOutcome) -> None:
        if outcome.ok:
            self.last_success = time.monotonic()
            self.dead_until = 0.0
            self.failures = 0
        else:
            self.failures += 1
        window = self._window
        window.add(outcome)
        systemic = window.congested >= min(8, self.limit) and 2 * window.congested > window.count
        if outcome.retry_after is not None and outcome.congested and systemic:
            self._closed_until = max(self._closed_until, time.monotonic() + outcome.retry_after)
        if self._slow_start and outcome.ok and not window.congested:
            self._limit = min(self._limit + SLOW_START_STEP, self._ceiling)
        if window.count >= self.limit:
            self._adjust(window)
            self._window = window.following()

    def _adjust(self, window: "Round") -> None:
        share = window.congested / window.count
        limit = min(self._limit, self._ceiling)
        if share > 0:
            self._slow_start = self._slow_start and share < 0.2
            self._clean_rounds = 0
            limit = limit * (1 - share / 2) + (1 - share)
        elif window.slow and window.fewer and self._slowed:
            # A busy client looks like a slow endpoint from here: one round is no reason, and none cuts far.
            self._slow_start = False
            self._clean_rounds = 0
            limit = max(min(limit, self._ceiling / 4), limit * 0.9)
        else:
            limit += min(2.0**self._clean_rounds, max(1.0, self._ceiling / 8))
            self._clean_rounds += 1
        self._slowed = window.slow and window.fewer
        self._limit = max(1.0, min(limit, self._ceiling))


class Round:
    """The answers of one round, and what latency and throughput were before."""

    def __init__(self, usual: float | None = None, rate: float = 0.0) -> None:
        self.count = 0
        self.congested = 0
        self._seconds = 0.0
        self._ok = 0
        self._usual = usual
        self._rate = rate
        self._start = time.monotonic()

    def add(self, outcome: AttemptOutcome) -> None:
        """Counts an answer."""
        self.count += 1
        self.congested += outcome.congested
        if outcome.ok:
            self._ok += 1
            self._seconds += outcome.seconds

    @property
    def slow(self) -> bool:
        """Whether answers take much longer than they used to."""
        return self._ok > 0 and self._usual is not None and self._seconds / self._ok > SLOWER * self._usual

    @property
    def fewer(self) -> bool:
        """Whether fewer answers a second come than in the round before."""
        return self._throughput < 0.9 * self._rate

    @property
    def _throughput(self) -> float:
        return self._ok / max(1e-6, time.monotonic() - self._start)

    def following(self) -> "Round":
        """The next round; what is usual drifts slowly, so that a lasting change is accepted."""
        if not self._ok:
            return Round(self._usual, self._rate)
        latency = self._seconds / self._ok
        usual = latency if self._usual is None else min(latency, self._usual + 0.1 * (latency - self._usual))
        return Round(usual, self._throughput)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _let_in(slot: "asyncio.Future[None]") -> None:
    if not slot.done():
        slot.set_result(None)


_concurrency_limiters: dict[str, ConcurrencyLimiter] = {}
_concurrency_limiters_lock = threading.Lock()


def concurrency_limiter_of(endpoint: str) -> ConcurrencyLimiter:
    """The process's one limiter for an endpoint's address."""
    with _concurrency_limiters_lock:
        return _concurrency_limiters.setdefault(endpoint, ConcurrencyLimiter())


class RateLimiter:
    """``per_minute`` units a minute, one after the other: no burst, so no minute ever holds more."""

    def __init__(self, per_minute: float) -> None:
        self._seconds_a_unit = 60.0 / per_minute
        self._next = 0.0
        self._lock = threading.Lock()

    def reserve(self, units: float) -> float:
        """Takes the next slot for ``units``; returns the seconds to wait for it."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + units * self._seconds_a_unit
            return start - now


_rate_limiters: dict[tuple[str, str, float], RateLimiter] = {}
_rate_limiters_lock = threading.Lock()


def rate_limiter_of(endpoint: str, unit: str, per_minute: float | None) -> RateLimiter | None:
    """The process's one limiter for an endpoint, a unit and a rate; None where there is no rate."""
    if per_minute is None:
        return None
    with _rate_limiters_lock:
        return _rate_limiters.setdefault((endpoint, unit, per_minute), RateLimiter(per_minute))
