"""The records of inference: a request, the call that carries it, the reply to the call, the kept answer;
and the options of an inference.

Two seams stand beside them, and a provider brings both. A ``Codec`` makes calls of requests and answers of
replies (chats, completions, log-likelihoods); a ``Transport`` sends a call and gives back the reply (plain
HTTP, the official client). The infer stage fills the options.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, get_args

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from tasks.datasets.item import RequestKind
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.config import Price, RunLimits, SampleParams
from tasks.models.errors import PermanentError, SettledError
from tasks.models.limits.allowances import Allowance
from tasks.models.usage import text_or_none, usage_of
from tasks.serving.servers import RunningServer
from tasks.store.keys import canonical_json

AnswerStatus = Literal["ok", "cut_off", "refused", "infra_error"]
STATUSES: Final[tuple[AnswerStatus, ...]] = get_args(AnswerStatus)
STATUS_BEFORE: Final = "model_error"
"""What "refused" was called before 2026-11-23: in stores, journals and recorded files it means the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked of a model: an answer to a prompt, or how likely a continuation is.

    ``key`` is the 32-byte request key. A chat prompt is the JSON text of its messages. ``seed`` is the seed
    this sample is drawn with; samples that go together are sent with the first one's, and vLLM counts on from
    it. ``keeps_space``: white space at the prompt's end is not scored with the continuation. ``error``: why
    it can't be asked at all.
    """

    key: bytes
    kind: RequestKind
    prompt: str
    continuation: str = ""
    chat: bool = False
    sample_index: int = 0
    seed: int | None = None
    keeps_space: bool = False
    error: str | None = None


@dataclass(slots=True)  # not frozen, as the others that each request makes: that costs three times as much
class Answer:
    """What a reply says to one request.

    ``response`` is text if ``status`` is ok and a text was asked for, ``tool_calls_json`` holds the calls of
    tools beside it (``tasks.messages.calls``), ``thoughts_json`` the thoughts that the provider wants back
    with the next turn, a list as it gave them; ``ll`` and ``is_greedy`` are the log-likelihood of the
    continuation otherwise, over ``ll_tokens`` tokens. "cut_off": the tokens were used up before an answer
    began. "refused": the model or its provider refused, and ``error`` says it in its words. "infra_error":
    there is no answer, and another server may give one.
    """

    status: AnswerStatus = "ok"
    response: str | None = None
    reasoning: str | None = None
    error: str | None = None
    finish_reason: str | None = None
    tool_calls_json: str | None = None
    thoughts_json: str | None = None
    logprobs: Any = None
    ll: float | None = None
    is_greedy: bool | None = None
    ll_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class KeptAnswer(Answer):
    """The answer to one request, as it is kept under the request's key.

    ``reply_json`` is the request's part of the reply, as it came: what an ``Answer`` says of it is read again
    whenever it is used, and only ``status`` and ``error`` are noted beside it, for finding answers by.
    Answers without it were read when they were kept, before 2026-11-23 or by a stage of ours, and stay as
    they are. "infra_error" is never kept. ``arrived`` is in seconds since 1970, ``inference_time`` in seconds
    of the attempt that succeeded. ``asked_at`` (seconds since 1970; 0: when it arrived) says when that
    attempt was sent, ``night`` in which night, ``asker`` by which inference of which attempt at a run; the
    writer of answers adds these, and a batch says its own time and night. An answer of a batch has no
    ``inference_time``.
    """

    key: bytes
    status: AnswerStatus
    attempts: int = 1
    response_id: str | None = None
    served_model: str | None = None
    system_fingerprint: str | None = None
    inference_time: float | None = None
    arrived: float = 0.0
    asked_at: float = 0.0
    night: str | None = None
    asker: str | None = None
    reply_json: str | None = None


READ_FIELDS: Final = tuple(field.name for field in fields(Answer) if field.name not in ("status", "error"))
"""What is read of a reply again whenever it is used, and not kept beside it."""


@dataclass(frozen=True)
class Lookup:
    """Which kept answers count: of each request the one asked for last, among those of ``night`` (None: of
    any) that were asked for at ``not_before`` (seconds since 1970) or later; errors of the model also at
    ``failed_before`` or later. All times are as ``believed``. Of what ``run`` asked for itself, no time is
    looked at: its clock may have been set back since.
    """

    night: str | None = None
    not_before: float = 0.0
    failed_before: float = 0.0
    run: str | None = None

    def serves(self, night: str | None, asked_at: float, run: str | None = None) -> bool:
        """Whether what that run of that night asked for at that time counts."""
        own = run is not None and run == self.run
        return self.night in (None, night) and (own or bool(believed(asked_at) >= self.not_before))


def asker_of(run: str, inference: str) -> str:
    """What stands beside the answers that an inference of a run asked for."""
    return f"{run}.{inference}"


def run_of(asker: str | None) -> str | None:
    """The run in the name of an asker."""
    return None if asker is None else asker.partition(".")[0]


CLOCKS_AHEAD_SECONDS: Final = 300.0
"""So far the clocks of machines that share a store may be apart."""


def believed(asked_at: ArrayLike) -> NDArray[np.float64]:
    """Times at which answers were asked for, as they count: one that is yet to come is a wrong clock's, and
    counts as before all others."""
    times = np.asarray(asked_at, np.float64)
    return np.where(times > time.time() + CLOCKS_AHEAD_SECONDS, 0.0, times)


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

    path: str
    body: Mapping[str, Any]
    media: int = 0
    """Characters of images and sounds in the body: they say nothing of its tokens."""

    @property
    def content(self) -> bytes:
        """The body's bytes."""
        return canonical_json(self.body)


@dataclass(slots=True)
class Reply:
    """A parsed JSON body, as it would come without streaming, and the seconds that it took."""

    body: Mapping[str, Any]
    seconds: float
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that say which request it was, and who answered."""
    allowances: Sequence[Allowance] = ()
    """What is left of the endpoint's rate limits."""


class Transport(Protocol):
    """Sends calls to a model. Made and closed on the loop that uses it."""

    async def send(self, call: Call, timeout: float) -> Reply:
        """The reply to a call within ``timeout`` seconds; raises an error of ``tasks.models.errors``."""
        ...

    async def close(self) -> None:
        """Frees the connections."""
        ...


class Codec(ABC):
    """One way of putting requests to a server: encodes them as calls, and reads replies.

    ``parts`` and ``read`` are two steps, since what lies between them is what is kept: an answer is read from
    it now, and again by any later version of ``read``.
    """

    version: ClassVar[int] = 1
    """Raised where a call comes to mean something else to the server: it is in the keys of requests."""

    @abstractmethod
    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The calls of requests that belong together; raises PermanentError."""

    def parts(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Mapping[str, Any]]:
        """Of each request what is kept of the replies: as it came, and all that ``read`` needs. Raises
        MalformedBody where something else came than was asked for."""
        (_,), (reply,) = requests, replies
        return [reply.body]

    @abstractmethod
    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """The answer in a request's part of the replies; it depends on these two and on the model's config
        alone. Raises TransientError where asking again may help, and SettledError."""

    def usage(self, body: Mapping[str, Any]) -> dict[str, int | None]:
        """The token counts of a whole reply: they count even where no answer can be read in it."""
        return usage_of(body, 1)[0]

    def text(self, part: Mapping[str, Any]) -> str:
        """A part as it is kept."""
        try:
            return orjson.dumps(part).decode()
        except TypeError:  # integers beyond 64 bits, more levels than it takes
            return json.dumps(part)

    def grouped(self, groups: Iterator[Sequence[Request]]) -> Iterator[Sequence[Request]]:
        """The requests in the groups that go in one call each; samples of one prompt come as a group."""
        return groups

    def answers(
        self,
        requests: Sequence[Request],
        replies: Sequence[Reply],
        attempts: int,
        asked: Mapping[str, Any] | None = None,
    ) -> list[KeptAnswer]:
        """One answer a request, as it is kept and as it is read now; ``asked`` says in which night and by
        whom, None: its writer will. Raises TransientError."""
        parts = self.parts(requests, replies)
        facts = provenance(replies[-1]) if replies else {"arrived": time.time()}
        facts["inference_time"] = sum(reply.seconds for reply in replies)
        facts["attempts"] = attempts
        if asked is not None:
            facts |= {"asked_at": facts["arrived"] - facts["inference_time"], **asked}
        answers = []
        for request, part in zip(requests, parts, strict=True):
            read = answer_in(self, request, part)
            if read.logprobs is not None:
                orjson.dumps(read.logprobs)  # a row takes them as they are: what it can't take is malformed
            said = {name: getattr(read, name) for name in READ_FIELDS}
            answers.append(
                KeptAnswer(
                    key=request.key,
                    status=read.status,
                    error=read.error,
                    reply_json=self.text(part),
                    **said,
                    **facts,
                )
            )
        return answers


def answer_in(codec: Codec, request: Request, part: Mapping[str, Any]) -> Answer:
    """The answer in a part; a refusal that the codec raises is one, too. Raises TransientError."""
    try:
        return codec.read(request, part)
    except SettledError as error:
        return Answer("refused", error=str(error))
    except PermanentError as error:
        return Answer("infra_error", error=str(error))


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


Lease = AbstractContextManager[int]
"""A share of a limit that several processes hold together, such as a Prefect global concurrency limit:
entering takes a block of slots, waiting until there is one, and gives its size.
"""


@dataclass(frozen=True)
class InferenceOptions:
    """What a run asks for beside the model and its requests.

    ``sampling`` holds the global and the model's parameters, merged. ``lookup`` says which kept answers
    serve; ``refresh`` lets none serve that was asked for before this call. ``night`` stands beside each new
    answer. ``run_id`` names the run that people stop and pause, ``account`` what limits apply to, shared by
    all partitions of the process; None: this call's own. ``asker`` names these requests of this attempt at a
    run, whatever process asks for them: its kept answers count as sent, and not as kept before. ``counted``
    are askers whose answers others have counted as sent. ``server`` is where a model that is served here
    answers, ``batches`` names jobs that have asked some of the requests; ``left_out`` is why the others are
    not asked, where a limit left them out of these jobs. ``media`` reads an image or a sound of a message by
    its digest, ``secret`` a Secret block by name, ``lease`` takes the model's share of a concurrency limit
    between processes by the limit's name and the number of slots wanted.
    """

    sampling: SampleParams
    journal_dir: Path
    limits: RunLimits = field(default_factory=RunLimits)
    price: Price | None = None
    run_id: str | None = None
    account: str | None = None
    asker: str | None = None
    counted: frozenset[str] = frozenset()
    night: str | None = None
    lookup: Lookup = EVERY
    refresh: bool = False
    base_dir: Path = Path()
    media: ReadMedia = refuse_media
    server: RunningServer | None = None
    batches: tuple[str, ...] = ()
    left_out: str | None = None
    secret: Callable[[str], str] | None = None
    lease: Callable[[str, int], Lease] | None = None
