"""What of a store, and of the folders beside it, is kept and for how long; what is not kept is removed.

.. code-block:: yaml

    keep: 30                              # newest runs of each benchmark × model whose artifacts stay
    results: 90d                          # output folders, below the folder of results
    answers: {unused: 90d, age: 365d}     # or one length of time: unused for so long
    logs: 30d                             # log files of the project's own server, worker and models

``prune_all`` is one pruning for the command line and the flow. Of the store, ``plan_pruning`` decides and
changes nothing, and ``prune`` removes while no run is in progress, in such an order that no kept run ever
lacks an artifact; ``find_leftovers`` and ``remove_leftovers`` do the same for output folders and logs.
Imports nothing of Prefect: ``python -m flows.history --prune`` starts in a second.

Runs in progress and pruning exclude each other. A run that is in progress has a mark in the store, since
no manifest names yet what it has computed or taken from the cache; pruning has a claim. Each writes its
own first and then looks for the other's: whichever comes second sees the first. A run then waits until
the pruning has ended, a pruning gives way and is refused. No atomic operation of the file system is
needed, so that this works on object stores, too.

A deployment's night is its flow run, which a retry keeps. On the command line a run that was killed or
lacks something is simply started again, and then goes on with the night whose answers it has already
asked for: ``nights/<digest of the config>.json`` says which that is until the night is done.
"""

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field

from metrics.config import Strict
from metrics.errors import ConfigError
from tasks.history.layout import (
    ACTIVE,
    FORGOTTEN,
    RUNS,
    HistoryError,
    check_run_id,
    kept_runs,
    read_json,
    references,
    started_at,
)
from tasks.history.query import compact
from tasks.messages.media import FOLDER, REFERENCE
from tasks.models.answers.segments import AnswerFile, unneeded_answers
from tasks.models.batches.records import FOLDER as BATCHES
from tasks.models.batches.records import LONGEST_DAYS, JobRecords
from tasks.store import claims
from tasks.store.beside import beating
from tasks.store.claims import Claim, wait_until_free
from tasks.store.durations import Duration
from tasks.store.errors import FileDamaged, FileMissing, StoreError
from tasks.store.home import home, results_folder
from tasks.store.keys import digest
from tasks.store.machine import has_ended, lives_here, this_process
from tasks.store.outputs import MANIFEST
from tasks.store.storage import DAMAGED, RECORDS, Store, is_artifact

BEAT_SECONDS = 300.0
MARK_EXPIRES_AFTER = timedelta(hours=1)
"""A mark that nobody has renewed for so long is a dead run's: a machine that died never takes its mark
away."""
UNRENEWED_EXPIRES_AFTER = timedelta(days=7)
"""Of version 0.1.0, whose marks are never renewed."""
PRUNING = "prune"

_log = logging.getLogger(__name__)


@contextmanager
def active_run(store: Store, run_id: str) -> Iterator[None]:
    """A block in which a run is in progress: nothing is pruned until it has ended.

    Waits while a pruning is going on. Marks the store's format. Raises StoreError for a store that can't be
    written, or is of a later version.
    """
    store.mark_format()
    mark = _Mark(store, f"{ACTIVE}/{check_run_id(run_id)}.json", run_id)
    mark.write()
    try:
        with beating(mark.renew, BEAT_SECONDS, f"mark of {run_id}", patience=BEAT_SECONDS):
            if wait_until_free(store, PRUNING):
                _log.warning("the store %s was being pruned: run %s has waited for that", store.uri, run_id)
            yield
    finally:
        mark.remove()


class Turn:
    """What a pruning asks before each of its steps: a process that is stopped, or whose machine sleeps, is
    taken for dead, and runs go on. It must not wake up and take from them what they use."""

    def __init__(self, own: Claim) -> None:
        self._own = own
        self._looked = _awake_or_not()

    def check(self) -> None:
        """Raises HistoryError once the turn is over."""
        if _awake_or_not() - self._looked < LOOK_SECONDS:
            return
        if self._own.is_lost():
            raise HistoryError(
                f"store {self._own.store.uri}: this process was suspended, and others went on; "
                "nothing more is removed: run it again"
            )
        self._looked = _awake_or_not()


LOOK_SECONDS: Final = 1.0
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _awake_or_not() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where the system has one."""
    return time.clock_gettime(_CLOCK)


@contextmanager
def pruning(store: Store) -> Iterator[Turn]:
    """A block in which no run is in progress, and none begins; prunings take turns.

    Raises HistoryError while a run is in progress.
    """
    store.mark_format()
    with Claim.made(store, PRUNING) as own:
        own.wait()
        refuse_while_active(store)
        yield Turn(own)


def refuse_while_active(store: Store) -> None:
    """Raises HistoryError while a run is in progress."""
    if running := [run_id for run_id in store.names(ACTIVE, ".json") if is_active(store, run_id)]:
        raise HistoryError(
            f"store {store.uri}: run {', '.join(running)} is in progress: prune when it has ended"
            f" (or remove {store.path(ACTIVE)} if its machine is gone)"
        )


class _Mark:
    """The mark of a run that this process does."""

    def __init__(self, store: Store, name: str, run_id: str) -> None:
        self._store, self._name, self._run_id = store, name, run_id
        self._since = datetime.now(UTC).isoformat()

    def write(self) -> None:
        mark = {
            "run_id": self._run_id,
            **this_process(),
            "since": self._since,
            "renewed": datetime.now(UTC).isoformat(),
        }
        self._store.put_document(self._name, json.dumps(mark).encode())

    def renew(self) -> None:
        with suppress(StoreError):  # a store that is away for a while: the mark lasts longer
            self.write()

    def remove(self) -> None:
        # A mark left behind only delays pruning: it must not turn a finished run into a failed one.
        with suppress(StoreError):
            self._store.remove(self._name, patience=BEAT_SECONDS)


def is_active(store: Store, run_id: str) -> bool:
    """Whether the run has a mark, of a process that lives as far as can be told."""
    try:
        mark = read_json(store, f"{ACTIVE}/{run_id}.json")
        renewed = mark.get("renewed")
        seen = datetime.fromisoformat(renewed or mark["since"])
        age = datetime.now(UTC) - seen
    except (HistoryError, KeyError, ValueError, TypeError):
        return False
    if has_ended(mark):
        return False
    if lives_here(mark):  # whose mark grows old while the machine sleeps
        return True
    return age < (MARK_EXPIRES_AFTER if renewed else UNRENEWED_EXPIRES_AFTER)


NIGHTS: Final = "nights"
CONTINUED_SECONDS: Final = 24 * 3600.0
"""A night that began longer ago is over, whether or not it got to its end."""


def continued_night(store: Store, config: Any) -> str:
    """The night that the last run of ``config`` (a JSON value) left unfinished within a day, else a new one.

    >>> continued_night(Store("memory://nowhere"), {}) == continued_night(Store("memory://nowhere"), {})
    False
    """
    # Where there is none, or none that can be read, asking again is never wrong.
    return _unfinished(store, _name(config), time.time()) or uuid.uuid4().hex


def _unfinished(store: Store, name: str, now: float) -> str | None:
    try:
        found = read_json(store, name)
        return str(found["night"]) if 0 <= now - float(found["began"]) < CONTINUED_SECONDS else None
    except (HistoryError, ValueError, KeyError, TypeError):
        return None


def begin_night(store: Store, config: Any, night: str) -> None:
    """Notes that a run of ``config`` is in its night; one that goes on keeps its beginning. Raises
    StoreError."""
    if continued_night(store, config) != night:
        store.put_document(_name(config), json.dumps({"night": night, "began": time.time()}).encode())


def end_night(store: Store, config: Any) -> None:
    """Notes that the night is done: the next run of ``config`` begins one of its own. Raises StoreError."""
    store.remove(_name(config))


def _name(config: Any) -> str:
    return f"{NIGHTS}/{digest(config)}.json"


def _unused_alone(value: Any) -> Any:
    return {"unused": value} if isinstance(value, str | timedelta) else value


class AnswerRetention(Strict):
    """When a kept answer is removed: the next run that wants it asks the model again."""

    unused: Duration | None = Field(timedelta(days=90), description="No run has used it for so long")
    age: Duration | None = Field(None, description="It was asked for so long ago, used or not")


class Retention(Strict):
    """What ``prune`` leaves. A key that is null keeps everything of its kind.

    Rows of results and items are never removed: the history stays whole.
    """

    keep: int | None = Field(
        30, ge=1, description="Newest runs of each benchmark × model whose artifacts are kept"
    )
    results: Duration | None = Field(
        timedelta(days=90), description="Output folders that nothing was written to for so long are removed"
    )
    answers: Annotated[AnswerRetention, BeforeValidator(_unused_alone)] | None = Field(
        default_factory=AnswerRetention, description="When answers of models are removed"
    )
    logs: Duration | None = Field(
        timedelta(days=30), description="Log files that nothing was written to for so long are removed"
    )


EVERYTHING: Final = Retention(keep=None, results=None, answers=None, logs=None)
"""Forgets nothing: only artifacts that no run refers to are removed."""


TORN_AFTER = timedelta(days=1)
"""A temporary file or a claim that is older was left behind by a process that was killed."""


@dataclass(frozen=True)
class Unreferenced:
    """An artifact that no kept run refers to; ``alone`` if no kept artifact was made under the same key."""

    name: str
    bytes: int
    alone: bool = True


@dataclass(frozen=True)
class Pruning:
    """What pruning does: ``runs`` are forgotten, ``artifacts``, ``answers`` and files of killed processes
    (``torn``) removed, ``kept`` artifacts stay."""

    runs: tuple[str, ...]
    artifacts: tuple[Unreferenced, ...]
    kept: int
    answers: tuple[AnswerFile, ...] = ()
    torn: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes that are freed."""
        return sum(entry.bytes for entry in self.artifacts) + sum(entry.bytes for entry in self.answers)


def plan_pruning(store: Store, retention: Retention = EVERYTHING, now: datetime | None = None) -> Pruning:
    """What ``prune`` would do at the moment ``now``.

    Raises HistoryError while a run is in progress, since no manifest names what it has computed or taken
    from the cache so far, and for a manifest that can't be read: it may refer to anything.
    """
    refuse_while_active(store)
    return _planned(store, retention, now or datetime.now(UTC))


def prune(store: Store, retention: Retention = EVERYTHING, now: datetime | None = None) -> Pruning:
    """Removes what the retention does not keep, and returns what that was; runs that begin meanwhile wait.

    First forgets the runs, then removes artifacts, so that no kept run ever lacks one. Result and item rows
    of a forgotten run stay in the history, which is compacted afterwards. Raises as ``plan_pruning`` does.
    """
    with pruning(store) as turn:
        plan = _planned(store, retention, now or datetime.now(UTC))
        for run_id in plan.runs:
            turn.check()
            manifest = json.dumps(read_json(store, f"{RUNS}/{run_id}.json"), ensure_ascii=False, indent=1)
            store.put_document(f"{FORGOTTEN}/{run_id}.json", manifest.encode())
            store.remove(f"{RUNS}/{run_id}.json")
        for artifact in plan.artifacts:
            turn.check()
            # Prefect's record of the step goes first: without it the step is simply not cached.
            name = f"records/{_key(artifact.name).replace('/', '-')}"
            _remove(
                store,
                *([name, f"{name}.why.json", f"{name}.files.json"] if artifact.alone else []),
                artifact.name,
            )
        for answers in plan.answers:
            turn.check()
            _remove(store, answers.name, answers.mark)
        turn.check()
        _remove(store, *plan.torn)
        compact(store)
    return plan


def _planned(store: Store, retention: Retention, now: datetime) -> Pruning:
    try:
        manifests = kept_runs(store)
    except HistoryError as error:
        raise HistoryError(
            f"{error}\nIts run may need anything, so nothing is pruned: fix the file, or remove it"
        ) from error
    forgotten = _older(manifests, retention.keep) if retention.keep is not None else []
    referred = {
        reference.name
        for run_id, manifest in manifests.items()
        if run_id not in forgotten
        for reference in references(manifest)
    }
    files = _files(store)
    referred_keys = {_key(name) for name in referred & files.keys()}
    unreferenced, kept = [], 0
    for name, size in files.items():
        if not is_artifact(name):
            continue
        if name in referred:
            kept += 1
        else:
            unreferenced.append(Unreferenced(name, size, alone=_key(name) not in referred_keys))
    unreferenced += _unnamed_media(store, files, referred)
    answers = retention.answers
    limits = (
        [] if answers is None else [limit for limit in (answers.unused, answers.age) if limit is not None]
    )
    unneeded = [*_unneeded_batches(store, now, min(limits, default=None))]
    if answers is not None:
        unneeded += unneeded_answers(store, now, answers.unused, answers.age)
    torn = (*_torn(store, files, now), *(name for name in files if _is_abandoned(store, name, now)))
    return Pruning(tuple(forgotten), tuple(unreferenced), kept, tuple(unneeded), torn)


def _unneeded_batches(store: Store, now: datetime, limit: timedelta | None) -> Iterator[AnswerFile]:
    """Records of jobs and what came of them, where no provider keeps it any more, where that was asked for
    longer ago than ``limit`` (None: no such limit), and rows whose record is gone."""
    entries = [entry for entry in store.all_entries(BATCHES) if "/." not in entry.name]  # being written
    for place, files in groupby(entries, lambda entry: entry.name.partition(".")[0]):
        record, found = f"{place}.json", list(files)
        job = JobRecords.read(store, record)
        age = timedelta.max if job is None else now - datetime.fromtimestamp(job.created, UTC)
        holds_rows = any(entry.name != record for entry in found)
        if age > timedelta(days=LONGEST_DAYS) or (holds_rows and limit is not None and age > limit):
            yield from (AnswerFile(entry.name, record, entry.bytes) for entry in found)


def _older(manifests: Mapping[str, Mapping[str, Any]], keep: int) -> list[str]:
    """All runs that are not among the ``keep`` newest of any benchmark × model."""
    newest_first = sorted(manifests, key=lambda run_id: started_at(manifests[run_id]), reverse=True)
    seen: dict[tuple[str, str], int] = {}
    forgotten = []
    for run_id in newest_first:
        benchmark, models = str(manifests[run_id].get("benchmark")), manifests[run_id].get("models")
        groups = [(benchmark, str(model)) for model in models or ("",)]
        for group in groups:
            seen[group] = seen.get(group, 0) + 1
        if all(seen[group] > keep for group in groups):
            forgotten.append(run_id)
    return sorted(forgotten)


def _files(store: Store) -> dict[str, int]:
    """Name and size of every file of the store, sorted."""
    return {entry.name: entry.bytes for entry in store.all_entries()}


def _unnamed_media(store: Store, files: Mapping[str, int], referred: set[str]) -> list[Unreferenced]:
    """Images and sounds that no kept run's requests name."""
    kept = {name.rpartition("/")[2]: size for name, size in files.items() if name.startswith(f"{FOLDER}/")}
    if not kept:
        return []
    named: set[str] = set()
    for name in sorted(name for name in referred if name.startswith("render/") and name in files):
        with store.open(store.checked(name)) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(columns=["prompts"]):
                for prompts in batch.column("prompts").to_pylist():
                    named.update(digest for prompt in prompts for digest in REFERENCE.findall(prompt))
    return [
        Unreferenced(f"{FOLDER}/{digest}", size, alone=False)
        for digest, size in kept.items()
        if digest not in named
    ]


def _torn(store: Store, files: Mapping[str, int], now: datetime) -> tuple[str, ...]:
    """Temporary files that nobody writes any more, and what was set aside of steps that are computed
    again."""
    return tuple(
        name for name in files if (_is_temporary(name) or _is_of_a_step(name)) and _is_torn(store, name, now)
    )


def _is_of_a_step(name: str) -> bool:
    whole = name.removesuffix(DAMAGED)
    return whole != name and (is_artifact(whole) or whole.startswith(f"{RECORDS}/"))


def _is_torn(store: Store, name: str, now: datetime) -> bool:
    try:
        return now - store.modified(name) > TORN_AFTER
    except FileMissing:  # a mark, which is in its place by now
        return False


def _is_temporary(name: str) -> bool:
    file = name.rpartition("/")[2]
    return file.startswith(".") and file.endswith(".tmp")


def _remove(store: Store, *names: str) -> None:
    for name in names:
        store.remove(name)


def _key(name: str) -> str:
    """``stage/key`` of an artifact's name ``stage/key.digest.parquet``."""
    return name.split(".", 1)[0]


def _is_abandoned(store: Store, name: str, now: datetime) -> bool:
    """Whether a file is a claim, a run's mark or an unfinished night that nobody will take away any more."""
    folder, _, file = name.partition("/")
    if _is_temporary(name):  # a mark that is written in this moment: the run that begins would fail
        return False
    if folder == ACTIVE:
        return not is_active(store, file.removesuffix(".json"))
    if folder == NIGHTS:
        return _unfinished(store, name, now.timestamp()) is None
    # Those who prune take turns, and each removes the claims of the dead before it.
    if folder != claims.FOLDER or file.startswith(f"{PRUNING}/"):
        return False
    made = claims.made_at(file.rpartition("/")[2])
    return made is not None and (now - made > TORN_AFTER or _is_dead(store, name))


def _is_dead(store: Store, name: str) -> bool:
    """Whether the owner of a claim is a process of this machine that has ended."""
    try:
        owner = store.document(f"{name.rpartition('.')[0]}{claims.OWNER}")
    except (FileMissing, FileDamaged):
        return False
    return claims.is_dead(owner)


OUTPUTS: Final = {MANIFEST: ("benchmark", "steps"), "suite.json": ("suite", "evaluations")}
"""A folder that holds one of these is a run's or a night's, if the file says these of a run: other programs
have a ``manifest.json``, too."""
LONGEST_LOG: Final = 16 << 20
"""A log that is still written is cut to its last quarter beyond so many bytes."""


@dataclass(frozen=True)
class Leftovers:
    """Folders and logs that are removed, logs that are ``cut``, and the bytes that this frees."""

    folders: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()
    cut: tuple[Path, ...] = ()
    bytes: int = 0


def find_leftovers(results: Path, home: Path, retention: Retention, now: datetime | None = None) -> Leftovers:
    """What the retention does not keep of the folder of results and of the logs in the project's home.

    Only folders directly in ``results`` that a run or a night wrote, and to which nothing was written for the
    time that ``retention.results`` says, are meant; what else lies there is not ours.
    """
    moment = now or datetime.now(UTC)
    folders = [] if retention.results is None else list(_stale(_outputs(results), moment, retention.results))
    logs, cut = [], []
    if retention.logs is not None:
        found = sorted(home.rglob("*.log")) if home.is_dir() else []
        logs = list(_stale(found, moment, retention.logs))
        cut = [path for path in found if path not in logs and _size(path) > LONGEST_LOG]
    freed = sum(map(_size, (*folders, *logs))) + sum(_size(path) - LONGEST_LOG // 4 for path in cut)
    return Leftovers(tuple(folders), tuple(logs), tuple(cut), freed)


def remove_leftovers(leftovers: Leftovers) -> None:
    """Removes and cuts what was found; what somebody else has removed meanwhile is gone all the same."""
    for folder in leftovers.folders:
        shutil.rmtree(folder, ignore_errors=True)
    for log in leftovers.logs:
        log.unlink(missing_ok=True)
    for log in leftovers.cut:
        # In place: its writer has it open, at its end.
        with suppress(OSError), log.open("r+b") as file:
            file.seek(-(LONGEST_LOG // 4), 2)
            file.readline()  # the rest of a line
            last = file.read()
            file.seek(0)
            file.truncate()
            file.write(last)


def _outputs(results: Path) -> Iterator[Path]:
    for folder in sorted(results.iterdir()) if results.is_dir() else ():
        if folder.is_dir() and not folder.is_symlink() and any(_is_ours(folder / name) for name in OUTPUTS):
            yield folder


def _is_ours(file: Path) -> bool:
    """Whether a file of that name is one that a run or a night wrote; not where nobody can tell."""
    try:
        said = json.loads(file.read_bytes())
        check_run_id(said["run_id"])
        return bool(said.keys() >= {*OUTPUTS[file.name]})
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError, ConfigError):
        return False


def _stale(paths: Iterator[Path] | list[Path], now: datetime, limit: timedelta) -> Iterator[Path]:
    for path in paths:
        times = [found.st_mtime for found in _files_in(path)]
        if times and now.timestamp() - max(times) > limit.total_seconds():
            yield path


def _size(path: Path) -> int:
    return sum(found.st_size for found in _files_in(path))


def _files_in(path: Path) -> Iterator[os.stat_result]:
    """What the system says of a file, or of all files in a folder and below it; a run of another store may be
    writing there, and one that is gone by now is left out."""
    below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in below if path.is_dir() else (path,):
        with suppress(FileNotFoundError):
            yield file.lstat()


@dataclass(frozen=True)
class Pruned:
    """What a pruning removed of the store and beside it, or would remove."""

    pruning: Pruning
    leftovers: Leftovers

    @property
    def bytes(self) -> int:
        """Bytes that this frees."""
        return self.pruning.bytes + self.leftovers.bytes

    @property
    def summary(self) -> str:
        """In one line."""
        said = [f"{len(self.pruning.artifacts)} artifacts"]
        for things, noun in (
            (self.pruning.answers, "segments of answers"),
            (self.pruning.torn, "files of killed runs"),
            (self.leftovers.folders, "output folders"),
            (self.leftovers.logs, "logs"),
        ):
            said += [f"{len(things)} {noun}"] if things else []
        return (
            f"{', '.join(said)}, {self.bytes:,} bytes; {self.pruning.kept} artifacts are in use by kept runs"
        )


def prune_all(store: Store, retention: Retention, dry_run: bool = False) -> Pruned:
    """Removes what the retention does not keep, of the store, the folder of results and the logs of the
    project's home; with ``dry_run`` only finds it.

    Raises HistoryError while a run is in progress.
    """
    found = plan_pruning(store, retention) if dry_run else prune(store, retention)
    leftovers = find_leftovers(results_folder(), home(), retention)
    if not dry_run:
        remove_leftovers(leftovers)
    return Pruned(found, leftovers)
