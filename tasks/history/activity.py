"""Runs in progress and pruning exclude each other, on whatever machines they are.

A run that is in progress has a mark in the store, since no manifest names yet what it has computed or taken
from the cache; pruning has a claim. Each writes its own first and then looks for the other's: whichever comes
second sees the first. A run then waits until the pruning has ended, a pruning gives way and is refused. No
atomic operation of the file system is needed, so that this works on object stores, too.
"""

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from tasks.history.layout import ACTIVE, HistoryError, check_run_id, names_in, read_json
from tasks.store.claims import claim, wait_until_free
from tasks.store.storage import Store, StoreError

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
    done = threading.Event()
    beating = threading.Thread(target=mark.beat, args=(done,), name=f"mark of {run_id}", daemon=True)
    beating.start()
    try:
        if wait_until_free(store, PRUNING):
            _log.warning("the store %s was being pruned: run %s has waited for that", store.uri, run_id)
        yield
    finally:
        done.set()
        beating.join(BEAT_SECONDS)
        mark.remove()


@contextmanager
def pruning(store: Store) -> Iterator[None]:
    """A block in which no run is in progress, and none begins; prunings take turns.

    Raises HistoryError while a run is in progress.
    """
    store.mark_format()
    with claim(store, PRUNING):
        refuse_while_active(store)
        yield


def refuse_while_active(store: Store) -> None:
    """Raises HistoryError while a run is in progress."""
    if running := [run_id for run_id in names_in(store, ACTIVE, ".json") if is_active(store, run_id)]:
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
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": self._since,
            "renewed": datetime.now(UTC).isoformat(),
        }
        self._store.put_bytes(self._name, json.dumps(mark).encode())

    def beat(self, done: threading.Event) -> None:
        while not done.wait(BEAT_SECONDS):
            with suppress(StoreError, OSError):  # a store that is away for a while: the mark lasts longer
                self.write()

    def remove(self) -> None:
        # A mark left behind only delays pruning: it must not turn a finished run into a failed one.
        with suppress(OSError):
            self._store.fs.rm_file(self._store.path(self._name))


def is_active(store: Store, run_id: str) -> bool:
    """Whether the run has a mark, of a process that lives as far as can be told."""
    try:
        mark = read_json(store, f"{ACTIVE}/{run_id}.json")
        renewed = mark.get("renewed")
        seen = datetime.fromisoformat(renewed or mark["since"])
        age = datetime.now(UTC) - seen
    except (HistoryError, KeyError, ValueError, TypeError):
        return False
    if mark.get("host") == socket.gethostname() and not _process_lives(int(mark.get("pid", 0))):
        return False
    return age < (MARK_EXPIRES_AFTER if renewed else UNRENEWED_EXPIRES_AFTER)


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
