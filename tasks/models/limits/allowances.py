"""What endpoints say with each reply is left of their rate limits, and a pace that respects it.

OpenAI and those who follow it send ``x-ratelimit-remaining-requests`` and its like, Anthropic
``anthropic-ratelimit-requests-remaining``. Both say beside it in what time all that was used is there again:
so one unit comes back in a part of that time. Requests wait only where less is left than they need.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

UNITS: Final = ("requests", "tokens")
FORMS: Final = ("x-ratelimit-{part}-{unit}", "anthropic-ratelimit-{unit}-{part}")
NAMES: Final = tuple(
    (unit, *(form.format(unit=unit, part=part) for part in ("remaining", "limit", "reset")))
    for form in FORMS
    for unit in UNITS
)
LONGEST_SECONDS: Final = 60.0
"""Nobody waits longer for what an endpoint says: then it is asked, and knows better."""
SINCE_1970: Final = 1e9
"""A number of seconds this large is a time, and no duration."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much of a limit of requests or tokens is left, in how many seconds one unit comes back, and in how
    many all of them are back."""

    unit: str
    left: float
    seconds_a_unit: float
    seconds: float


def allowances(headers: Mapping[str, str], now: float | None = None) -> tuple[Allowance, ...]:
    """What the headers of a reply say; nothing of what can't be read, and of limits that are none (-1).

    >>> said = {"remaining": "40", "limit": "50", "reset": "12s"}
    >>> allowances({f"x-ratelimit-{part}-requests": value for part, value in said.items()})
    (Allowance(unit='requests', left=40.0, seconds_a_unit=1.2, seconds=12.0),)
    """
    found = []
    for unit, remaining, limit, reset in NAMES:
        if (said := headers.get(remaining)) is None:
            continue
        left, most = finite_number(said), finite_number(headers.get(limit))
        seconds = _seconds(headers.get(reset), time.time() if now is None else now)
        if left is None or left < 0 or seconds is None or seconds <= 0:
            continue
        used = most - left if most is not None else 0
        found.append(Allowance(unit, left, seconds / used if used >= 1 else seconds, seconds))
    return tuple(found)


def told_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds until something is left again, for a reply that refuses since nothing is; None: it does not
    say."""
    spent = [said.seconds for said in allowances(headers) if said.left < 1]
    return min(max(spent), LONGEST_SECONDS) if spent else None


def finite_number(text: str | None) -> float | None:
    """The number that a header holds; None: it holds none, or no finite one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_part = re.compile(r"([0-9.]+)(ms|h|m|s)")
SCALES: Final = {"h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _seconds(text: str | None, now: float) -> float | None:
    """Seconds until a time, which is given as such, as a duration (``6m0s``, ``12ms``) or in seconds."""
    if text is None:
        return None
    if (number := finite_number(text)) is not None:
        return number - now if number > SINCE_1970 else number
    if (seconds := duration(text)) is not None:
        return seconds
    try:
        return datetime.fromisoformat(text).timestamp() - now
    except (ValueError, OverflowError):
        return None


def duration(text: str) -> float | None:
    """The seconds of a duration, which may be a number of them; None: it is none.

    >>> duration("6m0s"), duration("12ms"), duration("1.5"), duration("soon")
    (360.0, 0.012, 1.5, None)
    """
    parts = _part.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return finite_number(text)
    numbers = [finite_number(number) for number, _ in parts]
    return sum((number or 0.0) * SCALES[scale] for number, (_, scale) in zip(numbers, parts, strict=True))


class Allowed:
    """A limit as the endpoint last told it: what is left goes with each request and comes back in time."""

    def __init__(self, said: Allowance, taken: float, now: float) -> None:
        self._left = said.left - taken
        self._seconds = said.seconds_a_unit
        self._at = now

    def take(self, units: float, now: float) -> float:
        """Takes units; the seconds until they are there."""
        self._left += (now - self._at) / self._seconds - units
        self._at = now
        return max(0.0, -self._left * self._seconds)


class Pace:
    """The pace at which an endpoint says that it can be asked for a model, shared by all of the process that
    asks it. Without a word of it nobody waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._allowed: dict[str, Allowed] = {}
        self._taken = dict.fromkeys(UNITS, 0.0)

    @property
    def counts_tokens(self) -> bool:
        """Whether the endpoint tells of a limit of tokens."""
        return "tokens" in self._allowed

    def join(self, tokens: float) -> float:
        """Takes a place for a request of so many tokens; seconds until it may go. ``leave`` must follow."""
        with self._lock:
            self._count(1.0, tokens)
            now = self._clock()
            waits = [
                self._allowed[unit].take(units, now)
                for unit, units in zip(UNITS, (1.0, tokens), strict=True)
                if unit in self._allowed
            ]
            return min(LONGEST_SECONDS, max(waits, default=0.0))

    def leave(self, tokens: float) -> None:
        """The request has ended, whatever came of it."""
        with self._lock:
            self._count(-1.0, -tokens)

    def update(self, said: Sequence[Allowance], tokens: float) -> None:
        """Takes what came with the reply to a request of so many tokens that has not left. Who waits keeps
        the place in line."""
        if not said:
            return
        own = {"requests": 1.0, "tokens": tokens}
        with self._lock:
            for allowance in said:
                taken = self._taken[allowance.unit] - own[allowance.unit]
                self._allowed[allowance.unit] = Allowed(allowance, taken, self._clock())

    def _count(self, requests: float, tokens: float) -> None:
        self._taken["requests"] += requests
        self._taken["tokens"] += tokens


_paces: dict[tuple[str, str], Pace] = {}
_paces_lock = threading.Lock()


def pace_of(endpoint: str, model: str) -> Pace:
    """The process's one pace for a model at an endpoint's address."""
    with _paces_lock:
        return _paces.setdefault((endpoint, model), Pace())
