"""Everything that talks to the own server does so with its credential, and with no other server's."""

import http.server
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.server.boundary import credential
from flows.server.connection import CREDENTIAL
from tests.flows.conftest import Evaluate, own
from tests.loopback import answering

PROJECT = Path(__file__).resolve().parents[3]
DEMO = {
    "name": "demo-runners",
    "output_type": "generate_until",
    "dataset": "items.jsonl",
    "prompt_template": "Question: {{question}}\nAnswer:",
    "target": "{{answer}}",
    "models": [{"name": "demo", "type": "demo"}],
    "metric_list": ["exact_match", "bleu"],
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "items.jsonl").write_text(
        "".join(f'{{"question": "What is {n} plus 1?", "answer": "{n + 1}"}}\n' for n in range(5))
    )
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(DEMO))
    return tmp_path / "demo.yaml"


@pytest.fixture
def foreign() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server of somebody else's, and the headers that it was sent."""
    heard: list[dict[str, str]] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            heard.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    with answering(listening):
        yield f"http://127.0.0.1:{listening.server_address[1]}/api", heard


@pytest.mark.services
def test_another_server_hears_nothing_of_the_credential(
    home: Path, foreign: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    address, heard = foreign
    # In a shell that evaluated ``flows.server env`` once; then, in a process that used the own one before.
    script = f"""
import os
from flows.server import ServerError, link, serving, use_server
def refused():
    try:
        with serving():
            raise SystemExit("it was taken for a Prefect server")
    except ServerError:
        return True
assert refused()
del os.environ["PREFECT_API_URL"]
with serving() as ui:
    assert os.environ["{CREDENTIAL}"]
os.environ["PREFECT_API_URL"] = "{address}"
assert refused()
link("{address.removesuffix("/api")}/runs/flow-run/1", always=True)
"""
    environment = {**own(home), "PREFECT_API_URL": address, CREDENTIAL: credential()}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, env=environment, capture_output=True, text=True,
        timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(heard) >= 2
    assert [headers["authorization"] for headers in heard if "authorization" in headers] == []


def test_the_credential_is_in_no_list_of_processes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    secret = credential().partition(":")[2].encode()
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((entry / "cmdline").read_bytes())
        except OSError:
            continue
    assert any(b"flows.server.app" in command for command in commands)
    assert not any(secret in command for command in commands)


@pytest.mark.services
@pytest.mark.parametrize("runner", ["processes", "dask"])
def test_tasks_in_other_processes_reach_the_own_server(
    runner: str, config: Path, evaluate_process: Evaluate
) -> None:
    ran = evaluate_process(config, "--json", "--task-runner", runner, timeout=400)
    assert ran.code == 0, ran.err
    assert ran.document["status"] == "Completed"
    assert ran.document["requests"]["sent"] == 5


@pytest.mark.nights
def test_a_place_of_a_limit_outlives_a_restart_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are renewed while their holder lives: a server that forgot them would end it at the renewal."""
    environment = own(tmp_path / "home")

    def server(command: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "flows.server", command], cwd=PROJECT, env=environment, check=True,
            timeout=600, capture_output=True,
        )  # fmt: skip

    holder = """
from flows.server import use_server
use_server()
import sys, time
from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
with get_client(sync_client=True) as client:
    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="gpu", limit=1))
with concurrency("gpu", occupy=1, lease_duration=60, strict=True):
    print("held", flush=True)
    sys.stdin.readline()
with get_client(sync_client=True) as client:
    print("free:", client.read_global_concurrency_limit_by_name("gpu").active_slots == 0, flush=True)
"""
    server("start")
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", holder], cwd=PROJECT, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        server("stop")
        server("start")
        begun = time.monotonic()
        while time.monotonic() - begun < 75:  # a renewal at least, and longer than the lease
            assert process.poll() is None, process.stdout.read()
            time.sleep(1)
        said, _ = process.communicate("\n", timeout=120)
        assert (process.returncode, re.findall("free: .*", said)) == (0, ["free: True"]), said
    finally:
        server("stop")


@pytest.mark.services
def test_a_script_that_names_no_server_evaluates_on_the_own_one(
    home: Path, config: Path, tmp_path: Path
) -> None:
    script = f"""
import asyncio
import prefect  # its settings are read before the own server is known
from flows.config import load_config
from flows.config.schema import RunOptions
from flows.eval import evaluate
from flows.server import ask, serving

async def cell():
    return await evaluate(load_config({str(config)!r}), RunOptions(output={str(tmp_path / "out")!r}))

print(asyncio.run(cell()).report)
again = evaluate.with_options(name="again")
asyncio.run(again(load_config({str(config)!r}), RunOptions(output={str(tmp_path / "again")!r})))
with serving():
    print(len(ask("/flow_runs/filter", {{}})))
"""
    environment = own(home)
    environment.pop("PREFECT_API_URL", None)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report, known = done.stdout.split()
    assert Path(report).is_file()
    assert int(known) >= 2, "both runs are on the own server"
    assert "temporary server" not in done.stderr
