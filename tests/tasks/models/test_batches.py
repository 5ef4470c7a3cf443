"""Batches, against servers that follow the providers' documented wire forms."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tasks.models import jobs
from tasks.models.answers.segments import AnswerStore
from tasks.models.batches.records import FOLDER
from tasks.models.config import ModelConfig, Price
from tasks.models.errors import ModelError
from tasks.models.jobs import Waiting, close_jobs, look_at_jobs, send_jobs
from tasks.models.records import InferenceOptions
from tasks.store.schemas import REQUESTS
from tests.tasks.models.batch_servers import Failure, provider_server, said, serving

KINDS = ("openai", "anthropic", "gemini")
LOOKS = 50
HALF = Price(prompt=1.0, completion=10.0, batch=0.5)


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts servers of a kind; gives the server and its address."""
    with ExitStack() as stack:

        def start(kind: str, **fields: Any) -> tuple[Any, str]:
            server = provider_server(kind, **fields)
            return server, stack.enter_context(serving(server))

        yield start


def model(kind: str, base_url: str, batch: Any = None, **config: Any) -> ModelConfig:
    told = {"model": "m", "base_url": base_url, "timeout": 5.0, "max_retries": 2, **config}
    named = {} if batch is None else {"batch": batch}
    return ModelConfig.model_validate({"name": "m", "type": kind, "config": {**told, **named}})


def rows(count: int, **fields: Any) -> list[pa.RecordBatch]:
    from tests.tasks.models.conftest import request_row

    made = [request_row(index, prompts=[f"How much is {index} + 1?"], **fields) for index in range(count)]
    return [pa.RecordBatch.from_pylist(made, schema=REQUESTS)]


def canonical(body: Any) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


def waited(
    asked: ModelConfig, requests: Sequence[pa.RecordBatch], answers: AnswerStore, options: InferenceOptions
) -> Waiting:
    """Sends and looks until all jobs have ended, as the flow does."""
    found = send_jobs(asked, requests, answers, options)
    for _ in range(LOOKS):
        if not found.open:
            return found
        found = look_at_jobs(asked, found.names, answers, options)
    raise AssertionError(f"not over after {LOOKS} looks: {found}")


def by_batch(bench: Any, asked: ModelConfig, requests: Sequence[pa.RecordBatch], **fields: Any) -> Any:
    options = bench.options(**fields)
    found = waited(asked, requests, bench.answers, options)
    outcome = bench.ask(asked, requests, batches=found.names, **fields)
    close_jobs(asked, found.names, bench.answers, options)
    return outcome


def kept(bench: Any) -> list[str]:
    return bench.answers.store.names(FOLDER, ".json")


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_the_answers_that_single_requests_give(
    kind: str, started: Any, bench: Any, tmp_path: Any
):
    from tests.tasks.models.conftest import Bench

    server, url = started(kind)
    one = bench.ask(model(kind, url), rows(12))
    assert len(server.single) == 12
    server.single.clear()
    alone = list(server.bodies)
    server.bodies.clear()
    other = Bench(tmp_path / "other")
    batched = by_batch(other, model(kind, url, {"wait": "24h"}), rows(12), price=HALF)
    assert len(server.jobs) == 1
    assert not server.single
    assert sorted(map(canonical, server.bodies)) == sorted(map(canonical, alone))
    assert batched.column("response") == one.column("response")
    assert batched.column("status") == ["ok"] * 12
    assert batched.tally.sent == batched.tally.batched == 12
    assert batched.tally.cached == 0
    assert batched.tally.cost == pytest.approx(12 * (1_000 * 1.0 + 100 * 10.0) / 1e6 / 2)
    # The keys are the same: without a batch nothing is asked any more.
    again = other.ask(model(kind, url), rows(12))
    assert again.tally.sent == 0
    assert again.column("response") == one.column("response")
    assert not kept(other)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_job_did_not_ask_is_asked_in_another_while_there_is_time(kind: str, started: Any, bench: Any):
    lost = 3

    def outcome(name: str, body: Any) -> Any:
        first = len(server.jobs) == 1 and body in list(server.jobs["job-0"].requests.values())[:lost]
        return None if first else (200, server.reply(body))

    server, url = started(kind, outcome=outcome)
    asked = model(kind, url, {"wait": "24h"})
    found = waited(asked, rows(10), bench.answers, bench.options())
    assert found.expired == lost
    assert time.time() < found.until
    found = send_jobs(asked, rows(10), bench.answers, bench.options(), found.since)
    assert [len(job.requests) for job in server.jobs.values()] == [10, lost]
    while found.open:
        found = look_at_jobs(asked, found.names, bench.answers, bench.options())
    outcome_ = bench.ask(asked, rows(10), batches=found.names)
    assert outcome_.column("status") == ["ok"] * 10
    assert not server.single


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_time_to_wait_a_job_is_cancelled_and_the_rest_is_asked_alone(
    kind: str, started: Any, bench: Any
):
    def outcome(name: str, body: Any) -> Any:
        return (200, server.reply(body)) if int(name, 16) % 2 else None

    server, url = started(kind, looks=10**6, outcome=outcome)
    asked = model(kind, url, {"wait": 0.01})
    found = waited(asked, rows(20), bench.answers, bench.options())
    assert server.jobs["job-0"].cancelled
    outcome_ = bench.ask(asked, rows(20), batches=found.names)
    assert outcome_.column("status") == ["ok"] * 20
    assert 0 < len(server.single) == found.expired < 20
    assert outcome_.tally.sent == 20
    assert outcome_.tally.batched == 20 - found.expired


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_failed_is_asked_alone_and_a_refusal_is_one(kind: str, started: Any, bench: Any):
    errors = {
        "openai": {"error": {"message": "broken", "code": "server_error"}},
        "anthropic": {"type": "error", "error": {"type": "api_error", "message": "broken"}},
        "gemini": {"error": {"code": 500, "message": "broken", "status": "INTERNAL"}},
    }
    refused = {"error": {"message": "flagged", "code": "content_filter"}}

    def outcome(name: str, body: Any) -> Any:
        if "3 + 1" in str(body):
            return 500, errors[kind]
        if "5 + 1" in str(body) and kind == "openai":
            return 400, refused
        return 200, server.reply(body)

    server, url = started(kind, outcome=outcome)
    outcome_ = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(8))
    expected = ["ok"] * 8
    if kind == "openai":
        expected[5] = "refused"
    assert outcome_.column("status") == expected
    assert len(server.single) == 1
    assert "3 + 1" in str(server.single[0])


def test_a_failed_request_is_no_score(started: Any, bench: Any):
    def before(number: int, name: str) -> None:
        if name == "POST /v1/chat/completions":
            raise Failure(400, "no such thing")

    _server, url = started(
        "openai", before=before, outcome=lambda name, body: (500, {"error": {"message": "x"}})
    )
    outcome = by_batch(bench, model("openai", url, {"wait": "24h"}), rows(2))
    assert outcome.column("status") == ["infra_error"] * 2
    assert outcome.tally.failed == outcome.tally.retryable == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_error_costs_time_only(kind: str, started: Any, bench: Any):
    failed: set[str] = set()

    def before(number: int, name: str) -> None:
        if name not in failed:
            failed.add(name)
            raise Failure(500)

    server, url = started(kind, looks=3, before=before)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert outcome.column("status") == ["ok"] * 5
    assert len(server.jobs) == 1
    assert not server.single
    assert len(failed) >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_that_says_nothing_of_a_job_any_more_is_not_waited_for_for_ever(
    kind: str, started: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
):
    def before(number: int, name: str) -> None:
        if "job-0" in name:
            raise Failure(500)

    monkeypatch.setattr(jobs, "CANCEL_SECONDS", 0.0)
    server, url = started(kind, before=before)
    outcome = by_batch(bench, model(kind, url, {"wait": 0.01}), rows(4))
    assert outcome.column("status") == ["ok"] * 4
    assert len(server.single) == 4
    assert not kept(bench)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_was_made_unheard_is_found_and_not_sent_again(kind: str, started: Any, bench: Any):
    def after(number: int, name: str) -> None:
        if server.jobs and not heard:
            heard.append(name)
            raise Failure(503, "the reply got lost")

    heard: list[str] = []
    server, url = started(kind, after=after)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert heard
    assert len(server.jobs) == 1
    assert outcome.column("status") == ["ok"] * 5


def test_anothers_job_of_the_same_size_is_let_go(started: Any, bench: Any):
    """Anthropic's jobs bear no mark: one that was made at the same time with as many requests is taken for
    ours until its rows say whose it is."""

    def before(number: int, name: str) -> None:
        if name == "POST /v1/messages/batches" and not server.jobs:
            server.job({f"theirs-{n}": {"messages": [{"content": "hi there"}]} for n in range(5)})
            raise Failure(503)

    server, url = started("anthropic", before=before)
    asked = model("anthropic", url, {"wait": "24h"})
    found = waited(asked, rows(5), bench.answers, bench.options())
    assert found.expired == 5
    found = send_jobs(asked, rows(5), bench.answers, bench.options(), found.since)
    while found.open:
        found = look_at_jobs(asked, found.names, bench.answers, bench.options())
    outcome = bench.ask(asked, rows(5), batches=found.names)
    assert outcome.column("response") == [f"18 {word}" for word in ["1?"] * 5]
    assert len(server.jobs) == 2
    assert not server.single


def test_ten_thousand_requests_are_one_job(started: Any, bench: Any):
    server, url = started("openai")
    outcome = by_batch(bench, model("openai", url, {"wait": "24h"}), rows(10_000))
    assert [len(job.requests) for job in server.jobs.values()] == [10_000]
    assert outcome.column("status") == ["ok"] * 10_000
    assert not server.single


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_are_as_few_as_the_limits_allow(
    kind: str, started: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
):
    from tasks.models.providers.provider import provider_class

    form: Any = provider_class(kind).batches
    monkeypatch.setattr(type(form), "most_requests", 4)
    server, url = started(kind)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(10))
    assert [len(job.requests) for job in server.jobs.values()] == [4, 4, 2]
    assert outcome.column("status") == ["ok"] * 10
    monkeypatch.setattr(type(form), "most_requests", 100)
    line = max(len(canonical(body)) for body in server.bodies)
    most = 4 * (line + 120)  # beside the body a line holds the request's name, and what the form has around
    monkeypatch.setattr(type(form), "most_bytes", most)
    server.jobs.clear()
    by_batch(bench, model(kind, url, {"wait": "24h"}), rows(30))
    sizes = [len(job.requests) for job in server.jobs.values()]
    assert sum(sizes) == 20
    assert 2 < len(sizes) < 10
    assert all(size <= 6 for size in sizes)


def test_samples_of_one_call_stay_together(started: Any, bench: Any):
    def reply(body: Any) -> Any:
        whole = said("openai", "a")
        choice = whole["choices"][0]
        texts = [f"{n} of {body['n']}" for n in range(body["n"])]
        whole["choices"] = [
            {**choice, "index": n, "message": {"role": "assistant", "content": text}}
            for n, text in enumerate(texts)
        ]
        return whole

    server, url = started("openai", reply=reply)
    sampling = {"num_samples": 4, "n": 2, "temperature": 1.0}
    outcome = by_batch(bench, model("openai", url, {"wait": "24h"}), rows(3), sampling=sampling)
    assert outcome.column("response") == ["0 of 2", "1 of 2"] * 6
    assert len(next(iter(server.jobs.values())).requests) == 6


def test_a_job_that_failed_as_a_whole_is_told(started: Any, bench: Any):
    server, url = started("openai", fails="the model m takes no batches")
    asked = model("openai", url, {"wait": "24h"})
    with pytest.raises(ModelError, match=r"the model m takes no batches.*leave config.batch out"):
        waited(asked, rows(3), bench.answers, bench.options())
    assert not kept(bench)
    assert not server.single


def test_an_endpoint_without_batches_is_told(script: Any, bench: Any):
    url = script(lambda asked: (404, {}, {"error": {"message": "no such path"}}))
    with pytest.raises(ModelError, match=r"refused a batch.*leave config.batch out"):
        send_jobs(model("openai", url, {"wait": "24h"}), rows(3), bench.answers, bench.options())
    assert not kept(bench)


def test_another_night_does_not_take_a_job_of_the_night_before(started: Any, bench: Any):
    from tasks.models.records import Lookup

    server, url = started("openai", looks=10**6)
    asked = model("openai", url, {"wait": "24h"})
    for night in ("one", "one", "two"):
        options = bench.options(night=night, lookup=Lookup(night=night))
        send_jobs(asked, rows(3), bench.answers, options)
    assert len(server.jobs) == 2
    # Where any answer serves, the jobs of all nights do.
    send_jobs(asked, rows(3), bench.answers, bench.options(night="three"))
    assert len(server.jobs) == 2
