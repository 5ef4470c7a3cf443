"""A batch outlives its client: wherever that is killed, one job is left, and the next run takes it up."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.models.batch_servers import provider_server, serving

ROOT = Path(__file__).parents[3]
COUNT = 7

CLIENTS = """
import contextlib, json, os, signal, sys
from pathlib import Path
import pyarrow as pa
with contextlib.suppress(ImportError):
    import pandas  # pyarrow imports it where it is there: once here, and not in each client
from tasks.models.answers.segments import AnswerStore
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.jobs import close_jobs, look_at_jobs, send_jobs
from tasks.models.records import InferenceOptions
from tasks.models.respond import respond
from tasks.store.schemas import REQUESTS
from tasks.store.storage import Store
from tests.tasks.models.conftest import request_row

def ask(folder, kind, base_url, count, ends_at):
    def end(moment):
        if moment == ends_at:
            os.kill(os.getpid(), signal.SIGKILL)

    folder = Path(folder)
    made = [request_row(n, prompts=[f"How much is {n} + 1?"]) for n in range(count)]
    rows = [pa.RecordBatch.from_pylist(made, schema=REQUESTS)]
    config = {"model": "m", "base_url": base_url, "batch": {"wait": "24h"}}
    model = ModelConfig.model_validate({"name": "m", "type": kind, "config": config})
    answers = AnswerStore(Store(str(folder / "store")))
    options = InferenceOptions(sampling=SampleParams(), journal_dir=folder / "journal")
    end("begun")
    found = send_jobs(model, rows, answers, options)
    end("sent")
    while found.open:
        found = look_at_jobs(model, found.names, answers, options)
        end("looked")
    end("fetched")
    responded = respond(model, rows, answers, InferenceOptions(
        sampling=SampleParams(), journal_dir=folder / "journal", batches=found.names))
    given = [row for batch in responded.batches for row in batch.to_pylist()]
    end("answered")
    close_jobs(model, found.names, answers, options)
    end("closed")
    said = {"responses": [row["response"] for row in given], "sent": responded.tally.sent}
    (folder / "said.json").write_text(json.dumps(said))

for line in sys.stdin:
    client = os.fork()
    if not client:
        ask(*json.loads(line))
        os._exit(0)
    print(client, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]), flush=True)
"""


class Clients:
    """Runs clients one after the other, in copies of a process that has imported everything."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._client = 0
        self._known = threading.Event()

    def ask(self, *arguments: Any) -> int:
        """Runs a client; gives its exit code."""
        told, said = self._process.stdin, self._process.stdout
        assert told is not None
        assert said is not None
        self._known.clear()
        told.write(json.dumps(arguments) + "\n")
        told.flush()
        self._client = int(said.readline())
        self._known.set()
        return int(said.readline())

    def end(self) -> None:
        """Kills the client that runs."""
        assert self._known.wait(30)
        os.kill(self._client, signal.SIGKILL)


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CLIENTS], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as p:
        yield Clients(p)
        assert p.stdin is not None
        p.stdin.close()
        assert p.wait(60) == 0


EXCHANGES = {
    "openai": [
        "POST /v1/files",
        "POST /v1/batches",
        "GET /v1/batches/job-0",
        "GET /v1/files/file-1/content",
    ],
    "anthropic": [
        "POST /v1/messages/batches",
        "GET /v1/messages/batches/job-0",
        "GET /v1/messages/batches/job-0/results",
    ],
    "gemini": [
        "POST /upload/v1beta/files",
        "POST /upload/v1beta/files/target",
        "POST /v1beta/models/m:batchGenerateContent",
        "GET /v1beta/batches/job-0",
        "GET /download/v1beta/files/file-1:download",
    ],
}
MOMENTS = ["begun", "sent", "looked", "fetched", "answered", "closed"]
KILLS = [
    *(
        (kind, when, name)
        for kind, names in EXCHANGES.items()
        for name in names
        for when in ("before", "after")
    ),
    *(("openai", "at", moment) for moment in MOMENTS),
]


@pytest.mark.parametrize(("kind", "when", "name"), KILLS)
def test_a_kill_leaves_one_job_and_loses_nothing(
    kind: str, when: str, name: str, clients: Clients, tmp_path: Path
):
    killed = threading.Event()

    def end(_number: int, exchange: str) -> None:
        if exchange == name and not killed.is_set():
            killed.set()
            clients.end()

    hooks = {when: end} if when in ("before", "after") else {}
    server = provider_server(kind, looks=1, **hooks)
    with serving(server) as url:
        code = clients.ask(str(tmp_path), kind, url, COUNT, name if when == "at" else "")
        assert code == -signal.SIGKILL
        assert killed.is_set() or when == "at"
        assert clients.ask(str(tmp_path), kind, url, COUNT, "") == 0
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["responses"] == [f"{len(f'How much is {n} + 1?')} 1?" for n in range(COUNT)]
    assert len(server.jobs) == 1
    assert not server.single
    assert not list((tmp_path / "store" / "batches").rglob("*.json"))


def test_a_client_killed_at_each_of_twenty_exchanges_leaves_one_job(clients: Clients, tmp_path: Path):
    """One store, one server: a client is killed at every second exchange until twenty are dead."""
    deaths: list[str] = []

    def end(number: int, exchange: str) -> Any:
        if number % 2 and len(deaths) < 20:
            deaths.append(exchange)
            clients.end()

    server = provider_server("openai", looks=30, after=end)
    with serving(server) as url:
        while clients.ask(str(tmp_path), "openai", url, COUNT, "") != 0:
            assert len(deaths) <= 20
    assert len(deaths) == 20
    assert len(server.jobs) == 1
    assert not server.single
    assert len(json.loads((tmp_path / "said.json").read_text())["responses"]) == COUNT
