"""What survives SIGKILL, a full disk, and a store that can't be written."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tasks.models.answers.journal import AnswerWriter, Journal, decode, encode, recover, restore
from tasks.models.answers.segments import AnswerStore, ModelAnswers, claim_keys
from tasks.models.config import ModelConfig, RunLimits
from tasks.models.demo.options import Faults
from tasks.models.demo.server import serve
from tasks.models.errors import TransientError
from tasks.models.http import HttpTransport
from tasks.models.limits.limiters import INITIAL
from tasks.models.providers.provider import provider_of
from tasks.models.records import KeptAnswer
from tasks.models.respond import Inference
from tasks.store import claims
from tasks.store.storage import Store, StoreError
from tests.waiting import until

ROOT = Path(__file__).parents[3]
WINDOW = 16

CLIENTS = """
import contextlib, json, os, resource, signal, sys, time
from pathlib import Path
import pyarrow as pa
with contextlib.suppress(ImportError):
    import pandas  # pyarrow imports it where it is there: once here, and not in each client
from tasks.models.answers.segments import AnswerStore
from tasks.models.config import ModelConfig, Price, RunLimits, SampleParams
from tasks.models.records import InferenceOptions
from tasks.models.respond import respond
from tasks.store.schemas import REQUESTS
from tasks.store.storage import Store
from tests.tasks.models.conftest import request_row

def ask(folder, base_url, count, asker, window, later, most_bytes, limits):
    if later:
        now = time.time
        time.time = lambda: now() + later
    if most_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    folder = Path(folder)
    requests = [pa.RecordBatch.from_pylist([request_row(i) for i in range(count)], schema=REQUESTS)]
    config = {"model": "demo", "base_url": base_url, "max_concurrency": window}
    model = ModelConfig.model_validate({"name": "demo", "config": config})
    paid = Price(prompt=1.0, completion=2.0)
    named = {"price": paid, "asker": asker, "limits": RunLimits(**limits)}
    options = InferenceOptions(sampling=SampleParams(), journal_dir=folder / "journal", **named)
    try:
        responded = respond(model, requests, AnswerStore(Store(str(folder / "store"))), options)
        statuses = [row["status"] for batch in responded.batches for row in batch.to_pylist()]
        said = {"ok": statuses.count("ok"), "tally": responded.tally.as_dict()}
    except Exception as error:
        said = {"error": str(error)}
    os.write(1, json.dumps(said).encode() + b"\\n")

for line in sys.stdin:
    client = os.fork()
    if not client:
        ask(**json.loads(line))
        os._exit(0)
    print(client, flush=True)
    os.waitpid(client, 0)
    print(flush=True)  # of one that was killed nothing else is said
"""


class Clients:
    """Clients one after the other, copies of a process that has imported what takes a new Python seconds."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._client = 0
        self._unheard = False  # of a client that a test which failed has left behind

    def start(
        self, folder: Path, base_url: str, count: int, asker: str | None = None, later: float = 0,
        most_bytes: int = 0, **limits: float,
    ) -> None:  # fmt: skip
        """Starts a client; its clock is some seconds ``later``, and its files hold so many bytes at most."""
        if self._unheard:
            with suppress(ProcessLookupError):
                os.kill(self._client, signal.SIGKILL)
            self.said()
        order = {"folder": str(folder), "base_url": base_url, "count": count, "asker": asker}
        order |= {"window": WINDOW, "later": later, "most_bytes": most_bytes, "limits": limits}
        told, said = self._process.stdin, self._process.stdout
        assert told is not None
        assert said is not None
        told.write(json.dumps(order) + "\n")
        told.flush()
        self._client = int(said.readline())
        self._unheard = True

    def said(self) -> dict[str, Any] | None:
        """What the client came to, once it has ended; None where it was killed."""
        self._unheard = False
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line:
            assert self._process.stdout.readline().strip() == ""
        said: dict[str, Any] | None = json.loads(line) if line else None
        return said

    def asked(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """What a client comes to."""
        self.start(*arguments, **named)
        said = self.said()
        assert said is not None
        return said

    def kill_once_answered(self, serving: Any, answered: int) -> None:
        """Kills the client as soon as the server has answered so often."""
        deadline = time.monotonic() + 60
        while serving.stats()["answered"] < answered:
            assert time.monotonic() < deadline, "the client does not get on"
            time.sleep(0.005)
        os.kill(self._client, signal.SIGKILL)
        assert self.said() is None, "it was killed half-way"


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CLIENTS], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as p:
        yield Clients(p)
        assert p.stdin is not None
        p.stdin.close()
        assert p.wait(60) == 0


def test_a_kill_half_way_costs_at_most_what_was_in_flight(served, tmp_path, clients):
    serving = served(latency=0.02)
    clients.start(tmp_path, serving.base_url, 1_000)
    clients.kill_once_answered(serving, 500)
    assert clients.asked(tmp_path, serving.base_url, 1_000)["ok"] == 1_000
    assert serving.stats()["answered_again"] <= WINDOW
    assert serving.stats()["received"] <= 1_000 + WINDOW


def test_what_a_killed_process_spent_counts_for_the_same_inference_and_for_no_other(
    served, tmp_path, clients
):
    serving = served(latency=0.02)
    spent = ("sent", "answered", "cached", "attempts", "total_tokens", "cost", "saved_tokens", "served")

    def tally(folder: str, asker: str) -> dict[str, Any]:
        said = clients.asked(tmp_path / folder, serving.base_url, 300, asker)
        assert said["ok"] == 300
        return {name: said["tally"][name] for name in spent}

    whole = tally("undisturbed", "one")
    clients.start(tmp_path / "killed", serving.base_url, 300, "one")
    clients.kill_once_answered(serving, 300 + 150)
    shutil.copytree(tmp_path / "killed", tmp_path / "copy")
    assert tally("killed", "one") == {**whole, "cost": pytest.approx(whole["cost"])}
    other = tally("copy", "another")
    assert other["cached"] >= 150 - WINDOW
    assert other["total_tokens"] + other["saved_tokens"] == whole["total_tokens"]


# Fewer tokens than one request in flight takes: whoever spent anything has reached it.
@pytest.mark.parametrize("limit", [{"max_tokens": 1}, {"max_cost": 1e-9}, {"max_seconds": 1800}])
def test_what_a_killed_process_spent_counts_against_the_limits_of_the_same_inference(
    served, tmp_path, clients, limit
):
    serving = served(latency=0.02)
    clients.start(tmp_path / "killed", serving.base_url, 300, "one")
    clients.kill_once_answered(serving, 150)
    shutil.copytree(tmp_path / "killed", tmp_path / "copy")
    sent = serving.stats()["received"]

    def asked_by(folder: str, asker: str) -> int:
        before = serving.stats()["received"]
        said = clients.asked(tmp_path / folder, serving.base_url, 300, asker, later=3600, **limit)
        assert said["ok"] >= 150 - WINDOW
        return serving.stats()["received"] - before

    assert sent < 300
    assert asked_by("killed", "one") == 0
    assert asked_by("copy", "another") > 0


def test_ten_kills_in_a_row_cost_at_most_ten_windows(served, tmp_path, clients):
    serving = served(latency=0.02)
    for round_ in range(10):
        clients.start(tmp_path, serving.base_url, 1_000)
        clients.kill_once_answered(serving, 80 * (round_ + 1))
    assert clients.asked(tmp_path, serving.base_url, 1_000)["ok"] == 1_000
    assert serving.stats()["answered_again"] <= 10 * WINDOW


def test_a_killed_runs_answers_serve_another_machine_from_the_store(served, tmp_path, clients):
    serving = served(latency=0.04)
    clients.start(tmp_path, serving.base_url, 1_500)
    clients.kill_once_answered(serving, 1_250)
    # Another machine has the store and not the journal: it may miss the last two seconds of answers.
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    said = clients.asked(tmp_path, serving.base_url, 1_500)
    assert said["ok"] == 1_500
    assert said["tally"]["sent"] < 1_500


def test_a_full_disk_is_an_error_that_loses_nothing(served, tmp_path, clients):
    serving = served(latency=0.005)
    failed = clients.asked(tmp_path, serving.base_url, 1_000, most_bytes=60_000)
    assert "can't write answers to" in failed["error"]
    answered = serving.stats()["answered"]
    assert answered > 100
    assert clients.asked(tmp_path, serving.base_url, 1_000)["ok"] == 1_000
    assert serving.stats()["answered_again"] <= WINDOW + 1


def test_an_unwritable_store_is_an_error_and_the_journal_keeps_the_answers(
    bench, served, endpoint, problems, monkeypatch
):
    serving = served()
    written = Store._publish

    def refuse(self: Store, temporary: Path, name: str, patience: float | None = None) -> None:
        if name.startswith("claims/"):  # the store breaks once the answers are on their way
            return written(self, temporary, name, patience)
        raise StoreError(f"store {self.uri}: can't write {name}: Permission denied")

    monkeypatch.setattr(Store, "_publish", refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        bench.ask(endpoint(serving), problems(50))
    monkeypatch.setattr(Store, "_publish", written)
    outcome = bench.ask(endpoint(serving), problems(50))
    assert outcome.tally.sent == 0
    assert set(outcome.column("status")) == {"ok"}
    assert serving.stats()["received"] == 50


@pytest.mark.parametrize("window", [1, 4, WINDOW, 64])
@pytest.mark.parametrize("failing", [0.0, 0.04, 0.5])
def test_what_a_kill_would_have_asked_again_is_never_more_than_may_be_in_flight(
    bench, served, endpoint, problems, monkeypatch, window, failing
):
    """Answers of one turn of the loop are logged together: nothing is asked in their place before that, by
    who waits for a place neither."""
    taken, logged, asked, failed, most = 0, 0, 0, 0, 0
    append, log, send = AnswerWriter.append, Journal.append, HttpTransport.send

    def count_taken(self: AnswerWriter, answer: KeptAnswer) -> None:
        nonlocal taken
        append(self, answer)
        taken += 1

    def count_logged(self: Journal, lines: bytes) -> None:
        nonlocal logged
        log(self, lines)
        logged += lines.count(b"\n")

    async def look(self: HttpTransport, call: Any, timeout: float) -> Any:
        nonlocal asked, failed, most
        asked += 1
        most = max(most, asked - failed - logged)
        try:
            return await send(self, call, timeout)
        except TransientError:
            failed += 1
            raise

    monkeypatch.setattr(AnswerWriter, "append", count_taken)
    monkeypatch.setattr(Journal, "append", count_logged)
    monkeypatch.setattr(HttpTransport, "send", look)
    monkeypatch.setattr("tasks.models.engine.FIRST_WAIT", 0.0005)  # many waits end beside answers
    serving = served(Faults(error_500=failing), latency=0.002)
    outcome = bench.ask(endpoint(serving, max_concurrency=window, max_retries=40), problems(300))
    assert (taken, logged, outcome.tally.answered) == (300, 300, 300)
    assert most <= window


def test_a_limit_holds_for_who_waits_for_a_place_already(bench, served, endpoint, problems):
    """The first answer reaches it: nobody is asked but who was on the way by then."""
    model = endpoint(served(latency=0.05), max_concurrency=4 * INITIAL)
    outcome = bench.ask(model, problems(4 * INITIAL), limits=RunLimits(max_tokens=1), account=uuid4().hex)
    assert outcome.tally.sent <= INITIAL


def test_answers_that_could_not_be_logged_are_stored_and_the_run_ends(bench, problems):
    """The disk of the journal is full, that of the store is not."""

    async def take() -> tuple[int, AnswerWriter]:
        kept: ModelAnswers = bench.answers.of_model("a" * 64)
        (bench.folder / "journal").write_text("a file in the way")
        writer = AnswerWriter(kept, bench.folder / "journal")
        for number in range(9):
            writer.append(answer(number))
        with pytest.raises(StoreError, match="can't write answers"):
            await writer.logged()
        with pytest.raises(StoreError, match="can't write answers"):
            writer.append(answer(9))
        with pytest.raises(StoreError, match="can't write answers"):
            await writer.close()
        return sum(kept.snapshot().holds([answer(number).key for number in range(10)])), writer

    assert asyncio.run(take())[0] == 9


def test_a_journal_folder_that_cannot_be_made_is_a_clear_error(bench, served, endpoint, problems):
    (bench.folder / "journal").write_text("a file in the way")
    with pytest.raises(StoreError, match="can't write answers"):
        bench.ask(endpoint(served()), problems(2))


def answer(number: int, **fields: object) -> KeptAnswer:
    return KeptAnswer(
        status="ok", key=bytes([number]) * 32, response=f"text {number} äß\n", arrived=float(number), **fields
    )


def test_a_journal_line_round_trips():
    kept = answer(3, logprobs={"content": [1.5]}, prompt_tokens=4, ll=-1.25, is_greedy=False)
    assert decode(encode(kept)) == kept


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_is_passed_over(tmp_path, cut):
    journal = Journal(tmp_path)
    journal.append(encode(answer(1)))
    journal.append(encode(answer(2)))
    journal.release()
    os.truncate(journal.path, journal.path.stat().st_size - cut)
    ((answers, orphan),) = recover(tmp_path)
    orphan.release()
    assert answers == [answer(1)]


def test_a_living_process_keeps_its_journal(tmp_path):
    journal = Journal(tmp_path)
    journal.append(encode(answer(1)))
    assert list(recover(tmp_path)) == []
    journal.release()
    ((answers, orphan),) = recover(tmp_path)
    assert answers == [answer(1)]
    orphan.remove()
    assert list(recover(tmp_path)) == []


def test_restoring_twice_stores_once(tmp_path):
    kept: ModelAnswers = AnswerStore(Store(str(tmp_path / "store"))).of_model("a" * 64)
    journal = Journal(tmp_path / "journal" / ("a" * 32))
    journal.append(encode(answer(1)))
    journal.release()
    assert restore(kept, tmp_path / "journal") == 1
    assert restore(kept, tmp_path / "journal") == 0
    assert kept.snapshot().holds([answer(1).key, answer(2).key]) == [True, False]


DAMAGED = [
    b"[1]",
    b"null",
    b"{}",
    b'"text"',
    b"{\x00\xff",
    b'{"key": "00", "status": "ok"}',
    b'{"key": "%s", "status": "ok", "attempts": "many", "arrived": 1.0}' % (b"ab" * 32),
    b'{"key": "%s", "status": "fine", "attempts": 1, "arrived": 1.0}' % (b"ab" * 32),
    b'{"key": "%s", "status": "ok", "response": 5, "attempts": 1, "arrived": 1.0}' % (b"ab" * 32),
    b'{"key": "%s", "status": "ok", "attempts": 1, "arrived": 1.0, "mood": "good"}' % (b"ab" * 32),
    b'{"key": "%s", "status": "ok", "attempts": 99999999999, "arrived": 1.0}' % (b"ab" * 32),
    b'{"key": "%s", "status": "ok", "attempts": true, "arrived": null}' % (b"ab" * 32),
    b"9" * 400,
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_set_aside_by_name_and_the_others_are_kept(tmp_path, caplog, line):
    kept: ModelAnswers = AnswerStore(Store(str(tmp_path / "store"))).of_model("a" * 64)
    journal = Journal(tmp_path / "journal" / ("a" * 32))
    journal.append(encode(answer(1)))
    journal.release()
    with journal.path.open("ab") as file:
        file.write(line + b"\n" + encode(answer(2)))
    assert restore(kept, tmp_path / "journal") == 2
    assert kept.snapshot().holds([answer(1).key, answer(2).key]) == [True, True]
    assert f"{journal.path}:2 holds no answer" in caplog.text
    assert journal.path.with_suffix(".damaged").read_bytes() == line + b"\n"
    assert restore(kept, tmp_path / "journal") == 0


def test_what_another_worker_answered_and_could_not_store_is_not_asked_for_again(bench, problems):
    """Who waits for another's requests finds its answers in the journal that it leaves behind."""
    requests, options = problems(3), bench.options()
    with serve() as serving, ThreadPoolExecutor() as pool:
        model = ModelConfig.model_validate(
            {"name": "m", "config": {"base_url": serving.base_url, "model": "demo"}}
        )
        inference = Inference.of(provider_of(model), bench.answers, options)
        keys = [request.key for rows in inference.expanded(requests) for row in rows for request in row]
        with claim_keys(inference.kept, keys):
            second = pool.submit(bench.ask, model, requests)
            claims = bench.folder / "store" / "claims"
            until(lambda: len(list(claims.rglob("*.json"))) == 2, "both have claimed")
            journal = Journal(options.journal_dir / inference.kept.identity[:32])
            for key in keys:
                journal.append(encode(KeptAnswer(status="ok", key=key, response="kept", arrived=time.time())))
            journal.release()  # the store is full, or the process is killed
        outcome = second.result(60)
    assert outcome.column("response") == ["kept"] * 3
    assert (serving.stats()["received"], outcome.tally.sent, outcome.tally.cached) == (0, 0, 3)


def test_a_worker_whose_claim_was_taken_asks_only_for_what_the_other_has_not_answered(
    bench, problems, script, monkeypatch
):
    """Another one took it for dead while it was stopped, and went on in its place."""
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.02)
    asked, claimed = [], []

    @contextmanager
    def claiming(*arguments):
        with claim_keys(*arguments) as held:
            claimed.append(held)
            yield held

    def taken_over():
        for place in (bench.folder / "store" / "claims").rglob("*-*"):
            place.unlink(missing_ok=True)
        return claimed[0].lost

    def answers(request):
        asked.append(request)
        if len(asked) == 1:
            until(taken_over, "it sees that its claim is gone")
            journal = Journal(bench.options().journal_dir / inference.kept.identity[:32])
            for key in keys[1:]:
                journal.append(encode(KeptAnswer(status="ok", key=key, response="kept", arrived=time.time())))
            journal.release()
        choice = {"index": 0, "message": {"role": "assistant", "content": "own"}, "finish_reason": "stop"}
        return 200, {}, {"choices": [choice]}

    monkeypatch.setattr("tasks.models.respond.claim_keys", claiming)
    config = {"base_url": f"{script(answers)}/v1", "model": "m", "max_concurrency": 1}
    model, requests = ModelConfig.model_validate({"name": "m", "config": config}), problems(4)
    inference = Inference.of(provider_of(model), bench.answers, bench.options())
    keys = [request.key for rows in inference.expanded(requests) for row in rows for request in row]
    outcome = bench.ask(model, requests)
    assert outcome.column("response") == ["own", *["kept"] * 3]
    assert (len(asked), outcome.tally.sent, outcome.tally.cached) == (1, 1, 3)
    assert len(claimed) == 2
