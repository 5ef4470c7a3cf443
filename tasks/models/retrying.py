"""When to ask again: exponential backoff with jitter, unless the server says when."""

import email.utils
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.models.errors import TransientError

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
