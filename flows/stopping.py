"""Ctrl-C, a terminated process, a cancelled run: asking stops, what was answered is kept."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL

from tasks.models.work import interrupted

INTERRUPTED = 130


@contextmanager
def asking_stops() -> Iterator[None]:
    """A block of a flow in which no more is asked once Prefect ends the run (SIGTERM).

    Prefect takes that signal for itself and then waits for tasks that run: an inference may have hours to go.
    """
    try:
        yield
    except TerminationSignal:
        interrupted.set()
        raise


class interruptible:  # noqa: N801 - reads as a verb where it is used
    """Ctrl-C ends the process at once: every finished response has been kept before it counted as done."""

    def __enter__(self) -> None:
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        interrupted.set()  # what is in flight is dropped, what is answered is flushed
        print(
            "\ninterrupted: finished responses are kept; the same command goes on from them", file=sys.stderr
        )
        _cancel_flow_run()
        sys.stderr.flush()
        # Threads may be in the middle of requests: nothing that still has to be written is in memory only.
        os._exit(INTERRUPTED)


def _cancel_flow_run() -> None:
    """Says so on the run's page, if the server answers in time."""
    import httpx
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    state = {"state": {"type": "CANCELLED", "name": "Cancelled", "message": "interrupted"}, "force": True}
    try:
        httpx.post(
            f"{PREFECT_API_URL.value()}/flow_runs/{context.flow_run.id}/set_state", json=state, timeout=2
        )
    except httpx.HTTPError:
        return
