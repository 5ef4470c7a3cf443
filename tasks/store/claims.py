"""Claims: workers that would do the same at once take turns, on whatever machines they are.

A claim is a small file in the store, ``claims/<name>/<time>-<id>.json``, and the oldest one that lives has
its turn: its time is after those of all claims that it finds, whatever the clocks of their machines say.
That needs no atomic operation of the file system, so that it works on object stores. A claim lives while
its owner rewrites it; a killed owner's goes stale, and on the same machine it is known to be dead at once.
Workers of one machine with a local store claim one after the other, by a lock; on an object store, or a file
system without locks, two claims in the very same moment may both get their turn: what they do is repeated,
never wrong, since artifacts have names of their content.
"""

import errno
import fcntl
import hashlib
import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.store.beside import beating
from tasks.store.errors import NOTICE_SECONDS, STORE_LOG, FileDamaged, FileMissing, StoreError
from tasks.store.home import as_open_as_its_folder, folder_within
from tasks.store.machine import has_ended, this_process
from tasks.store.storage import Store

FOLDER = "claims"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 30.0
"""A claim that has not changed for so long, by the clock of who waits, is its owner's no more, whether or not
who waits may remove it."""
POLL_SECONDS = 0.5


@contextmanager
def claim(store: Store, name: str) -> Iterator[bool]:
    """Waits for the turn to do ``name``; gives whether somebody else was at it before.

    After waiting, look again at what is there: most of it will be done.
    """
    with Claim.made(store, name) as own:
        yield own.wait()


def wait_until_free(store: Store, name: str) -> bool:
    """Returns when nobody who lives has a claim to ``name``; whether anybody had one."""
    return Claim(store, name, LAST_ID).wait()


LAST_ID = "~"
"""Comes after every claim's id, which begins with its time."""


@dataclass(frozen=True)
class Claim:
    """One worker's claim to ``name``; ``about`` is told to others beside its owner. It is ``lost`` where who
    waits for it has taken its owner for dead: that one was stopped, and now both are at work."""

    store: Store
    name: str
    id: str
    about: Mapping[str, Any] = field(default_factory=dict)
    lost: threading.Event = field(default_factory=threading.Event, compare=False)
    beats: Iterator[int] = field(default_factory=lambda: itertools.count(1), compare=False)

    @classmethod
    @contextmanager
    def made(
        cls, store: Store, name: str, about: Mapping[str, Any] | None = None, attached: bytes | None = None
    ) -> Iterator["Claim"]:
        """A claim that lives as long as the block; ``attached`` is a file beside it."""
        with _one_at_a_time(store):
            own = cls(store, name, f"{_next_time(store, name):020d}-{uuid.uuid4().hex}", about or {})
            if attached is not None:
                digest = hashlib.sha256(attached).hexdigest()
                own = replace(own, about={**own.about, ATTACHED: digest})
                store.put_bytes(own.place(own.id, ATTACHED), attached)
            own.write(0)
        try:
            with beating(own.renew, HEARTBEAT_SECONDS, f"claim {name}", patience=HEARTBEAT_SECONDS):
                yield own
        finally:
            own.remove(own.id)

    def write(self, beat: int, patience: float | None = None) -> None:
        """Says that the owner lives; raises StoreError."""
        owner = {**this_process(), "beat": beat, **self.about}
        self.store.put_document(self.place(self.id), json.dumps(owner).encode(), patience)

    def renew(self) -> None:
        """Says again that the owner lives, and notes where it was taken for dead."""
        # A store that is away costs heartbeats; who waits for the claim sees that it was away for him, too.
        with suppress(StoreError):
            if self.is_lost():
                self.lost.set()
            self.write(next(self.beats), patience=HEARTBEAT_SECONDS)

    def remove(self, entry: str) -> None:
        """Removes a claim: this one, or one whose owner is gone. One that can't be goes stale."""
        for suffix in (OWNER, ATTACHED):
            with suppress(StoreError):
                self.store.remove(self.place(entry, suffix), patience=HEARTBEAT_SECONDS)

    def wait(self) -> bool:
        """Returns when no earlier claim lives; whether there was one."""
        watch = Watch(self)
        waited = False
        while earlier := [entry for entry in self.earlier() if entry not in watch.dead]:
            waited = True
            living = [entry for entry in earlier if watch.lives(entry)]
            if living:
                time.sleep(POLL_SECONDS)
        return waited

    def is_lost(self) -> bool:
        """Whether somebody has taken the owner for dead, who may have been stopped; raises StoreError."""
        return self.content(self.id) is None or self.lost.is_set()

    def earlier(self) -> list[str]:
        """Claims made before this one, oldest first."""
        entries = self.store.names(f"{FOLDER}/{self.name}", OWNER)
        return [entry for entry in entries if entry < self.id]

    def content(self, entry: str) -> bytes | None:
        """What a claim says, empty where it is damaged; None: it is gone."""
        try:
            return self.store.document(self.place(entry))
        except FileMissing:
            return None
        except FileDamaged:  # its owner writes it again in a moment, or it goes stale
            return b""

    def attached(self, entry: str) -> bytes:
        """The file beside a claim; empty where there is none, or not the one that the claim is of."""
        digest = owner_of(self.content(entry) or b"").get(ATTACHED)
        try:
            found = self.store.read(self.place(entry, ATTACHED))
        except FileMissing:
            return b""
        return found if digest in (None, hashlib.sha256(found).hexdigest()) else b""

    def place(self, entry: str, suffix: str = ".json") -> str:
        """Where a claim is in the store."""
        return f"{FOLDER}/{self.name}/{entry}{suffix}"


OWNER, ATTACHED = ".json", ".bin"


class Watch:
    """Tells claims that live from those whose owners are gone, for a claim that waits; removes the latter as
    far as it may: in a folder that several users share, what is another's stays. Of those that are waited for
    long, each is named once."""

    def __init__(self, own: Claim) -> None:
        self._own = own
        self._seen: dict[str, tuple[bytes | None, float]] = {}
        self._began = time.monotonic()
        self._named: set[str] = set()
        self.dead: set[str] = set()

    def lives(self, entry: str) -> bool:
        """Whether the claim is there and its owner at work, as far as can be told."""
        content = self._own.content(entry)
        if content is None:
            return False
        before, since = self._seen.get(entry, (None, 0.0))
        if content != before:
            since = time.monotonic()
            self._seen[entry] = content, since
        # While the store was away nobody could say that he lives.
        since = max(since, self._own.store.boundary.back)
        if not is_dead(content) and time.monotonic() - since <= STALE_SECONDS:
            self._name_owner(entry, content)
            return True
        self.dead.add(entry)
        self._own.remove(entry)
        return False

    def _name_owner(self, entry: str, content: bytes) -> None:
        if time.monotonic() - self._began < NOTICE_SECONDS or entry in self._named:
            return
        self._named.add(entry)
        owner, here = owner_of(content), this_process()
        if not owner or all(owner.get(key) == here[key] for key in ("host", "pid")):  # a thread of this one
            return
        host = str(owner.get("host")).partition(" ")[0]
        who = f"process {owner.get('pid')} of {host}, which holds the claim {self._own.name}"
        STORE_LOG.warning("store %s: waits for %s", self._own.store.uri, who)


def made_at(file: str) -> datetime | None:
    """When the claim was made that a file of this name belongs to; None: to no claim."""
    nanoseconds = _time_in(file)
    return None if nanoseconds is None else datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def _time_in(file: str) -> int | None:
    nanoseconds, dash, _ = file.partition("-")
    if not dash or len(nanoseconds) != 20 or not nanoseconds.isdecimal():
        return None
    return int(nanoseconds)


def _next_time(store: Store, name: str) -> int:
    """Now, in nanoseconds since 1970, and after every claim that is there: another machine's clock may be
    ahead."""
    known = (_time_in(entry) for entry in store.names(f"{FOLDER}/{name}", OWNER))
    return max([time.time_ns(), *(made + 1 for made in known if made is not None)])


def owner_of(content: bytes) -> dict[str, Any]:
    """What a claim says of its owner; empty where it can't be read."""
    try:
        owner = json.loads(content)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def is_dead(content: bytes) -> bool:
    """Whether the owner was a process of this machine that has ended."""
    return has_ended(owner_of(content))


@contextmanager
def _one_at_a_time(store: Store) -> Iterator[None]:
    """A block in which no other worker of this machine makes a claim; on object stores, and where the file
    system has no locks, only no other thread."""
    with ExitStack() as stack:
        if not store.local or not _locked(store, stack):
            stack.enter_context(_making)
        yield


def _locked(store: Store, stack: ExitStack) -> bool:
    """Holds the lock of a local store until the stack ends; False where the file system has no locks. Raises
    StoreError."""
    path = Path(store.path(f"{FOLDER}/.lock"))
    try:
        folder_within(Path(store.root), path.parent)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        stack.callback(os.close, file)
        as_open_as_its_folder(path)
    except OSError as error:
        raise StoreError(f"store {store.uri}: can't write {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise StoreError(f"store {store.uri}: can't lock {path}: {error.strerror or error}") from error
        return False
    return True


_making = threading.Lock()
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems without locks answer: some of networks, clusters and FUSE."""
