"""What is asked of the Prefect server while it may be away: it is waited for, and asked again."""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

import httpx

_log = logging.getLogger(__name__)
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
            if not is_away(error) or time.monotonic() + wait > deadline:
                raise
            _log.warning(AWAY, fault_of(error))
        wait_checked(wait, check)
        wait = min(2 * wait, LONGEST_WAIT)


def wait_checked(seconds: float, check: Callable[[], None]) -> None:
    """Sleeps that long, or until ``check`` raises."""
    end = time.monotonic() + seconds
    check()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_SECONDS))
        check()


def status_of(error: httpx.HTTPError) -> int | None:
    """The status that the server answered with; None: it did not answer."""
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def is_away(error: httpx.HTTPError) -> bool:
    """Whether the server, or a proxy before it, can't answer now: no connection, overload, a fault of its
    own."""
    status = status_of(error)
    if status is None:
        return isinstance(error, httpx.TransportError)
    return status in (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS) or status >= 500


def fault_of(error: httpx.HTTPError) -> str:
    """The status, or what came in place of an answer, for a message."""
    status = status_of(error)
    return type(error).__name__ if status is None else f"HTTP {status}"


def if_possible(call: Callable[[], object], patience: float = SERVER_PATIENCE_SECONDS) -> None:
    """``retry_until_up`` for what is worth waiting for but no reason to fail: a table on the run's page."""
    try:
        retry_until_up(call, patience)
    except httpx.HTTPError as error:
        if not is_away(error):
            raise
        _log.warning("left out of the run's page: the Prefect server does not answer (%s)", error)
