"""Requests and tokens a minute: evenly spaced slots, shared by everything in the process that asks one
model.
"""

import threading
import time


class Pace:
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

    def correct(self, units: float) -> None:
        """Moves what follows by ``units`` that a request turned out to use beyond its reservation (or
        less).
        """
        with self._lock:
            self._next += units * self._seconds_a_unit


_paces: dict[tuple[str, str, float], Pace] = {}
_paces_lock = threading.Lock()


def pace_of(endpoint: str, unit: str, per_minute: float | None) -> Pace | None:
    """The process's one pace for an endpoint, a unit and a rate; None where there is no rate."""
    if per_minute is None:
        return None
    with _paces_lock:
        return _paces.setdefault((endpoint, unit, per_minute), Pace(per_minute))
