"""The records of inference: a request, the call that carries it, the reply to the call, the kept answer.

Two seams stand beside them. A ``RequestCodec`` makes calls of requests and answers of replies (generation,
log-likelihoods); a ``Provider`` sends a call and gives back the reply (plain HTTP, the official client).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tasks.datasets.item import RequestKind
from tasks.store.keys import canonical_json

IMPLAUSIBLE_COUNT = 1 << 40
"""No reply has so many tokens: such a count is a server's mistake, and sums of them fit no column."""

AnswerStatus = Literal["ok", "cut_off", "model_error", "infra_error"]


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked of a model: an answer to a prompt, or how likely a continuation is.

    ``key`` is the 32-byte request key. A chat prompt is the JSON text of its messages. ``seed`` is the seed
    this sample is drawn with.
    """

    key: bytes
    kind: RequestKind
    prompt: str
    continuation: str = ""
    chat: bool = False
    sample_index: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to one request, as it is kept under the request's key.

    ``response`` is text if ``status`` is ok and a text was asked for, ``tool_calls_json`` holds the calls of
    tools beside it (``tasks.messages.calls``), ``ll`` and ``is_greedy`` the
    log-likelihood of the continuation otherwise. "cut_off": the tokens were used up before an answer began.
    "infra_error" is never kept: a codec says so of one request among several. ``arrived`` is in seconds
    since 1970, ``inference_time`` in seconds of the attempt that succeeded. ``asked_at`` (seconds since 1970;
    0: when it arrived) says when that attempt was sent, ``night`` in which night; the writer of answers adds
    both.
    """

    key: bytes
    status: AnswerStatus
    response: str | None = None
    reasoning: str | None = None
    error: str | None = None
    attempts: int = 1
    finish_reason: str | None = None
    response_id: str | None = None
    served_model: str | None = None
    system_fingerprint: str | None = None
    inference_time: float | None = None
    arrived: float = 0.0
    asked_at: float = 0.0
    night: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    tool_calls_json: str | None = None
    logprobs: Any = None
    ll: float | None = None
    is_greedy: bool | None = None
    ll_tokens: int | None = None


@dataclass(frozen=True)
class Lookup:
    """Which kept answers count: of each request the one asked for last, among those of ``night`` (None: of
    any) that were asked for at ``not_before`` (seconds since 1970) or later; errors of the model also at
    ``failed_before`` or later.
    """

    night: str | None = None
    not_before: float = 0.0
    failed_before: float = 0.0


EVERY = Lookup()
"""The newest answer to each request, whenever and by whomever it was asked for."""


@dataclass(frozen=True)
class RequestFailure:
    """Why a request has no answer, and after how many attempts."""

    error: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request: the path below ``base_url`` and the JSON body."""

    path: Literal["chat/completions", "completions"]
    body: Mapping[str, Any]
    media: int = 0
    """Characters of images and sounds in the body: they say nothing of its tokens."""

    @property
    def content(self) -> bytes:
        """The body's bytes."""
        return canonical_json(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed JSON body, as it would come without streaming, and the seconds it took."""

    body: Mapping[str, Any]
    seconds: float


class Provider(Protocol):
    """Sends calls to a model. Made and closed on the loop that uses it."""

    async def send(self, call: Call, timeout: float) -> Reply:
        """The reply to a call within ``timeout`` seconds; raises an error of ``tasks.models.errors``."""
        ...

    async def close(self) -> None:
        """Frees the connections."""
        ...


class RequestCodec(Protocol):
    """Encodes requests as calls, and decodes replies as answers."""

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The calls for requests that belong together; raises PermanentError."""
        ...

    def answers(
        self, requests: Sequence[Request], replies: Sequence[Reply], attempts: int
    ) -> list[KeptAnswer]:
        """One answer a request; raises TransientError or PermanentError."""
        ...


def provenance(reply: Reply) -> dict[str, Any]:
    """The fields of an answer that say where and when it came from."""
    body = reply.body
    return {
        "response_id": text_or_none(body.get("id")),
        "served_model": text_or_none(body.get("model")),
        "system_fingerprint": text_or_none(body.get("system_fingerprint")),
        "inference_time": reply.seconds,
        "arrived": time.time(),
    }


def usage_of(body: Mapping[str, Any], parts: int) -> list[dict[str, int | None]]:
    """The reply's token counts divided over its answers, so that their sum is what was used."""
    usage = body.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    counts = {
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "total_tokens": _count(usage, "total_tokens"),
        "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    }
    if parts == 1:
        return [counts]
    return [
        {
            name: None if count is None else count // parts + (part < count % parts)
            for name, count in counts.items()
        }
        for part in range(parts)
    ]


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < IMPLAUSIBLE_COUNT
    return value if counts else None


def text_or_none(value: Any) -> str | None:
    """``value`` if it is text: servers put anything into a field."""
    return value if isinstance(value, str) else None
