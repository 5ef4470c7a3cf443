"""A request's turn: a place at the endpoint, and a slot of what is allowed a minute. Nobody waits for either
once the run is stopping.
"""

import asyncio
import contextlib
import time

from tasks.models.errors import RateLimited
from tasks.models.records import Call
from tasks.models.work import Attempts, Endpoint, Stopped, Work

CHARACTERS_A_TOKEN = 4


class Turns:
    """Where the requests of one run over one endpoint wait, on one event loop."""

    def __init__(self, endpoint: Endpoint, work: Work) -> None:
        self._endpoint = endpoint
        self._work = work
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Wakes all who wait: the run is stopping."""
        self._stopping.set()

    async def rest(self, seconds: float) -> None:
        """Waits that long, or until the run is stopping."""
        await until(self._stopping, seconds)

    async def enter(self, start: float, attempts: Attempts) -> None:
        """Takes a place at the endpoint for a request that was begun at ``start``.

        Raises Stopped, and RateLimited when the endpoint wants no requests until after this one's deadline.
        """
        deadline = self._endpoint.retry.deadline
        while (wait := await self._endpoint.gate.enter()) > 0:
            if time.monotonic() - start - attempts.paced + wait >= deadline:
                said = f"the endpoint asks for a pause of {wait:.0f} s, longer than a request may take"
                raise RateLimited(f"{said} (deadline: {deadline:g} s)", retry_after=wait)
            await self.rest(wait)
            if self._work.stopped is not None:
                raise Stopped

    async def pace(self, call: Call, attempts: Attempts) -> None:
        """Waits for the slots of requests and tokens a minute; prompt tokens are estimated from the
        characters. Raises Stopped.
        """
        endpoint = self._endpoint
        wait = endpoint.requests_pace.reserve(1) if endpoint.requests_pace else 0.0
        if endpoint.tokens_pace is not None:
            estimate = len(call.content) // CHARACTERS_A_TOKEN + endpoint.completion_estimate
            wait = max(wait, endpoint.tokens_pace.reserve(estimate))
        if wait > 0:
            await self.rest(wait)
            attempts.paced += wait
        if self._work.stopped is not None:
            raise Stopped


async def until(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
