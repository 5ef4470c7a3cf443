"""What the engine is given, and what it fills."""

import email.utils
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metrics.errors import NightjarError
from tasks.models.answers.journal import AnswerWriter
from tasks.models.config import Price
from tasks.models.errors import TransientError
from tasks.models.limits import ConcurrencyLimiter, Pace
from tasks.models.options import RequestTally, Spending
from tasks.models.records import Call, Failure, KeptAnswer, Provider, Reply, Request

FIRST_WAIT = 0.25
LONGEST_WAIT = 30.0


@dataclass(frozen=True)
class RetryPolicy:
    """At most ``max_retries`` further attempts, all of them within ``deadline`` seconds."""

    max_retries: int
    deadline: float

    def wait(self, attempts: int, spent: float, error: TransientError, draw: random.Random) -> float | None:
        """Seconds until the next attempt after ``attempts`` of them; None: there is none.

        ``Retry-After`` is waited for in full and never shortened; without it the wait doubles from attempt to
        attempt, between a half and the whole of it drawn at random.
        """
        if attempts > self.max_retries:
            return None
        if error.retry_after is not None:
            seconds = error.retry_after
        else:
            seconds = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempts, 16)) * draw.uniform(0.5, 1.0)
        return seconds if spent + seconds < self.deadline else None


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that ``Retry-After`` (seconds or an HTTP date) or ``retry-after-ms`` asks for; None: nothing
    readable.

    >>> retry_after({"Retry-After": "1.5"})
    1.5
    """
    milliseconds = headers.get("retry-after-ms")
    text = headers.get("Retry-After") or headers.get("retry-after")
    try:
        seconds = float(milliseconds) / 1000 if milliseconds is not None else float(text or "")
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    if text is None:
        return None
    try:
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
    return max(0.0, when - (time.time() if now is None else now))


interrupted = threading.Event()
"""Set to stop all inference of the process: what is answered is kept, what is in flight is dropped."""


class Interrupted(NightjarError):
    """Inference was stopped from outside; finished responses are kept."""


class Asking(Protocol):
    """How requests become calls, and replies answers: generation or log-likelihoods."""

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The calls for requests that belong together; raises PermanentError."""
        ...

    def answers(
        self, requests: Sequence[Request], replies: Sequence[Reply], attempts: int
    ) -> list[KeptAnswer]:
        """One answer a request; raises TransientError or PermanentError."""
        ...


@dataclass(frozen=True)
class Endpoint:
    """What is asked and how hard: the provider, the process's gate and paces for it, time-outs, retries."""

    provider: Provider
    gate: ConcurrencyLimiter
    ceiling: int
    timeout: float
    retry: RetryPolicy
    requests_pace: Pace | None = None
    tokens_pace: Pace | None = None
    completion_estimate: int = 0


@dataclass
class Work:
    """What the engine fills: answers go to the writer, failures and counts stay here."""

    writer: AnswerWriter
    tally: RequestTally
    spending: Spending
    price: Price | None = None
    failures: dict[bytes, Failure] = field(default_factory=dict)
    stopped: str | None = None


class Stopped(Exception):
    """The run is stopping: this request is not asked any further."""


@dataclass
class Attempts:
    """Attempts made for a unit of requests, how often each of its calls has failed, and the seconds that it
    waited for its slot of what is allowed a minute.
    """

    made: int = 0
    paced: float = 0.0
    failed: Counter[int] = field(default_factory=Counter)
