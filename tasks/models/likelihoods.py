"""Log-likelihoods from the completions API: a prompt is said back (``echo``) with the log-probabilities of
its tokens.

Servers differ in what they take and give; ``echo.py`` finds out with one known prompt, ``windows.py`` says
which tokens count.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from tasks.models.calls import provenance, usage_of
from tasks.models.errors import BadRequest, MalformedBody, PermanentError
from tasks.models.records import Answer, Call, Reply, Request
from tasks.models.tokenizers import Tokenizer
from tasks.models.windows import DEFAULT_MAX_LENGTH, Span, rolling_spans, text_span, token_span


@dataclass(frozen=True)
class EchoMode:
    """How a server is asked: the fewest tokens it will generate, which field holds the log-probabilities, and
    whether prompts go as token ids (``ids``) or as text.
    """

    max_tokens: Literal[0, 1]
    source: Literal["echo", "prompt_logprobs"]
    ids: bool = False

    def body(self, prompt: Any) -> dict[str, Any]:
        """The fields of a request for the log-probabilities of ``prompt``."""
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": self.max_tokens, "temperature": 0}
        if self.source == "echo":
            return {**body, "echo": True, "logprobs": 1}
        return {**body, "prompt_logprobs": 1}


@dataclass(frozen=True)
class Scored:
    """A prompt's tokens as the server gave them: log-probability, whether it was the likeliest, text,
    offset.
    """

    logprobs: Sequence[float | None]
    greedy: Sequence[bool | None]
    texts: Sequence[str]
    offsets: Sequence[int] | None


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods of continuations and documents. ``max_length`` is in tokens."""

    model: str
    mode: EchoMode
    extra: Mapping[str, Any]
    tokenizer: Tokenizer | None = None
    max_length: int | None = None
    batch: int = 1

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """The calls for some requests; a long document takes several. Raises PermanentError."""
        prompts = [self._sent(span) for request in requests for span in self._spans(request)]
        groups = [prompts[start : start + self.batch] for start in range(0, len(prompts), self.batch)]
        bodies = (self.mode.body(group[0] if len(group) == 1 else group) for group in groups)
        return [Call("completions", {"model": self.model, **body, **self.extra}) for body in bodies]

    def answers(self, requests: Sequence[Request], replies: Sequence[Reply], attempts: int) -> list[Answer]:
        """One answer a request; raises MalformedBody when a reply does not hold what was asked for."""
        spans = [self._spans(request) for request in requests]
        choices = self._choices([span for group in spans for span in group], replies)
        facts: dict[str, Any] = {
            **(provenance(replies[-1]) if replies else {"arrived": time.time()}),
            "inference_time": sum(reply.seconds for reply in replies),
            "attempts": attempts,
        }
        usage = _summed(usage_of(reply.body, 1)[0] for reply in replies)
        shares = usage_of({"usage": usage}, len(requests))
        return [
            _answer(request, [(*next(choices), span) for span in group], {**facts, **share})
            for request, group, share in zip(requests, spans, shares, strict=True)
        ]

    def _spans(self, request: Request) -> list[Span]:
        if request.chat:
            raise BadRequest("a chat has no log-likelihood: give the prompt as text")
        if request.kind == "rolling" and not request.continuation:
            return []  # nothing to predict: its log-likelihood is 0, and nobody has to be asked
        if not request.continuation:
            raise BadRequest("the continuation is empty: it has no log-likelihood")
        length = self.max_length or DEFAULT_MAX_LENGTH
        if request.kind == "rolling" and self.tokenizer is not None:
            return rolling_spans(self.tokenizer, request.continuation, length)
        if self.tokenizer is None:
            return [text_span(request.prompt, request.continuation)]
        return [token_span(self.tokenizer, request.prompt, request.continuation, length)]

    def _sent(self, span: Span) -> Any:
        """A span's prompt as the server takes it; text stands for ids where it takes no others."""
        if isinstance(span.prompt, str) or self.mode.ids or self.tokenizer is None:
            return span.prompt
        return self.tokenizer.decode(span.prompt)

    def _choices(self, spans: Sequence[Span], replies: Sequence[Reply]) -> Iterator[tuple[Scored, int]]:
        """For each span, in order, what the server gave for it and how many tokens it generated after it."""
        asked = len(spans)
        for reply in replies:
            choices = reply.body.get("choices")
            expected = min(asked, self.batch)
            if not isinstance(choices, list) or len(choices) != expected:
                raise MalformedBody(f"the answer does not have the {expected} choices that were asked for")
            asked -= expected
            generated = usage_of(reply.body, 1)[0]["completion_tokens"] if expected == 1 else None
            for choice in sorted(choices, key=lambda choice: choice.get("index", 0)):
                yield scored(choice, self.mode), self.mode.max_tokens if generated is None else generated


def _answer(
    request: Request, parts: Sequence[tuple["Scored", int, Span]], facts: Mapping[str, Any]
) -> Answer:
    """A request's answer from its spans: their log-likelihoods add up."""
    try:
        likelihoods = [span_likelihood(*part) for part in parts]
    except PermanentError as error:
        return Answer(request.key, "model_error", error=str(error), **facts)
    flags = [greedy for _, greedy in likelihoods]
    greedy = None if None in flags else all(flags)
    return Answer(request.key, "ok", ll=sum(ll for ll, _ in likelihoods), is_greedy=greedy, **facts)


def scored(choice: Mapping[str, Any], mode: EchoMode) -> Scored:
    """Reads a choice's log-probabilities; raises MalformedBody where there are none."""
    if mode.source == "prompt_logprobs":
        return _from_prompt_logprobs(choice.get("prompt_logprobs"))
    lists = choice.get("logprobs")
    if not isinstance(lists, Mapping) or not isinstance(lists.get("token_logprobs"), list):
        raise MalformedBody("the answer has no log-probabilities of the prompt")
    values = lists["token_logprobs"]
    tops = lists.get("top_logprobs") or [None] * len(values)
    greedy = [
        value >= max(top.values()) if value is not None and isinstance(top, Mapping) and top else None
        for value, top in zip(values, tops, strict=False)
    ]
    offsets = lists.get("text_offset")
    return Scored(
        values,
        greedy,
        lists.get("tokens") or (),
        offsets if offsets and len(offsets) == len(values) else None,
    )


def span_likelihood(tokens: Scored, generated: int, span: Span) -> tuple[float, bool | None]:
    """The sum of the log-probabilities from the span's start on, and whether greedy decoding would have
    produced just that. Raises BadRequest where the server's tokens don't fit the prompt.
    """
    begin, end = (
        _ends_of_ids(tokens, generated, span)
        if isinstance(span.prompt, tuple)
        else _ends_of_text(tokens, span)
    )
    values, greedy = tokens.logprobs[begin:end], tokens.greedy[begin:end]
    if not values:
        raise BadRequest(
            "the continuation shares its only token with the context; a tokenizer: would not help either"
        )
    if any(value is None for value in values):
        raise BadRequest(
            "the server gives no log-probability for a text's first token; name a tokenizer: for this model"
        )
    flag = None if None in greedy else all(greedy)
    return float(sum(value for value in values if value is not None)), flag


def _ends_of_ids(tokens: Scored, generated: int, span: Span) -> tuple[int, int]:
    """Where the continuation stands in the server's list: a BOS may have been dropped from it, or added to
    it.
    """
    count = len(tokens.logprobs) - generated
    shift = count - len(span.prompt)
    if shift not in (-1, 0, 1) or span.start + shift < 0:
        raise BadRequest(
            f"the server gave {count} log-probabilities for a prompt of {len(span.prompt)} tokens: "
            "the tokenizer: is another one than the model's, or echo is ignored"
        )
    return span.start + shift, count


def _ends_of_text(tokens: Scored, span: Span) -> tuple[int, int]:
    offsets = tokens.offsets
    if offsets is None:
        offsets = _offsets_from_texts(tokens.texts, str(span.prompt))
    # A BOS in the list may or may not count as characters of the text.
    special = len(tokens.texts) > 1 and not str(span.prompt).startswith(tokens.texts[0])
    base = len(tokens.texts[0]) if special and offsets[1] == len(tokens.texts[0]) else 0
    end = next((i for i, offset in enumerate(offsets) if offset - base >= len(span.prompt)), len(offsets))
    begin = next(
        (i for i, offset in enumerate(offsets) if offset - base >= span.start and not (special and i == 0)),
        end,
    )
    return begin, end


def _offsets_from_texts(texts: Sequence[str], prompt: str) -> list[int]:
    """Offsets of tokens whose texts, put together, are the prompt (a BOS before it, a generated token after
    it).
    """
    whole = "".join(texts)
    start = whole.find(prompt)
    if not texts or start not in (0, len(texts[0])):
        raise BadRequest(
            "the server reports no text offsets and its tokens don't spell the prompt; name a tokenizer:"
        )
    return [position - start for position in accumulate((len(text) for text in texts[:-1]), initial=0)]


def _from_prompt_logprobs(positions: Any) -> Scored:
    """vLLM's form: a mapping a position, the prompt's own token first, then the likeliest."""
    if not isinstance(positions, list):
        raise MalformedBody("the answer has no prompt_logprobs")
    chosen = [next(iter(position.values())) if position else None for position in positions]
    return Scored(
        [entry and entry.get("logprob") for entry in chosen],
        [None if entry is None else entry.get("rank") == 1 for entry in chosen],
        [(entry or {}).get("decoded_token") or "" for entry in chosen],
        None,
    )


def _summed(parts: Iterator[dict[str, int | None]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            if count is not None:
                total[name] = total.get(name, 0) + count
    return total
