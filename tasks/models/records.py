"""The records of inference: a request, the call that carries it, the reply to the call, the kept answer;
the options of an inference, and what it reports: progress, responses, and a tally of requests and cost.

Two seams stand beside them, and a provider brings both. A ``Codec`` makes calls of requests and answers of
replies (chats, completions, log-likelihoods); a ``Transport`` sends a call and gives back the reply (plain
HTTP, the official client). The infer stage fills the options; the engine counts in ``RequestTally``.
"""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, get_args

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from tasks.datasets.item import RequestKind
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.config import Price, RunLimits, SampleParams
from tasks.models.errors import PermanentError, SettledError
from tasks.models.limits.allowances import Allowance
from tasks.models.limits.spending import Used, cost_of, estimated
from tasks.serving.servers import RunningServer
from tasks.store.keys import canonical_json

IMPLAUSIBLE_COUNT = 1 << 40
"""No reply has so many tokens: such a count is a server's mistake, and sums of them fit no column."""

AnswerStatus = Literal["ok", "cut_off", "refused", "infra_error"]
STATUSES: Final[tuple[AnswerStatus, ...]] = get_args(AnswerStatus)
STATUS_BEFORE: Final = "model_error"
"""What "refused" was called before 2026-11-23: in stores, journals and recorded files it means the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked of a model: an answer to a prompt, or how likely a continuation is.

    ``key`` is the 32-byte request key. A chat prompt is the JSON text of its messages. ``seed`` is the seed
    this sample is drawn with; samples that go together are sent with the first one's, and vLLM counts on from
    it. ``keeps_space``: white space at the prompt's end is not scored with the continuation.
    """

    key: bytes
    kind: RequestKind
    prompt: str
    continuation: str = ""
    chat: bool = False
    sample_index: int = 0
    seed: int | None = None
    keeps_space: bool = False


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


@dataclass(slots=True)
class KeptAnswer:
    """The answer to one request, as it is kept under the request's key.

    ``reply_json`` is the request's part of the reply, as it came: what an ``Answer`` says of it is read anew
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
    asker: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    tool_calls_json: str | None = None
    thoughts_json: str | None = None
    logprobs: Any = None
    ll: float | None = None
    is_greedy: bool | None = None
    ll_tokens: int | None = None
    reply_json: str | None = None


READ_FIELDS: Final = tuple(field.name for field in fields(Answer) if field.name not in ("status", "error"))
"""What is read of a reply anew whenever it is used, and not kept beside it."""


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
        """The calls for requests that belong together; raises PermanentError."""

    def parts(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Mapping[str, Any]]:
        """Of each request what is kept of the replies: as it came, and all that ``read`` needs. Raises
        MalformedBody where something else came than was asked for."""
        (_,), (reply,) = requests, replies
        return [reply.body]

    @abstractmethod
    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """The answer in a request's part of the replies; it hangs on these two and on the model's config
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
                    request.key, read.status, error=read.error, reply_json=self.text(part), **said, **facts
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


def usage_of(body: Mapping[str, Any], parts: int) -> list[dict[str, int | None]]:
    """The reply's token counts divided over its answers, so that their sum is what was used."""
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = {
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "total_tokens": _count(usage, "total_tokens"),
        "cached_tokens": _cached(usage),
        "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    }
    counts["completion_tokens"] = _written(counts)
    prompt, cached = counts["prompt_tokens"], counts["cached_tokens"]
    if prompt is not None and cached is not None:
        counts["cached_tokens"] = min(prompt, cached)
    if parts == 1:
        return [counts]
    return [
        {
            name: None if count is None else count // parts + (part < count % parts)
            for name, count in counts.items()
        }
        for part in range(parts)
    ]


def _cached(usage: Mapping[str, Any]) -> int | None:
    """Tokens of the prompt that the server had cached, as OpenAI, DeepSeek and Moonshot say it."""
    details = usage.get("prompt_tokens_details")
    said = (details, "cached_tokens"), (usage, "prompt_cache_hit_tokens"), (usage, "cached_tokens")
    return next((count for place in said if (count := _count(*place)) is not None), None)


def _written(counts: Mapping[str, int | None]) -> int | None:
    """Tokens that the model wrote, its thought among them. Grok and some gateways count the thought beside
    them: then it is in the total alone, or is more than there would be."""
    completion, thought = counts["completion_tokens"], counts["reasoning_tokens"]
    if not thought or completion is None:
        return completion
    prompt, total = counts["prompt_tokens"], counts["total_tokens"]
    if prompt is None or total is None:
        return completion + thought if thought > completion else completion
    is_apart = thought > completion or total == prompt + completion + thought
    return max(completion, total - prompt) if is_apart else completion


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < IMPLAUSIBLE_COUNT else None  # True is no count


def counts_in(answer: KeptAnswer) -> dict[str, int | None]:
    """The token counts of an answer, by their names."""
    return {name: getattr(answer, name) for name in COUNTED}


def exchanged(answer: KeptAnswer, asked: int) -> tuple[int, int] | None:
    """The characters that were asked, and those that the model wrote: its answer, its thought and its calls;
    None where no reply came."""
    if answer.reply_json is None:
        return None
    return asked, sum(len(getattr(answer, name) or "") for name in SAID)


def asked_characters(requests: Sequence[Request]) -> list[int]:
    """How much each of the requests of a group has of what is asked in one call; samples of one prompt share
    it."""
    together = len(requests) if requests and requests[0].kind == "generate" else 1
    return [(len(request.prompt) + len(request.continuation)) // together for request in requests]


def text_or_none(value: Any) -> str | None:
    """``value`` if it is text: servers put anything into a field."""
    return value if isinstance(value, str) else None


@dataclass
class RequestTally:
    """Counts of one model in one stage; ``cached`` requests were answered before, and ``saved_*`` is what
    that spared.

    ``sent`` counts requests that went to the endpoint, ``attempts`` their HTTP attempts, ``answered`` those
    with an answer; ``failed`` are those without, of which ``retryable`` are worth asking again.
    ``refused`` are answers by which model or provider refused. ``same_night`` are the cached requests that
    this night asked: in an earlier attempt, in another evaluation, or once for several of them. ``absent``
    are the failed ones that a recording does not hold. ``batched`` are those of ``sent`` that a batch
    asked. ``uncounted`` are replies that do not say their tokens: they are in no count of tokens, and in no
    cost. ``seconds`` is the sum over requests. ``served`` counts answers by the model name that the server
    gave. ``cache_saved`` is what prompt tokens that the provider had cached cost less.
    """

    requests: int = 0
    sent: int = 0
    answered: int = 0
    cached: int = 0
    same_night: int = 0
    failed: int = 0
    retryable: int = 0
    refused: int = 0
    absent: int = 0
    attempts: int = 0
    retries: int = 0
    batched: int = 0
    uncounted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    cost: float = 0.0
    saved_tokens: int = 0
    saved_cost: float = 0.0
    saved_seconds: float = 0.0
    cache_saved: float = 0.0
    stopped: str | None = None
    served: dict[str, int] = field(default_factory=dict)
    fingerprints: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def error_rate(self) -> float:
        """Share of the requests without an answer, between 0 and 1: what the error budget is held against. A
        refusal is an answer."""
        return self.failed / self.requests if self.requests else 0.0

    def without_absent(self) -> "RequestTally":
        """The counts without what a recording does not hold; as they are where it holds nothing."""
        if self.absent == self.requests:
            return self
        requests, failed = self.requests - self.absent, self.failed - self.absent
        return replace(self, requests=requests, failed=failed, absent=0)

    def add(self, answer: KeptAnswer, price: Price | None, asked: int = 0) -> Used:
        """Counts an answer that was just given to so many characters; gives what it used."""
        self.answered += 1
        self.refused += answer.status == "refused"
        if answer.served_model is not None:
            self.served[answer.served_model] = self.served.get(answer.served_model, 0) + 1
        if answer.system_fingerprint is not None:
            said = answer.system_fingerprint
            self.fingerprints[said] = self.fingerprints.get(said, 0) + 1
        self.seconds += answer.inference_time or 0.0
        return self.use(counts_in(answer), price, exchanged(answer, asked))

    def use(
        self, counts: Mapping[str, int | None], price: Price | None, characters: tuple[int, int] | None
    ) -> Used:
        """Counts what a reply used, whether or not an answer was in it; gives that. Where the reply leaves it
        out, what it gives is its total, else estimated by the characters that were asked and said; None: no
        answer came."""
        told, said, total, hit, thought = (counts[name] for name in COUNTED)
        prompt, completion, hit, thought = told or 0, said or 0, hit or 0, thought or 0
        expected = None
        if None in (told, said) and (characters, total) != (None, None):
            expected = estimated(told, said, total, *(characters or (0, 0)))
            if (told, said, total).count(None) == 1:  # the other two say it
                (prompt, completion), expected = expected, None
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cached_tokens += hit
        self.reasoning_tokens += thought
        cost = cost_of(prompt, completion, hit, price)
        self.cost += cost
        self.cache_saved += cost_of(prompt, completion, 0, price) - cost
        if expected is None:
            return Used(prompt + completion, cost)
        self.uncounted += 1
        return Used(sum(expected), cost_of(*expected, hit, price))

    def take_over(self, answer: pa.Table, price: Price | None, asked: int) -> Used:
        """Counts what a process that was killed had asked for a request of so many characters, as if this one
        had; gives what that used."""
        (row,) = answer.select([*COUNTED_AGAIN, *SAID, "reply_json"]).to_pylist()
        # An answer of a batch took no seconds of its own; a refusal without a reply took none either.
        replied = row["status"] != "refused" or row["prompt_tokens"] is not None
        batched = row["inference_time"] is None and replied
        self.batched += batched
        self.sent += 1
        self.cached -= 1
        self.attempts += row["attempts"]
        self.retries += row["attempts"] - 1
        price = price.of_batches() if batched and price else price
        return self.add(KeptAnswer(key=b"", **row), price, asked)

    def count_reused(self, answers: pa.Table, price: Price | None) -> None:
        """Counts what kept answers (rows of ANSWERS) spared."""
        prompt, completion, hit, seconds = (
            sum(filter(None, answers.column(name).to_pylist())) for name in SAVED
        )
        self.refused += answers.column("status").to_pylist().count("refused")
        self.saved_tokens += prompt + completion
        self.saved_seconds += seconds
        self.saved_cost += cost_of(prompt, completion, hit, price)

    def merged(self, other: "RequestTally") -> "RequestTally":
        """Both together: numbers add up, wall time is the longer one's."""
        mine, theirs = asdict(self), asdict(other)
        both: dict[str, Any] = {}
        for name, value in mine.items():
            if isinstance(value, dict):
                both[name] = {
                    key: value.get(key, 0) + theirs[name].get(key, 0) for key in value | theirs[name]
                }
            elif name == "stopped":
                both[name] = value or theirs[name]
            else:
                both[name] = max(value, theirs[name]) if name == "wall_seconds" else value + theirs[name]
        return RequestTally(**both)

    def after(self, spent: Sequence["RequestTally"]) -> "RequestTally":
        """The counts with what earlier attempts at the same requests took: their requests are these, and what
        was answered then is not reused now."""
        took = (
            "sent",
            "batched",
            "attempts",
            "retries",
            "uncounted",
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
        )
        more = {
            name: sum((getattr(tally, name) for tally in spent), getattr(self, name))
            for name in (*took, "reasoning_tokens", "seconds", "wall_seconds", "cost", "cache_saved")
        }
        answered = sum(tally.answered for tally in spent)
        fewer = {name: max(0, getattr(self, name) - answered) for name in ("cached", "same_night")}
        return replace(self, **more, **fewer)

    def as_dict(self) -> dict[str, Any]:
        """The counts as a JSON object, for manifests."""
        return {**asdict(self), "total_tokens": self.total_tokens}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "RequestTally":
        """The inverse of ``as_dict``, in stores of before 2026-11-23 too."""
        named = {("refused" if name == "model_errors" else name): part for name, part in value.items()}
        return cls(**{name: part for name, part in named.items() if name != "total_tokens"})


COUNTED: Final = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
SUMMED: Final = (*COUNTED, "inference_time")
"""What several answers have together."""
SAID: Final = ("response", "reasoning", "tool_calls_json")
"""What a model wrote."""
COUNTED_AGAIN = ["status", "attempts", "served_model", "system_fingerprint", "inference_time", *COUNTED]
SAVED = ("prompt_tokens", "completion_tokens", "cached_tokens", "inference_time")


Lease = AbstractContextManager[int]
"""A share of a limit that several processes hold together, such as a Prefect global concurrency limit:
entering takes a block of slots, waiting until there is one, and gives its size.
"""


@dataclass(frozen=True)
class InferenceOptions:
    """What a run asks for beside the model and its requests.

    ``sampling`` holds the global and the model's parameters, merged. ``lookup`` says which kept answers
    serve; ``refresh`` lets none serve that was asked for before this call. ``night`` stands beside each new
    answer. ``run_id`` names the run that people stop and pause, ``account`` what limits are held against,
    shared by all partitions of the process; None: this call's own. ``asker`` names these requests of this
    attempt at a run, whatever process asks for them: its kept answers count as sent, and not as kept before.
    ``server`` is where a model that is served here answers, ``batches`` names jobs that have asked some of
    the requests; ``left_out`` is why the others are not asked, where a limit left them out of these jobs.
    ``media`` reads an image or a sound of a message by its digest, ``secret`` a Secret block by name,
    ``lease`` takes the model's share of a concurrency limit between processes by the limit's name and the
    number of slots wanted.
    """

    sampling: SampleParams
    journal_dir: Path
    limits: RunLimits = field(default_factory=RunLimits)
    price: Price | None = None
    run_id: str | None = None
    account: str | None = None
    asker: str | None = None
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


FirstSettled = tuple[pa.RecordBatch, list[pa.RecordBatch]]


@dataclass(frozen=True)
class RunningFigure:
    """A metric's scores so far: their sum over ``items`` items of a sample. No result."""

    metric: str
    total: float
    items: int

    @property
    def mean(self) -> float | None:
        """None before the first item."""
        return self.total / self.items if self.items else None


@dataclass(frozen=True)
class Progress:
    """How far inference is; ``rate`` in requests a second, ``seconds_left`` None while nobody can say."""

    done: int
    expected: int | None
    cached: int = 0
    failed: int = 0
    retries: int = 0
    in_flight: int = 0
    concurrency: int = 0
    rate: float = 0.0
    tokens_per_second: float = 0.0
    cost: float = 0.0
    seconds_left: float | None = None
    tokens: int = 0
    running: RunningFigure | None = None
    first: Callable[[], FirstSettled | None] | None = None
    """Gives, to any thread, the first items that are settled by now and their responses."""


@dataclass(frozen=True)
class AnswerCounts:
    """Where the answers of a run or a night came from; ``kept`` are from an earlier attempt of the night."""

    asked: int
    reused: int
    kept: int = 0
    by_batch: int = 0

    @classmethod
    def of(cls, requests: Mapping[str, Any], retried: bool = False) -> "AnswerCounts":
        """From the counts of a tally or of a manifest; those of a night that is ``retried`` are of its last
        attempt. Else an answer of the same night was asked for by another request that is equal."""
        names = ("sent", "cached", "same_night", "batched")
        sent, cached, same_night, batched = (requests.get(name) or 0 for name in names)
        if retried:
            return cls(sent, cached - same_night, same_night, batched)
        return cls(sent + same_night, cached - same_night, by_batch=batched)


def asked_and_reused(requests: Mapping[str, Any], retried: bool = False) -> str:
    """``AnswerCounts`` in words.

    >>> asked_and_reused({"sent": 1300, "cached": 19, "same_night": 19})
    'asked 1,319, reused 0'
    >>> asked_and_reused({"sent": 0, "cached": 300, "same_night": 300}, retried=True)
    'asked 0, kept 300 from earlier in this night, reused 0'
    >>> asked_and_reused({"sent": 1319, "cached": 0, "batched": 1300})
    'asked 1,319 (1,300 by batch), reused 0'
    """
    counts = AnswerCounts.of(requests, retried)
    by_batch = f" ({counts.by_batch:,} by batch)" if counts.by_batch else ""
    kept = f"kept {counts.kept:,} from earlier in this night, " if counts.kept else ""
    return f"asked {counts.asked:,}{by_batch}, {kept}reused {counts.reused:,}"


class GivenAnswers:
    """Digest of which answers were given: of when each was asked for, in the order of the requests."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, asked_at: NDArray[np.float64]) -> None:
        """Takes the next answers, in seconds since 1970, NaN where there is none."""
        self._digest.update(np.where(np.isnan(asked_at), -1.0, asked_at).tobytes())

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class PartitionResponses:
    """A partition's responses: RESPONSES batches in request order, to be read once, and what they came to.

    ``given`` is the digest of when the answers were asked for, request by request: what tells them from
    others to the same requests. It is complete once the batches are read.
    """

    batches: Iterator[pa.RecordBatch]
    tally: RequestTally
    given: GivenAnswers = field(default_factory=GivenAnswers)
