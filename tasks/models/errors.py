"""What can go wrong with one request, and whether asking again can help.

RequestError                      a request did not give an answer
├─ TransientError                 asking again may help; if it never does, the row ends ``infra_error``
│  ├─ RateLimited                 429
│  ├─ ServerFault                 5xx, 409, 425
│  │  └─ Overloaded               503, 529
│  ├─ ConnectionFault             refused, reset, cut in the middle
│  ├─ RequestTimeout              408, or no answer within ``timeout``
│  └─ MalformedBody               200 with an empty body, broken JSON, or JSON of another shape
├─ PermanentError                 this request will never be answered: the row ends ``model_error``, settled
│  ├─ BadRequest                  400, 422 and the like, for a reason the server gives
│  ├─ ContextTooLong              the prompt does not fit
│  ├─ ContentFiltered             the provider's filter refused prompt or answer
│  ├─ Refused                     the model refused
│  └─ EmptyAnswer                 an answer without content
└─ EndpointError                  no request here will be answered: all that remain end ``infra_error``
   ├─ AccessDenied                401, 402, 403, an exhausted quota
   ├─ NotServed                   404: wrong path or unknown model
   └─ EndpointDead                nothing but failures over a whole schedule of retries
"""

from metrics.errors import NightjarError

LONGEST_MESSAGE = 500


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
    """The server answered 5xx, 409 or 425."""


class Overloaded(ServerFault):
    """The server says that it has too much to do."""


class ConnectionFault(TransientError):
    """No connection, or one that was cut."""


class RequestTimeout(TransientError):
    """No answer in time."""


class MalformedBody(TransientError):
    """An answer that is not what the protocol says."""


class PermanentError(RequestError):
    """This request will never be answered."""


class BadRequest(PermanentError):
    """The server will not take this request."""


class ContextTooLong(PermanentError):
    """The prompt does not fit into the model's context."""


class ContentFiltered(PermanentError):
    """A filter stands between the prompt and an answer."""


class Refused(PermanentError):
    """The model refused to answer."""


class EmptyAnswer(PermanentError):
    """The answer has no content."""


class EndpointError(RequestError):
    """No request to this endpoint will be answered."""


class AccessDenied(EndpointError):
    """The key is missing, wrong, or its quota is used up."""


class NotServed(EndpointError):
    """The endpoint does not know this path or this model."""


class EndpointDead(EndpointError):
    """The endpoint answered nothing over a whole schedule of retries."""


def shortened(text: str) -> str:
    """A server's words on one line, of a length that an error has room for."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
