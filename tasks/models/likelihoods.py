"""Log-likelihoods from the completions API: a prompt is said back (``echo``) with the log-probabilities of
its tokens.

Servers differ in what they take and give; ``echo.py`` finds out with one known prompt, ``logprobs.py`` reads
what comes, ``windows.py`` says which tokens count.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.models.calls import provenance, usage_of
from tasks.models.errors import BadRequest, MalformedBody, PermanentError
from tasks.models.logprobs import EchoMode, Scored, scored, span_likelihood
from tasks.models.records import Answer, Call, Reply, Request
from tasks.models.tokenizers import Tokenizer
from tasks.models.windows import DEFAULT_MAX_LENGTH, Span, rolling_spans, text_span, token_span


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
            for choice in sorted(choices, key=_index):
                yield scored(choice, self.mode), self.mode.max_tokens if generated is None else generated


def _answer(request: Request, parts: Sequence[tuple[Scored, int, Span]], facts: Mapping[str, Any]) -> Answer:
    """A request's answer from its spans: their log-likelihoods add up."""
    try:
        likelihoods = [span_likelihood(*part) for part in parts]
    except PermanentError as error:
        return Answer(request.key, "model_error", error=str(error), **facts)
    flags = [greedy for _, greedy in likelihoods]
    greedy = None if None in flags else all(flags)
    return Answer(request.key, "ok", ll=sum(ll for ll, _ in likelihoods), is_greedy=greedy, **facts)


def _index(choice: Any) -> int:
    index = choice.get("index", 0) if isinstance(choice, Mapping) else None
    if not isinstance(index, int):
        raise MalformedBody("a choice of the answer is not a JSON object with a number")
    return index


def _summed(parts: Iterator[dict[str, int | None]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            if count is not None:
                total[name] = total.get(name, 0) + count
    return total
