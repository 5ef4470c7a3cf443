"""What can go wrong with one request, and whether asking again can help.

RequestError                      a request did not give an answer
├─ TransientError                 asking again may help; if it never does, the row ends ``infra_error``
│  ├─ RateLimited                 429
│  ├─ ServerFault                 5xx, 409, 425, 499, an error inside a reply, an answer that was broken off
│  │  └─ Overloaded               503, 529
│  ├─ ConnectionFault             refused, reset, cut in the middle
│  ├─ RequestTimeout              408, or no answer within ``timeout``
│  ├─ MalformedBody               200 with an empty body, broken JSON, or JSON of another shape; 204
│  └─ EmptyAnswer                 a finished answer of which nothing is there: no text, thought, tool call
├─ PermanentError                 asking again as things are can't help: the row ends ``infra_error``, and
│  │                              the next run asks again, since the server may be fixed by then
│  ├─ BadRequest                  400, 422 and the like, for a reason the server gives
│  ├─ ContextTooLong              the prompt does not fit
│  └─ SettledError                the item's own answer: the row ends ``refused``, and is not asked again
│     ├─ ContentFiltered          the provider's filter refused prompt or answer
│     └─ Refused                  the model refused
└─ EndpointError                  no request here will be answered: all that remain end ``infra_error``
   ├─ AccessDenied                401, 402, 403, a quota that is used up
   ├─ NotServed                   404: wrong path or unknown model
   └─ EndpointDead                nothing but failures over a whole schedule of retries
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from metrics.errors import NightjarError

LONGEST_MESSAGE = 500
FILTERED, REFUSED = "filtered by the provider", "the model refused"
"""How the errors of settled answers begin: by these words a kept answer is known to be settled."""


class ModelError(NightjarError):
    """A model that can't be asked: not there, no access, a key that is missing. Raised before any work."""


class RequestError(Exception):
    """A request did not give an answer. The message is what the row's ``error`` says."""


class TransientError(RequestError):
    """Asking again may help; ``retry_after`` is how many seconds the server asked for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(TransientError):
    """The server answered 429."""


class ServerFault(TransientError):
    """The server answered 5xx, 409, 425 or 499, or broke its answer off."""


class Overloaded(ServerFault):
    """The server says that it has too much to do."""


class ConnectionFault(TransientError):
    """No connection, or one that was cut."""


class RequestTimeout(TransientError):
    """No answer in time."""


class MalformedBody(TransientError):
    """An answer that is not what the protocol says."""


class EmptyAnswer(TransientError):
    """An answer that says it is finished, and of which nothing is there."""


class PermanentError(RequestError):
    """Asking again as things are can't help."""


class SettledError(PermanentError):
    """This request will never be answered, whatever is fixed: it is the item's own."""


class BadRequest(PermanentError):
    """The server will not take this request."""


class ContextTooLong(PermanentError):
    """The prompt does not fit into the model's context."""


class ContentFiltered(SettledError):
    """A filter stands between the prompt and an answer."""


class Refused(SettledError):
    """The model refused to answer."""


class EndpointError(RequestError):
    """No request to this endpoint will be answered."""


class AccessDenied(EndpointError):
    """The key is missing, wrong, or its quota is used up."""


class NotServed(EndpointError):
    """The endpoint does not know this path or this model; ``absent``: it says that nothing is there."""

    def __init__(self, message: str, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class EndpointDead(EndpointError):
    """The endpoint answered nothing over a whole schedule of retries."""


def shortened(text: str) -> str:
    """A server's words on one line, of a length that an error has room for."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def is_settled(error: str) -> bool:
    """Whether a kept answer's error is the item's own, as the errors of settled answers begin; version 0.1.0
    named the filter in its own words.
    """
    return error.startswith((FILTERED, REFUSED)) or "filter" in error


SHORTEST_KEY: Final = 8
"""Characters of a key that may be one. Servers that want none are given ``none``, ``EMPTY``: words of any
text."""

T = TypeVar("T")


@dataclass(frozen=True)
class Redaction:
    """Keeps a key, if there is one, out of error texts: some servers repeat it in theirs. An answer stays as
    it came."""

    key: str | None

    def hide(self, content: bytes) -> bytes:
        """The content of an error without the key."""
        key = (self.key or "").encode()
        return content.replace(key, b"***") if len(key) >= SHORTEST_KEY else content

    def read(self, reader: Callable[[bytes], T], content: bytes) -> T:
        """What ``reader`` makes of an answer as it came. The error that it raises instead has no key."""
        try:
            return reader(content)
        except RequestError as error:
            failed = error
        if (hidden := self.hide(content)) != content:
            reader(hidden)  # raises the same without the key
        raise failed
