"""Whatever is killed, no server is left, and the numbers are those of a run that nobody disturbed."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.serving import launch, records
from tasks.serving.records import marked

pytestmark = pytest.mark.services
PROJECT = Path(__file__).resolve().parents[2]
FAKE = PROJECT / "tests" / "tasks" / "serving" / "fake_server.py"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Places of the test's own, where a process finds them that has this folder for its temporary files."""
    folder = tmp_path / "nightjar-places"
    folder.mkdir()
    monkeypatch.setattr(launch, "locks_folder", lambda: folder)
    return folder


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


def config(folder: Path, *behaviour: str) -> Path:
    for number, step in enumerate((1, 2)):
        weights = folder / f"step-{step}"
        weights.mkdir(exist_ok=True)
        (weights / "model.safetensors").write_bytes(b"weights %d" % step)
        (weights / "answer.txt").write_text(str(number))
    lines = [f'{{"id": "{n}", "question": "{n}?", "answer": "{n % 2}"}}\n' for n in range(20)]
    (folder / "items.jsonl").write_text("".join(lines))
    command = [sys.executable, str(FAKE), "--path", "{path}", "--port", "{port}", "--child"]
    command += ["--events", str(folder / "events"), *behaviour]
    serve = {"command": command, "gpus": 0, "start_timeout": "90s"}
    model = {"name": "m", "checkpoints": "step-*", "serve": serve, "config": {"max_concurrency": 2}}
    benchmark = {
        "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [model], "metric_list": ["exact_match"],
    }  # fmt: skip
    (folder / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    return folder / "sums.yaml"


def events(folder: Path, word: str) -> list[tuple[int, str]]:
    """The process and the weights of every event of a kind, in their order."""
    file = folder / "events"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(pid), name) for kind, pid, name in lines if kind == word]


def left(home: Path, places: Path) -> list[Any]:
    """What is left of servers of this home: processes, folders, and locks that somebody holds."""
    folders = list((home / "servers").glob("*"))
    processes = [pid for one in folders for pid in marked(one.name)]
    return [*folders, *processes, *(place for place in places.iterdir() if is_held(place))]


def is_held(place: Path) -> bool:
    with place.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def kill_at(home: Path, folder: Path, phase: tuple[str, int], whom: Callable[[records.State], int]) -> None:
    """Kills somebody once the server whose event it is waits there, and lets it go on if it can."""
    try:
        until(lambda: len(events(folder, phase[0])) >= phase[1])
        server, _ = events(folder, phase[0])[phase[1] - 1]
        states = until(
            lambda: [
                state
                for one in (home / "servers").glob("*")
                if (state := records.read_state(one)) is not None and state.group == server
            ]
        )
        os.kill(whom(states[0]), signal.SIGKILL)
    finally:
        (folder / "go").touch()


def words(folder: Path, *more: str) -> list[str]:
    named = ["--json", "--store", str(folder / "store"), "--output", str(folder / "out"), *more]
    return [sys.executable, "-m", "flows.eval", str(folder / "sums.yaml"), *named]


@pytest.mark.parametrize("whom", ["flow", "supervisor", "server"])
@pytest.mark.parametrize(
    "phase", [("start", 1), ("asked", 3), ("start", 2)], ids=["starting", "asking", "between"]
)
def test_a_kill_leaves_no_server_and_changes_no_number(
    home: Path, tmp_path: Path, places: Path, own_environment: dict[str, str], evaluate: Callable[..., Any],
    whom: str, phase: tuple[str, int],
) -> None:  # fmt: skip
    file = config(tmp_path, "--hold", phase[0], str(phase[1]), str(tmp_path / "go"))
    if whom == "flow":
        environment = {**own_environment, "TMPDIR": str(tmp_path)}
        with subprocess.Popen(
            words(tmp_path),
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as flow:
            kill_at(home, tmp_path, phase, lambda _: flow.pid)
    else:
        with ThreadPoolExecutor(1) as killer:
            victim = {"supervisor": lambda state: state.supervisor, "server": lambda state: state.group}[whom]
            killed = killer.submit(kill_at, home, tmp_path, phase, victim)
            evaluate(file, "--json")
            killed.result()
    again = evaluate(file, "--json")
    assert again.code == 0, again.err
    assert left(home, places) == []
    assert {row["model_name"]: row["value"] for row in again.document["results"]} == {
        "m-step-1": 0.5,
        "m-step-2": 0.5,
    }
    assert len(events(tmp_path, "asked")) <= 40 + 4  # what was in flight, once more


def ordered(folder: Path, home: Path) -> bool:
    return any((home / "servers").glob("*/order.json"))


def supervised(folder: Path, home: Path) -> bool:
    return any((home / "servers").glob("*/state.json"))


def came(word: str, count: int) -> Callable[[Path, Path], bool]:
    return lambda folder, home: len(events(folder, word)) >= count


def released(folder: Path, home: Path) -> bool:
    return any((folder / "out" / "servers").glob("*.log"))


MOMENTS: dict[str, tuple[Callable[[Path, Path], bool], list[str]]] = {
    "ordered": (ordered, []),
    "supervised": (supervised, []),
    "loading": (came("start", 1), ["--never"]),
    "refusing": (came("start", 1), ["--errors", "600"]),
    "asked": (came("asked", 2), ["--pause", "600"]),
    "released": (released, []),
}
HELD: dict[str, tuple[Callable[[Path, Path], bool], list[str]]] = {
    f"{word} {count}": (came(word, count), ["--hold", word, str(count), "no-such-file"])
    for word, count in [("start", 2), *(("asked", count) for count in range(1, 40, 3))]
}
"""Moments at which a server goes no further: the first checkpoint's up to 20 answers, then the second's."""
BOUND = 30.0
"""Seconds within which a signal ends the run with all that it started."""
SIGNALS = [(number, moment) for number in (signal.SIGTERM, signal.SIGINT) for moment in MOMENTS]
SIGNALS += [(signal.SIGTERM, moment) for moment in HELD]
EACH_STATE = [(signal.SIGTERM, moment) for moment in (*MOMENTS, "start 2", "asked 22")]
EACH_STATE += [(signal.SIGINT, "asked")]
"""Every state that a run and its server can be in; a run takes both signals by one handler. The others are
more moments of the same states."""


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(
            *one, id=f"{one[0].name} {one[1]}", marks=[] if one in EACH_STATE else pytest.mark.nights
        )
        for one in SIGNALS
    ],
)
def test_one_signal_ends_a_served_run_at_any_moment_within_half_a_minute(
    home: Path, tmp_path: Path, places: Path, own_environment: dict[str, str], moment: str, number: int
) -> None:
    is_now, behaviour = {**MOMENTS, **HELD}[moment]
    config(tmp_path, *behaviour)
    environment = {**own_environment, "TMPDIR": str(tmp_path)}
    with (tmp_path / "said").open("w") as said, subprocess.Popen(
        words(tmp_path), cwd=PROJECT, env=environment, stdout=said, stderr=said
    ) as flow:  # fmt: skip
        try:
            until(lambda: is_now(tmp_path, home), 400)
            end = time.monotonic() + BOUND
            flow.send_signal(number)
            code = flow.wait(BOUND)
        finally:
            flow.kill()
    assert code != 0, (tmp_path / "said").read_text()
    until(lambda: not still_there(home, places), end - time.monotonic())


def still_there(home: Path, places: Path) -> list[Any]:
    """Processes of servers and supervisors of this home, and places that somebody holds."""
    processes = [pid for one in (home / "servers").glob("*") for pid in marked(one.name)]
    return [*processes, *supervisors(home), *(place for place in places.iterdir() if is_held(place))]


def supervisors(home: Path) -> list[int]:
    """Supervisors of this home that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (entry / "cmdline").read_bytes()
            if b"tasks.serving.supervisor" in said and str(home).encode() in said:
                found.append(int(entry.name))
    return found


def ran(command: list[str], environment: Mapping[str, str], code: int = 0) -> Any:
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_a_sweep_runs_on_processes_too(
    home: Path, tmp_path: Path, places: Path, own_environment: dict[str, str]
) -> None:
    config(tmp_path)
    (tmp_path / "step-1" / "broken.txt").touch()
    command = words(tmp_path, "--task-runner", "processes")
    document = ran(command, {**own_environment, "TMPDIR": str(tmp_path)}, code=1)
    rows = {row["model_name"]: row for row in document["results"]}
    assert "CUDA out of memory" in rows["m-step-1"]["error"]
    assert (rows["m-step-1"]["status"], rows["m-step-2"]["value"]) == ("failed", 0.5)
    assert [name for _, name in events(tmp_path, "start")] == ["step-1", "step-2"]
    assert left(home, places) == []


def test_a_judge_is_served_once_the_models_are_released(
    home: Path, tmp_path: Path, places: Path, evaluate: Callable[..., Any]
) -> None:
    file = config(tmp_path)
    document = yaml.safe_load(file.read_text())
    judge = tmp_path / "judge"
    judge.mkdir()
    (judge / "model.safetensors").write_bytes(b"judge")
    (judge / "answer.txt").write_text("correct")
    serve = document["models"][0]["serve"]
    document |= {
        "scorer": {
            "type": "llm_judge",
            "judges": [{"name": "judge", "path": "judge", "serve": serve}],
            "prompt": "Grade this as correct or incorrect: {{ response }}",
            "parse": {"type": "choice", "choices": {"correct": 1, "incorrect": 0}},
        },
    }
    del document["metric_list"]
    file.write_text(yaml.safe_dump(document))
    found = evaluate(file, "--json")
    assert found.code == 0, found.err
    assert {row["value"] for row in found.document["results"]} == {1.0}
    order = [line.split() for line in (tmp_path / "events").read_text().splitlines()]
    assert [name for word, _, name in order if word == "start"] == ["step-1", "step-2", "judge"]
    assert {
        name for _, _, name in order[order.index(["start", *map(str, events(tmp_path, "start")[2])]) :]
    } == {"judge"}
    assert left(home, places) == []
    again = evaluate(file, "--json")
    assert again.document["requests"]["sent"] == 0
    assert len(events(tmp_path, "start")) == 3


def test_machines_that_share_a_limit_serve_in_turn(
    home: Path, tmp_path: Path, own_environment: dict[str, str], prefect_api: Callable[..., Any]
) -> None:
    limit = {"name": f"licence-{tmp_path.name}", "limit": 1, "active": True}
    prefect_api("POST", "/v2/concurrency_limits/", limit)
    runs = []
    for machine_name in ("first", "second"):
        folder = tmp_path / machine_name  # what is locked on one is free on the other
        folder.mkdir()
        file = config(folder, "--events", str(tmp_path / "events"))
        document = yaml.safe_load(file.read_text())
        document["models"][0]["serve"]["concurrency_limit"] = limit["name"]
        file.write_text(yaml.safe_dump(document))
        environment = {**own_environment, "TMPDIR": str(folder)}
        runs.append(
            subprocess.Popen(
                words(folder), cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    for run in runs:
        said, _ = run.communicate(timeout=300)
        assert run.returncode == 0, said
    assert len(events(tmp_path, "start")) == 4
    assert events(tmp_path, "beside") == []
    found = prefect_api("GET", f"/v2/concurrency_limits/{limit['name']}")
    assert found["active_slots"] == 0
