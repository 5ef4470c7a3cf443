"""Services of the tests' own, all on loopback: Prefect servers, workers, PostgreSQL, model servers."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.config.load import load_config
from tests.flows.conftest import MigratedDatabase

CHECKOUT = Path(__file__).resolve().parents[3]
PATIENCE = 180.0
"""Seconds that anything is waited for: two busy cores are slow, and a hang must end."""
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(found: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first truthy answer of ``found``; an AssertionError saying what did not happen."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what}: did not happen within {patience:.0f} s")


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and theirs; none of one that has just ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [found for child in map(int, children) for found in (*descendants(child), child)]


@dataclass
class Process:
    """A process in a group of its own, with its output in a file."""

    command: list[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    running: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "Process":
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(
                self.command, cwd=CHECKOUT, env={**os.environ, **self.env}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return self

    def send(self, number: int) -> None:
        """To the whole group."""
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, number)

    def power_off(self) -> None:
        """SIGKILL to it and to all that it started, flow runs in sessions of their own included."""
        if self.running is None or self.running.poll() is not None:
            return
        for pid in (self.running.pid, *descendants(self.running.pid)):
            with suppress(ProcessLookupError):  # one that has just ended
                os.kill(pid, signal.SIGKILL)
        self.running.wait(20)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.running is None:
            return
        self.send(number)
        try:
            self.running.wait(20)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.running.wait(20)
        self.running = None


@dataclass
class Prefect:
    """A server as the project starts its own, with a home of its own, and its API as the UI uses it."""

    folder: Path
    port: int
    migrated: MigratedDatabase
    database: str | None = None
    process: Process | None = None

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def env(self) -> dict[str, str]:
        """What a client needs: a worker, a flow run, the command line."""
        return {
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": self.credential,
            "PREFECT_HOME": str(self.folder / "client"),
            "NIGHTJAR_HOME": str(self.folder / "nightjar"),
            "NIGHTJAR_STORE": str(self.folder / "store"),
            "DO_NOT_TRACK": "1",
        }

    @property
    def credential(self) -> str:
        return (self.folder / "nightjar" / "server" / "credential").read_text().strip()

    def start(self) -> "Prefect":
        env = {
            "NIGHTJAR_HOME": str(self.folder / "nightjar"),
            "PREFECT_HOME": str(self.folder / "server"),
            "PREFECT_SERVER_API_PORT": str(self.port),
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        }
        if self.database is not None:
            env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = self.database
        else:
            self.migrated.lend(self.folder / "server")
        command = [sys.executable, "-m", "flows.server.app"]
        self.process = Process(command, self.folder / "server.log", env).start()
        until(self.healthy, "the Prefect server answers")
        if self.database is None:
            self.migrated.take(self.folder / "server")
        return self

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.api}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.stop(number)

    def command(self, *arguments: str) -> str:
        """``prefect …`` in the checkout."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments], cwd=CHECKOUT, timeout=PATIENCE,
            env={**os.environ, **self.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        # SQLite takes one writer at a time: Prefect answers 503 while it is locked, and clients ask again.
        user, _, password = self.credential.partition(":")
        with httpx.Client(auth=(user, password), timeout=120) as client:
            who = str(uuid.uuid4())
            for _ in range(60):
                answer = client.get(f"{self.api}/csrf-token", params={"client": who})
                if answer.is_success:
                    token = answer.json()["token"]
                    client.headers.update({"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": who})
                    answer = client.request(method, f"{self.api}{path}", json=body)
                if answer.status_code != 503:
                    break
                time.sleep(0.5)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def automations(self, webhook: str, **times: str) -> None:
        """Keeps the webhook and creates the automations; ``times`` are as their variables, ``watch="20s"``.
        Without a webhook, that which the server keeps stays."""
        env = {f"NIGHTJAR_{name.upper()}_AFTER": time for name, time in times.items()}
        subprocess.run(
            [sys.executable, "deployments/automations.py"], cwd=CHECKOUT, check=True, timeout=PATIENCE,
            env={**os.environ, **self.env, "NIGHTJAR_WEBHOOK": webhook, **env}, capture_output=True,
        )  # fmt: skip

    @contextmanager
    def watch(self, name: str = "", **times: str) -> Iterator[Process]:
        """The watch, which looks every two seconds; ``times`` are as their variables, ``missed="20s"``. One
        with a name is another one, with a home of its own as on another machine."""
        env = {f"NIGHTJAR_{what.upper()}_AFTER": time for what, time in times.items()}
        if name:
            env["NIGHTJAR_HOME"] = str(self.folder / name)
        command = [sys.executable, "-m", "flows.watch", "--every", "2"]
        watch = Process(command, self.folder / f"watch{name}.log", self.env | env).start()
        try:
            yield watch
        finally:
            watch.stop(signal.SIGKILL)

    def deploy(self) -> None:
        """What ``make deploy`` registers, without a Python of its own for the pool. The command itself, which
        takes seconds, is called for the first server of the session; others are told what it left there."""
        from prefect.workers.process import ProcessWorker

        template = ProcessWorker.get_default_base_job_template()
        self.ask("POST", "/work_pools/", {"name": "local", "type": "process", "base_job_template": template})
        kept = self.migrated.kept.with_name("deployments.json")
        if not kept.exists():
            self.command("deploy", "--all")
            written = self.folder / "deployments.json"
            written.write_text(json.dumps(self.deployments()))
            written.rename(kept)
            return
        before = json.loads(kept.read_text())
        for deployment in before:
            flow = self.ask("POST", "/flows/", {"name": deployment["flow"]})["id"]
            self.ask("POST", "/deployments/", {**deployment["given"], "flow_id": flow})
        assert self.deployments() == before

    def deployments(self) -> list[dict[str, Any]]:
        """All that was given of each deployment, and the name of its flow."""
        from prefect.server.schemas.actions import DeploymentCreate, DeploymentScheduleCreate

        found = []
        for one in self.ask("POST", "/deployments/filter", {"sort": "NAME_ASC"}):
            given = {
                name: one[name] for name in DeploymentCreate.model_fields.keys() & one.keys() - {"flow_id"}
            }
            given["schedules"] = [
                {name: entry[name] for name in DeploymentScheduleCreate.model_fields.keys() & entry.keys()}
                for entry in one["schedules"]
            ]
            given["concurrency_limit"] = (one["global_concurrency_limit"] or {}).get("limit")
            found.append({"flow": self.ask("GET", f"/flows/{one['flow_id']}")["name"], "given": given})
        return found

    def trigger(self, deployment: str, parameters: Mapping[str, Any]) -> str:
        """Starts a deployment run, as the UI's button does; its id."""
        found = self.ask("GET", f"/deployments/name/{deployment}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.ask("POST", f"/deployments/{found['id']}/create_flow_run", body)["id"])

    def retry(self, flow_run: str) -> None:
        """What the UI's retry button sends."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        answer = self.ask("POST", f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True})
        assert answer["status"] == "ACCEPT", answer

    def set_state(self, flow_run: str, state: Mapping[str, Any]) -> None:
        """What the UI's buttons send."""
        answer = self.ask("POST", f"/flow_runs/{flow_run}/set_state", {"state": state})
        assert answer["status"] == "ACCEPT", answer

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/flow_runs/{flow_run}"))

    def finished(self, flow_run: str, patience: float = PATIENCE) -> dict[str, Any]:
        """The run once it is in a final state."""

        def final() -> dict[str, Any] | None:
            found = self.flow_run(flow_run)
            return found if found["state_type"] in FINAL else None

        return dict(until(final, f"flow run {flow_run} ends", patience))

    def tasks(self, flow_run: str, run_count: int | None = None) -> dict[str, str]:
        """Task run name → state name; with ``run_count`` those of that attempt of the flow run only."""
        body = {"flow_runs": {"id": {"any_": [flow_run]}}, "limit": 200, "sort": "EXPECTED_START_TIME_ASC"}
        found = self.ask("POST", "/task_runs/filter", body)
        if run_count is not None:
            found = [entry for entry in found if entry["flow_run_run_count"] == run_count]
        return {entry["name"]: entry["state_name"] for entry in found}

    def manifest(self, flow_run: str) -> dict[str, Any]:
        """What the run left in the store's history."""
        for path in (self.folder / "store" / "runs").glob("*.json"):
            document = json.loads(path.read_text())
            if document["flow_run_id"] == flow_run:
                return dict(document)
        raise AssertionError(f"no manifest of flow run {flow_run}")

    @contextmanager
    def worker(self, name: str = "worker", *arguments: str) -> Iterator[Process]:
        env = self.env | {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_HEARTBEAT_SECONDS": "5"}
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "local", "--name", name]
        command += arguments
        worker = Process(command, self.folder / f"{name}.log", env).start()
        try:
            yield worker
        finally:
            worker.power_off()


@dataclass
class Demo:
    """The embedded model server on its own, which counts what comes in."""

    port: int
    process: Process

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def stats(self) -> dict[str, Any]:
        return dict(httpx.get(f"http://127.0.0.1:{self.port}/stats", timeout=5).json())


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts embedded servers: ``demo("--latency", "0.1")``."""
    with ExitStack() as stack:

        def start(*arguments: str) -> Demo:
            port = free_port()
            command = [sys.executable, "-m", "tasks.models.demo", "--port", str(port), *arguments]
            served = Demo(port, Process(command, tmp_path / f"demo-{port}.log").start())
            stack.callback(served.process.stop)
            until(lambda: _answers(served), "the embedded server answers")
            return served

        yield start


def _answers(served: Demo) -> bool:
    try:
        return bool(served.stats() is not None)
    except httpx.HTTPError:
        return False


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nights)])
def prefect(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_database: MigratedDatabase
) -> Iterator[Prefect]:
    """A server of the test's own, on each database in turn; ``make test-nights`` runs what uses PostgreSQL.

    A test that is about one database, or quick enough for ``make test-services`` on both, says so by
    ``@pytest.mark.parametrize("prefect", [...], indirect=True)``.
    """
    with server_on(request.param, tmp_path, migrated_database) as server:
        yield server


@contextmanager
def server_on(database: str, folder: Path, migrated: MigratedDatabase) -> Iterator[Prefect]:
    """A server of the block's own."""
    with ExitStack() as stack:
        address = stack.enter_context(postgresql()) if database == "postgresql" else None
        server = Prefect(folder, free_port(), migrated, address)
        stack.callback(server.stop)
        yield server.start()


@dataclass(frozen=True)
class Shared:
    """The session's server, for tests that do nothing to it."""

    env: Mapping[str, str]


@pytest.fixture(params=["of the session", pytest.param("postgresql", marks=pytest.mark.nights)])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_database: MigratedDatabase
) -> Iterator[Prefect | Shared]:
    """A server that evaluations are told to; ``make test-nights`` has one on PostgreSQL."""
    if request.param != "postgresql":
        yield Shared({"NIGHTJAR_HOME": str(request.getfixturevalue("home"))})
        return
    with server_on(request.param, tmp_path, migrated_database) as own:
        yield own


@pytest.fixture(scope="module")
def deployed(
    tmp_path_factory: pytest.TempPathFactory, migrated_database: MigratedDatabase
) -> Iterator[Prefect]:
    """A server with the shipped deployments, for tests that look at them only."""
    server = Prefect(tmp_path_factory.mktemp("deployed"), free_port(), migrated_database)
    try:
        server.start().deploy()
        yield server
    finally:
        server.stop()


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that start from here on look for late runs and lost workers every two seconds."""
    for service in ("FOREMAN", "LATE_RUNS"):
        monkeypatch.setenv(f"PREFECT_SERVER_SERVICES_{service}_LOOP_SECONDS", "2")
    monkeypatch.setenv("PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS", "2")


@contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL of the test's own; skips where Debian's package is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    tools, port = folders[-1], free_port()
    # It refuses to run as root, and its user must reach the folder.
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="nightjar-postgresql-"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    data = folder / "data"
    initialise = [
        *as_user,
        str(tools / "initdb"),
        "-D",
        str(data),
        "-U",
        "nightjar",
        "--auth=trust",
        "-E",
        "UTF8",
    ]
    subprocess.run(initialise, check=True, capture_output=True, cwd=folder, timeout=PATIENCE)
    options = [
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        f"unix_socket_directories={folder}",
        "-c",
        "fsync=off",
    ]
    command = [*as_user, str(tools / "postgres"), "-D", str(data), "-p", str(port), *options]
    served = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ready = [str(tools / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        until(
            lambda: subprocess.run(ready, check=False, capture_output=True).returncode == 0,
            "PostgreSQL answers",
        )
        create = [str(tools / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "nightjar", "prefect"]
        subprocess.run(create, check=True, capture_output=True, timeout=PATIENCE)
        yield f"postgresql+asyncpg://nightjar@127.0.0.1:{port}/prefect"
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database() -> Iterator[str]:
    """The address of an empty PostgreSQL database."""
    with postgresql() as address:
        yield address


def problems(count: int) -> str:
    """A dataset of word problems, one line an item."""
    rows = [
        {"question": f"Tom has {row + 2} apples and buys {row % 7 + 1} more. How many apples does Tom have?",
         "answer": f"{row + 2} + {row % 7 + 1} = {row + 2 + row % 7 + 1}\n#### {row + 2 + row % 7 + 1}"}
        for row in range(count)
    ]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Starts processes that end with the test: ``process(command, log, environment)``."""
    with ExitStack() as stack:

        def start(command: list[str], log: Path, env: Mapping[str, str]) -> Process:
            started = Process(command, log, env).start()
            stack.callback(started.stop)
            return started

        yield start


@pytest.fixture(name="free_port")
def free_port_of() -> Callable[[], int]:
    """``free_port`` for tests, which can't import this module."""
    return free_port


@pytest.fixture(name="until")
def until_of() -> Callable[..., Any]:
    """``until`` for tests, which can't import this module."""
    return until


@pytest.fixture(name="descendants")
def descendants_of() -> Callable[[int], list[int]]:
    """``descendants`` for tests, which can't import this module."""
    return descendants


@pytest.fixture
def form() -> Callable[[Path], dict[str, Any]]:
    """The parameters of an evaluation as the UI's form and the API send them."""
    return lambda path: {"config": load_config(path).model_dump(mode="json")}


@pytest.fixture
def benchmark_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a benchmark on ``items`` word problems: two filters and three pairs, one of them a user's metric
    that raises while the file ``broken`` lies beside it."""

    def write(items: int, base_url: str, name: str = "sums", **config: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "items.jsonl").write_text(problems(items))
        (folder / "own.py").write_text(
            "from pathlib import Path\n\n\n"
            "def fragile(references, predictions):\n"
            "    if Path(__file__).with_name('broken').exists():\n"
            "        raise RuntimeError('broken for now')\n"
            "    return float(references[0].rpartition('#### ')[2] == predictions[0])\n"
        )
        model = {
            "name": "demo",
            "type": "openai",
            "config": {"base_url": base_url, "max_concurrency": 8} | config,
        }
        document = {
            "name": name,
            "output_type": "generate_until",
            "dataset": "items.jsonl",
            "prompt_template": "Question: {{question}}\nAnswer:",
            "target": "{{answer}}",
            "sample_params": {"max_tokens": 128},
            "models": [model],
            "filter_list": [
                {
                    "name": "number",
                    "filter": [
                        {"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"},
                        {"function": "take_first"},
                    ],
                    "metric_list": [
                        {"metric": "exact_match", "regexes_to_ignore": ["(?s).*#### "]},
                        {"metric": "fragile", "function": "own.py:fragile"},
                    ],
                },
                {"name": "whole", "metric_list": ["bleu"]},
            ],
        }
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps(document))
        return path

    return write
