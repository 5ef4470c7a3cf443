"""Stops and pauses of runs, by people and by signals.

A flow opens its run's ``RunControl`` with ``controlled``; the engines of the run look at it between requests,
whichever thread of the process they work in. What stops a suite stops its evaluations.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from metrics.errors import NightjarError
from tasks.processes.endings import interrupted


class Interrupted(NightjarError):
    """Inference was stopped from outside; finished responses are kept."""


StopKind = Literal["cancelled", "timed out", "suspended"]


@dataclass(frozen=True)
class Stop:
    """Why a run asks no more: what kind of end that is, and a sentence."""

    kind: StopKind
    reason: str


class RunControl:
    """Stops and pauses one run; what its parent is told holds for it, too."""

    def __init__(self, parent: "RunControl | None" = None) -> None:
        self._parent = parent
        self._stop: Stop | None = None
        self._paused = False
        self._waiting = 0
        self._waited = 0.0
        self._since = 0.0
        self._counting = threading.Lock()

    def stop(self, kind: StopKind, reason: str) -> None:
        """Ends the run's asking for good; the first reason stays."""
        self._stop = self._stop or Stop(kind, reason)

    def pause(self, paused: bool = True) -> None:
        """Holds new requests back until ``pause(False)``; what is in flight comes to its end."""
        self._paused = paused

    @property
    def own_stop(self) -> Stop | None:
        """Why this very run was stopped; None: it was not."""
        return self._stop

    @property
    def stopped(self) -> Stop | None:
        """Why the run asks no more, or the run that it is part of; None: it goes on."""
        return self._stop or (self._parent.stopped if self._parent is not None else None)

    @property
    def paused(self) -> bool:
        """Whether new requests have to wait."""
        return self._paused or (self._parent is not None and self._parent.paused)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block in which the run, and the one that it is part of, waits for a provider's batches."""
        with self._parent.waiting() if self._parent is not None else contextlib.nullcontext():
            self._wait(1)
            try:
                yield
            finally:
                self._wait(-1)

    def _wait(self, more: int) -> None:
        with self._counting:
            now = time.monotonic()
            if self._waiting:
                self._waited += now - self._since
            self._since = now
            self._waiting += more

    @property
    def waited(self) -> float:
        """Seconds in which something of the run waited for batches: no time-out counts them."""
        with self._counting:
            return self._waited + (time.monotonic() - self._since if self._waiting else 0.0)

    def check(self) -> None:
        """Raises Interrupted where the run asks no more."""
        if (stopped := self.stopped) is not None:
            raise Interrupted(f"{stopped.reason}; finished responses are kept, run again to go on")


_current: ContextVar[RunControl | None] = ContextVar("nightjar_run_control", default=None)
_controls: dict[str, RunControl] = {}
_lock = threading.Lock()


@contextmanager
def controlled(run_id: str) -> Iterator[RunControl]:
    """A block in which the run can be stopped and paused; a run opened within it is part of it."""
    control = RunControl(_current.get())
    token = _current.set(control)
    with _lock:
        _controls[run_id] = control
    try:
        yield control
    finally:
        _current.reset(token)
        with _lock:
            _controls.pop(run_id, None)


def control_of(run_id: str | None) -> RunControl:
    """The control of a run of this process; of any other, one that never says stop."""
    with _lock:
        return _controls.get(run_id or "") or RunControl()


def check_interrupted() -> None:
    """Raises Interrupted where the process is to ask no more."""
    if interrupted.is_set():
        raise Interrupted("inference was interrupted; finished responses are kept, run again to go on")


def check_run(run_id: str | None) -> None:
    """Raises Interrupted where the process or this run of it is to ask no more."""
    check_interrupted()
    control_of(run_id).check()
