"""What a run has used, and may use: ``Spending`` is one account for a whole run, which its limits bound.

Answers are counted as they come. A batch promises what it may use when it is sent, so that no other request
of the run spends that meanwhile.
"""

import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from tasks.models.config import Price, RunLimits

MILLION = 1_000_000
CHARACTERS_A_TOKEN = 4
"""By which tokens are estimated where nobody counts them."""


def cost_of(prompt: int, completion: int, cached: int, price: Price | None) -> float:
    """What tokens cost; ``cached`` are those of the prompt that the server had cached, and no more than it
    has count. 0 without a price."""
    if price is None:
        return 0.0
    cached = min(cached, prompt)
    cached_price = price.prompt if price.cached is None else price.cached
    return (
        (prompt - cached) * price.prompt + cached * cached_price + completion * price.completion
    ) / MILLION


@dataclass(frozen=True)
class Used:
    """Tokens and what they cost."""

    tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: "Used") -> "Used":
        return Used(self.tokens + other.tokens, self.cost + other.cost)


NOTHING = Used()


def estimated(
    prompt: int | None, completion: int | None, total: int | None, asked: int, said: int
) -> tuple[int, int]:
    """Prompt and completion tokens where a reply does not count them all: as the total leaves them, else by
    the characters that were ``asked`` and ``said``.

    >>> estimated(None, None, None, 400, 1), estimated(None, None, 50, 400, 40), estimated(3, None, 50, 0, 0)
    ((100, 1), (40, 10), (3, 47))
    """
    if completion is None:
        guess = math.ceil(said / CHARACTERS_A_TOKEN)
        rest = guess if total is None else max(0, total - (prompt or 0))
        completion = min(guess, rest) if prompt is None else rest
    if prompt is None:
        prompt = math.ceil(asked / CHARACTERS_A_TOKEN) if total is None else max(0, total - completion)
    return prompt, completion


class Spending:
    """What a whole run has used so far, over all its partitions, models and threads, and what its batches may
    use; compared with its limits."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._unlimited = limits == RunLimits()
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._used = NOTHING
        self._promised: dict[str, Used] = {}
        self._askers: set[str] = set()

    def begins(self, asker: str) -> bool:
        """Whether an inference begins in this process, and what it spent in others counts: once, and where
        there is a limit."""
        with self._lock:
            is_new = asker not in self._askers
            self._askers.add(asker)
        return is_new and not self._unlimited

    def add(self, tokens: int, cost: float) -> None:
        """Counts tokens and their cost."""
        with self._lock:
            self._used = Used(self._used.tokens + tokens, self._used.cost + cost)

    def began(self, moment: float) -> None:
        """Counts the seconds from a moment on (seconds since 1970), where that is earlier than so far."""
        with self._lock:
            self._start = min(self._start, time.monotonic() - (time.time() - moment))

    def promise(self, job: str, used: Used) -> None:
        """Sets aside what a batch may use."""
        with self._lock:
            self._promised[job] = used

    def release(self, job: str) -> None:
        """Ends a promise: what the batch has used is counted now."""
        with self._lock:
            self._promised.pop(job, None)

    def exceeded(self, waited: float, more: Used = NOTHING) -> str | None:
        """Names the limit that is reached, or that ``more`` would pass, as a row's error says it; None: go
        on. ``waited`` are seconds that the run waited for batches, which no limit counts."""
        limits = self._limits
        if self._unlimited:
            return None
        with self._lock:
            used = sum(self._promised.values(), self._used)
        spent = time.monotonic() - self._start - waited
        for name, limit, now, then in (
            ("max_tokens", limits.max_tokens, used.tokens, more.tokens),
            ("max_cost", limits.max_cost, used.cost, more.cost),
            ("max_seconds", limits.max_seconds, spent, 0.0),
        ):
            if limit is not None and now >= limit:
                return f"not asked: limits.{name} of {_number(limit)} was reached"
            if limit is not None and now + then > limit:
                return f"not asked: limits.{name} of {_number(limit)} allows no more in a batch"
        return None


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


OPEN_ACCOUNTS = 256
"""Accounts of attempts at runs that a process keeps; the one used longest ago goes first."""
_spendings: "OrderedDict[str, Spending]" = OrderedDict()
_spendings_lock = threading.Lock()


def spending_of(account: str | None, limits: RunLimits) -> Spending:
    """What one attempt at a run has spent in this process; without a name, an account of its own.

    A retry has another account: what was answered before is not paid for again, and the rest has all of the
    limits.
    """
    if account is None:
        return Spending(limits)
    with _spendings_lock:
        spending = _spendings.setdefault(account, Spending(limits))
        _spendings.move_to_end(account)
        while len(_spendings) > OPEN_ACCOUNTS:
            _spendings.popitem(last=False)
        return spending
