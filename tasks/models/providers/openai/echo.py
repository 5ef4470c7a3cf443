"""The codec of log-likelihoods: the completions API echoes a prompt with the log-probabilities of its
tokens.

Servers differ in what they take and give. ``find_mode`` finds a server's ``EchoMode`` with one known
prompt, before the first log-likelihood of a process; the answers hold for the process. ``tokens.py`` says
which tokens count and reads what comes.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.models.errors import (
    BadRequest,
    MalformedBody,
    ModelError,
    NotServed,
    PermanentError,
    RequestError,
    RequestTimeout,
    ServerFault,
    TransientError,
)
from tasks.models.extra import with_extra
from tasks.models.providers.openai.choices import ordered_choices
from tasks.models.providers.openai.spans import KeptForm, kept_span, likelihood
from tasks.models.providers.openai.tokens import (
    DEFAULT_MAX_LENGTH,
    LogprobSource,
    Span,
    rolling_spans,
    scored,
    span_apart,
    text_span,
    token_span,
)
from tasks.models.records import Answer, Call, Codec, Reply, Request, Transport
from tasks.models.tokenizers import Tokenizer
from tasks.models.usage import usage_of
from tasks.store.keys import value_text


@dataclass(frozen=True)
class EchoMode:
    """How a server is asked: the fewest tokens it will generate, which field holds the log-probabilities, and
    whether prompts go as token ids (``ids``) or as text.

    ``begun``: how many tokens the server lists before those of a text that was put together from ids; None
    where prompts are ids, or texts without a tokenizer.
    """

    max_tokens: Literal[0, 1]
    source: LogprobSource
    ids: bool = False
    begun: int | None = None

    @property
    def listed(self) -> int:
        """How many generated tokens the list of log-probabilities has behind the prompt's."""
        return self.max_tokens if self.source == "echo" else 0

    def body(self, prompt: Any) -> dict[str, Any]:
        """The fields of a request for the log-probabilities of ``prompt``."""
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": self.max_tokens, "temperature": 0}
        if self.source == "echo":
            return {**body, "echo": True, "logprobs": 1}
        return {**body, "prompt_logprobs": 1}


@dataclass(frozen=True)
class Likelihood(Codec):
    """The codec for continuations and documents. ``max_length`` is in tokens."""

    model: str
    mode: EchoMode
    extra: Mapping[str, Any]
    tokenizer: Tokenizer | None = None
    max_length: int | None = None
    batch: int = 1

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The calls of some requests; a long document takes several, what has no token of its own none.

        Raises PermanentError.
        """
        prompts = [self._sent(span) for request in requests for span in self._spans(request)]
        groups = [prompts[start : start + self.batch] for start in range(0, len(prompts), self.batch)]
        bodies = (self.mode.body(self._together(group)) for group in groups)
        return [Call("completions", with_extra({"model": self.model, **body}, self.extra)) for body in bodies]

    def parts(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Mapping[str, Any]]:
        """Of each request its spans' tokens, from some before the continuation on; see ``spans.py``."""
        spans = [self._spans(request) for request in requests]
        choices = self._choices(sum(map(len, spans)), replies)
        usage = [reply.body["usage"] for reply in replies if isinstance(reply.body.get("usage"), Mapping)]
        return [
            {
                "spans": [self._kept(span, *next(choices)) for span in group],
                "usage": usage,
                "share": [place, len(requests)],
            }
            for place, group in enumerate(spans)
        ]

    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """A request's answer from its spans: their log-likelihoods add up. Where the server's tokens don't
        fit there is none, and another server may do better.
        """
        place, together = part["share"]
        usage = _summed(usage_of({"usage": usage}, 1)[0] for usage in part["usage"])
        facts: dict[str, Any] = usage_of({"usage": usage}, together)[place]
        try:
            likelihoods = [likelihood(request, span) for span in part["spans"]]
        except PermanentError as error:
            return Answer("infra_error", error=str(error), **facts)
        flags = [greedy for _, greedy, _ in likelihoods]
        greedy = None if None in flags else all(flags)
        total = sum((ll for ll, _, _ in likelihoods), 0.0)
        count = sum(count for _, _, count in likelihoods)
        return Answer("ok", ll=total, is_greedy=greedy, ll_tokens=count, **facts)

    def text(self, part: Mapping[str, Any]) -> str:
        """A part as it is kept: an impossible token's infinity is a number of it."""
        return value_text(part)

    def _kept(self, span: Span, choice: Mapping[str, Any], counted: int | None) -> Mapping[str, Any]:
        begun = None if self._loses_prefix(span.prompt) else self.mode.begun
        return kept_span(choice, span, KeptForm(self.mode.source, self.mode.listed, counted, begun))

    def grouped(self, groups: Iterator[Sequence[Request]]) -> Iterator[Sequence[Request]]:
        """``batch`` requests together; documents stay alone."""
        together: list[Request] = []
        for group in groups:
            if group[0].kind == "rolling":
                yield group
                continue
            together.extend(group)
            if len(together) >= self.batch:
                yield together
                together = []
        if together:
            yield together

    def _spans(self, request: Request) -> list[Span]:
        """What a request needs scored: nothing where no token is its own, which makes its log-likelihood 0,
        as in lm-evaluation-harness.
        """
        if request.chat:
            raise BadRequest("a chat has no log-likelihood: give the prompt as text")
        length = self.max_length or DEFAULT_MAX_LENGTH
        if request.kind == "rolling":
            if self.tokenizer is not None:
                return rolling_spans(self.tokenizer, request.continuation, length)
            return [text_span("", request.continuation)] if request.continuation else []
        if not request.prompt and not request.continuation:
            raise BadRequest("context and continuation are both empty: there is no log-likelihood")
        if request.keeps_space:
            return [self._apart(request, length)]
        if self.tokenizer is not None:
            span = token_span(self.tokenizer, request.prompt, request.continuation, length)
        else:
            span = text_span(request.prompt, request.continuation)
        as_text = self.tokenizer is not None and not self.mode.ids  # then the server's tokens may be others
        return [span] if as_text or span.start < len(span.prompt) else []

    def _apart(self, request: Request, length: int) -> Span:
        """The span of a pair whose white space between stays with the context."""
        if self.tokenizer is None or not self.mode.ids:
            raise BadRequest(
                "keep_trailing_space needs the model's tokenizer: and an endpoint that takes token ids; in a "
                "text the server joins the space to the next word"
            )
        return span_apart(self.tokenizer, request.prompt, request.continuation, length)

    def _sent(self, span: Span) -> Any:
        """A span's prompt as the server takes it; text stands for ids where it takes no others."""
        if isinstance(span.prompt, str) or self.mode.ids or self.tokenizer is None:
            return span.prompt
        return self.tokenizer.decode(span.prompt)

    def _loses_prefix(self, prompt: str | tuple[int, ...]) -> bool:
        """Whether the token that stands for no context is not there in the text that stands for ids."""
        tokenizer = self.tokenizer
        if tokenizer is None or isinstance(prompt, str) or prompt[:1] != (tokenizer.prefix,):
            return False
        return not tokenizer.decode(prompt[:1])

    def _together(self, prompts: Sequence[Any]) -> Any:
        """The prompts of a call. Ids stay in a list of lists even alone, as lm-evaluation-harness sends them:
        there are servers that take nothing else.
        """
        return prompts[0] if len(prompts) == 1 and isinstance(prompts[0], str) else prompts

    def _choices(
        self, remaining: int, replies: Sequence[Reply]
    ) -> Iterator[tuple[Mapping[str, Any], int | None]]:
        """For each span, in order, what the server gave for it and how many tokens it says it generated."""
        for reply in replies:
            expected = min(remaining, self.batch)
            remaining -= expected
            counts = expected == 1 and self.mode.listed == self.mode.max_tokens
            counted = usage_of(reply.body, 1)[0]["completion_tokens"] if counts else None
            for choice in ordered_choices(reply.body, expected):
                yield choice, counted


def _summed(parts: Iterator[dict[str, int | None]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            if count is not None:
                total[name] = total.get(name, 0) + count
    return total


PROBE_SECONDS = 60.0
TRIES, PAUSE = 3, 0.2
"""How often a server that fails is asked the same, and seconds between; then it is what it can't answer."""
KNOWN, LAST = "The nightjar sleeps by day and flies by", " night"
MODES: tuple[EchoMode, ...] = (EchoMode(1, "echo"), EchoMode(0, "echo"), EchoMode(1, "prompt_logprobs"))
"""Ways of asking, the commonest first."""

_modes: dict[tuple[str, str, bool], EchoMode] = {}
_takes_ids: dict[tuple[str, str], bool] = {}
_takes_stops: dict[tuple[str, str, int], bool] = {}
_lock = threading.Lock()


async def find_mode(
    transport: Transport, endpoint: str, likelihood: Callable[[EchoMode], Likelihood]
) -> EchoMode:
    """The first way of asking in which a known prompt's last word gets a log-likelihood; asked once a
    process.

    Raises ModelError where none does (chat-only endpoints, echo refused or silently ignored, another
    tokenizer than the model's), and what the transport raises when the endpoint can't be reached.
    """
    sample = likelihood(MODES[0])
    cache_key = (endpoint, sample.model, sample.tokenizer is not None)
    with _lock:
        known = _modes.get(cache_key)
    if known is not None:
        return known
    reasons = []
    with_ids = tuple(replace(mode, ids=True) for mode in MODES) if sample.tokenizer is not None else ()
    for candidate in (*with_ids, *MODES):
        try:
            mode = await _tried(transport, likelihood(candidate))
        except (PermanentError, MalformedBody, NotServed, ServerFault) as error:
            reasons.append(f"{candidate.source} with max_tokens {candidate.max_tokens}: {error}")
            continue
        with _lock:
            _modes[cache_key] = mode
        return mode
    raise ModelError(
        f"model {sample.model!r} at {endpoint} gives no log-probabilities of prompts, as needed here: "
        f"it takes a completions endpoint with echo and logprobs, not a chat-only one ({'; '.join(reasons)})"
    )


async def _tried(transport: Transport, likelihood: Likelihood) -> EchoMode:
    """Asks for the known prompt, and returns the mode with what was learnt of it.

    Raises PermanentError or MalformedBody unless its log-likelihood comes back.
    """
    request = Request(b"", "loglikelihood", KNOWN, LAST)
    mode, tokenizer = likelihood.mode, likelihood.tokenizer
    as_text = tokenizer is not None and not mode.ids
    text = KNOWN + LAST
    if tokenizer is not None and as_text and tokenizer.decode(tokenizer.encode(text)).strip() != text:
        raise BadRequest("the tokenizer: does not give back a text that it was given")
    (call,) = likelihood.calls([request])
    reply = await _sent(transport, call)
    listed = _listed(reply.body, mode)
    (answer,) = likelihood.answers([request], [reply], 1)
    if answer.status != "ok":
        raise BadRequest(str(answer.error))
    if tokenizer is None or not as_text:
        return mode
    begun = len(listed) - mode.listed - len(tokenizer.encode(text))
    # One too few, and nothing before the first: then it is the generated token that is not listed.
    return replace(mode, begun=0 if begun < 0 and listed[0] is None else begun)


async def takes_ids(transport: Transport, endpoint: str, model: str, tokenizer: Tokenizer) -> bool:
    """Whether the server completes a prompt of token ids; asked once a process. One that can't be asked just
    now is taken to.
    """
    cache_key = (endpoint, model)
    with _lock:
        known = _takes_ids.get(cache_key)
    if known is not None:
        return known
    body = {"model": model, "prompt": [tokenizer.encode(KNOWN)], "max_tokens": 1, "temperature": 0}
    try:
        reply = await _sent(transport, Call("completions", body))
        choices = reply.body.get("choices")
        taken = isinstance(choices, list) and len(choices) == 1
    except (PermanentError, MalformedBody, ServerFault):
        taken = False
    except RequestError:
        return True
    with _lock:
        _takes_ids[cache_key] = taken
    return taken


async def takes_stops(transport: Transport, endpoint: str, call: Call) -> bool:
    """Whether the server takes as many stop sequences as the call has; asked once a process for a number.

    One that can't be asked just now is taken to: then the requests themselves say what is wrong.
    """
    count = len(call.body["stop"])
    cache_key = (endpoint, str(call.body.get("model")), count)
    with _lock:
        known = _takes_stops.get(cache_key)
    if known is not None:
        return known
    try:
        await _sent(transport, call)
        taken = True
    except BadRequest:
        taken = False
    except RequestError:
        return True
    with _lock:
        _takes_stops[cache_key] = taken
    return taken


async def _sent(transport: Transport, call: Call) -> Reply:
    """The reply; a server that fails is asked again, since one failure says nothing about what it takes. A
    pause longer than a probe may take is not waited for: nobody sees why a run does not begin."""
    for _ in range(TRIES - 1):
        try:
            return await transport.send(call, timeout=PROBE_SECONDS)
        except RequestTimeout:
            raise
        except TransientError as error:
            pause = max(PAUSE, error.retry_after or 0.0)
            if pause > PROBE_SECONDS:
                raise
            await asyncio.sleep(pause)
    return await transport.send(call, timeout=PROBE_SECONDS)


def _listed(body: Mapping[str, Any], mode: EchoMode) -> Sequence[float | None]:
    """The log-probabilities; raises MalformedBody when there are not as many as the server says the prompt
    has tokens.
    """
    choices, usage = body.get("choices"), body.get("usage")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise MalformedBody("the answer does not have one choice")
    found = scored(choices[0], mode.source).logprobs
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    least = 3 if not isinstance(counted, int) else counted - 1  # a BOS may be counted and not listed
    if len(found) < least:
        raise MalformedBody(
            f"echo is ignored: {len(found)} log-probabilities for a prompt of {counted} tokens"
        )
    return found
