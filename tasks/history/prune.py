"""Which artifacts no kept run refers to, and in which order they go, so that no kept run ever lacks one.

``plan_pruning`` decides and changes nothing; ``prune`` does what the plan says.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tasks.history.layout import (
    ACTIVE,
    FORGOTTEN,
    RUNS,
    HistoryError,
    kept_runs,
    names_in,
    read_json,
    references,
    started_at,
)
from tasks.store.storage import Store

MARK_EXPIRES_AFTER = timedelta(days=7)
"""A mark of a run on another machine counts for this long: a machine that died never takes its mark away."""


@dataclass(frozen=True)
class Unreferenced:
    """An artifact that no kept run refers to; ``alone`` if no kept artifact was made under the same key."""

    name: str
    bytes: int
    alone: bool = True


@dataclass(frozen=True)
class Pruning:
    """What pruning does: ``runs`` are forgotten, ``artifacts`` removed, ``kept`` artifacts stay."""

    runs: tuple[str, ...]
    artifacts: tuple[Unreferenced, ...]
    kept: int

    @property
    def bytes(self) -> int:
        """Bytes that are freed."""
        return sum(artifact.bytes for artifact in self.artifacts)


def plan_pruning(store: Store, keep: int | None = None) -> Pruning:
    """What ``prune`` would do now.

    Runs are kept unless ``keep`` says how many of the newest of each benchmark are. Answers of models are no
    artifacts and always stay. Raises HistoryError while a run is in progress, since no manifest names what it
    has computed or taken from the cache so far, and for a manifest that can't be read: it may refer to
    anything.
    """
    if running := [run_id for run_id in names_in(store, ACTIVE, ".json") if _is_active(store, run_id)]:
        raise HistoryError(
            f"store {store.uri}: run {', '.join(running)} is in progress: prune when it has ended"
            f" (or remove {store.path(ACTIVE)} if its machine is gone)"
        )
    manifests = kept_runs(store)
    forgotten = _older(manifests, keep) if keep is not None else []
    referred = {
        reference.name
        for run_id, manifest in manifests.items()
        if run_id not in forgotten
        for reference in references(manifest)
    }
    referred_keys = {_key(name) for name in referred}
    unreferenced, kept = [], 0
    for name, size in _artifacts(store):
        if name in referred:
            kept += 1
        else:
            unreferenced.append(Unreferenced(name, size, alone=_key(name) not in referred_keys))
    return Pruning(tuple(forgotten), tuple(unreferenced), kept)


def prune(store: Store, pruning: Pruning) -> None:
    """Does what the plan says: first forgets the runs, then removes artifacts, so that no kept run ever lacks
    one.

    Result and item rows of a forgotten run stay in the history.
    """
    for run_id in pruning.runs:
        manifest = json.dumps(read_json(store, f"{RUNS}/{run_id}.json"), ensure_ascii=False, indent=1)
        store.put_bytes(f"{FORGOTTEN}/{run_id}.json", manifest.encode())
        store.fs.rm_file(store.path(f"{RUNS}/{run_id}.json"))
    for artifact in pruning.artifacts:
        # Prefect's record of the step goes first: without it the step is simply not cached.
        name = f"records/{_key(artifact.name).replace('/', '-')}"
        record = [name, f"{name}.why.json"] if artifact.alone else []
        for name in (*record, artifact.name):
            with suppress(FileNotFoundError):
                store.fs.rm_file(store.path(name))


def _older(manifests: dict[str, dict[str, object]], keep: int) -> list[str]:
    """All runs but the ``keep`` newest of each benchmark."""
    newest_first = sorted(manifests, key=lambda run_id: started_at(manifests[run_id]), reverse=True)
    seen: dict[str, int] = {}
    forgotten = []
    for run_id in newest_first:
        benchmark = str(manifests[run_id].get("benchmark"))
        seen[benchmark] = seen.get(benchmark, 0) + 1
        if seen[benchmark] > keep:
            forgotten.append(run_id)
    return sorted(forgotten)


def _artifacts(store: Store) -> list[tuple[str, int]]:
    """Name and size of every artifact: ``<stage>/<key>.<digest>.parquet``, whatever the stage."""
    found = []
    store.fs.invalidate_cache()
    for path, entry in store.fs.find(store.root, maxdepth=2, detail=True).items():
        name = str(path)[len(store.root) + 1 :]
        _, _, file = name.partition("/")
        parts = file.split(".")
        if (
            "/" not in file
            and len(parts) == 3
            and parts[2] == "parquet"
            and len(parts[0]) == 64
            and len(parts[1]) == 16
        ):
            found.append((name, int(entry["size"])))
    return sorted(found)


def _key(name: str) -> str:
    """``stage/key`` of an artifact's name ``stage/key.digest.parquet``."""
    return name.split(".", 1)[0]


def _is_active(store: Store, run_id: str) -> bool:
    try:
        mark = read_json(store, f"{ACTIVE}/{run_id}.json")
        since = datetime.fromisoformat(mark["since"])
    except (HistoryError, KeyError, ValueError):
        return False
    if mark.get("host") == socket.gethostname():
        return _process_lives(int(mark.get("pid", 0)))
    return datetime.now(UTC) - since < MARK_EXPIRES_AFTER


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
