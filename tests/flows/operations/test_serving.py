"""A sweep over checkpoints in a worker's hands: whatever of it is killed, no model server stays."""

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.serving import records
from tasks.serving.records import lives, marked

pytestmark = pytest.mark.nights
FAKE = Path(__file__).resolve().parents[2] / "tasks" / "serving" / "fake_server.py"


def sweep(folder: Path) -> Path:
    """Two checkpoints whose servers stop at the third request until the file "go" is there."""
    for number in (0, 1):
        weights = folder / f"step-{number + 1}"
        weights.mkdir()
        (weights / "model.safetensors").write_bytes(b"weights %d" % number)
        (weights / "answer.txt").write_text(str(number))
    lines = [f'{{"id": "{n}", "question": "{n}?", "answer": "{n % 2}"}}\n' for n in range(20)]
    (folder / "items.jsonl").write_text("".join(lines))
    command = [sys.executable, str(FAKE), "--path", "{path}", "--port", "{port}", "--child"]
    command += ["--events", str(folder / "events"), "--hold", "asked", "3", str(folder / "go")]
    serve = {"command": command, "gpus": 0}
    model = {"name": "m", "checkpoints": "step-*", "serve": serve, "config": {"max_concurrency": 2}}
    benchmark = {
        "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [model], "metric_list": ["exact_match"],
    }  # fmt: skip
    (folder / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    return folder / "sums.yaml"


def is_held(place: Path) -> bool:
    with place.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_a_worker_and_its_run_are_killed_and_no_server_stays(
    prefect: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: Callable[[Path], Any],
    until: Callable[..., Any],
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the places of this host are
    servers, places = tmp_path / "nightjar" / "servers", tmp_path / "nightjar-places"
    prefect.deploy()

    def run_that_is_asking() -> int | None:
        """The process of a flow run whose server was asked."""
        asked = (tmp_path / "events").read_text().splitlines() if (tmp_path / "events").exists() else []
        pids = {line.split()[1] for line in asked if line.startswith("asked ")}
        for folder in servers.glob("*"):
            state, order = records.read_state(folder), records.read_order(folder)
            if order is None or state is None or not lives(order.owner, order.owner_started):
                continue
            if str(state.group) in pids:
                return order.owner
        return None

    def nothing_is_left() -> bool:
        alive = [pid for folder in servers.glob("*") for pid in marked(folder.name)]
        return not alive and not any(is_held(place) for place in places.iterdir())

    with prefect.worker("first") as worker:
        run = prefect.trigger("evaluate/evaluate", form(sweep(tmp_path)))
        os.kill(until(run_that_is_asking, "the first server is asked"), signal.SIGKILL)
        until(nothing_is_left, "the server ends with its run", 90)
        assert prefect.finished(run)["state_type"] == "CRASHED"
        prefect.retry(run)
        process = until(run_that_is_asking, "the first server is asked again")
        worker.send(signal.SIGKILL)
        os.kill(process, signal.SIGKILL)
        until(nothing_is_left, "the server ends with its run and worker", 90)
    (tmp_path / "go").touch()
    prefect.retry(run)
    with prefect.worker("second"):
        until(lambda: prefect.flow_run(run)["run_count"] >= 3, "the second worker takes the run up")
        assert prefect.finished(run)["state_type"] == "COMPLETED"
    rows = (Path(prefect.manifest(run)["output"]) / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(row)["value"] for row in rows} == {0.5}
    assert not list(servers.glob("*"))
    assert nothing_is_left()
