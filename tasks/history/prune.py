"""Which runs are forgotten and what goes with them, in such an order that no kept run ever lacks an artifact.

``plan_pruning`` decides and changes nothing; ``prune`` does it while no run is in progress. What lies outside
the store (output folders, logs) is the business of ``leftovers``.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq

from tasks.history.activity import PRUNING, is_active, pruning, refuse_while_active
from tasks.history.compaction import compact
from tasks.history.layout import (
    ACTIVE,
    FORGOTTEN,
    RUNS,
    HistoryError,
    kept_runs,
    read_json,
    references,
    started_at,
)
from tasks.history.nights import NIGHTS, is_continued
from tasks.history.retention import EVERYTHING, Retention
from tasks.messages.media import FOLDER, REFERENCE
from tasks.models.answers.retention import AnswerFile, unneeded_answers
from tasks.store import claims
from tasks.store.storage import Store

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
    with pruning(store):
        plan = _planned(store, retention, now or datetime.now(UTC))
        for run_id in plan.runs:
            manifest = json.dumps(read_json(store, f"{RUNS}/{run_id}.json"), ensure_ascii=False, indent=1)
            store.put_bytes(f"{FORGOTTEN}/{run_id}.json", manifest.encode())
            store.fs.rm_file(store.path(f"{RUNS}/{run_id}.json"))
        for artifact in plan.artifacts:
            # Prefect's record of the step goes first: without it the step is simply not cached.
            name = f"records/{_key(artifact.name).replace('/', '-')}"
            _remove(store, *([name, f"{name}.why.json"] if artifact.alone else []), artifact.name)
        for answers in plan.answers:
            _remove(store, answers.name, answers.mark)
        _remove(store, *plan.torn)
        compact(store)
    return plan


def _planned(store: Store, retention: Retention, now: datetime) -> Pruning:
    try:
        manifests = kept_runs(store)
    except HistoryError as error:
        raise HistoryError(
            f"{error}\nIts run may need anything, so nothing is pruned: mend the file, or remove it"
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
        if not _is_artifact(name):
            continue
        if name in referred:
            kept += 1
        else:
            unreferenced.append(Unreferenced(name, size, alone=_key(name) not in referred_keys))
    unreferenced += _unnamed_media(store, files, referred)
    answers = retention.answers
    unneeded = unneeded_answers(store, now, answers.unused, answers.age) if answers is not None else ()
    torn = (*_torn(store, files, now), *(name for name in files if _is_abandoned(store, name, now)))
    return Pruning(tuple(forgotten), tuple(unreferenced), kept, tuple(unneeded), torn)


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
    store.fs.invalidate_cache()
    found = store.fs.find(store.root, detail=True)
    return {str(path)[len(store.root) + 1 :]: int(found[path]["size"] or 0) for path in sorted(found)}


def _is_artifact(name: str) -> bool:
    """Whether a name is ``<stage>/<key>.<digest>.parquet``, whatever the stage."""
    _, _, file = name.partition("/")
    key, *rest = file.split(".")
    return (
        "/" not in file and len(key) == 64 and len(rest) == 2 and len(rest[0]) == 16 and rest[1] == "parquet"
    )


def _unnamed_media(store: Store, files: Mapping[str, int], referred: set[str]) -> list[Unreferenced]:
    """Images and sounds that no kept run's requests name."""
    kept = {name.rpartition("/")[2]: size for name, size in files.items() if name.startswith(f"{FOLDER}/")}
    if not kept:
        return []
    named: set[str] = set()
    for name in sorted(name for name in referred if name.startswith("render/") and name in files):
        with store.fs.open(store.path(name), "rb") as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(columns=["prompts"]):
                for prompts in batch.column("prompts").to_pylist():
                    named.update(digest for prompt in prompts for digest in REFERENCE.findall(prompt))
    return [
        Unreferenced(f"{FOLDER}/{digest}", size, alone=False)
        for digest, size in kept.items()
        if digest not in named
    ]


def _torn(store: Store, files: Mapping[str, int], now: datetime) -> tuple[str, ...]:
    """Temporary files of a local store that nobody writes any more."""
    if not store.local:
        return ()
    names = [name for name in files if (file := name.rpartition("/")[2])[0] == "." and file.endswith(".tmp")]
    return tuple(name for name in names if now - store.fs.modified(store.path(name)) > TORN_AFTER)


def _remove(store: Store, *names: str) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            store.fs.rm_file(store.path(name))


def _key(name: str) -> str:
    """``stage/key`` of an artifact's name ``stage/key.digest.parquet``."""
    return name.split(".", 1)[0]


def _is_abandoned(store: Store, name: str, now: datetime) -> bool:
    """Whether a file is a claim, a run's mark or an unfinished night that nobody will take away any more."""
    folder, _, file = name.partition("/")
    if folder == ACTIVE:
        return not is_active(store, file.removesuffix(".json"))
    if folder == NIGHTS:
        return not is_continued(store, name, now)
    # Those who prune take turns, and each removes the claims of the dead before it.
    if folder != claims.FOLDER or file.startswith(f"{PRUNING}/"):
        return False
    made = claims.made_at(file.rpartition("/")[2])
    return made is not None and (now - made > TORN_AFTER or _is_dead(store, name))


def _is_dead(store: Store, name: str) -> bool:
    """Whether the owner of a claim is a process of this machine that has ended."""
    try:
        owner = store.fs.cat_file(store.path(f"{name.rpartition('.')[0]}{claims.OWNER}"))
    except OSError:
        return False
    return claims.is_dead(owner)
