"""A model's share of a limit that all runs and workers hold together: Prefect's global concurrency limits.

``prefect global-concurrency-limit create ENDPOINT --limit 64``, and ``concurrency_limit: ENDPOINT`` in the
config of every model that lives there.
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prefect import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from metrics.errors import ConfigError

PATIENCE_SECONDS = 1.0
"""How long is waited before the server is asked again what is free."""


@contextmanager
def lease(name: str, places: int) -> Iterator[int]:
    """Holds a block of up to ``places`` of the limit ``name``, and gives its size: how many requests may be
    in flight.

    A block is held for a whole partition, so that a request costs no call to the Prefect server. It is
    renewed while the process lives and comes free by itself some minutes after the process was killed.
    Waits while nothing is free. Raises ConfigError where the server knows no such limit: a limit that is
    not there would limit nothing, unnoticed.
    """
    with ExitStack() as stack:
        yield _take(stack, name, places)


def _take(stack: ExitStack, name: str, places: int) -> int:
    while True:
        limit, free = _state(name)
        if free == 0:
            time.sleep(PATIENCE_SECONDS)
            continue
        size = block(places, limit, free)
        try:
            stack.enter_context(concurrency(name, occupy=size, timeout_seconds=PATIENCE_SECONDS, strict=True))
        except TimeoutError:  # somebody else was quicker
            continue
        return size


def block(places: int, limit: int, free: int) -> int:
    """How many places to take of those that are free.

    A quarter of the limit is left for whoever comes next, and of that quarter half is: everybody gets
    something at once, and one run alone gets most.

    >>> [block(64, limit=64, free=free) for free in (64, 16, 1)]
    [48, 8, 1]
    >>> block(8, limit=64, free=64)
    8
    """
    reserve = math.ceil(limit / 4)
    available = free - reserve if free > reserve else free // 2
    return max(1, min(places, available))


def _state(name: str) -> tuple[int, int]:
    """Size of a limit, and how much of it is free."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            raise ConfigError(
                f"concurrency_limit '{name}' is not on the Prefect server; create it with:"
                f" prefect global-concurrency-limit create {name} --limit N"
            ) from None
    return found.limit, max(0, found.limit - found.active_slots)
