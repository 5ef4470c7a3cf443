"""One block of samples of one model: evaluated by a process of Inspect, which goes on in the log of one that
was killed, and read as ``--from-inspect`` reads any log.
"""

import fcntl
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tasks.benchmarks.recorded.inspect_log import InspectLog
from tasks.benchmarks.recorded.inspect_runs import recorded_row
from tasks.benchmarks.recorded.run import FIELD
from tasks.datasets.config import DatasetError
from tasks.inspecting.config import InspectRun
from tasks.inspecting.interpreter import InspectFailed, call_inspect
from tasks.inspecting.models import inspect_model
from tasks.inspecting.numbers import own_scores
from tasks.models.config import ModelConfig, Price, SampleParams
from tasks.models.providers.provider import Secret
from tasks.models.providers.replay import Replay, ReplayConfig
from tasks.models.records import InferenceOptions, KeptAnswer, believed
from tasks.models.tally import COUNTED_AGAIN, RequestTally
from tasks.processes.workers import cores
from tasks.store.home import private_folder, write_lines

FOLDER: Final = "inspect"
"""Where blocks have their logs, below the journal's folder, until their samples are in the store."""
OLD_SECONDS: Final = 30 * 86_400.0
"""Logs of failed blocks that nobody went on with for so long are removed."""
AT_ONCE: Final = max(1, min(4, cores()))
"""Processes of Inspect at once; ``max_concurrency`` of a model is divided among them."""
_places = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True)
class Block:
    """What a process evaluates: a task, a model and how it is sampled, the ids of the samples, and where the
    logs of these are. ``not_before``: older logs are not gone on with (seconds since 1970)."""

    run: InspectRun
    model: ModelConfig
    sampling: SampleParams
    base_dir: Path
    samples: Sequence[str]
    folder: Path
    not_before: float = 0.0


@dataclass(frozen=True)
class BlockRun:
    """The log of a block, the samples and epochs that an earlier process had evaluated, and when the oldest
    of its processes began (seconds since 1970)."""

    log: InspectLog
    reused: frozenset[tuple[str, int]]
    began: float


def run_block(block: Block, secret: Secret | None, check: Callable[[], None]) -> BlockRun:
    """Evaluates what no log of the block holds yet; raises NightjarError, and what ``check`` raises."""
    logs = private_folder(block.folder / "logs")
    with _alone(block.folder, check):
        resumed = _best_log(logs, block)
        done = frozenset() if resumed is None else _evaluated(resumed, block)
        began = time.time() if resumed is None else _created(resumed)
        wanted = len(block.samples) * block.sampling.num_samples
        if resumed is not None and len(done) == wanted and resumed.header.get("status") == "success":
            return BlockRun(resumed, done, began)
        with _place(check), _asked(block, secret) as (model, secrets):
            request = {
                "task": block.run.task.task,
                "args": block.run.task.args,
                "limits": block.run.task.limits.model_dump(exclude_none=True),
                "model": model,
                "samples": list(block.samples),
                "epochs": block.sampling.num_samples,
                "log_dir": str(logs),
                "resume": None if resumed is None else str(resumed.path),
            }
            said = call_inspect("run", request, block.folder, block.base_dir, secrets, check)
    log = InspectLog.open(Path(said["log"]))
    if said["status"] != "success" and not any(True for _ in log.samples()):
        raise InspectFailed(f"Inspect ended as '{said['status']}': {said['error'] or 'it gave no reason'}")
    return BlockRun(log, done, began)


@contextmanager
def _asked(block: Block, secret: Secret | None) -> Iterator[tuple[dict[str, Any], Mapping[str, str]]]:
    concurrency = int(getattr(block.model.config, "max_concurrency", AT_ONCE))
    connections = max(1, concurrency // AT_ONCE)
    with inspect_model(block.model, block.sampling, block.base_dir, connections, secret) as model:
        yield model.as_dict(), model.secrets


@contextmanager
def _place(check: Callable[[], None]) -> Iterator[None]:
    while not _places.acquire(timeout=1):
        check()
    try:
        yield
    finally:
        _places.release()


@contextmanager
def _alone(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """A block that no other process of this machine is in for the same folder."""
    with (folder / "lock").open("w") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            check()
            time.sleep(0.2)
        yield


def _best_log(folder: Path, block: Block) -> InspectLog | None:
    """The log with most samples that ended well; None where there is none to go on with."""
    found: list[tuple[int, str, InspectLog]] = []
    for path in folder.glob("*.eval"):
        with suppress(DatasetError):  # cut off while it was written: its samples are evaluated again
            log = InspectLog.open(path)
            ended = len(_evaluated(log, block))
            if ended and believed(_created(log)) >= block.not_before:
                found.append((ended, path.name, log))
    return max(found, key=lambda entry: entry[:2])[2] if found else None


def _evaluated(log: InspectLog, block: Block) -> frozenset[tuple[str, int]]:
    """Samples and epochs of the block that ended without an error."""
    wanted = set(block.samples)
    return frozenset(
        (str(sample["id"]), int(sample["epoch"]))
        for sample in log.samples()
        if str(sample["id"]) in wanted and not sample.get("error")
    )


def _created(log: InspectLog) -> float:
    return datetime.fromisoformat(str(log.header["eval"]["created"])).timestamp()


def block_rows(
    block: Block, ran: BlockRun, requests: Iterable[pa.RecordBatch], price: Price | None, tally: RequestTally
) -> Iterator[pa.RecordBatch]:
    """Rows of RESPONSES of the block's samples, read as recorded ones; ``tally`` counts them as they come."""
    path = block.folder / "responses.jsonl"
    rows = [_row(sample, block, ran.log) for sample in ran.log.samples()]
    write_lines(path, rows)
    recorded = ModelConfig(name=block.model.name, type="replay", config=ReplayConfig(path=str(path)))
    options = InferenceOptions(sampling=block.sampling, journal_dir=block.folder)
    for batch in Replay(recorded).responses(requests, options).batches:
        _count(batch, ran, price, tally)
        yield batch


def _row(sample: Mapping[str, Any], block: Block, log: InspectLog) -> dict[str, Any]:
    """A sample's row; of a pair that its scores lack it says why."""
    row = recorded_row(sample, log.model)
    scores = row["metadata"][FIELD]
    row["metadata"] |= own_scores(sample)
    for name in block.run.found.pairs:
        if name in scores or not scores:
            continue
        keys = sorted(other.rpartition("/")[2] for other in scores if other.startswith(f"{name}/"))
        said = f"the scorer gave none here (there are {', '.join(sorted(scores))})"
        if keys:
            said = f"the scorer gave a dictionary; set inspect.values: {{{name}: [{', '.join(keys)}]}}"
        scores[name] = {"score": None, "error": said}
    return row


def _count(batch: pa.RecordBatch, ran: BlockRun, price: Price | None, tally: RequestTally) -> None:
    rows = batch.select(["item_id", "sample_index", "error", *COUNTED_AGAIN]).to_pylist()
    reused = []
    for place, row in enumerate(rows):
        item, epoch, error = row.pop("item_id"), row.pop("sample_index") + 1, row.pop("error")
        tally.requests += 1
        if row["status"] == "infra_error":
            tally.failed += 1
            tally.retryable += 1
            tally.count_error(error)
        if (item, epoch) in ran.reused:
            tally.cached += 1
            tally.same_night += 1
            reused.append(place)
            continue
        tally.sent += 1
        tally.attempts += 1
        if row["status"] != "infra_error":
            tally.add(KeptAnswer(key=b"", **row), price)
    if reused:
        tally.count_reused(pa.Table.from_batches([batch]).take(pa.array(reused, pa.int64())), price)


def forget(folder: Path) -> None:
    """Removes the logs of a block whose samples are in the store, and those that nobody went on with."""
    shutil.rmtree(folder, ignore_errors=True)
    for left in folder.parent.glob("*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
