"""A model's share of a limit that all runs and workers hold together: Prefect's global concurrency limits.

``prefect global-concurrency-limit create ENDPOINT --limit 64``, and ``concurrency_limit: ENDPOINT`` in the
config of every model that lives there; of servers that runs start, ``concurrency_limit`` under ``serve``.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse
from prefect.exceptions import ObjectNotFound

from metrics.errors import ConfigError
from tasks.patience import AWAY, fault_of, is_away, retry_until_up, status_of, wait_checked
from tasks.store.beside import beating

_log = logging.getLogger(__name__)
PATIENCE_SECONDS = 1.0
"""How long is waited before the server is asked again what is free."""
LEASE_SECONDS = 90.0
"""How long places stay taken after the process that held them was killed."""
LOST: Final = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
"""Statuses by which the server says that it knows a lease no more."""


@contextmanager
def lease(name: str, places: int, check: Callable[[], None]) -> Iterator[int]:
    """Holds a block of up to ``places`` of the limit ``name``, and gives its size: how many requests may be
    in flight.

    A block is held for a whole partition, so that a request costs no call to the Prefect server. It is
    renewed while the process lives and comes free by itself ``LEASE_SECONDS`` after the process was killed.
    A server that is away is waited for, and ends no run: at worst others get the places, too. Waits while
    nothing is free; ``check`` is called meanwhile, and what it raises ends the waiting. Raises ConfigError
    where the server knows no such limit: a limit that is not there would limit nothing, unnoticed.
    """
    with ExitStack() as stack:
        yield _take(stack, stack.enter_context(get_client(sync_client=True)), name, places, check)


def _take(
    stack: ExitStack, client: SyncPrefectClient, name: str, places: int, check: Callable[[], None]
) -> int:
    while True:
        limit, free = retry_until_up(lambda: _state(name), check=check)
        if free and _entered(stack, client, name, size := block(places, limit, free)):
            return size
        wait_checked(PATIENCE_SECONDS, check)


def _entered(stack: ExitStack, client: SyncPrefectClient, name: str, size: int) -> bool:
    """Whether ``size`` places could be taken now; they are given back when the stack is left."""
    try:
        answer = client.increment_concurrency_slots_with_lease([name], size, "concurrency", LEASE_SECONDS)
    except httpx.HTTPError as error:
        if status_of(error) == httpx.codes.LOCKED:
            return False  # somebody else was quicker
        if not is_away(error):
            raise
        _log.warning(AWAY, fault_of(error))
        return False
    taken = ConcurrencyLimitWithLeaseResponse.model_validate_json(answer.content)
    if not taken.limits:
        raise ConfigError(
            f"concurrency_limit '{name}' was deleted, or is switched off, on the Prefect server"
        )
    stack.enter_context(_renewed(client, taken.lease_id))
    return True


@contextmanager
def _renewed(client: SyncPrefectClient, lease_id: UUID) -> Iterator[None]:
    """Renews a lease while the block runs, and gives its places back after it.

    All by the client that took it, with blocking requests. At the end of a process Prefect's ``concurrency``
    has no event loop to give back with, and a client made there asks a server of its own, which knows nothing
    of the lease.
    """

    def renew() -> bool:
        try:
            client.renew_concurrency_lease(lease_id, LEASE_SECONDS)
        except httpx.HTTPError as error:
            if status_of(error) in LOST:
                _log.warning("places of a concurrency limit were lost; others may take them (%s)", error)
                return True
            _log.warning(AWAY, fault_of(error))
        return False

    try:
        with beating(renew, LEASE_SECONDS / 4, f"lease {lease_id}"):
            yield
    finally:
        try:
            client.release_concurrency_slots_with_lease(lease_id)
        except httpx.HTTPError as error:
            _log.warning("places of a concurrency limit come free later (%s)", error)


def hold(name: str, places: int, wanted: Callable[[], bool], check: Callable[[], None]) -> None:
    """Returns once ``places`` of the limit ``name`` are held, all of them together. They stay so until
    ``wanted`` says no, or come free ``LEASE_SECONDS`` after this process was killed.

    A thread goes on asking ``wanted``; it need not be this task that ends what the places are for.
    ``check`` is called while nothing is free, and what it raises ends the waiting. Raises ConfigError where
    the server knows no such limit, or a smaller one.
    """
    limit, _ = retry_until_up(lambda: _state(name), check=check)
    if places > limit:
        raise ConfigError(
            f"concurrency_limit '{name}' has {limit} places, and a server takes {places}, one for each GPU"
        )
    held, failed = threading.Event(), list[Exception]()
    own_client = get_client(
        sync_client=True
    )  # here: the settings that name the server may end before the thread

    def keep() -> None:
        try:
            with ExitStack() as stack:
                client = stack.enter_context(own_client)
                while not _entered(stack, client, name, places):
                    if not wanted() or not threading.main_thread().is_alive():
                        return
                    time.sleep(PATIENCE_SECONDS)
                held.set()
                while wanted() and threading.main_thread().is_alive():
                    time.sleep(PATIENCE_SECONDS / 4)
        except Exception as error:
            failed.append(error)
        finally:
            held.set()

    # Not daemonic: a process that ends gives back what it held, and nobody waits for the lease to run out.
    threading.Thread(target=keep, name=f"places of {name}").start()
    while not held.wait(PATIENCE_SECONDS / 4):
        check()
    if failed:
        raise failed[0]


def block(places: int, limit: int, free: int) -> int:
    """How many places to take of those that are free.

    A quarter of the limit is left for those who come next, and of that quarter half is: everybody gets
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
