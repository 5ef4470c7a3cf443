"""The engine: asks an endpoint for every answer that is missing.

It keeps as many requests in flight as the endpoint bears, and tries each until it is answered, has failed
for good or has used up its retry budget. Answers go to the writer, failures and counts into the state.
``respond`` runs one engine for each partition.

People stop and pause runs meanwhile (``tasks.models.control``): engines look at it between requests.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metrics.errors import NightjarError, named, users_code
from tasks.models.answers.first import FirstAnswers
from tasks.models.answers.journal import FLUSH_SECONDS, AnswerWriter
from tasks.models.batches.records import KeptRow, batch_id
from tasks.models.config import Price
from tasks.models.control import RunControl, check_interrupted
from tasks.models.errors import (
    BadRequest,
    ConnectionFault,
    EndpointDead,
    EndpointError,
    MalformedBody,
    Overloaded,
    PermanentError,
    RateLimited,
    RequestError,
    RequestTimeout,
    SettledError,
    TransientError,
    shortened,
)
from tasks.models.limits.allowances import Pace
from tasks.models.limits.limiters import AttemptOutcome, ConcurrencyLimiter, RateLimiter
from tasks.models.limits.spending import CHARACTERS_A_TOKEN, NOTHING, Spending, Used
from tasks.models.records import Call, Codec, KeptAnswer, Reply, Request, RequestFailure, Transport
from tasks.models.tally import RequestTally, asked_characters, counts_in, exchanged
from tasks.models.wire import Wire

DEAD_FAILURES = 8
"""An endpoint is dead when so many attempts in a row failed and one request's retries are used up."""
DEAD_SECONDS = 30.0
"""How long an endpoint found dead is believed dead: one failure is enough then."""
SETTLE_SECONDS = 0.05
"""A slot is kept this long after an attempt was abandoned, so that the server has seen that it was."""
TICK_SECONDS = 0.1
FIRST_WAIT = 0.25
LONGEST_WAIT = 30.0

RequestGroup = tuple[Codec, Sequence[Request]]
"""Requests that go together, and the codec that makes calls of them."""


class RunStopping(Exception):
    """The run is stopping: this request is not asked any further."""


@dataclass(frozen=True)
class RetryPolicy:
    """A request's retry budget: at most ``max_retries`` further attempts, all within ``deadline`` seconds."""

    max_retries: int
    deadline: float

    def wait(self, attempts: int, spent: float, error: TransientError, draw: random.Random) -> float | None:
        """Seconds until the next attempt after ``attempts`` of them; None: there is none.

        The wait doubles from attempt to attempt, between a half and the whole of it drawn at random.
        ``Retry-After`` is waited for in full where it is longer: a server that says 0, or whose clock is
        behind, would be asked all times at once.
        """
        if attempts > self.max_retries:
            return None
        own = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempts, 16)) * draw.uniform(0.5, 1.0)
        seconds = max(own, error.retry_after or 0.0)
        return seconds if spent + seconds < self.deadline else None


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and how hard it may be driven.

    ``concurrency``, the two rate limiters and ``pace`` are shared by all of the process that asks this
    endpoint; the limiters hold the limits of the config, ``pace`` those that the endpoint tells of.
    ``ceiling`` is the most requests that this run has in flight, ``timeout`` the seconds of one attempt,
    ``completion_estimate`` the tokens that an answer is expected to have.
    """

    transport: Transport
    concurrency: ConcurrencyLimiter
    ceiling: int
    timeout: float
    retry: RetryPolicy
    request_rate: RateLimiter | None = None
    token_rate: RateLimiter | None = None
    completion_estimate: int = 0
    pace: Pace = field(default_factory=Pace)

    def tokens_of(self, call: Call) -> int:
        """Tokens that a call and its answer are expected to have; those of the prompt are estimated from the
        characters."""
        return (len(call.content) - call.media) // CHARACTERS_A_TOKEN + self.completion_estimate


@dataclass
class InferenceState:
    """What an engine's run has come to: answers are with the writer, failures and counts are here.

    ``stopped`` says why the run asks no more, as the error of a request that was not asked; None: it goes on.
    """

    writer: AnswerWriter
    tally: RequestTally
    spending: Spending
    price: Price | None = None
    control: RunControl = field(default_factory=RunControl)
    failures: dict[bytes, RequestFailure] = field(default_factory=dict)
    stopped: str | None = None
    first: FirstAnswers | None = None

    def use(
        self, counts: Mapping[str, int | None], characters: tuple[int, int] | None, batched: bool = False
    ) -> None:
        """Counts what a reply used that gave no answer (see ``RequestTally.use``), and stops the run where
        that reaches a limit."""
        used = self.tally.use(counts, self.price_of(batched), characters)
        self.spending.add(used.tokens, used.cost)
        self.is_over()

    def is_over(self) -> bool:
        """Whether the run asks no more; where a limit is reached, it stops."""
        self.stopped = self.stopped or self.limit_reached()
        return self.stopped is not None

    def price_of(self, batched: bool) -> Price | None:
        """What tokens cost, those of a batch apart."""
        return self.price.of_batches() if batched and self.price is not None else self.price

    def limit_reached(self, more: Used = NOTHING) -> str | None:
        """Names the limit of the run that is reached, or that ``more`` would pass; None: go on."""
        return self.spending.exceeded(self.control.waited, more)


@dataclass
class Attempts:
    """Attempts at a group of requests: how many there were, how often each of its calls has failed, and the
    seconds that the group waited for the rate limiters.
    """

    count: int = 0
    rate_limited: float = 0.0
    failed: Counter[int] = field(default_factory=Counter)


class Engine:
    """One run over one endpoint, on one event loop."""

    def __init__(self, endpoint: Endpoint, state: InferenceState) -> None:
        self._endpoint = endpoint
        self._state = state
        self._draw = random.Random()
        self._workers: WorkerPool
        self._believed_dead = time.monotonic() < endpoint.concurrency.dead_until
        self._throttle = Throttle(endpoint, state)

    async def run(self, groups: Iterator[RequestGroup], report: Callable[[], None]) -> None:
        """Asks every group of requests; returns when all are answered or failed, or when the run has stopped.

        Raises StoreError when answers can't be kept, and Interrupted.
        """
        limiter, ceiling = self._endpoint.concurrency, self._endpoint.ceiling
        limiter.register(ceiling)
        self._workers = WorkerPool(lambda: self._worker(groups), ceiling)
        over = asyncio.Event()
        supervisor = asyncio.ensure_future(self._supervise(over, report))
        workers = asyncio.ensure_future(self._workers.finish())
        try:
            await _until_first(workers, supervisor)
            await workers
        finally:
            over.set()
            workers.cancel()
            # The supervisor is never cancelled: it may be in the middle of moving answers to the store.
            await asyncio.gather(workers, supervisor, return_exceptions=True)
            limiter.unregister(ceiling)

    async def take(
        self, groups: Iterator[RequestGroup], batched: Mapping[str, KeptRow], wire: Wire
    ) -> Iterator[RequestGroup]:
        """Records what came of requests in batches, as asked for when their job was; gives the groups that
        are left to ask: those that were not asked there, and those that failed."""
        left, state = list[RequestGroup](), self._state
        for codec, requests in groups:
            row = batched.get(batch_id(requests))
            answers = None if row is None else self._answers_in(row, codec, requests, wire)
            if answers is None:
                left.append((codec, requests))
                continue
            for answer, asked in zip(answers, asked_characters(requests), strict=True):
                self._record(answer, asked, batched=True)
            state.tally.sent += len(requests)
            state.tally.batched += len(requests)
            state.tally.attempts += 1
            if state.writer.full:
                await state.writer.flush()
        return iter(left)

    def _answers_in(
        self, kept: KeptRow, codec: Codec, requests: Sequence[Request], wire: Wire
    ) -> list[KeptAnswer] | None:
        """The answers in a batch's row, which has no seconds of its own; None where asking alone may help."""
        row, replies = kept.row, list[Reply]()
        try:
            if row.status != 200:
                raise wire.failure(row.status, row.content, {})
            replies.append(Reply(wire.body(row.content), 0.0))
            answers = _read(codec, requests, replies, 1)
        except SettledError as error:
            answers = [
                KeptAnswer(status="refused", key=r.key, error=str(error), arrived=time.time())
                for r in requests
            ]
        except RequestError:
            answers = []
        if not answers or any(answer.status == "infra_error" for answer in answers):
            self._lose(codec, replies, batched=True)
            return None
        asked: dict[str, Any] = {"asked_at": kept.asked_at, "night": kept.night}
        return [replace(answer, inference_time=None, **asked) for answer in answers]

    async def _supervise(self, over: asyncio.Event, report: Callable[[], None]) -> None:
        """Moves answers to the store in time, reports, and looks whether the run is to stop."""
        flushed = time.monotonic()
        while not over.is_set():
            await until(over, TICK_SECONDS)
            check_interrupted()
            self._state.control.check()
            if self._state.is_over():
                self._throttle.stop()
            if self._state.writer.full or time.monotonic() - flushed >= FLUSH_SECONDS:
                await self._state.writer.flush()
                flushed = time.monotonic()
            report()

    async def _worker(self, groups: Iterator[RequestGroup]) -> None:
        for codec, requests in groups:
            if self._state.is_over():  # also where all was used before this inference began
                return
            for answer, asked in await self._ask(codec, requests):
                self._record(answer, asked)
            self._state.is_over()

    def _record(self, answer: KeptAnswer, asked: int, batched: bool = False) -> None:
        state = self._state
        if answer.status == "infra_error":
            state.use(counts_in(answer), exchanged(answer, asked), batched)
            self._fail(answer.key, RequestFailure(str(answer.error), answer.attempts), PermanentError)
            return
        state.writer.append(answer)
        if state.first is not None:
            state.first.add(answer)
        used = state.tally.add(answer, state.price_of(batched), asked)
        state.spending.add(used.tokens, used.cost)

    def _fail(self, key: bytes, failure: RequestFailure, kind: type[RequestError]) -> None:
        self._state.failures[key] = failure
        self._state.tally.count_error(kind.__name__)

    async def _ask(self, codec: Codec, requests: Sequence[Request]) -> list[tuple[KeptAnswer, int]]:
        """The requests' answers, each with the characters that were asked for it; none when they failed,
        which is then on record."""
        attempts = Attempts()
        state = self._state
        try:
            calls = _calls(codec, requests)
            answers = await self._until_answered(codec, requests, calls, attempts)
        except PermanentError as error:
            if len({(request.prompt, request.continuation) for request in requests}) > 1:
                # One of them spoils the batch: each is asked alone.
                state.tally.attempts += attempts.count
                return [answer for request in requests for answer in await self._ask(codec, [request])]
            if isinstance(error, SettledError):
                facts: dict[str, Any] = {"attempts": max(1, attempts.count), "arrived": time.time()}
                answers = [
                    KeptAnswer(status="refused", key=r.key, error=str(error), **facts) for r in requests
                ]
            else:
                answers = self._failed(requests, error, attempts)
        except RunStopping:
            answers = []
        except RequestError as error:
            if isinstance(error, EndpointError):
                state.stopped = state.stopped or f"not asked: {error}"
            answers = self._failed(requests, error, attempts)
        if attempts.count:
            state.tally.sent += len(requests)
            state.tally.attempts += attempts.count
        return list(zip(answers, asked_characters(requests), strict=False))

    def _failed(
        self, requests: Sequence[Request], error: RequestError, attempts: Attempts
    ) -> list[KeptAnswer]:
        """Puts on record that the requests have no answer, and gives none."""
        for request in requests:
            self._fail(request.key, RequestFailure(str(error), attempts.count), type(error))
        return []

    async def _until_answered(
        self, codec: Codec, requests: Sequence[Request], calls: Sequence[Call], attempts: Attempts
    ) -> list[KeptAnswer]:
        start = time.monotonic()
        replies: list[Reply] = []
        try:
            while True:
                try:
                    while len(replies) < len(calls):
                        replies.append(await self._attempt(calls[len(replies)], start, attempts))
                    return _read(codec, requests, replies, attempts.count, self._state.writer.asked)
                except TransientError as error:
                    if len(replies) == len(calls):  # seen only when they were read: any may be the broken one
                        self._lose(codec, replies)
                    await self._await_retry(error, start, len(replies), attempts)
        except (RequestError, RunStopping):
            self._lose(codec, replies)
            raise

    def _lose(self, codec: Codec, replies: list[Reply], batched: bool = False) -> None:
        """Counts what replies used that no answer comes of, as far as they say it, and takes them away."""
        for reply in replies:
            self._state.use(codec.usage(reply.body), None, batched)
        replies.clear()

    async def _await_retry(
        self, error: TransientError, start: float, failed: int, attempts: Attempts
    ) -> None:
        """Waits until the call with this number may be made again; raises the error where that is never, and
        RunStopping."""
        attempts.failed[failed] += 1
        spent = time.monotonic() - start - attempts.rate_limited
        wait = self._endpoint.retry.wait(attempts.failed[failed], spent, error, self._draw)
        self._check_alive(error, start, attempts, hopeless=wait is None)
        if wait is None:
            raise error
        self._state.tally.retries += 1
        self._workers.add_spare()
        await self._throttle.sleep(wait)
        if self._state.stopped is not None:
            raise RunStopping from error

    async def _attempt(self, call: Call, start: float, attempts: Attempts) -> Reply:
        """One attempt at one call, once the limiters let it through."""
        endpoint = self._endpoint
        await self._throttle.enter(start, attempts)
        outcome: AttemptOutcome | None = None
        tokens = endpoint.tokens_of(call) if endpoint.pace.counts_tokens else 0
        told = endpoint.pace.join(tokens)
        try:
            await self._throttle.await_rate(call, attempts, told)
            await self._state.writer.logged()  # an answer may have left this place in this very turn
            attempts.count += 1
            began = time.monotonic()
            left = endpoint.retry.deadline - (began - start - attempts.rate_limited)
            try:
                reply = await endpoint.transport.send(call, min(endpoint.timeout, max(1.0, left)))
            except TransientError as error:
                outcome = _outcome(error, time.monotonic() - began)
                if isinstance(error, RequestTimeout):
                    await asyncio.sleep(SETTLE_SECONDS)
                raise
            except RequestError:
                outcome = AttemptOutcome(time.monotonic() - began)
                raise
            outcome = AttemptOutcome(reply.seconds)
            endpoint.pace.update(reply.allowances, tokens)
            return reply
        finally:
            endpoint.pace.leave(tokens)
            endpoint.concurrency.leave(outcome)

    def _check_alive(self, error: TransientError, start: float, attempts: Attempts, hopeless: bool) -> None:
        """Raises EndpointDead when nothing at all was answered since this request was first sent, and it is
        given up.
        """
        limiter = self._endpoint.concurrency
        if limiter.last_success >= start:
            self._believed_dead = False
            return
        if (hopeless and limiter.failures >= DEAD_FAILURES) or self._believed_dead:
            limiter.dead_until = time.monotonic() + DEAD_SECONDS
            seconds = time.monotonic() - start
            said = "takes no request" if isinstance(error, RateLimited) else "answers nothing"
            raise EndpointDead(
                f"the endpoint {said}: {error} (after {attempts.count} attempts over {seconds:.0f} s)"
            ) from error


def _outcome(error: TransientError, seconds: float) -> AttemptOutcome:
    # Overload and a dead endpoint look alike from here, and fewer requests suit both. A 500 is neither.
    congested = isinstance(error, RateLimited | RequestTimeout | ConnectionFault | Overloaded)
    return AttemptOutcome(seconds, ok=False, congested=congested, retry_after=error.retry_after)


async def _until_first(workers: "asyncio.Future[Any]", supervisor: "asyncio.Future[None]") -> None:
    """Waits for the workers; raises what the supervisor raises when that is sooner."""
    await asyncio.wait({workers, supervisor}, return_when=asyncio.FIRST_COMPLETED)
    if not workers.done():
        supervisor.result()


def _calls(codec: Codec, requests: Sequence[Request]) -> Sequence[Call]:
    """The calls of the requests; whatever else a prompt makes their writer raise is a fault of these requests
    alone, and no fault of the run.
    """
    try:
        with users_code():  # a provider may be a user's
            return codec.calls(requests)
    except (RequestError, NightjarError):
        raise
    except Exception as error:
        said = shortened(named(error))
        raise BadRequest(f"the request can't be written ({said})") from error


def _read(
    codec: Codec,
    requests: Sequence[Request],
    replies: Sequence[Reply],
    attempts: int,
    asked: Mapping[str, Any] | None = None,
) -> list[KeptAnswer]:
    """The answers in the replies, all of which can be kept; whatever else a reply makes its reader raise is
    a malformed answer to these requests, and no fault of the run.
    """
    try:
        with users_code():
            return codec.answers(requests, replies, attempts, asked)
    except RequestError:
        raise
    except Exception as error:
        said = shortened(named(error))
        raise MalformedBody(f"the answer can't be read ({said})") from error


class Throttle:
    """Makes the requests of a run wait for the endpoint's limiters, and no longer than the run goes on."""

    def __init__(self, endpoint: Endpoint, state: InferenceState) -> None:
        self._endpoint = endpoint
        self._state = state
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Wakes all who wait: the run is stopping."""
        self._stopping.set()

    async def sleep(self, seconds: float) -> None:
        """Sleeps that long, or until the run is stopping."""
        await until(self._stopping, seconds)

    async def enter(self, start: float, attempts: Attempts) -> None:
        """Takes a slot at the endpoint for a request that was begun at ``start``.

        Raises Stopped, and RateLimited when the endpoint wants no requests until after this one's deadline.
        """
        while True:
            await self._resumed(attempts)
            await self._take_place(start, attempts)
            if not self._state.control.paused:
                return
            self._endpoint.concurrency.leave(None)  # a run that is paused holds up no other

    async def _take_place(self, start: float, attempts: Attempts) -> None:
        deadline = self._endpoint.retry.deadline
        while (wait := await self._endpoint.concurrency.enter()) > 0:
            if time.monotonic() - start - attempts.rate_limited + wait >= deadline:
                said = f"the endpoint asks for a pause of {wait:.0f} s, longer than a request may take"
                raise RateLimited(f"{said} (deadline: {deadline:g} s)", retry_after=wait)
            await self.sleep(wait)
            if self._state.stopped is not None:
                raise RunStopping

    async def _resumed(self, attempts: Attempts) -> None:
        """Waits while the run is paused; that takes nothing of a request's time. Raises RunStopping."""
        if not self._state.control.paused:
            return
        began = time.monotonic()
        while self._state.control.paused:
            await self.sleep(TICK_SECONDS)
            if self._state.stopped is not None:
                raise RunStopping
        attempts.rate_limited += time.monotonic() - began

    async def await_rate(self, call: Call, attempts: Attempts, told: float = 0.0) -> None:
        """Waits for the slots of requests and tokens a minute, and as long as the endpoint ``told`` to.
        Raises RunStopping.
        """
        endpoint = self._endpoint
        wait = max(told, endpoint.request_rate.reserve(1) if endpoint.request_rate else 0.0)
        if endpoint.token_rate is not None:
            wait = max(wait, endpoint.token_rate.reserve(endpoint.tokens_of(call)))
        if wait > 0:
            await self.sleep(wait)
            attempts.rate_limited += wait
        await self._resumed(attempts)
        if self._state.stopped is not None:
            raise RunStopping


async def until(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class WorkerPool:
    """Workers on one loop: as many as there are slots, and another for each that waits for its next attempt
    and so holds none. Each works until there is nothing left.
    """

    def __init__(self, worker: Callable[[], Coroutine[Any, Any, None]], slots: int) -> None:
        self._worker = worker
        self._spares = max(8, slots // 2)  # workers that may still be added
        self._tasks = {asyncio.ensure_future(worker()) for _ in range(slots)}

    def add_spare(self) -> None:
        """One more worker, unless there are many already."""
        if self._spares:
            self._spares -= 1
            self._tasks.add(asyncio.ensure_future(self._worker()))

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
