"""Whatever is killed, no server is left, and the numbers are those of a run that nobody disturbed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.serving import records
from tasks.serving.processes import marked

pytestmark = pytest.mark.services
PROJECT = Path(__file__).resolve().parents[2]
FAKE = PROJECT / "tests" / "tasks" / "serving" / "fake_server.py"


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
    command += ["--events", str(folder / "events"), "--slow", "0.3", *behaviour]
    serve = {"command": command, "gpus": 0, "start_timeout": "90s"}
    model = {"name": "m", "checkpoints": "step-*", "serve": serve, "config": {"max_concurrency": 2}}
    benchmark = {
        "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [model], "metric_list": ["exact_match"],
    }  # fmt: skip
    (folder / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    return folder / "sums.yaml"


def left(home: Path) -> list[int]:
    """Processes of servers of this home."""
    folder = home / "servers"
    return [pid for one in folder.glob("*") for pid in marked(one.name)] if folder.is_dir() else []


def has(folder: Path, word: str, times: int = 1) -> bool:
    file = folder / "events"
    return file.exists() and file.read_text().count(f"{word} ") >= times


@pytest.mark.parametrize("whom", ["flow", "supervisor", "server"])
@pytest.mark.parametrize(
    ("phase", "times"), [("start", 1), ("asked", 3), ("start", 2)], ids=["starting", "asking", "between"]
)
def test_a_kill_leaves_no_server_and_changes_no_number(
    home: Path, tmp_path: Path, own_environment: dict[str, str], whom: str, phase: str, times: int
) -> None:
    servers = home / "servers"
    environment = {**own_environment, "TMPDIR": str(tmp_path)}  # places of the test's own
    words = [
        sys.executable, "-m", "flows.eval", str(config(tmp_path)), "--json",
        "--store", str(tmp_path / "store"), "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    with subprocess.Popen(
        words, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as flow:
        until(lambda: has(tmp_path, phase, times))
        state = until(lambda: [s for one in servers.glob("*") if (s := records.read_state(one)) and s.group])
        victim = {"flow": flow.pid, "supervisor": state[-1].supervisor, "server": state[-1].group}[whom]
        os.kill(victim, signal.SIGKILL)
        flow.wait(180)
    if whom == "flow":
        until(lambda: not left(home), 90)
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert left(home) == []
    assert list(servers.glob("*")) == []
    document = json.loads(done.stdout)
    assert {row["model_name"]: row["value"] for row in document["results"]} == {
        "m-step-1": 0.5,
        "m-step-2": 0.5,
    }
    assert (tmp_path / "events").read_text().count("asked ") <= 40 + 4  # what was in flight, once more


def ran(words: list[str], environment: dict[str, str]) -> Any:
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sweep_runs_on_processes_too(home: Path, tmp_path: Path, own_environment: dict[str, str]) -> None:
    words = [
        sys.executable, "-m", "flows.eval", str(config(tmp_path)), "--json", "--task-runner", "processes",
        "--store", str(tmp_path / "store"), "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    document = ran(words, {**own_environment, "TMPDIR": str(tmp_path)})
    assert [row["value"] for row in document["results"]] == [0.5, 0.5]
    assert left(home) == []
    assert (tmp_path / "events").read_text().count("start ") == 2


def test_a_judge_is_served_once_the_models_are_released(
    home: Path, tmp_path: Path, own_environment: dict[str, str]
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
    words = [
        sys.executable, "-m", "flows.eval", str(file), "--json",
        "--store", str(tmp_path / "store"), "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    environment = {**own_environment, "TMPDIR": str(tmp_path)}
    found = ran(words, environment)
    assert {row["value"] for row in found["results"]} == {1.0}
    lines = [line.split() for line in (tmp_path / "events").read_text().splitlines()]
    assert [name for word, _, name in lines if word == "start"] == ["step-1", "step-2", "judge"]
    last = max(n for n, (word, _, name) in enumerate(lines) if word == "asked" and name != "judge")
    assert lines.index(next(line for line in lines if line[0] == "start" and line[2] == "judge")) > last
    assert left(home) == []
    assert ran(words, environment)["requests"]["sent"] == 0
    assert (tmp_path / "events").read_text().count("start ") == 3
