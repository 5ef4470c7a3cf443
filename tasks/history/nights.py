"""Which night a run on the command line belongs to: its predecessor's, where that did not get to its end.

A deployment's night is its flow run, which a retry keeps. On the command line a run that was killed or failed
is simply started again, and then goes on with the night whose answers it has already asked for:
``nights/<digest of the config>.json`` says which that is until the night is done.
"""

import json
import time
import uuid
from datetime import datetime
from typing import Any, Final

from tasks.store.keys import digest
from tasks.store.storage import Store

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
