"""Steps computed by several processes: equal to the byte, and by processes indeed."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.eval import ahead, session
from flows.eval.ahead import CheckedDataset
from flows.eval.session import _check_dataset
from flows.eval.start import with_defaults
from flows.plan.build import make_plan
from metrics.errors import DataError
from tasks import publish
from tasks.processes.workers import WorkerDied, Workers
from tasks.store.home import PROJECT

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


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The config of a dataset that is large enough to be read by a process of its own."""
    rows = [{"id": str(n), "question": f"{n}? " + "so " * 300, "answer": str(n % 7)} for n in range(ROWS)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = [{"item_id": str(n), "response": f"{n % 5}"} for n in range(ROWS)]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    config = {
        "name": "many",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "metric_list": ["exact_match"],
        "models": [{"name": "said", "type": "replay", "config": {"path": "said.jsonl"}}],
    }
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "many.yaml"


@pytest.mark.services
def test_a_dataset_that_is_read_beside_gives_the_same_everywhere(
    large: Path, evaluate_process: Evaluate, tmp_path: Path
) -> None:
    written = []
    for where in (
        [],
        *(["--workers", n] for n in "12"),
        *(["--task-runner", r] for r in ("processes", "dask")),
    ):
        out = tmp_path / f"out{len(written)}"
        ran = evaluate_process(
            large, "--json", *where, "--store", f"{out}-store", "--output", out, timeout=400
        )
        assert ran.code == 0, ran.err
        assert not re.search("warning|error:|Traceback", ran.err), (where, ran.err)
        written.append([(out / name).read_bytes() for name in FILES])
        assert written[-1] == written[0], where


@pytest.mark.services
def test_a_bad_last_line_is_refused_by_its_place(large: Path, evaluate_process: Evaluate) -> None:
    with large.with_name("items.jsonl").open("a") as file:
        file.write('{"id": "late", "question": ')
    ran = evaluate_process(large, "--workers", "2")
    assert ran.code == 2
    assert ran.err.startswith(f"error: items.jsonl:{ROWS + 1}: malformed JSON"), ran.err
    assert "Traceback" not in ran.err


class Reading:
    """What another process has found, or an error that ended it."""

    def __init__(self, found: CheckedDataset | Exception) -> None:
        self.found = found
        self.closed = False

    def result(self) -> CheckedDataset:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def close(self) -> None:
        self.closed = True


def test_only_what_the_plan_means_is_taken_from_another_process(large: Path, tmp_path: Path) -> None:
    config = load_config(large)
    options = with_defaults(config, RunOptions(store=str(tmp_path / "store")), "0" * 32)
    plan = make_plan(config, options)
    digest = plan.load.identity["dataset"]
    theirs = CheckedDataset(rows=[], held=0, count=7, missing=None, digest=digest)
    assert _check_dataset(plan, options, (), Reading(theirs)).count == 7  # type: ignore[arg-type]
    # The file was written between that process's reading and the plan, or the process did not live to reply.
    for found in (replace(theirs, digest="of before"), WorkerDied("killed for its memory")):
        assert _check_dataset(plan, options, (), Reading(found)).count == ROWS  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"items\.jsonl:3"):
        _check_dataset(plan, options, (), Reading(DataError("items.jsonl:3: bad")))  # type: ignore[arg-type]


@pytest.mark.parametrize("refused", ["tempfile.TemporaryFile", "os.fork"])
def test_where_no_file_or_process_can_be_made_the_run_reads_for_itself(
    large: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "may_fork", lambda: True)
    monkeypatch.setattr(ahead, "cores", lambda: 2)
    said = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    tried: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        tried.append(args)
        raise said

    monkeypatch.setattr(refused, refuse)
    assert ahead.read_beside(load_config(large), RunOptions(workers=None), ()) is None
    assert tried


@pytest.mark.parametrize(("runner", "prepared"), [("threads", [3]), ("processes", []), ("dask", [])])
def test_a_runner_of_other_processes_has_none_prepared_here(
    runner: str, prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(session, "prepare", asked.append)
    session._prepare_for(7, RunOptions(workers=3), session.SessionOptions(task_runner=runner))
    assert asked == prepared


OTHER_PIP_NAMES = """
import sys
from contextlib import suppress
from pathlib import Path
from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.eval import ahead

ahead.cores = lambda: 2
config, options = load_config(Path(sys.argv[1])), RunOptions(workers=None)
assert ahead.read_beside(config, RunOptions(workers=1), ()) is None
assert ahead.read_beside(config, RunOptions(workers=2, limit=9), ()) is None
reading = ahead.read_beside(config, options, ())
found = reading.result()
from flows.plan.fields import benchmark_fields
from tasks.models.providers.recordings import keep_recordings, open_recordings, recording_file, RecordedKey
here = ahead.check_dataset(config, benchmark_fields(config), options.selection(), ())
assert list(found.rows) == here.rows == list(found.rows)
assert found.count == here.count and found.missing == here.missing
assert not open_recordings()
keep_recordings(found.recordings)
(version, kept), = found.recordings.items()
recording = recording_file(Path(version[0]))
assert recording is kept
assert recording.find(RecordedKey("said", "default", "9", 0)).fields["response"] == "4"
assert (found.held, here.held) == (0, sum(batch.nbytes for batch in here.rows))
ahead.KEPT_BYTES = here.held - 1
large = ahead.check_dataset(config, benchmark_fields(config), options.selection(), ())
assert (large.rows, large.held, large.count) == (None, 0, here.count)
with suppress(OSError), open("/dev/full", "wb") as full:  # whose own closing says that it is full
    unkept = ahead.check_dataset(config, benchmark_fields(config), options.selection(), (), spool=full)
    assert (unkept.rows, unkept.count) == (None, here.count)
ahead.LARGE_BYTES = 1 << 40
assert ahead.read_beside(config, options, ()) is None
assert "prefect" not in sys.modules
print("done")
"""


@pytest.mark.services
def test_another_process_finds_what_this_one_would(large: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(OTHER_PIP_NAMES)
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "beside.py"), str(large)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")
