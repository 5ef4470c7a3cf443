"""Whatever happens to a run, the same command afterwards gives what an undisturbed one gives.

A command is killed at a file operation of each stage, or while the endpoint holds its requests; its Prefect
server dies, its database is locked or lost; the store goes away under it; the disk is full; the clock jumps.
Then it is started once more, and its files are compared with the undisturbed, byte for byte, times aside.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.loopback import answering

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
ITEMS, SAMPLES, IN_FLIGHT = 8, 2, 4
PATIENCE = 240
FRACTIONS = (0.0, 0.35, 0.7, 1.0)
"""Where in a stage's file operations it is killed."""
STAGES = {
    "judged": (
        "between",
        "load",
        "render",
        "infer",
        "filter",
        "ask",
        "score",
        "reduce",
        "aggregate",
        "publish",
    ),
    "processed": (
        *(
            "between",
            "load",
            "render",
            "infer",
            "filter",
            "process",
            "score",
            "reduce",
            "aggregate",
            "publish",
        ),
    ),
}
KILLS_AT_REQUESTS = 16


class Endpoint(ThreadingHTTPServer):
    """Answers every prompt the same each time, counts how often each was asked, and tells who listens."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.on_request: Callable[[int], None] = lambda _: None
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][-1]["content"]
                with outer._lock:
                    outer.asked[f"{prompt} #{body.get('seed')}"] += 1
                    number = outer.asked.total()
                outer.on_request(number)
                time.sleep(0.005)
                digit = sum(prompt.encode()) % 5
                message = {"content": str(digit + body.get("seed", 0) % 2)}
                self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

            def do_GET(self) -> None:
                self._send({"data": [{"id": "m"}, {"id": "j"}]})

            def _send(self, body: Any) -> None:
                content = json.dumps(body).encode()
                with suppress(OSError):  # who asked may be dead
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    running = Endpoint()
    with answering(running):
        yield running


@dataclass
class Commands:
    """Forks ``python -m flows.eval`` from a process that has imported it.

    ``root`` is where the process's files are from here: it may have mounts of its own.
    """

    process: "subprocess.Popen[str]"
    folder: Path
    journal: Path
    root: Path = Path("/")
    number: int = 0

    def start(self, arguments: list[str], **misfortune: Any) -> int:
        """Starts a command and returns its process id."""
        self.number += 1
        order = {"arguments": arguments, "folders": [str(self.folder), str(self.journal)], **misfortune}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order | {"said": str(self._said)}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> int:
        """Waits for the command's end; its exit code, negative for a signal."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def run(self, arguments: list[str], **misfortune: Any) -> int:
        self.start(arguments, **misfortune)
        return self.end()

    @property
    def said(self) -> str:
        """What the latest command printed."""
        return self._said.read_text()

    @property
    def operations(self) -> dict[str, int]:
        """How many file operations each stage of the latest command made."""
        counts: dict[str, int] = json.loads(re.findall(r"file operations: (.*)", self.said)[-1])
        return counts

    def here(self, path: Path) -> Path:
        """A path of the process as this one reaches it."""
        return self.root / path.relative_to("/")

    @property
    def _said(self) -> Path:
        return self.folder.parent / f"said-{self.number}.txt"


@contextmanager
def commands_of(home: Path, folder: Path, *before: str, **environment: str) -> Iterator[Commands]:
    """A forking process; ``before`` is what it is started by."""
    journal = home / "journal"
    journal.mkdir(exist_ok=True)
    folder.mkdir()
    variables = {**os.environ, "NIGHTJAR_HOME": str(home), "PYTHONPATH": str(PROJECT), **environment}
    variables.pop("PREFECT_API_URL", None)
    process = subprocess.Popen(
        [*before, sys.executable, str(Path(__file__).with_name("forking_commands.py"))],
        cwd=PROJECT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"{before} can't be had here")
        yield Commands(process, folder, journal, Path(f"/proc/{process.pid}/root") if before else Path("/"))
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int jumping = 0;
static int calls = 0;
static long by(void) { return jumping ? 86400L * (calls++ / 20 % 3 - 1) : 0; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += by();
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    int code = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return code;
}
time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""
"""A clock that jumps by a day, back and forth, for whatever of a process asks the C library."""


@pytest.fixture(scope="module")
def commands(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("chaos")
    environment = {}
    if shutil.which("cc"):
        (folder / "clock.c").write_text(CLOCK)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", "clock.so", "clock.c", "-ldl"]
        subprocess.run(command, cwd=folder, check=True)
        environment["LD_PRELOAD"] = str(folder / "clock.so")
    with commands_of(home, folder / "run", **environment) as running:
        yield running


CODE = """
def results(doc, results):
    return {"even": float(int(results[0]) % 2 == 0)}
"""


def config_of(endpoint: Endpoint, kind: str) -> dict[str, Any]:
    """A benchmark with every stage: a judge, methods and their metrics; or users' results and two filters."""
    address = f"http://127.0.0.1:{endpoint.server_port}/v1"
    reach = {"base_url": address, "max_concurrency": IN_FLIGHT, "max_retries": 1, "timeout": 20}
    shared = {
        "name": kind,
        "dataset": "data.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "models": [{"name": "m", "config": reach}],
        "sample_params": {"num_samples": SAMPLES, "seed": 0, "temperature": 1.0},
        "statistics": {"bootstrap_iters": 100},
    }
    if kind == "judged":
        return shared | {
            "metric_list": ["exact_match", "rouge1"],
            "scorer": {
                "type": "llm_judge",
                "judges": [{"name": "j", "type": "openai", "config": reach}],
                "prompt": "Grade {{question}}: {{response}}",
                "parse": {"type": "number", "min": 0, "max": 6},
            },
            "evaluation_methods": [{"name": "right", "type": "exact_match"}],
            "metrics": [{"name": "pass@1", "type": "pass_at_k", "params": {"k": 1}}],
        }
    filters = [
        {"name": "whole", "filter": []},
        {"name": "vote", "filter": [{"function": "majority_vote"}]},
    ]
    return shared | {"process_results": "code.py:results", "metric_list": ["even"], "filter_list": filters}


@dataclass
class Arena:
    """A folder for one command at a time, and the files of the undisturbed runs."""

    commands: Commands
    endpoint: Endpoint
    undisturbed: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: dict[str, dict[str, int]] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.commands.here(self.commands.folder)

    def fresh(self, kind: str) -> list[str]:
        """Empties the folder and writes the benchmark into it; returns the command's arguments."""
        for path in self.folder.iterdir():
            if path.name != "journal":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        rows = [{"id": f"i{n}", "question": f"question {n}", "answer": str(n % 5)} for n in range(ITEMS)]
        (self.folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "code.py").write_text(CODE)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config_of(self.endpoint, kind)))
        self.endpoint.asked.clear()
        self.endpoint.on_request = lambda _: None
        inside = self.commands.folder
        named = ["--store", str(inside / "store"), "--output", str(inside / "out"), "--run-name", "same"]
        return [str(inside / "config.yaml"), *named]

    def prepare(self, kind: str) -> None:
        """The undisturbed run, once; what it imports is imported from then on."""
        if kind in self.undisturbed:
            return
        warm = str(self.commands.folder.parent / f"imported-by-{kind}")
        assert self.commands.run(self.fresh(kind), warm=warm) == 0, self.commands.said
        assert self.commands.run(self.fresh(kind)) == 0, self.commands.said
        self.operations[kind] = self.commands.operations
        self.requests[kind] = self.endpoint.asked.total()
        self.undisturbed[kind] = published(self.folder / "out")
        assert set(self.endpoint.asked.values()) == {1}

    def again(self, kind: str, arguments: list[str], at_most_twice: int | None = IN_FLIGHT) -> None:
        """The same command to its end, and the comparison."""
        self.endpoint.on_request = lambda _: None
        assert self.commands.run(arguments) == 0, self.commands.said
        differing(published(self.folder / "out"), self.undisturbed[kind])
        if at_most_twice is not None:
            assert max(self.endpoint.asked.values()) <= 2
            assert sum(times > 1 for times in self.endpoint.asked.values()) <= at_most_twice


@pytest.fixture(scope="module")
def arena(commands: Commands, endpoint: Endpoint) -> Arena:
    return Arena(commands, endpoint)


@pytest.fixture(scope="module")
def arena_on_a_disk(
    home: Path, endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    """The same on a file system of its own, which its store, its output and its journal share."""
    if not shutil.which("unshare"):
        pytest.skip("a file system of its own needs unshare")
    folder = tmp_path_factory.mktemp("chaos") / "run"
    mounted = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    with commands_of(home, folder, *mounted, OWN_DISK=str(folder), JOURNAL=str(home / "journal")) as running:
        yield Arena(running, endpoint)


TIMES = {
    *("inference_time", "timestamp", "timestamp_unix", "evaluation_time", "tokens_per_second", "date"),
    *("run_id", "total_evaluation_time_seconds"),
}


def published(folder: Path) -> dict[str, Any]:
    """What a run published, without times and ids of the run."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".jsonl":
            found[path.name] = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "results.json":
            known = json.loads(path.read_text())
            for taken in ("requests", "tokens", "cost", "git_hash"):  # about this run, not what it found
                known.pop(taken, None)
            found[path.name] = without_times(known)
        elif path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
            found[path.name] = [without_times(row) for row in rows]
        if path.name in ("metrics.jsonl", "items.parquet"):  # these hold no time at all
            found[f"bytes of {path.name}"] = path.read_bytes()
    assert {"responses.jsonl", "results.parquet", "items.parquet", "metrics.jsonl"} <= set(found)
    return found


def differing(found: Any, expected: Any, place: str = "") -> None:
    """Fails naming the first place where two runs' files differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        assert set(found) == set(expected), place
        for name, value in found.items():
            differing(value, expected[name], f"{place}.{name}")
    else:
        assert found == expected, place


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(entry) for name, entry in value.items() if name not in TIMES}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


KINDS = tuple(STAGES)


@pytest.mark.parametrize(
    ("kind", "stage"), [(kind, stage) for kind, stages in STAGES.items() for stage in stages]
)
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_killed_in_any_stage_it_goes_on_to_the_same_results(
    arena: Arena, kind: str, stage: str, fraction: float
) -> None:
    arena.prepare(kind)
    assert set(arena.operations[kind]) == set(STAGES[kind]), (
        f"a stage that nothing kills: {arena.operations[kind]}"
    )
    at = 1 + int(fraction * (arena.operations[kind][stage] - 1))
    arguments = arena.fresh(kind)
    while arena.commands.run(arguments, kill=[stage, at]) != -signal.SIGKILL:
        assert at > 1, "it never got there"  # how often a file is looked at is not the same each time
        at, arguments = at - 1, arena.fresh(kind)
    arena.again(kind, arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(KILLS_AT_REQUESTS))
def test_killed_while_requests_are_in_flight_it_asks_those_again_and_no_others(
    arena: Arena, kind: str, number: int
) -> None:
    arena.prepare(kind)
    at = 1 + number * arena.requests[kind] // KILLS_AT_REQUESTS
    arguments = arena.fresh(kind)
    started: list[int] = []

    def kill(request: int) -> None:
        while not started:
            time.sleep(0.01)
        if request == at:
            os.kill(started[0], signal.SIGKILL)

    arena.endpoint.on_request = kill
    started.append(arena.commands.start(arguments, clock=number % 4 == 3))
    assert arena.commands.end() == -signal.SIGKILL
    arena.again(kind, arguments)


def test_a_hundred_kills_are_tried() -> None:
    assert sum(map(len, STAGES.values())) * len(FRACTIONS) + len(KINDS) * KILLS_AT_REQUESTS >= 100


def during(arena: Arena, arguments: list[str], happen: Callable[[], None], **misfortune: Any) -> int:
    """Runs the command; at its fifth request, something happens."""
    happened = threading.Event()

    def once(request: int) -> None:
        if request == 5 and not happened.is_set():
            happened.set()
            happen()

    arena.endpoint.on_request = once
    code = arena.commands.run(arguments, **misfortune)
    assert happened.is_set()
    return code


def server_of(home: Path) -> tuple[int, list[Path]]:
    """The process id of the home's server, and its databases."""
    known = json.loads((home / "server" / "server.json").read_text())
    return int(known["pid"]), list((home / "server").rglob("*.db"))


def started_again(home: Path) -> None:
    environment = {**os.environ, "NIGHTJAR_HOME": str(home)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "flows.server", "start"]
    subprocess.run(command, cwd=PROJECT, env=environment, check=True, timeout=PATIENCE, capture_output=True)


def ended_in_a_sentence(arena: Arena, code: int) -> None:
    """Whatever it came to, it is a documented end, and no traceback."""
    said = arena.commands.said
    assert code in (0, 1, 2), said
    assert "Traceback" not in said


def test_the_prefect_server_is_killed(arena: Arena, home: Path) -> None:
    arena.prepare("judged")
    arguments = arena.fresh("judged")
    kill = lambda: os.killpg(os.getpgid(server_of(home)[0]), signal.SIGKILL)  # noqa: E731
    ended_in_a_sentence(arena, during(arena, arguments, kill))
    arena.again("judged", arguments)


def test_the_servers_database_is_locked_for_a_while(arena: Arena, home: Path) -> None:
    arena.prepare("judged")
    arguments = arena.fresh("judged")

    def lock() -> None:
        def hold() -> None:
            for path in server_of(home)[1]:
                with sqlite3.connect(path, timeout=30, isolation_level=None) as database:
                    database.execute("BEGIN EXCLUSIVE")
                    time.sleep(8)
                    database.execute("ROLLBACK")
                database.close()

        threading.Thread(target=hold).start()

    ended_in_a_sentence(arena, during(arena, arguments, lock))
    arena.again("judged", arguments)


def test_the_servers_database_is_deleted(arena: Arena, home: Path) -> None:
    arena.prepare("judged")
    arguments = arena.fresh("judged")

    def delete() -> None:
        for path in server_of(home)[1]:
            for part in path.parent.glob(f"{path.name}*"):
                part.unlink()

    ended_in_a_sentence(arena, during(arena, arguments, delete))
    arena.again("judged", arguments)
    with suppress(ProcessLookupError):
        os.killpg(os.getpgid(server_of(home)[0]), signal.SIGKILL)
    started_again(home)
    arena.again("judged", arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_is_removed(arena: Arena, kind: str) -> None:
    arena.prepare(kind)
    arguments = arena.fresh(kind)
    code = during(arena, arguments, lambda: shutil.rmtree(arena.folder / "store", ignore_errors=True))
    ended_in_a_sentence(arena, code)
    arena.again(kind, arguments, at_most_twice=None)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 0.95])
def test_from_some_moment_on_nothing_can_be_written(arena: Arena, share: float) -> None:
    arena.prepare("judged")
    arguments = arena.fresh("judged")
    operations = sum(arena.operations["judged"].values())
    code = arena.commands.run(arguments, full_at=int(operations * share) + 1)
    assert code in (1, 2), arena.commands.said
    ended_in_a_sentence(arena, code)
    assert "No space left on device" in arena.commands.said
    arena.again("judged", arguments)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.6, 0.9])
def test_the_disk_is_full_for_the_whole_command(arena_on_a_disk: Arena, share: float) -> None:
    arena = arena_on_a_disk
    arena.prepare("judged")
    taken = used(arena.folder)
    arguments = arena.fresh("judged")
    code = arena.commands.run(arguments, disk=used(arena.folder) + int(share * taken))
    ended_in_a_sentence(arena, code)
    assert code in (1, 2), arena.commands.said
    assert "No space left on device" in arena.commands.said or "disk is full" in arena.commands.said
    arena.again("judged", arguments)


def used(folder: Path) -> int:
    """Bytes that the folder's file system holds."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def test_the_clock_jumps_back_and_forth(arena: Arena) -> None:
    arena.prepare("judged")
    arguments = arena.fresh("judged")
    assert arena.commands.run(arguments, clock=True) == 0, arena.commands.said
    differing(published(arena.folder / "out"), arena.undisturbed["judged"])
    arena.again("judged", arguments, at_most_twice=0)
