"""The store's own errors, what a backend's errors become, and how long a store that is away is waited for.

.. code-block:: text

    NightjarError
    └── StoreError            nothing can be done here, and trying again does not help
        ├── StoreUnavailable  the store did not answer for as long as it was waited for: try again later
        ├── FileMissing       no file of that name is there
        └── FileDamaged       the file is not what was written

File systems share no class of error: a disk raises OSError, an object store whatever its library has. They
are distinguished here by what they say, so that no library is imported for it, and nowhere else.
"""

import errno
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Literal, TypeVar

from metrics.errors import NightjarError
from tasks.store.beside import beating

T = TypeVar("T")
Doing = Literal["list", "look for", "read", "rename", "remove", "write"]
"""What is done to a file: sentences say it, and the class of an error depends on it."""
PATIENCE: Final = 300.0
"""Seconds that a store that is away is waited for."""
NOTICE_SECONDS: Final = 15.0
"""Between two sentences about a store that is away."""
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_TRANSIENT: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN}
    | {errno.EHOSTUNREACH, errno.EINTR, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE}
    | {errno.ESTALE, errno.ETIMEDOUT}
)
_BY_NAME: Final = re.compile(
    r"Timeout|TimedOut|Disconnected|IncompleteRead|ConnectionClosed|ConnectionError|EndpointConnection"
    r"|ClientConnection|HTTPClientError|ResponseParser|ResponseStreaming|ServiceRequest|ServiceResponse"
    r"|TransportError|ClientPayload|Checksum"
)
"""Classes of botocore, aiohttp, requests, google and azure that blame the wire, not the request."""
_WORDLESS: Final = frozenset({"Bad Request", "Forbidden"})
"""What is left of a refusal to look something up: the answer has no body that says more."""
_HINT: Final = " (are the credentials valid, and allowed to do this?)"
_NO_SUCH_FILE: Final = frozenset({errno.ENOTDIR, errno.ENAMETOOLONG})
"""By these a disk says that there can be no file of a name."""
_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
STORE_LOG: Final = logging.getLogger("tasks.store")
"""What people should know of a store while a run goes on, that it is away or what is damaged: a command line
shows it."""


class StoreError(NightjarError):
    """The store can't be read or written."""


class StoreUnavailable(StoreError):
    """The store did not answer for as long as it was waited for."""


class FileMissing(StoreError):
    """No file of that name is in the store."""


class FileDamaged(StoreError):
    """A file of the store is not what was written."""


def is_passing(error: BaseException, local: bool = False) -> bool:
    """Whether a backend's error may be gone when it is tried again.

    On a disk an input/output error is damage; s3fs gives the same number for an error of the server's.

    >>> is_passing(ConnectionResetError()), is_passing(PermissionError()), is_passing(ValueError())
    (True, False, False)
    """
    if isinstance(error, StoreError):
        return isinstance(error, StoreUnavailable)
    status = _status(error)
    if status is not None:
        return status in _STATUSES
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if (number := _errno(error)) is not None:
        return number in _TRANSIENT or (number == errno.EIO and not local)
    return any(_BY_NAME.search(kind.__name__) for kind in type(error).__mro__)


def _errno(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries, if any."""
    response = getattr(error, "response", None)
    metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    found: Any = (
        metadata.get("HTTPStatusCode") if metadata else None,
        *(getattr(error, name, None) for name in ("status", "status_code", "code")),
        getattr(response, "status_code", None),
    )
    return next((value for value in found if isinstance(value, int) and 100 <= value < 600), None)


def reason_of(error: BaseException) -> str:
    """What a backend's error says, in a line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{_HINT}" if error.strerror in _WORDLESS else error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())


class Boundary:
    """Where every call of a store's backend passes: errors become the store's own, and a store that is away
    is waited for, and named while that lasts.

    ``away`` says since when it has been away, by the monotonic clock; ``back`` when it last came back.
    """

    def __init__(self, uri: str, local: bool) -> None:
        self.uri = uri
        self._local = local
        self._lock = threading.Lock()
        self._away: float | None = None
        self._noted = 0.0
        self.back = -float("inf")

    def call(self, doing: Doing, name: str, call: Callable[[], T], patience: float | None = None) -> T:
        """What ``call`` returns. Raises FileMissing where it finds no file, FileDamaged where a disk fails to
        read it, StoreUnavailable where the store is away for longer than ``patience`` seconds (None:
        ``PATIENCE``), else StoreError."""
        began = time.monotonic()
        limit = PATIENCE if patience is None else patience
        for pause in _pauses():
            try:
                with nullcontext() if self._local else self._watched(doing, name):
                    result = call()
            except StoreError:
                raise
            except FileNotFoundError as error:
                self._is_back()
                if doing == "write":  # an object store makes folders by itself, but no bucket
                    said = f"there is no such bucket or folder ({reason_of(error)})"
                    raise StoreError(f"store {self.uri}: can't write {name}: {said}") from error
                raise FileMissing(f"store {self.uri}: {name} is not there") from error
            except Exception as error:
                if self._local and doing in ("look for", "read") and _errno(error) in _NO_SUCH_FILE:
                    raise FileMissing(f"store {self.uri}: {name} is not there") from error
                said = f"store {self.uri}: can't {doing} {name}: {reason_of(error)}"
                if not is_passing(error, self._local):
                    damaged = self._local and doing == "read" and _errno(error) == errno.EIO
                    raise (FileDamaged if damaged else StoreError)(said) from error
                waited = time.monotonic() - began
                if waited + pause > limit:
                    told = f" (tried for {waited:.0f} s)" if waited >= 1 else ""
                    raise StoreUnavailable(said + told) from error
                self._is_away(f"{said}; trying again for up to {limit - waited:.0f} s more")
            else:
                self._is_back()
                return result
            time.sleep(pause)
        raise AssertionError

    @contextmanager
    def _watched(self, doing: Doing, name: str) -> Iterator[None]:
        """A block that is named while it lasts long: libraries try again by themselves, and say nothing."""
        began = time.monotonic()

        def tell() -> None:
            waited = time.monotonic() - began
            self._is_away(f"store {self.uri}: has not answered for {waited:.0f} s (to {doing} {name})")

        with beating(tell, NOTICE_SECONDS, f"store {self.uri}", patience=0):
            yield

    def _is_away(self, said: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._away = now if self._away is None else self._away
            if now - self._noted < NOTICE_SECONDS and self._noted:
                return
            self._noted = now
        STORE_LOG.warning("%s", said)

    def _is_back(self) -> None:
        if self._away is None:
            return
        with self._lock:
            away, self._away, self._noted = self._away, None, 0.0
            self.back = time.monotonic()
        if away is not None:
            STORE_LOG.warning("store %s answers again, after %.0f s", self.uri, self.back - away)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)
