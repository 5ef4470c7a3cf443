"""A prompt's log-probabilities as servers give them, and what a continuation's add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from tasks.models.errors import BadRequest, MalformedBody
from tasks.models.windows import Span


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


def scored(choice: Mapping[str, Any], mode: EchoMode) -> Scored:
    """Reads a choice's log-probabilities; raises MalformedBody where there are none."""
    try:
        found = _scored(choice, mode)
        fits = all(value is None or isinstance(value, int | float) for value in found.logprobs)
        fits = fits and all(isinstance(text, str) for text in found.texts)
        fits = fits and all(isinstance(offset, int) for offset in found.offsets or ())
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration):
        fits = False
    if not fits:
        raise MalformedBody("the answer's log-probabilities are of no known form")
    return found


def _scored(choice: Mapping[str, Any], mode: EchoMode) -> Scored:
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
    texts, offsets = (lists.get(name) or () for name in ("tokens", "text_offset"))
    return Scored(
        values,
        greedy,
        texts if len(texts) == len(values) else (),
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
