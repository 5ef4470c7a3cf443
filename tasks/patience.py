"""Calls to the Prefect server that outlast its absence.

Prefect's clients wait by themselves for a server they have spoken to before; one that is new, as a task's is,
gives up at once. A restart of the server must not cost a night what it has computed.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
"""How long a server may be away: a restart with a migration takes a minute or two."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 15.0

_log = logging.getLogger(__name__)


def patiently(call: Callable[[], T], patience: float = PATIENCE_SECONDS) -> T:
    """What ``call`` returns, tried again while the server does not answer; raises its error when patience
    ends."""
    deadline, wait = time.monotonic() + patience, FIRST_WAIT
    while True:
        try:
            return call()
        except httpx.TransportError as error:
            if time.monotonic() + wait > deadline:
                raise
            _log.warning("the Prefect server does not answer (%s); trying again", type(error).__name__)
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def if_possible(call: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """As ``patiently``, for what is worth waiting for but no reason to fail: a table on the run's page."""
    try:
        patiently(call, patience)
    except httpx.TransportError as error:
        _log.warning("left out of the run's page: the Prefect server does not answer (%s)", error)
