"""``python -m flows.suite --watch`` over folders of steps, as its user has it: a process that a signal ends
at some moment, and that goes on when it is started again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.serving.records import marked
from tasks.store.digests import LARGE

pytestmark = pytest.mark.services
PROJECT = Path(__file__).resolve().parents[2]
FAKE = PROJECT / "tests" / "tasks" / "serving" / "fake_server.py"
ITEMS, AT_ONCE = 12, 2
WHOLE = (1, 2, 5)
"""Steps whose evaluation can end; the third breaks its server, the fourth is being written."""
BOUND = 30.0
"""Seconds within which a signal ends the process with all that it started."""


def sweep(folder: Path, *behaviour: str) -> None:
    for step in (1, 2, 3, 4, 5):
        weights = folder / "runs" / f"step-{step}"
        weights.mkdir(parents=True)
        (weights / "model.safetensors").write_bytes(b"" if step == 4 else b"weights %d" % step)
        (weights / "answer.txt").write_text(str(step % 2))
    large = folder / "runs" / "step-1" / "tokenizer.model"  # whose digest is kept in the home
    large.touch()
    os.truncate(large, LARGE + 1)
    os.utime(large, (0, 0))
    (folder / "runs" / "step-3" / "broken.txt").touch()
    lines = [f'{{"id": "{n}", "question": "{n}?", "answer": "{n % 2}"}}\n' for n in range(ITEMS)]
    (folder / "items.jsonl").write_text("".join(lines))
    command = [sys.executable, str(FAKE), "--path", "{path}", "--port", "{port}", "--child"]
    command += ["--events", str(folder / "events"), *behaviour]
    model = {
        "name": "m",
        "checkpoints": {"glob": "runs/step-*", "new_only": True},
        "serve": {"command": command, "gpus": 0, "start_timeout": "90s"},
        "config": {"max_concurrency": AT_ONCE},
    }
    benchmark = {
        "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [model], "metric_list": ["exact_match"],
    }  # fmt: skip
    (folder / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    (folder / "suite.yaml").write_text(yaml.safe_dump({"name": "sweep", "benchmarks": ["sums.yaml"]}))


def watching(folder: Path, environment: dict[str, str], seconds: float = 0.5) -> "subprocess.Popen[bytes]":
    """The command, which looks more often than every half minute."""
    code = f"from flows.suite import __main__ as suite; suite.WATCH_SECONDS = {seconds}; suite.main()"
    words = [str(folder / "suite.yaml"), "--watch", "--store", str(folder / "store")]
    words += ["--output", str(folder / "out")]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=PROJECT, env={**environment, "TMPDIR": str(folder)}, stdout=said, stderr=said,
        )  # fmt: skip


def until(
    condition: Callable[[], Any], process: "subprocess.Popen[bytes] | None" = None, seconds: float = 300
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        assert process is None or process.poll() is None, "it ended by itself"
        time.sleep(0.05)


def events(folder: Path, word: str) -> list[str]:
    """The weights of every event of a kind, in their order."""
    file = folder / "events"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [name for kind, _, name in lines if kind == word]


def evaluated(folder: Path) -> int:
    return len(list((folder / "store").glob("checkpoints/*/*.json")))


def left(home: Path, folder: Path) -> list[int]:
    """Processes of servers and supervisors of this home that still run."""
    found = [pid for one in (home / "servers").glob("*") for pid in marked(one.name)]
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (entry / "cmdline").read_bytes()
            if str(folder).encode() in said or (b"tasks.serving" in said and str(home).encode() in said):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def end(process: "subprocess.Popen[bytes]", home: Path, folder: Path) -> None:
    """One signal, after which nothing is left within the bound."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(BOUND) != 0
        until(lambda: not left(home, folder), seconds=began + BOUND - time.monotonic())
    finally:
        process.kill()


MOMENTS: dict[str, tuple[str, int] | None] = {
    "between two looks": None,
    "while a server starts": ("start", 1),
    "at the first answers": ("asked", 2),
    "in the middle": ("asked", 8),
    "between two checkpoints": ("start", 2),
    "at the second checkpoint": ("asked", ITEMS + 5),
    "at the broken checkpoint": ("start", 3),
    "at the last": ("start", 4),
}
EACH_STATE = ("between two looks", "in the middle", "between two checkpoints", "at the broken checkpoint")
"""The others are more moments at which a server starts or is asked."""


@pytest.mark.parametrize(
    "moment",
    [pytest.param(one, marks=[] if one in EACH_STATE else pytest.mark.nights) for one in MOMENTS],
)
def test_a_watch_that_a_signal_ends_goes_on_and_its_curve_is_whole(
    home: Path, tmp_path: Path, own_environment: dict[str, str], moment: str
) -> None:
    held = MOMENTS[moment]
    sweep(tmp_path, *(["--hold", held[0], str(held[1]), str(tmp_path / "go")] if held else []))
    first = watching(tmp_path, own_environment, 0.5 if held else 600.0)
    if held is None:
        until(lambda: (home / "digests").is_dir(), first)
    else:
        until(lambda: len(events(tmp_path, held[0])) >= held[1], first)
    end(first, home, tmp_path)
    (tmp_path / "go").touch()
    again = watching(tmp_path, own_environment)
    until(lambda: evaluated(tmp_path) == len(WHOLE), again)
    until(lambda: "step-3" in events(tmp_path, "start"), again)
    end(again, home, tmp_path)
    assert curve(tmp_path, own_environment) == {f"m-step-{step}": 0.5 for step in WHOLE}
    for step in WHOLE:  # what was in flight when the signal came is asked again, and nothing else
        assert ITEMS <= events(tmp_path, "asked").count(f"step-{step}") <= ITEMS + AT_ONCE
    assert events(tmp_path, "beside") == []
    assert "step-4" not in events(tmp_path, "start")


def curve(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """The value of each model that was scored, as the store's history has it."""
    query = "SELECT model_name, value FROM results JOIN runs USING (run_id) WHERE results.status = 'ok'"
    words = [sys.executable, "-m", "flows.history", query, "--json", "--store", str(folder / "store")]
    done = subprocess.run(
        words, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {row["model_name"]: row["value"] for row in json.loads(done.stdout)}
