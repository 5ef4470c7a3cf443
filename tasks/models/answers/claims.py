"""Each request by one worker: those that want the same answers at once share them out.

Before it asks, a worker claims the keys that it lacks, model by model. A key belongs to the oldest claim that
lives and holds it; who came later asks for the rest, waits until that claim ends, and looks again at what is
there. So nobody waits for a later one, and a killed worker holds nobody up.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from tasks.models.answers.segments import ModelAnswers
from tasks.store import claims
from tasks.store.claims import Claim, Watch, is_dead, owner_of

KEY_BYTES = 16
"""Bytes of a key that a claim holds: enough to tell keys apart."""


@contextmanager
def claim_keys(
    answers: ModelAnswers, keys: Collection[bytes], night: str | None = None
) -> Iterator["ClaimedKeys"]:
    """Claims ``keys`` until the block ends, and gives which of them others are at already.

    ``night`` is given by whom only answers of this night serve: claims of other nights then don't count.
    Raises StoreError.
    """
    held = b"".join(key[:KEY_BYTES] for key in keys)
    with Claim.made(answers.store, answers.folder, {"night": night}, held) as own:
        yield ClaimedKeys(own, keys, night)


class ClaimedKeys:
    """A worker's keys; ``others`` are those that earlier claims hold."""

    def __init__(self, own: Claim, keys: Collection[bytes], night: str | None) -> None:
        self._watch = Watch(own)
        by_start = {key[:KEY_BYTES]: key for key in keys}
        held: dict[str, set[bytes]] = {}
        for entry in own.earlier():
            content = own.content(entry)
            if content is not None and is_dead(content):
                own.remove(entry)
            elif content is not None and night in (None, owner_of(content).get("night")):
                held[entry] = {by_start[start] for start in _starts(own.attached(entry)) if start in by_start}
        self._earlier = [entry for entry, theirs in held.items() if theirs]
        self.others: set[bytes] = {key for theirs in held.values() for key in theirs}

    def wait(self, may_go_on: Callable[[], bool]) -> bool:
        """Waits until the claims that hold ``others`` have ended; False where ``may_go_on`` said no."""
        while self._alive():
            if not may_go_on():
                return False
            time.sleep(claims.POLL_SECONDS)
        return True

    def _alive(self) -> bool:
        self._earlier = [entry for entry in self._earlier if self._watch.lives(entry)]
        return bool(self._earlier)


def _starts(held: bytes) -> Iterator[bytes]:
    return (held[start : start + KEY_BYTES] for start in range(0, len(held), KEY_BYTES))
