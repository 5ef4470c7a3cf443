"""Rate limits that endpoints tell of in the headers of their replies."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tasks.models.engine import Throttle
from tasks.models.errors import AccessDenied, RateLimited
from tasks.models.limits.allowances import Allowance, Pace, allowances
from tasks.models.providers.provider import provider_of
from tasks.models.wire import status_error
from tests.tasks.models.test_native_providers import REPLIES, model

NOW = 1_767_225_600.0


def openai(unit: str = "requests", **said: str) -> dict[str, str]:
    return {f"x-ratelimit-{part}-{unit}": value for part, value in said.items()}


def anthropic(unit: str = "requests", **said: str) -> dict[str, str]:
    return {f"anthropic-ratelimit-{unit}-{part}": value for part, value in said.items()}


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("12ms", 0.012),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3_723.5),
        ("7.66s", 7.66),
        ("60", 60.0),
        (str(NOW + 30), 30.0),
        (datetime.fromtimestamp(NOW + 40, UTC).isoformat().replace("+00:00", "Z"), 40.0),
    ],
)
def test_each_form_of_a_reset_is_read(reset: str, seconds: float):
    for headers in (openai, anthropic):
        (said,) = allowances(headers(remaining="0", reset=reset), NOW)
        assert said.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        openai(remaining="-1", limit="-1", reset="0"),
        openai(remaining="many", reset="1s"),
        openai(remaining="3"),
        openai(remaining="3", reset="soon"),
        openai(remaining="nan", reset="1s"),
        openai(remaining="3", reset="infs"),
        anthropic(remaining="3", reset="2020-01-01T00:00:00Z"),
    ],
)
def test_what_cannot_be_read_or_is_no_limit_says_nothing(headers: dict[str, str]):
    assert allowances(headers, NOW) == ()


def test_both_kinds_of_limits_are_read_of_both_forms():
    for form in (openai, anthropic):
        headers = form("requests", remaining="40", limit="50", reset="12s")
        headers |= form("tokens", remaining="0", limit="1000", reset="60s")
        assert allowances(headers) == (
            Allowance("requests", 40.0, 1.2, 12.0),
            Allowance("tokens", 0.0, 0.06, 60.0),
        )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nobody_waits_while_enough_is_left():
    pace = Pace(Clock())
    assert pace.join(0) == 0.0
    pace.update([Allowance("requests", 5, 2.0, 10.0)], 0)
    pace.leave(0)
    assert [pace.join(0) for _ in range(5)] == [0.0] * 5


def test_requests_go_as_fast_as_units_come_back():
    clock = Clock()
    pace = Pace(clock)
    pace.join(0)
    pace.update([Allowance("requests", 1, 2.0, 10.0)], 0)
    pace.leave(0)
    assert [pace.join(0) for _ in range(4)] == [0.0, 2.0, 4.0, 6.0]
    clock.now += 7.0
    assert pace.join(0) == pytest.approx(1.0)


def test_who_waits_or_is_on_the_way_keeps_the_place_when_another_reply_comes():
    pace = Pace(Clock())
    for _ in range(3):
        pace.join(0)
    pace.update([Allowance("requests", 0, 2.0, 10.0)], 0)
    pace.leave(0)
    assert pace.join(0) == 6.0


def test_a_request_that_is_answered_takes_no_tokens_any_more():
    pace = Pace(Clock())
    pace.join(0)
    pace.update([Allowance("tokens", 100, 0.01, 10.0)], 0)
    pace.leave(0)
    assert pace.join(100) == 0.0
    pace.update([Allowance("tokens", 100, 0.01, 10.0)], 100)
    pace.leave(100)
    assert pace.join(100) == 0.0


def test_tokens_are_waited_for_too_and_nobody_waits_longer_than_a_minute():
    pace = Pace(Clock())
    assert not pace.counts_tokens
    pace.join(0)
    pace.update([Allowance("tokens", 100, 0.01, 10.0)], 0)
    pace.leave(0)
    assert pace.counts_tokens
    assert pace.join(100) == 0.0
    assert pace.join(500) == pytest.approx(5.0)
    assert pace.join(10**9) == 60.0


@pytest.mark.parametrize("form", [openai, anthropic])
def test_a_429_without_retry_after_waits_as_its_headers_say(form: Callable[..., dict[str, str]]):
    headers = form("requests", remaining="0", limit="50", reset="7s") | form(
        "tokens", remaining="9", reset="50s"
    )
    error = status_error(429, b"{}", headers)
    assert isinstance(error, RateLimited)
    assert error.retry_after == 7.0
    assert status_error(429, b"{}", {**headers, "Retry-After": "3"}).retry_after == 3.0
    assert status_error(429, b"{}", {**headers, "retry-after-ms": "250"}).retry_after == 0.25
    assert status_error(429, b"{}", form("requests", remaining="0", reset="9h")).retry_after == 60.0
    assert status_error(429, b"{}", {}).retry_after is None


NO_QUOTA = "You exceeded your current quota, please check your plan and billing details."
A_MINUTE = (
    "Rate limit reached for default-m in organization org-1 on requests per min. Limit: 3 / min. Please try "
    "again in {}. Visit https://platform.openai.com/account/billing to add a payment method."
)


def google(unit: str, **delay: str) -> list[dict[str, Any]]:
    violation = {"quotaMetric": "requests", "quotaId": f"GenerateRequestsPer{unit}PerProject-FreeTier"}
    return [{"@type": "QuotaFailure", "violations": [violation]}, {"@type": "RetryInfo", **delay}]


@pytest.mark.parametrize(
    ("error", "headers", "wait"),
    [
        ({"message": NO_QUOTA, "details": google("Minute", retryDelay="26s")}, {}, 26.0),
        ({"message": f"{NO_QUOTA}\nPlease retry in 36.5s."}, {}, 36.5),
        ({"message": A_MINUTE.format("20s"), "code": "rate_limit_exceeded"}, {}, 20.0),
        ({"message": A_MINUTE.format("6m30s"), "type": "requests"}, {}, 390.0),
        ({"message": A_MINUTE.format("80ms"), "code": "rate_limit_exceeded"}, {"Retry-After": "1"}, 1.0),
        ({"message": "Please retry after 7 seconds.", "code": "429"}, {}, 7.0),
        ({"message": "Add funds at https://example.com/billing for more."}, {}, None),
        ({"message": NO_QUOTA, "code": "insufficient_quota"}, {"Retry-After": "2"}, 2.0),
    ],
)
@pytest.mark.parametrize("failure", [status_error, provider_of(model("gemini")).wire().failure])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_429_of_a_minute_is_waited_for_whatever_it_says_of_quotas_and_billing(
    failure: Any, wrapped: bool, error: dict[str, Any], headers: dict[str, str], wait: float | None
):
    body = {"error": error}
    found = failure(429, orjson.dumps([body] if wrapped else body), headers)
    assert isinstance(found, RateLimited)
    assert found.retry_after == wait


@pytest.mark.parametrize(
    "error",
    [
        {"message": NO_QUOTA, "code": "insufficient_quota"},
        {"message": "no", "type": "insufficient_quota", "code": None},
        {"message": "Your account is not active.", "code": "billing_not_active"},
        {"message": NO_QUOTA, "details": google("Day", retryDelay="36s")},
    ],
)
def test_a_429_of_a_quota_that_is_used_up_ends_the_run(error: dict[str, Any]):
    assert isinstance(status_error(429, orjson.dumps({"error": error}), {}), AccessDenied)


@pytest.mark.parametrize(
    ("kind", "client", "headers"),
    [
        ("anthropic", None, anthropic(remaining="0", limit="10", reset="30s")),
        ("openai_responses", None, openai(remaining="0", limit="10", reset="30s")),
        ("openai", "http", openai(remaining="0", limit="10", reset="30s")),
        ("openai", "openai", openai(remaining="0", limit="10", reset="30s")),
    ],
)
def test_the_next_request_waits_as_the_last_reply_says(
    kind: str,
    client: str | None,
    headers: dict[str, str],
    bench: Any,
    problems: Any,
    script: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
):
    slept: list[float] = []

    async def sleep(self: Throttle, seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(Throttle, "sleep", sleep)
    from tests.tasks.models.batch_servers import said

    reply = said("openai", "4") if kind == "openai" else REPLIES[kind]["text"]
    config: dict[str, Any] = {"base_url": script(lambda _: (200, headers, reply)), "max_concurrency": 1}
    config |= {} if client is None else {"client": client}
    outcome = bench.ask(model(kind, config), problems(3))
    assert outcome.column("status") == ["ok"] * 3
    assert [round(seconds, 1) for seconds in slept] == [3.0, 3.0]
