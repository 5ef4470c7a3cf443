"""Concurrency limits, rate limits and retries, without a network."""

import asyncio
import contextlib
import random
import time

import pytest

from tasks.models.config import RunLimits
from tasks.models.engine import Attempts, Endpoint, InferenceState, RetryPolicy, RunStopping, Throttle
from tasks.models.errors import RateLimited, ServerFault
from tasks.models.limits.limiters import AttemptOutcome, ConcurrencyLimiter, RateLimiter
from tasks.models.limits.spending import Spending
from tasks.models.records import Call
from tasks.models.tally import RequestTally
from tasks.models.wire import retry_after, status_error


async def rounds(limiter: ConcurrencyLimiter, outcomes) -> None:
    for outcome in outcomes:
        await limiter.enter()
        limiter.leave(outcome)


OK = AttemptOutcome(0.01)
BUSY = AttemptOutcome(0.01, ok=False, congested=True)


def limiter_with(ceiling: int) -> ConcurrencyLimiter:
    limiter = ConcurrencyLimiter()
    limiter.register(ceiling)
    return limiter


async def test_slow_start_reaches_the_ceiling_and_no_more():
    limiter = limiter_with(256)
    assert limiter.limit == 64
    await rounds(limiter, [OK] * 64)
    assert limiter.limit >= 128
    await rounds(limiter, [OK] * 400)
    assert limiter.limit == 256


async def test_a_round_of_objections_halves_and_a_stray_one_costs_little():
    limiter = limiter_with(32)
    await rounds(limiter, [BUSY] * 32)
    assert limiter.limit == 16
    limiter = limiter_with(32)
    await rounds(limiter, [*[OK] * 31, BUSY])
    assert limiter.limit >= 31


async def test_the_limit_never_falls_below_one_and_recovers():
    limiter = limiter_with(32)
    await rounds(limiter, [BUSY] * 200)
    assert limiter.limit <= 2
    await rounds(limiter, [OK] * 300)
    assert limiter.limit == 32


async def test_the_smallest_ceiling_of_all_users_holds():
    limiter = limiter_with(32)
    limiter.register(4)
    assert limiter.limit == 4
    limiter.unregister(4)
    assert limiter.limit == 32


async def test_no_more_than_the_limit_are_inside():
    limiter = limiter_with(3)
    inside = peak = 0

    async def visit() -> None:
        nonlocal inside, peak
        await limiter.enter()
        inside += 1
        peak = max(peak, inside)
        await asyncio.sleep(0)
        inside -= 1
        limiter.leave(OK)

    await asyncio.gather(*(visit() for _ in range(50)))
    assert (peak, limiter.in_flight) == (3, 0)


async def test_a_cancelled_visitor_gives_its_place_back():
    limiter = limiter_with(1)
    await limiter.enter()
    waiting = asyncio.ensure_future(limiter.enter())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    limiter.leave(OK)
    await asyncio.wait_for(limiter.enter(), 1)
    assert limiter.in_flight == 1


async def test_retry_after_closes_the_limiter_for_all_when_everything_is_refused():
    limiter = limiter_with(8)
    await rounds(limiter, [AttemptOutcome(0.01, ok=False, congested=True, retry_after=60)] * 8)
    assert 59 < await limiter.enter() <= 60
    assert limiter.in_flight == 0


async def test_who_waits_for_a_place_when_the_limiter_closes_is_told_for_how_long():
    limiter = limiter_with(1)
    await limiter.enter()
    waiting = asyncio.ensure_future(limiter.enter())
    await asyncio.sleep(0)
    limiter.leave(AttemptOutcome(0.01, ok=False, congested=True, retry_after=60))
    assert 59 < await waiting <= 60
    assert limiter.in_flight == 0


async def test_a_stray_retry_after_does_not_stop_the_others():
    limiter = limiter_with(32)
    await rounds(limiter, [*[OK] * 20, AttemptOutcome(0.01, ok=False, congested=True, retry_after=60)])
    assert await asyncio.wait_for(limiter.enter(), 1) == 0


async def _closed(throttle, limiter):
    await rounds(limiter, [AttemptOutcome(0.01, ok=False, congested=True, retry_after=600)])
    await throttle.enter(time.monotonic(), Attempts())


async def _rate_limited(throttle, limiter):
    for _ in range(2):
        with contextlib.suppress(RunStopping):
            await throttle.await_rate(Call("completions", {}), Attempts())
    raise RunStopping


@pytest.mark.parametrize("waits", [_closed, _rate_limited])
async def test_nobody_waits_at_a_limiter_once_the_run_is_stopping(waits):
    limiter, retry = limiter_with(1), RetryPolicy(0, 1e9)
    endpoint = Endpoint(None, limiter, ceiling=1, timeout=1, retry=retry, request_rate=RateLimiter(1))
    throttle = Throttle(
        endpoint, InferenceState(None, RequestTally(), Spending(RunLimits()), stopped="a limit was reached")
    )
    task = asyncio.ensure_future(waits(throttle, limiter))
    await asyncio.sleep(0.01)
    assert not task.done()
    throttle.stop()
    with pytest.raises(RunStopping):
        await asyncio.wait_for(task, 5)


def test_slots_of_a_rate_limiter_are_evenly_spaced():
    rate = RateLimiter(60_000)
    waits = [rate.reserve(1) for _ in range(5)]
    assert waits == pytest.approx([0, 0.001, 0.002, 0.003, 0.004], abs=0.001)


POLICY = RetryPolicy(max_retries=3, deadline=100)


def test_waits_double_within_their_jitter():
    draw = random.Random(1)
    waits = [POLICY.wait(attempt, 0, ServerFault("x"), draw) for attempt in (1, 2, 3)]
    for attempt, wait in enumerate(waits, start=1):
        assert 0.125 * 2**attempt <= wait <= 0.25 * 2**attempt
    assert POLICY.wait(4, 0, ServerFault("x"), draw) is None


def test_retry_after_is_neither_shortened_nor_allowed_past_the_deadline():
    draw = random.Random(1)
    assert POLICY.wait(1, 0, RateLimited("x", 20), draw) == 20
    assert POLICY.wait(1, 85, RateLimited("x", 20), draw) is None


@pytest.mark.parametrize("told", [0.0, 0.006])
def test_a_server_that_asks_for_no_wait_is_tried_over_as_long_a_time_as_one_that_says_nothing(told):
    said, silent = (
        [POLICY.wait(attempt, 0, RateLimited("x", after), random.Random(1)) for attempt in (1, 2, 3, 4)]
        for after in (told, None)
    )
    assert said == silent


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after-ms": "150"}, 0.15),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "86400"}, 86_400.0),
        ({"Retry-After": "999999999"}, None),
        ({"Retry-After": "Fri, 31 Dec 2049 23:59:59 GMT"}, None),
        ({"retry-after-ms": "999999999999", "Retry-After": "5"}, 5.0),
        ({"retry-after-ms": "abc", "Retry-After": "5"}, 5.0),
        ({"retry-after-ms": "nan", "Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after-ms": "20", "Retry-After": "1"}, 0.02),
    ],
)
def test_retry_after_is_read_in_every_form(headers, seconds):
    assert retry_after(headers, now=10.0) == seconds


def test_a_wait_in_a_body_is_believed_for_no_more_than_a_day():
    told = b'{"error": {"message": "Please try again in %s", "code": "rate_limit_exceeded"}}'
    assert status_error(429, told % b"24h", {}).retry_after == 86_400.0
    assert status_error(429, told % b"9000h", {}).retry_after is None


async def test_latency_that_stays_high_while_less_comes_back_cuts_down_to_a_quarter(monkeypatch):
    from tasks.models.limits import limiters as module

    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    limiter = limiter_with(32)

    async def spend(seconds: float) -> None:
        nonlocal now
        for _ in range(limiter.limit):
            now += seconds / 32
            await rounds(limiter, [AttemptOutcome(seconds)])

    for _ in range(4):
        await spend(0.1)
    assert limiter.limit == 32
    await spend(1.0)
    assert limiter.limit == 32  # one slow round may be the client's own fault
    for factor in range(2, 12):
        await spend(float(factor**2))
    assert 8 <= limiter.limit < 32
