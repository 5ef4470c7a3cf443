"""A model's share of a limit that all runs and workers hold together: Prefect's global concurrency limits.

``prefect global-concurrency-limit create ENDPOINT --limit 64``, and ``concurrency_limit: ENDPOINT`` in the
config of every model that lives there; of servers that runs start, ``concurrency_limit`` under ``serve``.
"""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse
from prefect.context import TaskRunContext
from prefect.exceptions import ObjectNotFound

from metrics.errors import ConfigError
from tasks.models.progress import Progress
from tasks.prefect_adapter import secret_block
from tasks.reporting.progress import (
    PLAIN_SECONDS,
    board_is_open,
    in_notebook,
    notebook_board,
    percent,
    progress_line,
    progress_markdown,
    reporter,
)
from tasks.store.beside import beating, beside

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
        _wait(PATIENCE_SECONDS, check)


def _entered(stack: ExitStack, client: SyncPrefectClient, name: str, size: int) -> bool:
    """Whether ``size`` places could be taken now; they are given back when the stack is left."""
    try:
        answer = client.increment_concurrency_slots_with_lease([name], size, "concurrency", LEASE_SECONDS)
    except httpx.HTTPError as error:
        if _status(error) == httpx.codes.LOCKED:
            return False  # somebody else was quicker
        if not _is_away(error):
            raise
        _log.warning(AWAY, _fault(error))
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
            if _status(error) in LOST:
                _log.warning("places of a concurrency limit were lost; others may take them (%s)", error)
                return True
            _log.warning(AWAY, _fault(error))
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


def secret(name: str) -> str:
    """The value of the Secret block ``name``; raises ConfigError where the server has none."""
    try:
        return secret_block(name)
    except ValueError as error:
        raise ConfigError(
            f"api_key_secret: the Prefect server has no Secret block '{name}'; create it in the UI under "
            "Blocks, or name an environment variable in api_key_env"
        ) from error


WEBHOOK: Final = "NIGHTJAR_WEBHOOK"
WEBHOOK_BLOCK: Final = "nightjar-notifications"
"""Where the address of notifications stands: in the environment, or encrypted on the server."""


def webhook_address() -> str | None:
    """Where notifications go; None where nobody wants any.

    Raises httpx.TransportError while the server, which keeps the address, does not answer.
    """
    from prefect.blocks.webhook import Webhook

    if address := os.environ.get(WEBHOOK):
        return address
    try:
        block = Webhook.load(WEBHOOK_BLOCK, _sync=True)  # type: ignore[call-arg]
    except ValueError:
        return None
    return str(block.url.get_secret_value())  # type: ignore[union-attr]


T = TypeVar("T")

SERVER_PATIENCE_SECONDS = 300.0
"""How long a server may be away: a restart with a migration takes a minute or two."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 15.0


LOOK_SECONDS = 0.25
"""How often who waits is asked whether the waiting is over."""
AWAY: Final = "the Prefect server does not answer (%s); trying again"


def retry_until_up(
    call: Callable[[], T],
    patience: float = SERVER_PATIENCE_SECONDS,
    check: Callable[[], None] = lambda: None,
) -> T:
    """What ``call`` returns, tried again while the server is away; raises its error when patience ends, and
    what ``check`` raises meanwhile."""
    deadline, wait = time.monotonic() + patience, FIRST_WAIT
    while True:
        try:
            return call()
        except httpx.HTTPError as error:
            if not _is_away(error) or time.monotonic() + wait > deadline:
                raise
            _log.warning(AWAY, _fault(error))
        _wait(wait, check)
        wait = min(2 * wait, LONGEST_WAIT)


def _wait(seconds: float, check: Callable[[], None]) -> None:
    """Sleeps that long, or until ``check`` raises."""
    end = time.monotonic() + seconds
    check()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_SECONDS))
        check()


def _status(error: httpx.HTTPError) -> int | None:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def _is_away(error: httpx.HTTPError) -> bool:
    """Whether the server, or a proxy before it, can't answer now: no connection, overload, a fault of its
    own."""
    status = _status(error)
    if status is None:
        return isinstance(error, httpx.TransportError)
    return status in (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS) or status >= 500


def _fault(error: httpx.HTTPError) -> str:
    status = _status(error)
    return type(error).__name__ if status is None else f"HTTP {status}"


def if_possible(call: Callable[[], object], patience: float = SERVER_PATIENCE_SECONDS) -> None:
    """``retry_until_up`` for what is worth waiting for but no reason to fail: a table on the run's page."""
    try:
        retry_until_up(call, patience)
    except httpx.HTTPError as error:
        if not _is_away(error):
            raise
        _log.warning("left out of the run's page: the Prefect server does not answer (%s)", error)


VERDICT_LABEL, PAIRS_LABEL = "nightjar.verdict", "nightjar.pairs"
"""Labels of a flow run that a gate judged: its verdict, and as JSON the pairs that did not pass."""


def label_verdict(flow_run_id: str, verdict: str | None, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Writes a gate's verdict on the flow run, where automations read it whatever state the run ends in."""
    labels: dict[str, bool | int | float | str] = {
        VERDICT_LABEL: verdict or "",
        PAIRS_LABEL: json.dumps(list(pairs)),
    }

    def write() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(UUID(flow_run_id), labels)

    if_possible(write)


SECONDS_BETWEEN_UPDATES = 5.0


@contextmanager
def progress_of(model: str, partition: str) -> Iterator[Callable[[Progress], None]]:
    """What the inference of one partition reports its progress to."""
    if board_is_open():
        yield reporter(model, partition)
    elif in_notebook():
        with notebook_board() as board:
            yield board.reporter(model, partition)
    elif TaskRunContext.get() is None:  # a cluster's worker: no run of this process has a page
        yield lambda _: None
    else:
        with _artifact(model) as report:
            yield report


@contextmanager
def _artifact(model: str) -> Iterator[Callable[[Progress], None]]:
    """Updates a progress artifact from a thread of its own: the engine's loop never waits for the server.

    An inference that ends before the first update needs none.
    """
    latest: dict[str, Progress] = {}
    log = _run_log()

    def publish(done: threading.Event) -> None:
        identifier: UUID | None = None
        told, since = "", time.monotonic()
        while not done.wait(SECONDS_BETWEEN_UPDATES):
            identifier = _update(identifier, dict(latest))
            if time.monotonic() - since < PLAIN_SECONDS:
                continue
            since = time.monotonic()
            for name, progress in dict(latest).items():
                if (line := progress_line(name, progress)) != told:
                    log.info("%s", line)
                    told = line
        if identifier is not None:
            _update(identifier, dict(latest))

    def report(progress: Progress) -> None:
        latest[model] = progress

    with beside(publish, f"progress of {model}", patience=2 * SECONDS_BETWEEN_UPDATES):
        yield report


def _run_log() -> "logging.Logger | logging.LoggerAdapter[Any]":
    """The log of the task run that is under way, which a worker prints and the server keeps; else our own."""
    from prefect import get_run_logger
    from prefect.exceptions import MissingContextError

    try:
        return get_run_logger()
    except MissingContextError:
        return _log


def _update(identifier: UUID | None, models: dict[str, Progress]) -> UUID | None:
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    if not models:
        return identifier
    share, said = percent(models), progress_markdown(models)
    try:
        if identifier is None:
            created = create_progress_artifact(progress=share, description=said)
            return created if isinstance(created, UUID) else None
        update_progress_artifact(identifier, progress=share, description=said)
    except Exception as error:  # the server may be away: inference goes on, and so does the next update
        _log.debug("progress artifact: %s", error)
    return identifier
