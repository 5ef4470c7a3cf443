"""One at a time: runs that would do the same expensive step take turns, on whatever machines they are.

A claim is a small file in the store, ``claims/<name>/<time>-<id>.json``, and the oldest one that lives has
its turn. That needs no atomic operation of the file system, so that it works on object stores. A claim lives
while its owner rewrites it; a killed owner's goes stale, and on the same machine it is known to be dead at
once. Two claims in the very same moment may both get their turn: what they do is repeated, never wrong, since
artifacts have names of their content.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tasks.store.storage import Store, StoreError

FOLDER = "claims"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 30.0
"""A claim that has not changed for so long, by the clock of who waits, is its owner's no more."""
POLL_SECONDS = 0.5


@contextmanager
def claim(store: Store, name: str) -> Iterator[bool]:
    """Waits for the turn to do ``name``; gives whether somebody else was at it before.

    After waiting, look again at what is there: most of it will be done.
    """
    own = _Claim(store, name, f"{time.time_ns():020d}-{uuid.uuid4().hex}")
    done = threading.Event()
    own.write(0)
    beating = threading.Thread(target=_beat, args=(own, done), name=f"claim {name}", daemon=True)
    beating.start()
    try:
        yield _wait(own)
    finally:
        done.set()
        beating.join(HEARTBEAT_SECONDS)
        own.remove(own.id)


def wait_until_free(store: Store, name: str) -> bool:
    """Returns when nobody who lives has a claim to ``name``; whether anybody had one."""
    return _wait(_Claim(store, name, _AFTER_ALL))


_AFTER_ALL = "~"
"""Comes after every claim's id, which begins with its time."""


@dataclass(frozen=True)
class _Claim:
    store: Store
    name: str
    id: str

    def write(self, beat: int) -> None:
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "beat": beat}
        self.store.put_bytes(f"{FOLDER}/{self.name}/{self.id}.json", json.dumps(owner).encode())

    def remove(self, entry: str) -> None:
        with suppress(OSError):
            self.store.fs.rm_file(self.store.path(f"{FOLDER}/{self.name}/{entry}.json"))

    def earlier(self) -> list[str]:
        """Claims made before this one, oldest first."""
        try:
            self.store.fs.invalidate_cache()
            paths = self.store.fs.ls(self.store.path(f"{FOLDER}/{self.name}"), detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rsplit("/", 1)[-1] for path in paths)
        return sorted(
            entry for name in names if (entry := name.removesuffix(".json")) < self.id and name[0] != "."
        )

    def content(self, entry: str) -> bytes | None:
        """What a claim says; None: it is gone."""
        try:
            return bytes(self.store.fs.cat_file(self.store.path(f"{FOLDER}/{self.name}/{entry}.json")))
        except OSError:
            return None


def _beat(own: _Claim, done: threading.Event) -> None:
    beat = 0
    while not done.wait(HEARTBEAT_SECONDS):
        beat += 1
        # A store that is away for a moment costs a heartbeat; staying away costs the claim, which is right.
        with suppress(StoreError, OSError):
            own.write(beat)


def _wait(own: _Claim) -> bool:
    """Returns when no earlier claim lives; whether there was one."""
    seen: dict[str, tuple[bytes, float]] = {}
    waited = False
    while earlier := own.earlier():
        for entry in earlier:
            content = own.content(entry)
            if content is None:
                continue
            before, since = seen.get(entry, (b"", 0.0))
            if content != before:
                seen[entry] = content, time.monotonic()
                since = time.monotonic()
            if _is_dead(content) or time.monotonic() - since > STALE_SECONDS:
                own.remove(entry)
        waited = True
        time.sleep(POLL_SECONDS)
    return waited


def _is_dead(content: bytes) -> bool:
    """Whether the owner was a process of this machine that has ended."""
    try:
        owner = json.loads(content)
        if owner["host"] != socket.gethostname():
            return False
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, PermissionError):
        return False
    return False
