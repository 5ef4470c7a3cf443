"""One evaluation in several places: Dask, a store on S3, two workers, shared limits, a server away."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from tests.tasks.processes.test_queues import queue_here
from tests.waiting import until

CHECKOUT = Path(__file__).resolve().parents[3]
PAIRS = 8


def evaluate(server: Any, path: Path, *arguments: str, **env: str) -> dict[str, Any]:
    """``python -m flows.eval``: its JSON document."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.eval", str(path), "--json", *arguments], cwd=CHECKOUT, timeout=400,
        env={**os.environ, **server.env, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def values(output: Path) -> dict[tuple[str, str, str], float]:
    rows = pq.read_table(output / "results.parquet").to_pylist()
    return {(row["model_name"], row["filter"], row["metric"]): row["value"] for row in rows}


@pytest.fixture
def traced(benchmark_file: Callable[..., Path]) -> Callable[[str], Path]:
    """A benchmark whose metrics leave a file that names the process that they ran in and its parent."""

    def write(base_url: str) -> Path:
        path = benchmark_file(40, base_url)
        (path.parent / "own.py").write_text(
            "import os, time\nfrom pathlib import Path\n\n\n"
            "def fragile(references, predictions, number=0):\n"
            "    Path(__file__).with_name(f'ran-{os.getppid()}-{os.getpid()}').touch()\n"
            "    time.sleep(0.01)\n"
            "    return float(references[0].rpartition('#### ')[2] == predictions[0])\n"
        )
        config = json.loads(path.read_text())
        config["filter_list"][0]["metric_list"] += [
            {"metric": "fragile", "function": "own.py:fragile", "alias": f"fragile{number}", "number": number}
            for number in range(PAIRS)
        ]
        path.write_text(json.dumps(config))
        return path

    return write


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[str]:
    """A Dask scheduler and two worker processes; the scheduler's address."""
    port = _free_port()
    address = f"tcp://127.0.0.1:{port}"
    commands = [["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]]
    commands += [
        ["worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--name", name, "--no-dashboard",
         "--local-directory", str(tmp_path / "dask")]
        for name in ("one", "two")
    ]  # fmt: skip
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((tmp_path / f"dask-{number}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command],
                cwd=CHECKOUT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait, 20)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        yield address


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a queue of Slurm whose jobs start at once, on this machine, with two workers."""
    folder = tmp_path / "commands"
    queue_here(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return "slurm://normal?jobs=1&cores=2&memory=2GB"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An S3 API on loopback with a bucket called nightjar; the environment that points there."""
    port = _free_port()
    env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with (tmp_path / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        until(lambda: _listens(port) and _bucket(env), "the S3 server answers")
        yield env
    finally:
        process.kill()
        process.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _bucket(env: dict[str, str]) -> bool:
    code = "import boto3; boto3.client('s3').create_bucket(Bucket='nightjar')"
    return (
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, check=False
        ).returncode
        == 0
    )


@pytest.mark.services
@pytest.mark.parametrize("cluster", ["dask", "queue"])
def test_dask_gives_the_same_numbers_with_work_on_both_workers(
    server: Any, demo: Callable[..., Any], traced: Callable[[str], Path], tmp_path: Path,
    cluster: str, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    path = traced(demo().base_url)
    evaluate(server, path, "--output", str(tmp_path / "here"), "--store", str(tmp_path / "store-here"))
    for mark in path.parent.glob("ran-*"):
        mark.unlink()
    document = evaluate(
        server, path, "--output", str(tmp_path / "there"), "--store", str(tmp_path / "store-there"),
        "--task-runner", f"dask:{request.getfixturevalue(cluster)}",
    )  # fmt: skip
    assert document["requests"]["sent"] == 40
    assert values(tmp_path / "there") == values(tmp_path / "here")
    assert len(values(tmp_path / "there")) == PAIRS + 3
    assert len(_marks_of_workers(path.parent, "ran-*")) >= 2


KILLS = 20


@pytest.mark.nights
def test_dask_workers_killed_at_20_moments_change_no_byte_and_no_count(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    dask: str,
    until: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Six times while the model is asked, then each time in the middle of another pair's scores."""
    endpoint = demo("--latency", "0.3")
    path = benchmark_file(40, endpoint.base_url, max_concurrency=2)
    (path.parent / "own.py").write_text(SLOW_METRIC)
    config = json.loads(path.read_text())
    config["filter_list"][0]["metric_list"] += [
        {"metric": "slow", "function": "own.py:slow", "alias": f"slow{number}", "number": number}
        for number in range(KILLS + 4)
    ]
    config["prices"] = {"demo": {"prompt": 1, "completion": 2}}
    path.write_text(json.dumps(config))
    whole = evaluate(prefect, path, "--output", str(tmp_path / "here"), "--store", str(tmp_path / "st-here"))
    for mark in path.parent.glob("scoring-*"):
        mark.unlink()

    found: dict[str, Any] = {}
    there = ("--output", str(tmp_path / "there"), "--store", str(tmp_path / "st-there"))
    running = threading.Thread(
        target=lambda: found.update(evaluate(prefect, path, *there, "--task-runner", f"dask:{dask}"))
    )
    running.start()
    killed = 0
    for moment in range(6):
        until(lambda moment=moment: endpoint.stats()["answered"] >= 42 + 6 * moment, "inference goes on")
        os.kill(until(_dask_workers, "a worker is there")[0], signal.SIGKILL)
        killed += 1
    met: set[str] = set()
    while killed < KILLS:
        mark = until(lambda: _new_mark(path.parent, met), "the next pair is being scored")
        time.sleep(0.05 * (killed % 6))  # at its beginning and later
        with suppress(ProcessLookupError):
            os.kill(int(mark.name.rpartition("-")[2]), signal.SIGKILL)
            killed += 1
    running.join(600)
    assert endpoint.stats()["received"] == 80, "workers ask nothing, and so nothing is asked twice"
    assert {name: found[name] for name in ("requests", "tokens")} == {
        name: whole[name] for name in ("requests", "tokens")
    }
    assert found["cost"] == pytest.approx(whole["cost"])
    assert found["cost"] > 0
    assert _digests(tmp_path / "there") == _digests(tmp_path / "here")
    assert len(values(tmp_path / "there")) == 3 + KILLS + 4


SLOW_METRIC = """
import os, time
from pathlib import Path


def fragile(references, predictions):
    return 1.0


def slow(references, predictions, number=0):
    Path(__file__).with_name(f'scoring-{number}-{os.getppid()}-{os.getpid()}').touch()
    time.sleep(0.02)
    return float(references[0].rpartition('#### ')[2] == predictions[0])
"""


def _marks_of_workers(folder: Path, pattern: str) -> list[Path]:
    """The files that metrics left in Dask's workers: not those of the run's own process, a child of this one,
    which tries each metric before the first request."""
    return [mark for mark in sorted(folder.glob(pattern)) if mark.name.split("-")[-2] != str(os.getpid())]


def _new_mark(folder: Path, met: set[str]) -> Path | None:
    """A file that a pair left which is being scored for the first time."""
    for mark in _marks_of_workers(folder, "scoring-*"):
        number = mark.name.split("-")[1]
        if number not in met:
            met.add(number)
            return mark
    return None


def _dask_workers() -> list[int]:
    """The processes of workers, by the nannies of this test's that start them again."""
    mine = psutil.Process().children(recursive=True)
    nannies = [child for child in mine if {"dask", "worker"} <= set(child.cmdline())]
    return [
        own.pid
        for nanny in nannies
        for own in nanny.children()
        if any("spawn_main" in word for word in own.cmdline())
    ]


def _digests(output: Path) -> dict[str, list[str]]:
    """The digests of the artifacts that no time is in, by stage."""
    stages = json.loads((output / "manifest.json").read_text())["artifacts"]
    return {
        name: sorted(ref["digest"] for ref in refs if ref["digest"])
        for name, refs in stages.items()
        if name != "infer"
    }


@pytest.mark.services
def test_a_store_on_s3_gives_the_same_numbers_and_serves_the_next_run(
    server: Any,
    demo: Callable[..., Any],
    traced: Callable[[str], Path],
    s3: dict[str, str],
    tmp_path: Path,
) -> None:
    endpoint = demo()
    path = traced(endpoint.base_url)
    store = "s3://nightjar/store"
    evaluate(server, path, "--output", str(tmp_path / "local"), "--store", str(tmp_path / "store-local"))
    first = evaluate(server, path, "--output", str(tmp_path / "s3"), "--store", store, **s3)
    assert values(tmp_path / "s3") == values(tmp_path / "local")
    again = evaluate(server, path, "--output", str(tmp_path / "again"), "--store", store, **s3)
    assert again["requests"]["sent"] == 0
    assert not any(counts["computed"] for counts in again["steps"].values())
    assert endpoint.stats()["received"] == 80

    asked = subprocess.run(
        [sys.executable, "-m", "flows.history",
         "SELECT count(DISTINCT run_id) AS runs, count(*) AS numbers FROM results",
         "--store", store, "--json"],
        cwd=CHECKOUT, env={**os.environ, **s3}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(asked.stdout) == [{"runs": 2, "numbers": 2 * len(first["results"])}]


class Road:
    """A way to a server on this machine that can be cut: connections end, and new ones are refused."""

    def __init__(self, port: int) -> None:
        self.to, self.port = port, _free_port()
        self._open: list[socket.socket] = []
        self.mend()

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # cut
            while True:
                ends = listener.accept()[0], socket.create_connection(("127.0.0.1", self.to))
                self._open += ends
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@pytest.mark.nights
def test_a_store_on_s3_that_is_away_for_a_minute_costs_time_only_and_is_named(
    prefect: Any,
    demo: Callable[..., Any],
    benchmark_file: Callable[..., Path],
    s3: dict[str, str],
    tmp_path: Path,
) -> None:
    endpoint = demo("--latency", "0.5")
    path = benchmark_file(160, endpoint.base_url, max_concurrency=4)
    evaluate(prefect, path, "--output", str(tmp_path / "local"), "--store", str(tmp_path / "store-local"))
    before = endpoint.stats()["received"]
    road = Road(int(s3["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    places = ["--output", str(tmp_path / "away"), "--store", "s3://nightjar/store"]
    with (tmp_path / "said.log").open("w+") as said:
        running = subprocess.Popen(
            [sys.executable, "-m", "flows.eval", str(path), *places], cwd=CHECKOUT, stdout=said, stderr=said,
            env={**os.environ, **prefect.env, **s3, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{road.port}"},
        )  # fmt: skip
        until(lambda: endpoint.stats()["received"] >= before + 20, "inference is in its middle")
        road.cut()
        time.sleep(60)
        named = (tmp_path / "said.log").read_text()
        road.mend()
        assert running.wait(400) == 0, (tmp_path / "said.log").read_text()
    assert "store s3://nightjar/store" in named  # while it was away
    assert "answers again" in (tmp_path / "said.log").read_text()
    assert values(tmp_path / "away") == values(tmp_path / "local")
    assert endpoint.stats()["received"] == before + 160


@pytest.mark.nights
def test_two_workers_with_the_same_evaluation_give_one_set_of_results(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    endpoint = demo("--latency", "0.2")
    path = benchmark_file(120, endpoint.base_url, max_concurrency=8)
    prefect.deploy()
    parameters = form(path)
    with prefect.worker("first", "--limit", "1"), prefect.worker("second", "--limit", "1"):
        runs = [prefect.trigger("evaluate/evaluate", parameters) for _ in range(2)]
        states = [prefect.finished(run)["state_type"] for run in runs]
    assert states == ["COMPLETED", "COMPLETED"]
    manifests = [prefect.manifest(run) for run in runs]
    first, second = (values(Path(manifest["output"])) for manifest in manifests)
    assert first == second
    stats = endpoint.stats()
    assert stats["distinct"] == 120
    assert stats["asked_again"] <= 2 * 8
    again = prefect.trigger  # the store is whole: a third run computes nothing
    with prefect.worker("third"):
        third = again("evaluate/evaluate", parameters)
        assert prefect.finished(third)["state_type"] == "COMPLETED"
    assert not any(counts["computed"] for counts in prefect.manifest(third)["steps"].values())


@pytest.mark.nights
def test_a_run_survives_a_server_that_is_away_for_half_a_minute(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], tmp_path: Path
) -> None:
    endpoint = demo("--latency", "0.5")
    path = benchmark_file(160, endpoint.base_url, max_concurrency=4)
    found: dict[str, Any] = {}
    running = threading.Thread(
        target=lambda: found.update(evaluate(prefect, path, "--output", str(tmp_path / "out")))
    )
    running.start()
    until(lambda: endpoint.stats()["answered"] >= 8, "inference is in its middle")
    prefect.process.send(signal.SIGSTOP)
    time.sleep(15)
    prefect.process.send(signal.SIGKILL)
    prefect.process.running.wait(20)
    time.sleep(15)
    prefect.start()
    running.join(300)
    assert found["requests"]["sent"] == 160
    assert len(values(tmp_path / "out")) == 3


@pytest.mark.nights
def test_a_limit_holds_over_runs_of_several_workers(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    endpoint = demo("--latency", "0.2")
    prefect.command("global-concurrency-limit", "create", "demo-endpoint", "--limit", "6")
    paths = [
        benchmark_file(40, endpoint.base_url, name, max_concurrency=8, concurrency_limit="demo-endpoint")
        for name in ("one", "two")
    ]
    prefect.deploy()
    with prefect.worker("first"), prefect.worker("second"):
        runs = [prefect.trigger("evaluate/evaluate", form(path)) for path in paths]
        assert [prefect.finished(run)["state_type"] for run in runs] == ["COMPLETED", "COMPLETED"]
    assert endpoint.stats()["peak"] <= 6


@pytest.mark.nights
def test_places_of_a_limit_survive_a_restart_of_the_server_and_their_next_renewal(
    prefect: Any, demo: Callable[..., Any], benchmark_file: Callable[..., Path], form: Any
) -> None:
    endpoint = demo("--latency", "5")
    prefect.command("global-concurrency-limit", "create", "demo-endpoint", "--limit", "4")
    path = benchmark_file(78, endpoint.base_url, max_concurrency=8, concurrency_limit="demo-endpoint")
    prefect.deploy()

    def taken() -> int:
        found = prefect.ask("GET", "/v2/concurrency_limits/demo-endpoint")
        return int(found["active_slots"])

    with prefect.worker():
        run = prefect.trigger("evaluate/evaluate", form(path))
        until(lambda: endpoint.stats()["answered"] >= 3, "inference is in its middle")
        held, since = taken(), time.monotonic()
        prefect.stop()
        prefect.start()
        assert taken() == held == 3
        # They are renewed every 68 s, and free 90 s after the last renewal, or up to 15 s later.
        time.sleep(max(0.0, 108 - (time.monotonic() - since)))
        assert taken() == 3
        assert prefect.finished(run)["state_type"] == "COMPLETED"
        until(lambda: taken() == 0, "the places come free")
    assert endpoint.stats()["peak"] <= 4
    assert "renewal failed" not in (prefect.folder / "worker.log").read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
