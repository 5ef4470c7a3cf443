"""A Prefect server for the session, and the command line as its users call it: in this process, or in one of
its own."""

import fcntl
import gc
import http.server
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from flows.eval.__main__ import main
from scorers.config import Program, ProgramOutcome
from tasks.rows import execution
from tests.flows.endpoints import ScriptedChat, chat_endpoint
from tests.loopback import answering

PROJECT = Path(__file__).resolve().parents[2]
INSPECT = "NIGHTJAR_INSPECT_PYTHON"


@dataclass(frozen=True)
class MigratedDatabase:
    """Prefect's database as a server's first start leaves it, which takes half of that start: the first
    server of the session gives it, those after it begin with a copy."""

    kept: Path
    files = ("prefect.db", "memo_store.toml")

    def lend(self, folder: Path) -> None:
        """Puts a copy into the Prefect home of a server to be."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.kept.is_dir() and not (folder / self.files[0]).exists():
            for name in self.files:
                shutil.copy(self.kept / name, folder / name)

    def take(self, folder: Path) -> None:
        """Keeps that of a server that has just started, if there is none yet."""
        if self.kept.exists():
            return
        made = Path(tempfile.mkdtemp(dir=self.kept.parent))
        connect = sqlite3.connect
        with (
            closing(connect(folder / self.files[0])) as served,
            closing(connect(made / self.files[0])) as copy,
        ):
            served.backup(copy)
        shutil.copy(folder / self.files[1], made)
        for name in self.files:
            (made / name).chmod(0o600)
        with suppress(OSError):  # another worker was faster
            made.rename(self.kept)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of the session have."""
    own_folder = factory.getbasetemp()
    return own_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else own_folder


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> MigratedDatabase:
    """What lets a server start in half the time; of all steps of ``.ci/run`` there is one."""
    kept = os.environ.get("MIGRATED_DATABASE") or shared_folder(tmp_path_factory) / "migrated-database"
    return MigratedDatabase(Path(kept))


# What looks after schedules, workers and automations, and keeps events and task runs: the runs of most tests
# have none of them or ask for none, and more than half of what a run costs a server goes there. Tests about
# events and task runs take ``recording_home``, those about the others start servers of their own.
UNUSED_SERVICES = (
    "CANCELLATION_CLEANUP", "DB_VACUUM", "EVENT_PERSISTER", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS",
    "REPOSSESSOR", "SCHEDULER", "TASK_RUN_RECORDER", "TRIGGERS",
)  # fmt: skip
WITHOUT_THEM = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in UNUSED_SERVICES}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, migrated_database: MigratedDatabase) -> Iterator[Path]:
    """A home of the session's own (with several workers of each), whose server runs until its end."""
    with home_with_server(tmp_path_factory, migrated_database, WITHOUT_THEM) as folder:
        yield folder


@pytest.fixture(scope="session")
def recording_home(
    tmp_path_factory: pytest.TempPathFactory, migrated_database: MigratedDatabase
) -> Iterator[Path]:
    """As ``home``, with a server that keeps all that it is told."""
    with home_with_server(tmp_path_factory, migrated_database, {}) as folder:
        yield folder


@contextmanager
def home_with_server(
    factory: pytest.TempPathFactory, database: MigratedDatabase, settings: Mapping[str, str]
) -> Iterator[Path]:
    """A new home whose server runs, with these settings, until the end of the block."""
    folder = factory.mktemp("nightjar-home")
    server = [sys.executable, "-m", "flows.server"]
    # Two servers that start at once may choose the same port.
    with (shared_folder(factory) / "server-starts").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        database.lend(folder / "server")
        subprocess.run(
            [*server, "start"], cwd=PROJECT, env={**own(folder), **settings}, check=True, timeout=180
        )
        database.take(folder / "server")
    try:
        yield folder
    finally:
        subprocess.run(
            [*server, "stop"], cwd=PROJECT, env=own(folder), check=False, timeout=60, capture_output=True
        )


def _send_what_waits() -> None:
    """Ends Prefect's senders, as the end of a process does: their threads draw random numbers, which
    Hypothesis takes for the test's own, and without a server they try again for a minute."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for sender in (APILogWorker, EventsWorker):
        sender.drain_all(timeout=10)


def own(home: Path) -> dict[str, str]:
    """The environment of a process that uses the server of this home."""
    environment = {**os.environ, "NIGHTJAR_HOME": str(home)}
    environment.pop("PREFECT_API_URL", None)
    return environment


@pytest.fixture
def own_environment(home: Path) -> dict[str, str]:
    """The environment of a process that uses the session's server."""
    return own(home)


@pytest.fixture(autouse=True)
def inspect_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tests marked ``inspect``: the interpreter with inspect_ai that the environment names, or that of
    `make test-inspect`."""
    if request.node.get_closest_marker("inspect") is None or os.environ.get(INSPECT):
        return
    python = PROJECT / ".venv-inspect" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python}: `make test-inspect` makes it")
    monkeypatch.setenv(INSPECT, str(python))


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed

    def value(self, pair: str, model: str | None = None) -> Any:
        """The value of "metric,filter"."""
        metric, _, name = pair.partition(",")
        rows = [
            row
            for row in self.document["results"]
            if row["metric"] == metric and row["filter"] == name and model in (None, row["model_name"])
        ]
        assert len(rows) == 1, f"{pair}: {rows}"
        return rows[0]["value"]

    def steps(self, stage: str) -> tuple[int, int]:
        """How many steps of a stage were computed and cached."""
        counts = self.document["steps"][stage]
        return counts["computed"], counts["cached"]


Evaluate = Callable[..., Ran]


def arguments_of(folder: Path, arguments: tuple[str | Path, ...]) -> list[str]:
    """The arguments, with a store and an output folder in ``folder`` where they name none."""
    named = [str(argument) for argument in arguments]
    for option, place in (("--store", "store"), ("--output", "out")):
        if option not in named:
            named += [option, str(folder / place)]
    return named


@pytest.fixture
def evaluate_process(home: Path, tmp_path: Path) -> Evaluate:
    """Calls ``python -m flows.eval`` with a store of the test's own."""

    def call(*arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 120) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "flows.eval", *arguments_of(tmp_path, arguments)],
            cwd=PROJECT, env={**own(home), **(env or {})}, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def evaluate(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """As ``evaluate_process``, in the process of the tests: the same entry, without the seconds that a new
    Python with Prefect takes.

    What is about processes (exit by a signal, what is imported when, the environment) needs the other one.
    """

    def call(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran:
        named = ["flows.eval", *arguments_of(tmp_path, arguments)]
        return _called(main, named, {**own(home), **(env or {})}, capsys)

    return call


@pytest.fixture
def lm_eval(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """``python -m flows.lm_eval`` in the process of the tests, with a store and results of the test's own."""
    from flows.lm_eval.__main__ import main as lm_eval_main

    places = {"NIGHTJAR_STORE": str(tmp_path / "store"), "NIGHTJAR_RESULTS": str(tmp_path / "results")}

    def call(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran:
        named = ["flows.lm_eval", *map(str, arguments)]
        return _called(lm_eval_main, named, {**own(home), **places, **(env or {})}, capsys)

    return call


@pytest.fixture(scope="module")
def first_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Ran]]:
    """Where the stores and outputs of a file's first runs are kept, and what they printed."""
    return tmp_path_factory.mktemp("first-runs"), {}


@pytest.fixture
def begin(evaluate: Evaluate, tmp_path: Path, first_runs: tuple[Path, dict[str, Ran]]) -> Evaluate:
    """As ``evaluate``, for tests of a file that begin with the same run under a name: one of them makes it,
    the others get what it printed, and a copy of the store and the output that it left."""
    kept, ran = first_runs

    def call(name: str, *arguments: str | Path) -> Ran:
        if name in ran:
            for part in ("store", "out"):
                shutil.copytree(kept / name / part, tmp_path / part)
            return ran[name]
        done = evaluate(*arguments)
        assert done.code == 0, done.err
        for part in ("store", "out"):
            shutil.copytree(tmp_path / part, kept / name / part)
        ran[name] = done
        return done

    return call


@pytest.fixture
def suite_night(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """``python -m flows.suite`` in the process of the tests, with a store of the test's own and a folder for
    each night."""
    from flows.suite.__main__ import main as suite_main

    numbers = itertools.count(1)

    def call(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran:
        named = ["flows.suite", *map(str, arguments), "--json", "--store", str(tmp_path / "store")]
        named += ["--output", str(tmp_path / f"night-{next(numbers)}")]
        return _called(suite_main, named, {**own(home), **(env or {})}, capsys)

    return call


def _called(
    main: Callable[[], None],
    arguments: list[str],
    environment: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
) -> Ran:
    capsys.readouterr()
    with as_new_process(environment, arguments):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    said = capsys.readouterr()
    return Ran(code, said.out, said.err)


@pytest.fixture
def prefect_api(home: Path) -> Callable[[str, str, Any], Any]:
    """Asks the session's server as its UI does: ``prefect_api("GET", "/flow_runs/…", None)``."""

    def ask(method: str, path: str, body: Any = None) -> Any:
        server = json.loads((home / "server" / "server.json").read_text())
        user, _, password = (home / "server" / "credential").read_text().strip().partition(":")
        api = f"http://127.0.0.1:{server['port']}/api"
        with httpx.Client(auth=(user, password), timeout=30) as client:
            token = client.get(f"{api}/csrf-token", params={"client": "tests"}).json()["token"]
            headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
            answer = client.request(method, f"{api}{path}", json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()

    return ask


@contextmanager
def as_new_process(environment: Mapping[str, str], arguments: list[str]) -> Iterator[None]:
    """A block that finds what a new process would, and leaves nothing behind."""
    from tasks.caching import _open_store

    before = dict(os.environ), sys.argv, Path.cwd(), gc.get_threshold(), gc.freeze
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _replace_environment(environment)
    sys.argv = arguments
    os.chdir(PROJECT)
    _open_store.cache_clear()  # a store's object verifies an artifact once
    gc.freeze = lambda: None  # saves a process's end, which does not come here
    try:
        with warnings.catch_warnings():
            _warn_as_a_new_process()
            yield
            _send_what_waits()
            gc.collect()  # here, where sockets that Prefect leaves open are no error
            before[4]()  # what is left need not be looked through after every run that follows
    finally:
        gc.freeze = before[4]
        gc.set_threshold(*before[3])
        _replace_environment(before[0])
        sys.argv = before[1]
        os.chdir(before[2])
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def _warn_as_a_new_process() -> None:
    """Python's own filters, on stderr; what is said to those who write our code stays an error."""
    warnings.resetwarnings()
    warnings.showwarning = _show_warning
    for quiet in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", quiet)
    for category in (DeprecationWarning, RuntimeWarning):
        warnings.filterwarnings("error", category=category, module=r"(flows|tasks|scorers|metrics)\b")


def _show_warning(*about: Any) -> None:
    message, category, filename, line = about[:4]
    print(warnings.formatwarning(message, category, filename, line), end="", file=sys.stderr)


def _replace_environment(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


@pytest.fixture
def told() -> list[dict[str, Any]]:
    """What the webhook was sent, and took."""
    return []


@pytest.fixture
def refusing() -> threading.Event:
    """While it is set, the webhook refuses what it is sent."""
    return threading.Event()


@pytest.fixture
def webhook(told: list[dict[str, Any]], refusing: threading.Event) -> Iterator[str]:
    """The address of a webhook of the test's own."""

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not refusing.is_set():
                told.append(message)
            self.send_response(503 if refusing.is_set() else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/"


@pytest.fixture
def programs_run(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that were run, in this process."""
    asked: list[Program] = []
    real = execution.run_program

    def counted(program: Program, sandbox: Any) -> ProgramOutcome:
        asked.append(program)
        return real(program, sandbox)

    monkeypatch.setattr(execution, "run_program", counted)
    return asked


@pytest.fixture
def night(tmp_path: Path) -> Any:
    """Judges and records made nights one after the other: ``night(wrong items, of, gate…)``."""
    from tests.flows.made_nights import judge_in

    return judge_in(tmp_path)


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[str, list[ScriptedChat]]]:
    """The address of a chat endpoint, which the tests of a module share, and whose script answers there: the
    last one's."""
    answering = [ScriptedChat()]
    with chat_endpoint(lambda body: answering[-1].choice(body), ["m"]) as url:
        yield url, answering


@pytest.fixture
def endpoint(scripts: tuple[str, list[ScriptedChat]]) -> ScriptedChat:
    """A chat endpoint that answers by a script of the test's."""
    url, answering = scripts
    answering.append(ScriptedChat())
    answering[-1].url = url
    return answering[-1]


@pytest.fixture
def numbers(tmp_path: Path, endpoint: ScriptedChat) -> Callable[..., Path]:
    """Writes a benchmark of items q0, q1 … whose right answers are their numbers, asked of ``endpoint``."""

    def write(n: int = 4, **keys: Any) -> Path:
        items = [{"id": f"i{i}", "question": f"q{i}", "answer": str(i)} for i in range(n)]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        merged = {
            "name": "numbers",
            "dataset": "data.jsonl",
            "prompt_template": "{{question}}",
            "target": "{{answer}}",
            "models": [{"name": "m", "config": {"base_url": endpoint.url, "max_retries": 0}}],
            "metric_list": ["exact_match"],
            **keys,
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(merged))
        return path

    return write
