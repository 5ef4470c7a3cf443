"""Which tokens a log-likelihood request holds, which of them count, and their log-probabilities in what a
server returns.

The rules are those of lm-evaluation-harness, exactly. Spaces at a context's end belong to the
continuation, since most tokenizers join them to the next word. What is too long is cut on the left. A
rolling log-likelihood scores every token of a document once, in windows that begin with one token of
context.

``scored`` reads the two forms in which servers give a prompt's tokens. ``span_ends`` finds where a
continuation begins and ends among them: prompts that went as token ids are counted; texts are laid along
the tokens' own texts, and where these do not tell, the server's text offsets do.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from metrics.types import HIGHEST_LOG_PROBABILITY
from tasks.models.errors import BadRequest, MalformedBody
from tasks.models.tokenizers import Tokenizer

DEFAULT_MAX_LENGTH = 2048
"""Tokens a model takes in where nothing says how many: lm-evaluation-harness's default for endpoints."""


@dataclass(frozen=True, slots=True)
class Span:
    """A prompt to be scored from ``start`` on.

    ``prompt`` is text, ``start`` then a position in its characters; or token ids, ``start`` then a position
    among them.
    """

    prompt: str | tuple[int, ...]
    start: int


def split_pair(context: str, continuation: str) -> tuple[str, str]:
    """Moves the white space at the context's end to the continuation.

    >>> split_pair("The sky is ", "blue")
    ('The sky is', ' blue')
    """
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation


def text_span(context: str, continuation: str) -> Span:
    """The span of a pair for servers that report text offsets."""
    before, after = split_pair(context, continuation)
    return Span(before + after, len(before))


def token_span(tokenizer: Tokenizer, context: str, continuation: str, max_length: int) -> Span:
    """The span of a pair in token ids, one place of ``max_length`` being left for a generated token."""
    if context == "":
        following = tokenizer.encode(continuation)
        prefix = _prefix(tokenizer)
        before, after = ([prefix], following) if following[:1] != [prefix] else (following[:1], following[1:])
    else:
        context, continuation = split_pair(context, continuation)
        before = tokenizer.encode(context)
        after = tokenizer.encode(context + continuation)[len(before) :]
    return clipped(before, after, max_length - 1)


def span_apart(tokenizer: Tokenizer, context: str, continuation: str, max_length: int) -> Span:
    """The span of a pair of which no token reaches over both."""
    # Behind a line break: many tokenizers put a space before a text's first word.
    mark = tokenizer.encode("\n")
    after = tokenizer.encode("\n" + continuation)
    after = after[len(mark) :] if after[: len(mark)] == mark else tokenizer.encode(continuation)
    return clipped(tokenizer.encode(context), after, max_length - 1)


def clipped(before: Sequence[int], after: Sequence[int], longest: int) -> Span:
    """Context and continuation in one, cut on the left to ``longest`` tokens."""
    tokens = (*before, *after)
    start = len(before) - max(0, len(tokens) - longest)
    if start < 1:
        raise BadRequest(
            f"the continuation has {len(after)} tokens and does not fit into max_length with any context"
        )
    return Span(tokens[-longest:], start)


def rolling_spans(tokenizer: Tokenizer, document: str, max_length: int) -> list[Span]:
    """The windows of a document: each token is scored once, after at least one token of context."""
    tokens = tokenizer.encode(document)
    longest = max_length - 1
    windows = _windows(tokens, _prefix(tokenizer), longest - 1)
    return [clipped(before[: len(before) - (len(after) - 1)], after, longest) for before, after in windows]


def _windows(tokens: list[int], prefix: int, size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs (inputs, predicted tokens) as lm-evaluation-harness's ``get_rolling_token_windows`` with a
    context of 1.
    """
    first = tokens[:size]
    if first:
        yield [prefix, *first[:-1]], first
    done = len(first)
    while done < len(tokens):
        end = min(len(tokens), done + size)
        yield tokens[end - size - 1 : end - 1], tokens[done:end]
        done = end


def _prefix(tokenizer: Tokenizer) -> int:
    if tokenizer.prefix is None:
        raise BadRequest(
            "the tokenizer names neither BOS nor EOS, which must stand before a text without context"
        )
    return tokenizer.prefix


LogprobSource = Literal["echo", "prompt_logprobs"]
"""The field of a choice that holds them: ``logprobs`` where the prompt is said back, or vLLM's own."""


@dataclass(frozen=True)
class ScoredTokens:
    """A prompt's tokens as the server gave them: log-probability, whether it was the likeliest, text (None:
    it does not say), offset.
    """

    logprobs: Sequence[float | None]
    greedy: Sequence[bool | None]
    texts: Sequence[str | None]
    offsets: Sequence[int] | None


def scored(choice: Mapping[str, Any], source: LogprobSource) -> ScoredTokens:
    """Reads a choice's log-probabilities; raises MalformedBody where there are none, or one that can't be."""
    try:
        found = _scored(choice, source)
        for value in found.logprobs:
            if value is not None:
                _require_log_probability(value)
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration) as error:
        raise MalformedBody("the answer's log-probabilities are of no known form") from error
    return found


def _require_log_probability(value: Any) -> None:
    """NaN passes, which servers write where they have none; a sum of it does not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    if value > HIGHEST_LOG_PROBABILITY:
        raise MalformedBody(f"{value} is no log-probability: none is above 0; the server is broken")


def _scored(choice: Mapping[str, Any], source: LogprobSource) -> ScoredTokens:
    if source == "prompt_logprobs":
        return _from_prompt_logprobs(choice.get("prompt_logprobs"))
    lists = choice.get("logprobs")
    if not isinstance(lists, Mapping) or not isinstance(lists.get("token_logprobs"), list):
        raise MalformedBody("the answer has no log-probabilities of the prompt")
    values = lists["token_logprobs"]
    return ScoredTokens(
        values,
        _greedy(values, _of_kind(lists.get("top_logprobs"), len(values), Mapping)),
        _of_kind(lists.get("tokens"), len(values), str) or (),
        _complete(_of_kind(lists.get("text_offset"), len(values), int)),
    )


def _greedy(values: Sequence[float | None], tops: Sequence[Any] | None) -> list[bool | None]:
    """Whether each token was the likeliest, as lm-evaluation-harness tells it: nothing exceeds its value."""
    for top in tops or ():
        for value in top.values() if isinstance(top, Mapping) else ():
            _require_log_probability(value)
    return [
        value == max(top.values()) if value is not None and isinstance(top, Mapping) and top else None
        for value, top in zip(values, tops or [None] * len(values), strict=True)
    ]


def _of_kind(entries: Any, length: int, kind: type[Any]) -> Sequence[Any] | None:
    """A list that stands beside the log-probabilities; None where it is none, and can't be used."""
    fits = isinstance(entries, list) and len(entries) == length
    return entries if fits and all(entry is None or isinstance(entry, kind) for entry in entries) else None


def _complete(offsets: Sequence[int | None] | None) -> Sequence[int] | None:
    return (
        None if offsets is None or None in offsets else [offset for offset in offsets if offset is not None]
    )


def _from_prompt_logprobs(positions: Any) -> ScoredTokens:
    """vLLM's form: a mapping a position, the prompt's own token first, then the likeliest."""
    if not isinstance(positions, list):
        raise MalformedBody("the answer has no prompt_logprobs")
    chosen = [next(iter(position.values())) if position else None for position in positions]
    return ScoredTokens(
        [entry and entry.get("logprob") for entry in chosen],
        [None if entry is None else entry.get("rank") == 1 for entry in chosen],
        [None if entry is None else entry.get("decoded_token") or "" for entry in chosen],
        None,
    )


class GeneratedTokens(NamedTuple):
    """How many tokens the server was to generate after the prompt, and how many it says it did (None: it
    does not say).
    """

    requested: int
    counted: int | None = None


def span_ends(tokens: ScoredTokens, generated: GeneratedTokens, span: Span) -> tuple[int, int]:
    """Which tokens are the span's: from the first of its continuation to the last, excluded.

    Raises BadRequest where the server's tokens don't fit the prompt.
    """
    if isinstance(span.prompt, tuple):
        return _ends_of_ids(tokens, generated, span)
    begin, end = _ends_of_text(tokens, generated, span.prompt, span.start)
    if begin >= end:
        raise BadRequest(
            "the continuation shares its only token with the context; name a tokenizer: for this model"
        )
    return begin, end


def sum_of(tokens: ScoredTokens, begin: int, end: int) -> tuple[float, bool | None]:
    """The sum of the log-probabilities of some tokens, and whether all were the likeliest; 0 and True for
    none.
    """
    values, greedy = tokens.logprobs[begin:end], tokens.greedy[begin:end]
    if any(value is None for value in values):
        raise BadRequest(
            "the server gives no log-probability for a text's first token; name a tokenizer: for this model"
        )
    flag = None if None in greedy else all(greedy)
    if any(math.isnan(value) for value in values if value is not None):
        raise MalformedBody("a token of the continuation has NaN as its log-probability")
    return float(sum(value for value in values if value is not None)), flag


def _ends_of_ids(tokens: ScoredTokens, generated: GeneratedTokens, span: Span) -> tuple[int, int]:
    """A list of the length asked for is taken as it is, whatever the server counts: some count no end token,
    and list it. In any other a BOS was added or dropped, or the generated token is not listed.
    """
    listed, size = len(tokens.logprobs), len(span.prompt)
    if listed == size + generated.requested:
        return span.start, size
    if listed == size and (generated.counted == 0 or tokens.logprobs[:1] == [None]):
        return span.start, size
    following = generated.requested if generated.counted is None else generated.counted
    count = listed - following
    shift = count - size
    if shift not in (-1, 0, 1) or span.start + shift < 0:
        raise BadRequest(
            f"the server gave {count} log-probabilities for a prompt of {size} tokens: "
            "the tokenizer: is another one than the model's, or echo is ignored"
        )
    return span.start + shift, count


def _ends_of_text(
    tokens: ScoredTokens, generated: GeneratedTokens, prompt: str, start: int
) -> tuple[int, int]:
    laid = Alignment.of(tokens.texts, prompt, generated.requested) if tokens.texts else None
    candidates = laid.tokens_at(start) if laid is not None else []
    if laid is not None and len(candidates) == 1:
        return candidates[0], laid.end
    told = _ends_of_offsets(tokens, generated, prompt, start)
    if told is not None and (not candidates or told[0] in candidates):
        return told
    if laid is not None and not candidates:
        return laid.first_after(start), laid.end
    raise BadRequest(
        "the server's tokens and text offsets don't tell where the continuation begins; name a tokenizer:"
    )


def _ends_of_offsets(
    tokens: ScoredTokens, generated: GeneratedTokens, prompt: str, start: int
) -> tuple[int, int] | None:
    """What the offsets say; None where the token behind the prompt does not begin where the prompt ends:
    then they count something else than its characters.
    """
    if tokens.offsets is None:
        return None
    # A BOS in the list may or may not count as characters of the text.
    first = (tokens.texts[0] if tokens.texts else None) or ""
    special = len(tokens.texts) > 1 and not prompt.startswith(first)
    base = len(first) if special and tokens.offsets[1] == len(first) else 0
    offsets = [offset - base for offset in tokens.offsets]
    end = len(offsets) - generated.requested
    if offsets[end:] != [len(prompt)] * generated.requested:
        if offsets[-1] >= len(prompt) or generated.counted != 0:
            return None
        end = len(offsets)  # the generated token is not listed
    places = range(int(special), end)
    return next((place for place in places if offsets[place] >= start), end), end


REPLACEMENT = "\ufffd"
LONGEST_PART = 3
"""Bytes of a character that one replacement character stands for at most: all four would be the character."""
LONGEST_UNKNOWN = 256
_spelt = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
Places = frozenset[int]


@dataclass(frozen=True)
class Alignment:
    """Tokens laid along the text that they came from, by what a server says their texts are.

    ``begins[i]`` holds where token i may begin, in bytes of the text; ``begins[end]`` is the text's length. A
    token's text alone often does not show its bytes: of a character that is spread over several tokens each
    shows a replacement character, which may stand for one byte or three. The tokens around it decide.
    """

    text: str
    begins: tuple[Places, ...]

    @classmethod
    def of(cls, tokens: Sequence[str | None], text: str, generated: int) -> "Alignment | None":
        """Lays the tokens along the text: all but the last ``generated`` ones, or all where those are not
        listed. The first may be a BOS and no part of the text, and its own text may be unknown (None).

        None: they don't spell it.
        """
        data = text.encode("utf-8", "surrogatepass")
        reached = _reached(data, tokens)
        ends = (len(tokens) - generated, len(tokens))
        end = next((end for end in ends if 0 < end < len(reached) and len(data) in reached[end]), None)
        if end is None:
            return None
        begins = [frozenset((len(data),))]
        for index in range(end - 1, -1, -1):
            following = begins[-1]
            begins.append(
                frozenset(
                    start
                    for start in reached[index]
                    if not following.isdisjoint(_ends(data, start, tokens[index], index == 0))
                )
            )
        return cls(text, tuple(reversed(begins)))

    @property
    def end(self) -> int:
        """The index of the first token behind the text."""
        return len(self.begins) - 1

    def tokens_at(self, position: int) -> list[int]:
        """The tokens that may begin at a character of the text; of those without text none."""
        place = self._place(position)
        return [
            index
            for index in range(self.end)
            if place in self.begins[index] and self.begins[index + 1] != frozenset((place,))
        ]

    def character(self, index: int) -> int | None:
        """The character of the text that a token begins at; None where that is not certain, or inside of
        one."""
        if len(self.begins[index]) != 1:
            return None
        (place,) = self.begins[index]
        try:
            return len(self.text.encode("utf-8", "surrogatepass")[:place].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return None

    def first_after(self, position: int) -> int:
        """The first token that begins at that character or behind it, whatever its own text was."""
        return bisect_left(self.begins, self._place(position), key=min)

    def _place(self, position: int) -> int:
        return len(self.text[:position].encode("utf-8", "surrogatepass"))


def _reached(data: bytes, tokens: Sequence[str | None]) -> list[Places]:
    """Where the text may be after none, one, two … tokens, as far as they spell it."""
    reached = [frozenset((0,))]
    for index, token in enumerate(tokens):
        places = frozenset(end for start in reached[-1] for end in _ends(data, start, token, index == 0))
        if not places:
            break
        reached.append(places)
    return reached


def _ends(data: bytes, start: int, token: str | None, first: bool) -> set[int]:
    """Where a token that begins at a byte may end."""
    if token is None:
        return set(range(start, min(len(data), start + LONGEST_UNKNOWN) + 1))
    ends = {start}
    for part in _parts(token):
        if part is None:
            sizes = range(1, LONGEST_PART + 1)
            ends = {end + size for end in ends for size in sizes if _inside(data[end : end + size], size)}
        else:
            ends = {end + len(part) for end in ends if data.startswith(part, end)}
    return ends | {start} if first else ends


def _inside(part: bytes, size: int) -> bool:
    return len(part) == size and min(part) >= 0x80


@lru_cache(maxsize=1 << 14)
def _parts(token: str) -> tuple[bytes | None, ...]:
    """A token's bytes; None for a replacement character."""
    spelt = _spelt.fullmatch(token)
    if spelt:
        return (bytes.fromhex(spelt[1].replace("\\x", "")),)
    pieces = (piece for piece in re.split(f"({REPLACEMENT})", token) if piece)
    return tuple(None if piece == REPLACEMENT else piece.encode("utf-8", "surrogatepass") for piece in pieces)
