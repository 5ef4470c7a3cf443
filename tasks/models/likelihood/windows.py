"""Which tokens a log-likelihood request holds, and which of them count: lm-evaluation-harness's rules,
exactly.

Spaces at a context's end belong to the continuation, since most tokenizers join them to the next word. What
is too long is cut on the left. A rolling log-likelihood scores every token of a document once, in windows
that begin with one token of context.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.models.errors import BadRequest
from tasks.models.likelihood.tokenizers import Tokenizer

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
