"""What goes wrong on the way of a batch's results: rows that are there twice or that nobody asked for, files
that are cut, a disk that is full, an address of another server."""

import errno
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tasks.models.config import RunLimits
from tasks.models.control import controlled
from tasks.models.errors import ModelError
from tasks.models.jobs import READINGS, look_at_jobs, send_jobs
from tasks.models.limits.spending import spending_of
from tasks.store import seals
from tasks.store.errors import StoreError
from tests.tasks.models.batch_servers import Failure
from tests.tasks.models.test_batches import by_batch, kept, model, rows, waited

KINDS = ("openai", "anthropic", "gemini")
RESULTS = {"openai": "/content", "anthropic": "/results", "gemini": ":download"}
NAMES = {"openai": "custom_id", "anthropic": "custom_id", "gemini": "key"}


def results_become(server: Any, kind: str, change: Callable[[bytes], bytes], times: int = 10**6) -> list[int]:
    """Changes the files of results as they are read; gives how often, once it was."""
    answer, done = server.answer, list[int]()

    def changed(asked: Any) -> Any:
        status, told, said = answer(asked)
        if RESULTS[kind] in asked.path and len(done) < times:
            done.append(1)
            return status, told, change(said)
        return status, told, said

    server.answer = changed
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_of_two_rows_for_one_request_counts(kind: str, started: Any, bench: Any):
    server, url = started(kind)

    def twice(content: bytes) -> bytes:
        lines = content.splitlines()
        again = [orjson.loads(line) for line in lines]
        told = orjson.dumps(again).replace(b"How", b"HOW").replace(b"1?", b"2?")
        return b"\n".join([*lines, *map(orjson.dumps, orjson.loads(told))])

    asked = model(kind, url, {"wait": "24h"})
    results_become(server, kind, twice)
    found = waited(asked, rows(5), bench.answers, bench.options())
    assert (found.requests, found.done, found.expired) == (5, 5, 0)
    outcome = bench.ask(asked, rows(5), batches=found.names)
    assert outcome.column("response") == ["18 1?"] * 5
    assert not server.single


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_nobody_asked_for_is_left_out_and_the_others_are_taken(
    kind: str, started: Any, bench: Any
):
    server, url = started(kind)

    def stranger(content: bytes) -> bytes:
        first = orjson.loads(content.splitlines()[0])
        return orjson.dumps({**first, NAMES[kind]: "nobody"}) + b"\n" + content

    results_become(server, kind, stranger)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert outcome.column("response") == ["18 1?"] * 5
    assert outcome.tally.batched == 5
    assert (len(server.jobs), server.single) == (1, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_is_read_again(kind: str, started: Any, bench: Any):
    server, url = started(kind)
    cuts = results_become(server, kind, lambda content: content[: len(content) // 2 + 7], times=2)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert len(cuts) == 2
    assert outcome.column("status") == ["ok"] * 5
    assert (len(server.jobs), server.single) == (1, [])


@pytest.mark.parametrize("broken", [b'{"custom_id": "', b"[]", b"x" * 40_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_can_not_be_read_costs_no_other(
    kind: str, broken: bytes, started: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NIGHTJAR_MAX_BODY_MB", "0.02")
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    results_become(server, kind, lambda content: b"\n".join([broken, *content.splitlines()[1:]]))
    found = waited(asked, rows(5), bench.answers, bench.options())
    assert (found.requests, found.expired) == (5, 1)
    assert "1 of the rows of the batch" in str(found.said)
    outcome = bench.ask(asked, rows(5), batches=found.names)
    assert outcome.column("response") == ["18 1?"] * 5
    assert outcome.tally.batched == 4
    assert len(server.single) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_which_nothing_can_be_read_are_waited_for(kind: str, started: Any, bench: Any):
    server, url = started(kind)
    results_become(server, kind, lambda content: b"<html>Bad Gateway</html>", times=7)
    outcome = by_batch(bench, model(kind, url, {"wait": "24h"}), rows(5))
    assert outcome.tally.batched == 5
    assert (len(server.jobs), server.single) == (1, [])


REFUSED = [(302, {"Location": "https://storage.test/x?signature=s"}), (405, {}), (404, {})]


@pytest.mark.parametrize(("status", "headers"), REFUSED)
@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_elsewhere_or_refused_end_the_run_and_nothing_is_sent_again(
    kind: str, status: int, headers: dict[str, str], started: Any, bench: Any
):
    server, url = started(kind)
    answer = server.answer

    def answered(asked: Any) -> Any:
        return (status, headers, b"") if RESULTS[kind] in asked.path else answer(asked)

    server.answer = answered
    asked = model(kind, url, {"wait": "24h"})
    with pytest.raises(ModelError, match=f"results of the batch .*HTTP {status}") as failed:
        by_batch(bench, asked, rows(5))
    assert ("redirected to https://storage.test/x" in str(failed.value)) is (status == 302)
    assert "signature" not in str(failed.value)
    assert len(kept(bench)) == 1
    server.answer = answer
    assert by_batch(bench, asked, rows(5)).tally.batched == 5
    assert (len(server.jobs), server.single) == (1, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_nobody_knows_any_more_is_told_and_asked_again(kind: str, started: Any, bench: Any):
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    answer = server.answer
    server.answer = lambda asked: (404, {}, {"error": {"message": "no such batch"}})
    for _ in range(READINGS):
        assert found.open == 1
        found = look_at_jobs(asked, found.names, bench.answers, bench.options())
    server.answer = answer
    assert (found.open, found.expired) == (0, 5)
    assert "no longer knows the batch" in str(found.said)
    assert "no such batch" in str(found.said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_not_known_for_a_moment_is_waited_for(kind: str, started: Any, bench: Any):
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    answer, server.looks = server.answer, 9
    for known in (False, False, True, False, False):  # the count begins anew with a look that finds it
        server.answer = (
            answer if known else (lambda asked: (404, {}, {"error": {"message": "no such batch"}}))
        )
        found = look_at_jobs(asked, found.names, bench.answers, bench.options())
        assert found.open == 1
    server.answer, server.looks = answer, 1
    assert by_batch(bench, asked, rows(5)).tally.batched == 5
    assert (len(server.jobs), server.single) == (1, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_that_is_refused_gives_no_job_up(kind: str, started: Any, bench: Any):
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    answer = server.answer
    server.answer = lambda asked: (405, {}, {"error": {"message": "not now"}})
    with pytest.raises(ModelError, match="HTTP 405"):
        look_at_jobs(asked, found.names, bench.answers, bench.options())
    server.answer = answer
    assert by_batch(bench, asked, rows(5)).tally.batched == 5
    assert len(server.jobs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_full_disk_the_next_run_takes_the_rows_and_asks_nothing_twice(
    kind: str, started: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
):
    server, url = started(kind)
    asked = model(kind, url, {"wait": "24h"})
    sealed = seals.sealed_table

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    found = send_jobs(asked, rows(5), bench.answers, bench.options())
    monkeypatch.setattr(seals, "sealed_table", full)
    look_at_jobs(asked, found.names, bench.answers, bench.options())
    with pytest.raises(StoreError, match="No space left on device"):
        look_at_jobs(asked, found.names, bench.answers, bench.options())
    assert len(kept(bench)) == 1
    monkeypatch.setattr(seals, "sealed_table", sealed)
    outcome = by_batch(bench, asked, rows(5))
    assert outcome.column("status") == ["ok"] * 5
    assert outcome.tally.batched == 5
    assert (len(server.jobs), server.single) == (1, [])
    assert kept(bench) == []


def test_neither_file_nor_key_goes_to_another_server(
    started: Any, bench: Any, script: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("A_KEY", "sk-secret")
    heard: list[Any] = []

    def other(asked: Any) -> tuple[int, dict[str, str], Any]:
        heard.append(asked)
        return 200, {}, {"file": {"name": "files/x"}}

    elsewhere = script(other)
    server, url = started("gemini")
    answer = server.answer

    def answered(asked: Any) -> Any:
        if asked.path == "/upload/v1beta/files":
            return 200, {"X-Goog-Upload-URL": f"{elsewhere}/upload"}, b""
        return answer(asked)

    server.answer = answered
    asked = model("gemini", url, {"wait": "24h"}, api_key_env="A_KEY")
    with pytest.raises(ModelError, match="names an address of another server"):
        send_jobs(asked, rows(3), bench.answers, bench.options())
    assert heard == []
    assert server.jobs == {}
    assert kept(bench) == []


def test_time_that_a_run_waits_for_batches_is_not_in_its_limit_of_seconds(started: Any, bench: Any):
    def outcome(name: str, body: Any) -> Any:
        return None if any(f"{n} + 1" in str(body) for n in (1, 2, 3)) else (200, server.reply(body))

    server, url = started("openai", outcome=outcome)
    asked = model("openai", url, {"wait": "24h"}, max_concurrency=1)
    limits = RunLimits(max_seconds=600)
    options = {"limits": limits, "account": "waits", "run_id": "waits"}
    with controlled("waits") as control:
        found = send_jobs(asked, rows(5), bench.answers, bench.options(**options))
        spending_of("waits", limits)._start -= 3_600
        control._waited += 3_600
        while found.open:
            found = look_at_jobs(asked, found.names, bench.answers, bench.options(**options))
        outcome_ = bench.ask(asked, rows(5), batches=found.names, **options)
        assert outcome_.column("status") == ["ok"] * 5
        assert len(server.single) == 3, "what the batch did not ask"
        spending_of("waits", limits)._start -= 600
        left = bench.ask(asked, rows(8), **options)
    assert "not asked: limits.max_seconds of 600 was reached" in left.column("error")


def test_a_limit_of_seconds_goes_on_in_another_process_from_its_single_requests_and_not_from_its_batch(
    started: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
):
    _, url = started("openai")
    asked = model("openai", url, {"wait": "24h"}, max_concurrency=1)
    hours, now = [0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + hours[0] * 3_600)
    limits = RunLimits(max_seconds=1_800)
    by_batch(bench, asked, rows(4), asker="attempt", limits=limits, account="first process")
    errors = []
    for hours[0], count in ((1, 6), (2, 8)):
        options = {"asker": "attempt", "limits": limits, "account": f"process {hours[0]}"}
        errors.append({*bench.ask(asked, rows(count), **options).column("error")})
    assert errors == [{None}, {None, "not asked: limits.max_seconds of 1800 was reached"}]


def test_a_look_that_fails_for_long_loses_no_rows(started: Any, bench: Any):
    """As many looks as it takes: only after the time to wait the job is given up."""
    looks: list[str] = []

    def before(number: int, name: str) -> None:
        if name.startswith("GET /v1/batches/job-0") and len(looks) < 7:
            looks.append(name)
            raise Failure(502)

    server, url = started("openai", before=before)
    outcome = by_batch(bench, model("openai", url, {"wait": "24h"}), rows(4))
    assert outcome.tally.batched == 4
    assert (len(server.jobs), server.single) == (1, [])
