"""What a provider's interface for batches is: how a request stands in a job, how a job is sent, found, looked
at and cancelled, and how its rows come back.

A provider names its form in ``AskedProvider.batches``. A form keeps nothing: what has to survive a kill is in
the records.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import orjson

from tasks.models.errors import MalformedBody
from tasks.models.records import Call

if TYPE_CHECKING:
    from tasks.models.http import HttpTransport

JOB_SECONDS: Final = 60.0
"""For an exchange about a job."""
FILE_SECONDS: Final = 3_600.0
"""For a file of requests or of replies."""
LISTED: Final = 100
"""Jobs on a page of a provider's list."""
SKEW_SECONDS: Final = 600.0
"""How far the clocks of this machine and of a provider may be apart."""
NOT_ASKED: Final = 0
"""The status of a row that the job has not asked: it expired, or the job was cancelled before."""


@dataclass(frozen=True)
class SentFile:
    """The requests of one job as a file: ``name`` is the job's name here, ``model`` the served model,
    ``path`` where its calls go, ``file`` the uploaded file's id, for a form that uploads."""

    name: str
    model: str
    path: str
    local: Path
    file: str | None = None


@dataclass(frozen=True)
class Sought:
    """What is known of a job that may be there: its name, when its intent was written (seconds since 1970),
    how many requests it has, its uploaded file, and ids of jobs that are not this one."""

    name: str
    created: float
    count: int
    file: str | None
    others: Collection[str] = ()


@dataclass(frozen=True)
class JobStatus:
    """How far a job is. ``files`` name what its rows are read from; ``said`` is why it failed."""

    state: Literal["running", "ended", "failed"]
    done: int = 0
    files: tuple[str, ...] = ()
    said: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A job's outcome of one request: the HTTP status and the body that a single request would have had;
    NOT_ASKED where there is none."""

    id: str
    status: int
    content: bytes = b""


class BatchForm(ABC):
    """A provider's interface for batches. All methods raise errors of ``tasks.models.errors``."""

    most_requests: ClassVar[int]
    most_bytes: ClassVar[int]
    opening: ClassVar[bytes] = b""
    between: ClassVar[bytes] = b"\n"
    closing: ClassVar[bytes] = b"\n"
    uploads: ClassVar[bool] = True
    """Whether the file is uploaded before the job is made."""
    marks: ClassVar[bool] = True
    """Whether a job bears a mark by which it is found for sure."""

    by_hand: ClassVar[bool] = False
    """Whether a person has its jobs answered, by a ``command``; else the provider answers them by itself."""

    def command(self, _id: str) -> str | None:
        """What a person runs to have a job answered."""
        return None

    @abstractmethod
    def line(self, id: str, call: Call) -> bytes:
        """A request as it stands in the file."""

    async def upload(self, _http: "HttpTransport", _sent: SentFile) -> str | None:
        """Uploads the file, and gives its id there; None where the job itself carries the requests."""
        return None

    @abstractmethod
    async def create(self, http: "HttpTransport", sent: SentFile) -> str:
        """Makes the job, and gives its id."""

    @abstractmethod
    async def find(self, http: "HttpTransport", sought: Sought) -> str | None:
        """The id of a job that was made for an intent, if there is one."""

    @abstractmethod
    async def look(self, http: "HttpTransport", id: str) -> JobStatus:
        """How far a job is."""

    @abstractmethod
    def rows(self, http: "HttpTransport", id: str, status: JobStatus) -> AsyncIterator[Row | MalformedBody]:
        """What came of the requests of a job that has ended, in any order, with the reason in the place of a
        row that can't be read; what is missing was not asked."""

    @abstractmethod
    async def cancel(self, http: "HttpTransport", id: str) -> None:
        """Asks for an early end: what is answered by then is given."""


def json_bytes(value: Any) -> bytes:
    """JSON without white space."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, more levels than it takes
        return json.dumps(value).encode()


def listed(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of a page."""
    found = body.get(name)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def id_of(body: Mapping[str, Any]) -> str:
    """The id of a file or a job; raises MalformedBody."""
    if not isinstance(body.get("id"), str):
        raise MalformedBody("what came about a file or a batch names no id")
    return str(body["id"])


def counted(counts: Any, *names: str) -> int:
    """The sum of some counts, which some providers write as texts."""
    held = counts if isinstance(counts, Mapping) else {}
    return sum(int(held[name]) for name in names if str(held.get(name) or "").isdigit())
