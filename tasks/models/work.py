"""What the engine is given, and what it fills."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metrics.errors import NightjarError
from tasks.models.config import Price
from tasks.models.gate import Gate
from tasks.models.pacing import Pace
from tasks.models.provider import Provider
from tasks.models.records import Answer, Call, Reply, Request
from tasks.models.retrying import RetryPolicy
from tasks.models.tally import Spending, Tally
from tasks.models.writing import AnswerWriter

interrupted = threading.Event()
"""Set to stop all inference of the process: what is answered is kept, what is in flight is dropped."""


class Interrupted(NightjarError):
    """Inference was stopped from outside; finished responses are kept."""


class Asking(Protocol):
    """How requests become calls, and replies answers: generation or log-likelihoods."""

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The calls for requests that belong together; raises PermanentError."""
        ...

    def answers(self, requests: Sequence[Request], replies: Sequence[Reply], attempts: int) -> list[Answer]:
        """One answer a request; raises TransientError or PermanentError."""
        ...


@dataclass(frozen=True)
class Endpoint:
    """What is asked and how hard: the provider, the process's gate and paces for it, time-outs, retries."""

    provider: Provider
    gate: Gate
    ceiling: int
    timeout: float
    retry: RetryPolicy
    requests_pace: Pace | None = None
    tokens_pace: Pace | None = None
    completion_estimate: int = 0


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer, and after how many attempts."""

    error: str
    attempts: int


@dataclass
class Work:
    """What the engine fills: answers go to the writer, failures and counts stay here."""

    writer: AnswerWriter
    tally: Tally
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
