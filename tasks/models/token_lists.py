"""A prompt's tokens with their log-probabilities, read from the two forms in which servers give them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.models.errors import MalformedBody

Source = Literal["echo", "prompt_logprobs"]
"""The field of a choice that holds them: ``logprobs`` where the prompt is said back, or vLLM's own."""


@dataclass(frozen=True)
class Scored:
    """A prompt's tokens as the server gave them: log-probability, whether it was the likeliest, text (None:
    it does not say), offset.
    """

    logprobs: Sequence[float | None]
    greedy: Sequence[bool | None]
    texts: Sequence[str | None]
    offsets: Sequence[int] | None


def scored(choice: Mapping[str, Any], source: Source) -> Scored:
    """Reads a choice's log-probabilities; raises MalformedBody where there are none."""
    try:
        found = _scored(choice, source)
        fits = all(value is None or isinstance(value, int | float) for value in found.logprobs)
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration):
        fits = False
    if not fits:
        raise MalformedBody("the answer's log-probabilities are of no known form")
    return found


def _scored(choice: Mapping[str, Any], source: Source) -> Scored:
    if source == "prompt_logprobs":
        return _from_prompt_logprobs(choice.get("prompt_logprobs"))
    lists = choice.get("logprobs")
    if not isinstance(lists, Mapping) or not isinstance(lists.get("token_logprobs"), list):
        raise MalformedBody("the answer has no log-probabilities of the prompt")
    values = lists["token_logprobs"]
    return Scored(
        values,
        _greedy(values, _of_kind(lists.get("top_logprobs"), len(values), Mapping)),
        _of_kind(lists.get("tokens"), len(values), str) or (),
        _whole(_of_kind(lists.get("text_offset"), len(values), int)),
    )


def _greedy(values: Sequence[float | None], tops: Sequence[Any] | None) -> list[bool | None]:
    """Whether each token was the likeliest, as lm-evaluation-harness tells it: nothing exceeds its value."""
    return [
        value == max(map(float, top.values()))
        if value is not None and isinstance(top, Mapping) and top
        else None
        for value, top in zip(values, tops or [None] * len(values), strict=True)
    ]


def _of_kind(entries: Any, length: int, kind: type[Any]) -> Sequence[Any] | None:
    """A list that stands beside the log-probabilities; None where it is none, and can't be used."""
    fits = isinstance(entries, list) and len(entries) == length
    return entries if fits and all(entry is None or isinstance(entry, kind) for entry in entries) else None


def _whole(offsets: Sequence[int | None] | None) -> Sequence[int] | None:
    return (
        None if offsets is None or None in offsets else [offset for offset in offsets if offset is not None]
    )


def _from_prompt_logprobs(positions: Any) -> Scored:
    """vLLM's form: a mapping a position, the prompt's own token first, then the likeliest."""
    if not isinstance(positions, list):
        raise MalformedBody("the answer has no prompt_logprobs")
    chosen = [next(iter(position.values())) if position else None for position in positions]
    return Scored(
        [entry and entry.get("logprob") for entry in chosen],
        [None if entry is None else entry.get("rank") == 1 for entry in chosen],
        [None if entry is None else entry.get("decoded_token") or "" for entry in chosen],
        None,
    )
