"""Steps computed by several processes: equal to the byte, and by processes indeed."""

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.schema import RunOptions
from flows.eval import session
from tasks import publish
from tasks.processes.workers import WorkerDied, Workers

Evaluate = Callable[..., Any]
ROWS = 4_800
FILES = ("responses.jsonl", "samples_many.jsonl", "metrics.jsonl", "items.parquet")
METRIC = """
import os
from pathlib import Path


def right(references, predictions):
    (Path(__file__).parent / "processes").joinpath(str(os.getpid())).touch()
    if predictions[0] == "raise":
        raise ValueError("no number for this one")
    return float(predictions[0] in references)
"""


@pytest.mark.services
def test_results_do_not_depend_on_the_number_of_processes(evaluate: Evaluate, tmp_path: Path) -> None:
    rows = [{"id": str(n), "question": f"{n}?", "answer": str(n % 7)} for n in range(4_200)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = [{"item_id": str(n), "response": f"{n % 5}"} for n in range(4_190)]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    (tmp_path / "own.py").write_text(METRIC)
    config = {
        "name": "many",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "metric_list": ["exact_match", "bleu", {"metric": "own.py:right"}],
        "models": [{"name": "said", "type": "replay", "config": {"path": "said.jsonl"}}],
        "errors": {"max_rate": 0.1},
    }
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(config))
    written, processes, found = [], [], []
    for count in ("1", "2"):
        (tmp_path / "processes").mkdir()
        place = ["--store", tmp_path / f"store-{count}", "--output", tmp_path / f"out-{count}"]
        ran = evaluate(tmp_path / "many.yaml", "--json", "--workers", count, *place)
        assert ran.code == 0, ran.err
        written.append([(tmp_path / f"out-{count}" / name).read_bytes() for name in FILES])
        found.append(json.loads((tmp_path / f"out-{count}" / "manifest.json").read_text())["diagnostics"])
        processes.append({int(entry.name) for entry in (tmp_path / "processes").iterdir()})
        (tmp_path / "processes").rename(tmp_path / f"processes-{count}")
    assert processes[0] == {os.getpid()}
    assert processes[1] - {os.getpid()}  # besides the check of the first item, which is made here
    for name, alone, shared in zip(FILES, *written, strict=True):
        assert alone == shared, name
    assert found[0] == found[1]
    assert {finding["kind"]: finding["count"] for finding in found[0]}["recording_absent"] == 10


def test_a_process_that_dies_while_a_run_is_published_costs_no_number(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, died = Workers.offer, []

    def dying(self: Workers, function: Callable[..., Any], *args: Any) -> Any:
        if function is publish.pass_over and not died:
            died.append(function)
            future: Future[Any] = Future()
            future.set_exception(WorkerDied("a process that computed a step ended"))
            return future
        return offer(self, function, *args)

    monkeypatch.setattr(publish, "AT_ONCE", 0)
    monkeypatch.setattr(Workers, "offer", dying)
    ran = evaluate("--json", "--limit", "4", "--store", tmp_path / "store", "--output", tmp_path / "out")
    assert died
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(("runner", "prepared"), [("threads", [3]), ("processes", []), ("dask", [])])
def test_a_runner_of_other_processes_has_none_prepared_here(
    runner: str, prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(session, "prepare", asked.append)
    session._prepare_for(7, RunOptions(workers=3), session.SessionOptions(task_runner=runner))
    assert asked == prepared
