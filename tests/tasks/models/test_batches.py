"""Batches, against servers that follow the providers' documented wire forms."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest

from tasks.models import jobs
from tasks.models.answers.segments import AnswerStore
from tasks.models.batches.records import FOLDER, Job
from tasks.models.config import ModelConfig, Price, RunLimits
from tasks.models.errors import ModelError
from tasks.models.jobs import Waiting, close_jobs, look_at_jobs, send_jobs
from tasks.models.records import InferenceOptions, Lookup
from tasks.store.schemas import REQUESTS
from tests.tasks.models.batch_servers import Failure, said

KINDS = ("openai", "anthropic", "gemini")
TYPES = (*KINDS, "openai_responses")
"""All types of models that have batches; the last has the batches of the first, with bodies of its own."""
LOOKS = 50
HALF = Price(prompt=1.0, completion=10.0, batch=0.5)


def model(kind: str, base_url: str, batch: Any = None, **config: Any) -> ModelConfig:
    told = {"model": "m", "base_url": base_url, "timeout": 5.0, "max_retries": 2, **config}
    named = {} if batch is None else {"batch": batch}
    return ModelConfig.model_validate({"name": "m", "type": kind, "config": {**told, **named}})


def rows(count: int, prompt: str = "How much is {} + 1?", **fields: Any) -> list[pa.RecordBatch]:
    from tests.tasks.models.conftest import request_row

    made = [request_row(index, prompts=[prompt.format(index)], **fields) for index in range(count)]
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
    """The files of jobs that the store holds."""
    return [entry.name for entry in bench.answers.store.all_entries(FOLDER)]


@pytest.mark.parametrize("kind", TYPES)
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


@pytest.mark.parametrize("kind", TYPES)
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


@pytest.mark.parametrize("kind", TYPES)
def test_a_job_that_was_made_unheard_is_found_and_not_sent_again(kind: str, started: Any, bench: Any):
    def after(number: int, name: str) -> None:
        if server.jobs and not heard:
            heard.append(name)
            raise Failure(500, "the reply got lost")

    heard: list[str] = []
    server, url = started(kind, after=after)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert heard
    assert len(server.jobs) == 1
    assert outcome.column("status") == ["ok"] * 5


def pages(server: Any) -> int:
    """How many pages of its list of jobs were read."""
    return len([name for name in server.exchanges if name.startswith("GET") and name.endswith("/batches")])


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_was_made_unheard_is_found_on_a_later_page(kind: str, started: Any, bench: Any):
    def after(number: int, name: str) -> None:
        if not server.jobs or heard:
            return
        heard.append(name)
        (ours,) = server.jobs.values()
        about = dict.fromkeys(("endpoint", "input_file_id", "name"), "?")
        others = [server.job({f"o-{n}": {}}, **about) for n in range(250)]
        if kind == "gemini":  # it lists the oldest first
            server.jobs = {job.id: job for job in (*others, ours)}
        raise Failure(500, "the reply got lost")

    heard: list[str] = []
    server, url = started(kind, after=after)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert outcome.column("status") == ["ok"] * 5
    assert len(server.jobs) == 251
    assert not server.single
    assert pages(server) == 3


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_search_for_a_job_ends_at_jobs_that_are_older_than_it(kind: str, started: Any, bench: Any):
    def before(number: int, name: str) -> None:
        if name.startswith("POST") and name.endswith("/batches") and not lost:
            lost.append(name)
            raise Failure(500)

    lost: list[str] = []
    server, url = started(kind, before=before)
    for _ in range(250):
        old = server.job({f"o-{n}": {} for n in range(5)}, endpoint="?", input_file_id="?")
        old.made -= 3_600
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert outcome.tally.batched == 5
    assert len(server.jobs) == 251
    assert pages(server) == 1


def test_anothers_job_of_the_same_size_is_let_go(started: Any, bench: Any):
    """Anthropic's jobs bear no mark: one that was made at the same time with as many requests is taken for
    ours until its rows say whose it is."""

    def before(number: int, name: str) -> None:
        if name == "POST /v1/messages/batches" and not server.jobs:
            server.job({f"theirs-{n}": {"messages": [{"content": "hi there"}]} for n in range(5)})
            raise Failure(500)

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
    server, url = started("openai", looks=10**6)
    asked = model("openai", url, {"wait": "24h"})
    for night in ("one", "one", "two"):
        options = bench.options(night=night, lookup=Lookup(night=night))
        send_jobs(asked, rows(3), bench.answers, options)
    assert len(server.jobs) == 2
    # Where any answer serves, the jobs of all nights do.
    send_jobs(asked, rows(3), bench.answers, bench.options(night="three"))
    assert len(server.jobs) == 2


@pytest.mark.parametrize("kind", TYPES)
def test_a_run_that_takes_a_part_of_a_job_leaves_the_rest_to_others(kind: str, started: Any, bench: Any):
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    whole = send_jobs(asked, rows(12), bench.answers, bench.options())
    part = by_batch(bench, asked, rows(3))
    assert part.tally.batched == 3
    # The whole run still waits: what it wants is there.
    found = look_at_jobs(asked, whole.names, bench.answers, bench.options())
    assert found.requests == found.done == 12
    again = by_batch(bench, asked, rows(12), price=HALF)
    assert again.column("status") == ["ok"] * 12
    assert (again.tally.batched, again.tally.cached) == (9, 3)
    assert [len(job.requests) for job in server.jobs.values()] == [12]
    assert not server.single
    assert not kept(bench)


def test_a_part_of_a_job_of_several_samples_a_call_is_left_to_others(started: Any, bench: Any):
    def reply(body: Any) -> Any:
        whole = said("openai", "a")
        whole["choices"] = [{**whole["choices"][0], "index": n} for n in range(body["n"])]
        return whole

    server, url = started("openai", reply=reply)
    asked = model("openai", url, {"wait": "24h"})
    sampling = {"num_samples": 2, "n": 2, "temperature": 1.0}
    send_jobs(asked, rows(4), bench.answers, bench.options(sampling=sampling))
    by_batch(bench, asked, rows(1), sampling=sampling)
    assert kept(bench)
    whole = by_batch(bench, asked, rows(4), sampling=sampling)
    assert whole.tally.batched == 6
    assert len(server.jobs) == 1
    assert not server.single
    assert not kept(bench)


def test_rows_that_wait_for_one_benchmark_outlive_the_sending_of_another(started: Any, bench: Any):
    server, url = started("openai", looks=0)
    asked = model("openai", url, {"wait": "24h"})
    one = waited(asked, rows(12), bench.answers, bench.options())
    other = rows(4, "How much is {} + 2?")
    send_jobs(asked, other, bench.answers, bench.options())
    outcome = bench.ask(asked, rows(12), batches=one.names)
    assert outcome.tally.batched == 12
    assert not server.single


def odd_rows(server: Any, line: Any) -> None:
    """The server's files of rows have one more."""
    file = server.file
    server.file = lambda content: file(
        content + orjson.dumps(line) + b"\n" if b"response" in content else content
    )


@pytest.mark.parametrize("name", [None, "somebody's"])
@pytest.mark.parametrize(("kind", "key"), [("openai", "custom_id"), ("gemini", "key")])
def test_a_row_that_nobody_asked_for_is_passed_over(
    kind: str, key: str, name: str | None, started: Any, bench: Any
):
    server, url = started(kind, looks=0)
    odd_rows(server, {key: name, "response": None, "error": {"code": 500, "message": "line lost"}})
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(6))
    assert outcome.tally.batched == 6
    assert len(server.jobs) == 1
    assert not server.single


def test_a_row_without_a_name_in_a_job_of_ours_is_passed_over_where_jobs_bear_no_mark(
    started: Any, bench: Any
):
    server, url = started("anthropic", looks=0)
    server.rows = lambda job: iter([("None", None), *type(server).rows(server, job)])
    outcome = by_batch(bench, model("anthropic", url, {"wait": "24h"}), rows(6))
    assert outcome.tally.batched == 6
    assert len(server.jobs) == 1


def theirs(server: Any, count: int, ago: float = 0.0) -> Any:
    """A colleague's job in the same workspace."""
    job = server.job({f"colleague-{n}": {"messages": [{"content": "hi there"}]} for n in range(count)})
    job.made -= ago
    return job


@pytest.mark.parametrize("status", [429, 529])
def test_a_refused_creation_takes_no_other_job_for_its_own(status: int, started: Any, bench: Any):
    def before(number: int, name: str) -> None:
        if name == "POST /v1/messages/batches" and refusing:
            raise Failure(status, "overloaded")

    refusing = [True]
    server, url = started("anthropic", before=before)
    foreign = theirs(server, 12, ago=300.0)
    asked = model("anthropic", url, {"wait": "24h"}, max_retries=1)
    with pytest.raises(ModelError, match="got no answer"):
        send_jobs(asked, rows(12), bench.answers, bench.options())
    refusing.clear()
    outcome = by_batch(bench, asked, rows(12))
    assert outcome.tally.batched == 12
    assert foreign.looks == 0
    assert not foreign.cancelled
    assert len(server.jobs) == 2


@pytest.mark.parametrize("looks", [0, 10**6])
def test_a_job_that_may_be_anothers_is_never_cancelled_nor_waited_for_too_long(
    looks: int, started: Any, bench: Any
):
    def before(number: int, name: str) -> None:
        if name == "POST /v1/messages/batches" and not lost:
            lost.append(name)
            raise Failure(500, "lost")

    lost: list[str] = []
    server, url = started("anthropic", before=before, looks=looks)
    foreign = [theirs(server, 5, ago=ago) for ago in (300.0, 200.0)]
    outcome = by_batch(bench, model("anthropic", url, {"wait": 0.01}), rows(5))
    assert outcome.column("status") == ["ok"] * 5
    assert not any(job.cancelled for job in foreign)
    assert len(server.single) == 5


def test_among_jobs_of_the_same_size_that_made_at_the_time_of_the_intent_is_ours(started: Any, bench: Any):
    def after(number: int, name: str) -> None:
        if name == "POST /v1/messages/batches" and not lost:
            lost.append(name)
            raise Failure(500, "the reply got lost")

    lost: list[str] = []
    server, url = started("anthropic", after=after)
    foreign = theirs(server, 5, ago=300.0)
    outcome = by_batch(bench, model("anthropic", url, {"wait": "24h"}), rows(5))
    assert outcome.tally.batched == 5
    assert foreign.looks == 0
    assert len(server.jobs) == 2


def test_a_job_of_another_model_of_ours_is_not_taken(started: Any, bench: Any):
    def before(number: int, name: str) -> None:
        if name == "POST /v1/messages/batches" and len(server.jobs) == 1 and not lost:
            lost.append(name)
            raise Failure(500)

    lost: list[str] = []
    server, url = started("anthropic", before=before, looks=10**6)
    first = model("anthropic", url, {"wait": "24h"})
    other = model("anthropic", url, {"wait": "24h"}, model="other")
    send_jobs(first, rows(5), bench.answers, bench.options())
    send_jobs(other, rows(5), bench.answers, bench.options())
    assert lost
    assert len(server.jobs) == 2


def aged(bench: Any, seconds: float) -> None:
    """The jobs that there are were sent so long ago."""
    store = bench.answers.store
    for name in kept(bench):
        if name.endswith(".json"):
            job = orjson.loads(store.document(name))
            job |= {"created": job["created"] - seconds, "since": job["since"] - seconds}
            store.put_document(name, orjson.dumps(job))


def test_batched_answers_have_the_time_and_the_night_of_their_job(started: Any, bench: Any):
    _server, url = started("openai", looks=0)
    asked = model("openai", url, {"wait": "30d"})
    send_jobs(asked, rows(3), bench.answers, bench.options(night="one", lookup=Lookup(night="one")))
    aged(bench, 20 * 86_400)
    taken = by_batch(bench, asked, rows(3), night="two")
    assert taken.tally.batched == 3
    assert bench.ask(asked, rows(3), lookup=Lookup(night="one"), night="one").tally.sent == 0
    assert bench.ask(asked, rows(3), lookup=Lookup(night="two"), night="two").tally.sent == 3
    recent = Lookup(night="one", not_before=time.time() - 7 * 86_400)
    assert bench.ask(asked, rows(3), lookup=recent, night="one").tally.sent == 3


def test_a_job_of_a_clock_that_was_ahead_serves_no_refresh():
    now = time.time()
    job = Job("a", "model", created=now + 2 * 86_400, since=now, night=None, ids=("1",), count=1)
    assert job.serves(Lookup())
    assert not job.serves(Lookup(not_before=now))
    assert replace(job, created=now + 60).serves(Lookup(not_before=now))


def test_a_job_serves_the_run_that_sent_it_when_the_clock_was_set_back(started: Any, bench: Any):
    server, url = started("openai", looks=0)
    asked = model("openai", url, {"wait": "24h"})
    own = Lookup(not_before=time.time(), run="own")
    send_jobs(asked, rows(3), bench.answers, bench.options(lookup=own))
    aged(bench, -1_200)  # it was sent before the clock was put right
    taken = by_batch(bench, asked, rows(3), lookup=own, asker="own.inference")
    assert (len(server.jobs), taken.tally.batched) == (1, 3)
    assert kept(bench) == []
    assert bench.ask(asked, rows(3), lookup=own).tally.cached == 3
    send_jobs(asked, rows(3), bench.answers, bench.options(lookup=replace(own, run="other")))
    assert len(server.jobs) == 2


def test_what_a_killed_process_had_by_batch_costs_the_price_of_batches(started: Any, bench: Any):
    _server, url = started("openai")
    asked = model("openai", url, {"wait": "24h"})
    whole = by_batch(bench, asked, rows(4), price=HALF, asker="attempt")
    # The process was killed now: another one does the attempt's inference again.
    again = bench.ask(asked, rows(6), price=HALF, asker="attempt")
    alone = (1_000 * 1.0 + 100 * 10.0) / 1e6
    assert whole.tally.cost == pytest.approx(4 * alone / 2)
    assert again.tally.cost == pytest.approx(4 * alone / 2 + 2 * alone)
    assert (again.tally.sent, again.tally.batched) == (6, 4)


def test_a_reused_answer_spared_what_asking_for_it_cost(started: Any, bench: Any):
    _server, url = started("openai")
    asked = model("openai", url, {"wait": "24h"})
    by_batch(bench, asked, rows(4), price=HALF)
    bench.ask(asked, rows(6), price=HALF)  # two of them alone
    again = bench.ask(asked, rows(6), price=HALF)
    alone = (1_000 * 1.0 + 100 * 10.0) / 1e6
    assert again.tally.cost == 0
    assert again.tally.saved_cost == pytest.approx(4 * alone / 2 + 2 * alone)
    assert again.tally.saved_tokens == 6 * 1_100


# A request of these tests has some 30 tokens before its answer, whose forecast is what it may have at most.
ANSWER = {"max_tokens": 100}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (RunLimits(max_cost=0.0025), "limits.max_cost of 0.0025"),
        (RunLimits(max_tokens=600), "limits.max_tokens of 600"),
    ],
)
def test_a_batch_is_filled_until_a_limit_and_the_rest_is_not_asked(
    kind: str, limits: RunLimits, said: str, started: Any, bench: Any
):
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    told: dict[str, Any] = {"sampling": ANSWER, "price": HALF, "limits": limits, "account": uuid4().hex}
    found = waited(asked, rows(10), bench.answers, bench.options(**told))
    assert 3 <= found.requests <= 5
    sent = send_jobs(asked, rows(10), bench.answers, bench.options(**told))
    outcome = bench.ask(asked, rows(10), batches=sent.names, left_out=sent.left_out, **told)
    assert [len(job.requests) for job in server.jobs.values()] == [found.requests]
    assert not server.single
    assert outcome.column("status").count("ok") == outcome.tally.batched == found.requests
    reasons = [row["error"] for row in outcome.rows if row["status"] != "ok"]
    assert set(reasons) == {f"not asked: {said} allows no more in a batch"}
    assert outcome.tally.stopped == reasons[0]


def test_what_one_batch_may_use_is_not_there_for_another_model(started: Any, bench: Any):
    _server, url = started("openai", looks=10**6)
    told: dict[str, Any] = {"sampling": ANSWER, "limits": RunLimits(max_tokens=1_000), "account": uuid4().hex}
    first = model("openai", url, {"wait": "24h"})
    other = model("openai", url, {"wait": "24h"}, model="other")
    found = send_jobs(first, rows(5), bench.answers, bench.options(**told))
    assert (found.requests, found.left_out) == (5, None)
    assert 0 < send_jobs(other, rows(5), bench.answers, bench.options(**told)).requests < 5
    # Single requests have no more room either, and the batch itself counts once.
    single = model("openai", url, model="third", max_concurrency=1)
    alone = bench.ask(single, rows(20), **told)
    assert alone.column("status").count("ok") <= 2
    assert send_jobs(first, rows(5), bench.answers, bench.options(**told)).left_out is None


def test_a_batch_that_another_run_sent_counts_by_what_this_one_wants_of_it(started: Any, bench: Any):
    server, url = started("openai", looks=10**6)
    told: dict[str, Any] = {"sampling": ANSWER, "limits": RunLimits(max_tokens=800)}
    asked = model("openai", url, {"wait": "24h"})
    send_jobs(asked, rows(30), bench.answers, bench.options(sampling=ANSWER))
    both = [*rows(3), *rows(2, "And how much is {} + 2?")]
    found = send_jobs(asked, both, bench.answers, bench.options(account="later", **told))
    assert found.left_out is None
    assert [len(job.requests) for job in server.jobs.values()] == [30, 2]


def test_what_came_of_a_batch_counts_as_it_was_used(started: Any, bench: Any):
    """An answer of the server has 1,100 tokens with its prompt, and may have 5,000."""
    server, url = started("openai")
    limits = RunLimits(max_tokens=11_500)
    told: dict[str, Any] = {"sampling": {"max_tokens": 5_000}, "limits": limits, "account": uuid4().hex}
    asked = model("openai", url, {"wait": "24h"})
    first = by_batch(bench, asked, rows(2), **told)
    assert first.tally.batched == 2
    assert by_batch(bench, asked, rows(3), **told).tally.batched == 1
    assert len(server.jobs) == 2


def test_without_a_limit_of_tokens_an_answer_is_taken_to_have_some(started: Any, bench: Any):
    limits = RunLimits(max_tokens=10_000)
    for kind, most in (("openai", 40), ("anthropic", 2)):
        _server, url = started(kind, looks=10**6)
        told: dict[str, Any] = {"limits": limits, "account": uuid4().hex}
        found = send_jobs(model(kind, url, {"wait": "24h"}), rows(50), bench.answers, bench.options(**told))
        assert 0 < found.requests <= most
        assert found.left_out is not None


def test_a_limit_that_is_reached_sends_no_batch_and_leaves_those_that_were_sent(started: Any, bench: Any):
    server, url = started("openai", looks=10**6)
    asked = model("openai", url, {"wait": "24h"})
    names = send_jobs(asked, rows(3), bench.answers, bench.options()).names
    told: dict[str, Any] = {"limits": RunLimits(max_tokens=1), "account": uuid4().hex}
    found = send_jobs(asked, rows(6), bench.answers, bench.options(**told))
    assert found.names == names
    assert found.left_out == "not asked: limits.max_tokens of 1 was reached"
    assert len(server.jobs) == 1
