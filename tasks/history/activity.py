"""Which runs and nights are not at their end, on whatever machines they are.

Runs in progress and pruning exclude each other. A run that is in progress has a mark in the store, since
no manifest names yet what it has computed or taken from the cache; pruning has a claim. Each writes its
own first and then looks for the other's: whichever comes second sees the first. A run then waits until
the pruning has ended, a pruning gives way and is refused. No atomic operation of the file system is
needed, so that this works on object stores, too.

A deployment's night is its flow run, which a retry keeps. On the command line a run that was killed or
failed is simply started again, and then goes on with the night whose answers it has already asked for:
``nights/<digest of the config>.json`` says which that is until the night is done.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tasks.history.layout import ACTIVE, HistoryError, check_run_id, names_in, read_json
from tasks.store.claims import claim, process_lives, wait_until_free
from tasks.store.keys import digest
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
    if mark.get("host") == socket.gethostname() and not process_lives(int(mark.get("pid", 0))):
        return False
    return age < (MARK_EXPIRES_AFTER if renewed else UNRENEWED_EXPIRES_AFTER)


NIGHTS: Final = "nights"
CONTINUED_SECONDS: Final = 24 * 3600.0
"""A night that began longer ago is over, whether or not it got to its end."""


def continued_night(store: Store, config: Any) -> str:
    """The night that the last run of ``config`` (a JSON value) left unfinished within a day, else a new one.

    >>> continued_night(Store("memory://nowhere"), {}) == continued_night(Store("memory://nowhere"), {})
    False
    """
    # Where there is none, or none that can be read, asking anew is never wrong.
    return _unfinished(store, _name(config), time.time()) or uuid.uuid4().hex


def is_continued(store: Store, name: str, now: datetime) -> bool:
    """Whether a run may still go on with the night of this file."""
    return _unfinished(store, name, now.timestamp()) is not None


def _unfinished(store: Store, name: str, now: float) -> str | None:
    try:
        found = json.loads(store.fs.cat_file(store.path(name)))
        return str(found["night"]) if 0 <= now - float(found["began"]) < CONTINUED_SECONDS else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def begin_night(store: Store, config: Any, night: str) -> None:
    """Notes that a run of ``config`` is in its night; one that goes on keeps its beginning. Raises
    StoreError."""
    if continued_night(store, config) != night:
        store.put_bytes(_name(config), json.dumps({"night": night, "began": time.time()}).encode())


def end_night(store: Store, config: Any) -> None:
    """Notes that the night is done: the next run of ``config`` begins one of its own. Raises StoreError."""
    store.remove(_name(config))


def _name(config: Any) -> str:
    return f"{NIGHTS}/{digest(config)}.json"
