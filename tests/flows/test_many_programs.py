"""Two thousand programs: the flow's memory stays flat, and a kill costs those in flight."""

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

from scorers.config import Program
from tasks.models.answers.segments import AnswerStore
from tasks.rows.execution import CORES
from tasks.sandboxes.run import VERSION
from tasks.store.keys import digest
from tasks.store.storage import Store
from tests.flows.conftest import PROJECT, arguments_of, own

ITEMS, SAMPLES = 500, 4
PROGRAMS = ITEMS * SAMPLES
CONFIG = """
name: many
dataset: {path: items.jsonl}
prompt_template: "{{ id }}"
target: "{{ id }}"
models: [{name: recorded, type: replay, config: {field: answers}}]
sample_params: {num_samples: 4}
metric_list: [{metric: tests_passed, reduction: [mean, "pass@1"]}]
scorer: {type: execution, program: "{{ prediction }}", limits: {seconds: 30}}
"""
GROWTH_MB = 64


def kept(folder: Path, home: Path) -> int:
    """Outcomes that no kill takes away: those in the store, and in journals of this store."""
    answers = AnswerStore(Store(str(folder / "store"))).of_model(digest({"programs": VERSION}))
    lines = sum(path.read_bytes().count(b"\n") for path in home.glob("journal/*/*/*.jsonl"))
    return len(answers.snapshot()) + lines


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_two_thousand_programs_a_kill_in_the_middle_and_a_flat_memory(
    evaluate: Callable[..., Any], home: Path, tmp_path: Path, programs_run: list[Program]
) -> None:
    rows = [
        {"id": f"i{n}", "answers": [f"assert {n} % 4 != {at}" for at in range(SAMPLES)]} for n in range(ITEMS)
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "many.yaml").write_text(CONFIG)
    before = kept(tmp_path, home)
    command = [sys.executable, "-m", "flows.eval", *arguments_of(tmp_path, (tmp_path / "many.yaml",))]
    flow = subprocess.Popen(command, cwd=PROJECT, env=own(home), start_new_session=True)
    sizes: dict[int, float] = {}
    deadline = time.monotonic() + 900
    while (done := kept(tmp_path, home) - before) < PROGRAMS * 3 // 5 and time.monotonic() < deadline:
        assert flow.poll() is None, "it ended before it was killed"
        if done:
            sizes[done] = resident_mb(flow.pid)
        time.sleep(0.2)
    os.killpg(flow.pid, signal.SIGKILL)
    flow.wait()
    learned = kept(tmp_path, home) - before
    assert PROGRAMS * 3 // 5 <= learned < PROGRAMS
    early = [size for done, size in sizes.items() if done <= PROGRAMS // 5]
    late = [size for done, size in sizes.items() if done >= PROGRAMS * 2 // 5]
    assert max(late) < max(early) + GROWTH_MB

    resumed = evaluate(tmp_path / "many.yaml", "--json")
    assert resumed.code == 0, resumed.err
    assert len(programs_run) == PROGRAMS - learned, f"{CORES} were in flight"
    values = {row["reduction"]: row["value"] for row in resumed.document["results"]}
    assert values == {"mean": 0.75, "pass@1": 0.75}
    assert evaluate(tmp_path / "many.yaml", "--json").steps("execute")[0] == 0
    assert len(programs_run) == PROGRAMS - learned, "a rerun runs none"


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_a_kill_between_the_programs_and_their_record_runs_none_again(
    evaluate: Callable[..., Any],
    tmp_path: Path,
    programs_run: list[Program],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All outcomes are kept, and the artifact was never written."""
    (tmp_path / "items.jsonl").write_text(
        json.dumps({"id": "i", "answers": ["assert 1", "1 / 0"] * 2}) + "\n"
    )
    (tmp_path / "many.yaml").write_text(CONFIG)
    write = Store.write

    def killed(self: Store, stage: str, key: str, schema: Any, rows: Any, *more: Any) -> Any:
        if stage == "execute":
            list(rows)
            raise KeyboardInterrupt
        return write(self, stage, key, schema, rows, *more)

    with monkeypatch.context() as dying:
        dying.setattr(Store, "write", killed)
        assert evaluate(tmp_path / "many.yaml").code != 0
    assert len(programs_run) == 2
    done = evaluate(tmp_path / "many.yaml", "--json")
    assert done.code == 0, done.err
    assert {row["reduction"]: row["value"] for row in done.document["results"]}["mean"] == 0.5
    assert len(programs_run) == 2
