"""Asks an endpoint for everything that is missing: as many requests in flight as it bears, each until it is
answered or hopeless.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from tasks.models.answers.journal import FLUSH_SECONDS
from tasks.models.errors import (
    ConnectionFault,
    EndpointDead,
    EndpointError,
    Overloaded,
    PermanentError,
    RateLimited,
    RequestError,
    RequestTimeout,
    TransientError,
)
from tasks.models.limits import AttemptOutcome
from tasks.models.records import Call, Failure, KeptAnswer, Reply, Request
from tasks.models.work import Asking, Attempts, Endpoint, Interrupted, Stopped, Work, interrupted

DEAD_FAILURES = 8
"""An endpoint is dead when so many attempts in a row failed and one request's retries are used up."""
DEAD_SECONDS = 30.0
"""How long an endpoint found dead is believed dead: one failure is enough then."""
SETTLE_SECONDS = 0.05
"""A place is kept this long after an attempt was abandoned, so that the server has seen that it was."""
TICK_SECONDS = 0.1


class Engine:
    """One run over one endpoint, on one event loop."""

    def __init__(self, endpoint: Endpoint, work: Work) -> None:
        self._endpoint = endpoint
        self._work = work
        self._draw = random.Random()
        self._crew: Crew
        self._believed_dead = time.monotonic() < endpoint.gate.dead_until
        self._turns = Turns(endpoint, work)

    async def run(
        self, units: Iterator[tuple[Asking, Sequence[Request]]], report: Callable[[], None]
    ) -> None:
        """Asks every unit, a request or several that go together; returns when all are answered, failed, or
        the run stopped.

        Raises StoreError when answers can't be kept, and Interrupted.
        """
        gate, ceiling = self._endpoint.gate, self._endpoint.ceiling
        gate.register(ceiling)
        self._crew = Crew(lambda: self._worker(units), ceiling)
        over = asyncio.Event()
        keeper = asyncio.ensure_future(self._keep(over, report))
        everyone = asyncio.ensure_future(self._crew.finish())
        try:
            await _either(everyone, keeper)
            await everyone
        finally:
            over.set()
            everyone.cancel()
            # The keeper is never cancelled: it may be in the middle of moving answers to the store.
            await asyncio.gather(everyone, keeper, return_exceptions=True)
            gate.unregister(ceiling)

    async def _keep(self, over: asyncio.Event, report: Callable[[], None]) -> None:
        """Moves answers to the store in time, reports, and looks whether the run is to stop."""
        flushed = time.monotonic()
        while not over.is_set():
            await until(over, TICK_SECONDS)
            if interrupted.is_set():
                raise Interrupted(
                    "inference was interrupted; finished responses are kept, run again to go on"
                )
            if self._work.stopped is None:
                self._work.stopped = self._work.spending.exceeded()
            if self._work.stopped is not None:
                self._turns.stop()
            if self._work.writer.full or time.monotonic() - flushed >= FLUSH_SECONDS:
                await self._work.writer.flush()
                flushed = time.monotonic()
            report()

    async def _worker(self, units: Iterator[tuple[Asking, Sequence[Request]]]) -> None:
        for asking, requests in units:
            if self._work.stopped is not None:
                return
            for answer in await self._asked(asking, requests):
                self._settle(answer)
            self._work.stopped = self._work.stopped or self._work.spending.exceeded()

    def _settle(self, answer: KeptAnswer) -> None:
        work = self._work
        work.writer.append(answer)
        before = work.tally.cost
        work.tally.add(answer, work.price)
        work.spending.add(
            (answer.prompt_tokens or 0) + (answer.completion_tokens or 0), work.tally.cost - before
        )

    async def _asked(self, asking: Asking, requests: Sequence[Request]) -> list[KeptAnswer]:
        """The requests' answers; none when they failed, which is then on record."""
        attempts = Attempts()
        work = self._work
        try:
            calls = asking.calls(requests)
            answers = await self._until_answered(asking, requests, calls, attempts)
        except PermanentError as error:
            if len({(request.prompt, request.continuation) for request in requests}) > 1:
                # One of them spoils the batch: each is asked alone.
                return [answer for request in requests for answer in await self._asked(asking, [request])]
            answers = [
                KeptAnswer(
                    r.key,
                    "model_error",
                    error=str(error),
                    attempts=max(1, attempts.made),
                    arrived=time.time(),
                )
                for r in requests
            ]
        except Stopped:
            answers = []
        except RequestError as error:
            if isinstance(error, EndpointError):
                work.stopped = work.stopped or f"not asked: {error}"
            failure = Failure(str(error), attempts.made)
            work.failures.update((request.key, failure) for request in requests)
            work.tally.errors[_kind(error)] = work.tally.errors.get(_kind(error), 0) + len(requests)
            answers = []
        if attempts.made:
            work.tally.sent += len(requests)
            work.tally.attempts += attempts.made
        return answers

    async def _until_answered(
        self, asking: Asking, requests: Sequence[Request], calls: Sequence[Call], attempts: Attempts
    ) -> list[KeptAnswer]:
        start = time.monotonic()
        replies: list[Reply] = []
        while True:
            try:
                while len(replies) < len(calls):
                    replies.append(await self._attempt(calls[len(replies)], start, attempts))
                return asking.answers(requests, replies, attempts.made)
            except TransientError as error:
                # What is wrong inside a reply is seen only when it is read: then the last call is made again.
                del replies[len(calls) - 1 :]
                attempts.failed[len(replies)] += 1
                spent = time.monotonic() - start - attempts.paced
                wait = self._endpoint.retry.wait(attempts.failed[len(replies)], spent, error, self._draw)
                self._judge(error, start, attempts, hopeless=wait is None)
                if wait is None:
                    raise
                self._work.tally.retries += 1
                self._crew.stand_in()
                await self._turns.rest(wait)
                if self._work.stopped is not None:
                    raise Stopped from error

    async def _attempt(self, call: Call, start: float, attempts: Attempts) -> Reply:
        """One attempt at one call, in its turn."""
        endpoint, gate = self._endpoint, self._endpoint.gate
        await self._turns.enter(start, attempts)
        outcome: AttemptOutcome | None = None
        try:
            await self._turns.pace(call, attempts)
            attempts.made += 1
            began = time.monotonic()
            left = endpoint.retry.deadline - (began - start - attempts.paced)
            try:
                reply = await endpoint.provider.send(call, min(endpoint.timeout, max(1.0, left)))
            except TransientError as error:
                outcome = _outcome(error, time.monotonic() - began)
                if isinstance(error, RequestTimeout):
                    await asyncio.sleep(SETTLE_SECONDS)
                raise
            except RequestError:
                outcome = AttemptOutcome(time.monotonic() - began)
                raise
            outcome = AttemptOutcome(reply.seconds)
            return reply
        finally:
            gate.leave(outcome)

    def _judge(self, error: TransientError, start: float, attempts: Attempts, hopeless: bool) -> None:
        """Raises EndpointDead when nothing at all was answered since this request was first sent, and it is
        given up.
        """
        gate = self._endpoint.gate
        if gate.last_success >= start:
            self._believed_dead = False
            return
        if (hopeless and gate.failures >= DEAD_FAILURES) or self._believed_dead:
            gate.dead_until = time.monotonic() + DEAD_SECONDS
            seconds = time.monotonic() - start
            raise EndpointDead(
                f"the endpoint answers nothing: {error} (after {attempts.made} attempts over {seconds:.0f} s)"
            ) from error


def _outcome(error: TransientError, seconds: float) -> AttemptOutcome:
    # Overload and a dead endpoint look alike from here, and fewer requests suit both. A 500 is neither.
    congested = isinstance(error, RateLimited | RequestTimeout | ConnectionFault | Overloaded)
    return AttemptOutcome(seconds, ok=False, congested=congested, retry_after=error.retry_after)


async def _either(everyone: "asyncio.Future[Any]", keeper: "asyncio.Future[None]") -> None:
    """Waits for the workers; raises what the keeper raises when that is sooner."""
    await asyncio.wait({everyone, keeper}, return_when=asyncio.FIRST_COMPLETED)
    if not everyone.done():
        keeper.result()


def _kind(error: RequestError) -> str:
    return type(error).__name__


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


class Crew:
    """Workers on one loop: as many as there are places, and another for each that waits for its next attempt
    and so holds none. Each works until there is nothing left.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], places: int) -> None:
        self._work = work
        self._left = max(8, places // 2)  # who may still join
        self._tasks = {asyncio.ensure_future(work()) for _ in range(places)}

    def stand_in(self) -> None:
        """One more worker, unless there are many already."""
        if self._left:
            self._left -= 1
            self._tasks.add(asyncio.ensure_future(self._work()))

    async def finish(self) -> None:
        """Returns when nothing is left to do; raises what a worker raises, and then ends the others."""
        try:
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                self._tasks -= done
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
