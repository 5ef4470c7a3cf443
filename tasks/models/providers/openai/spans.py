"""Spans of log-likelihoods as they are kept: the tokens that the server listed, with numbers, texts and
offsets, from some before the continuation on.

A context of thousands of tokens says nothing of a continuation's likelihood, and is the prompt itself. Where
the server's tokens show for certain what stands where, all but its last tokens are left out: a span of ids is
then read with as many unknown tokens in their place, a text from where the first kept token begins.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tasks.models.errors import PermanentError
from tasks.models.providers.openai.tokens import (
    Alignment,
    GeneratedTokens,
    LogprobSource,
    ScoredTokens,
    Span,
    scored,
    span_ends,
    sum_of,
    text_span,
)
from tasks.models.records import Request

BEFORE = 8
"""Tokens before the continuation that are kept: as many as a corrected reading may be off by."""
LEAST_LEFT_OUT = 16
"""Fewer are not worth it."""


@dataclass(frozen=True)
class KeptForm:
    """How the tokens came: in which field, how many generated ones are listed behind the prompt's, how many
    the server says it generated, and how many stand before those of a text that was put together from ids."""

    source: LogprobSource
    listed: int
    counted: int | None
    begun: int | None


def kept_span(choice: Mapping[str, Any], span: Span, form: KeptForm) -> dict[str, Any]:
    """What of a choice is kept to read the span's likelihood from; raises MalformedBody where it has none."""
    tokens = scored(choice, form.source)
    about = {name: value for name, value in asdict(form).items() if value is not None}
    if not isinstance(span.prompt, str):
        about["ids"] = [span.start, len(span.prompt)]
    whole = about | _lists(choice, form.source, len(tokens.logprobs), 0)
    first, before = _left_out(tokens, span, form)
    if not first:
        return whole
    cut = {"first": first, "before": before, "bos": tokens.logprobs[0]}
    short = about | cut | _lists(choice, form.source, len(tokens.logprobs), first)
    return short if _read(span, short) == _read(span, whole) else whole


def likelihood(request: Request, kept: Mapping[str, Any]) -> tuple[float, bool | None, int]:
    """A span's log-likelihood, whether it is greedy, and how many tokens it has; raises MalformedBody, and
    PermanentError where the tokens don't fit."""
    if "ids" in kept:  # only their number counts
        start, size = kept["ids"]
        return _read(Span((0,) * size, start), kept)
    context = "" if request.kind == "rolling" else request.prompt
    return _read(text_span(context, request.continuation), kept)


def _read(span: Span, kept: Mapping[str, Any]) -> tuple[float, bool | None, int]:
    tokens, first = scored(kept, kept["source"]), kept.get("first", 0)
    if first and isinstance(span.prompt, str):
        before = kept["before"]
        span = Span(span.prompt[before:], span.start - before)
    elif first:
        unknown: list[None] = [None] * (first - 1)
        tokens = ScoredTokens(
            [kept["bos"], *unknown, *tokens.logprobs], [None, *unknown, *tokens.greedy], (), None
        )
    form = KeptForm(kept["source"], kept["listed"], kept.get("counted"), kept.get("begun"))
    begin, end = _ends(tokens, span, form)
    return *sum_of(tokens, begin, end), len(tokens.logprobs[begin:end])


def _ends(tokens: ScoredTokens, span: Span, form: KeptForm) -> tuple[int, int]:
    if form.begun is None:
        return span_ends(tokens, GeneratedTokens(form.listed, form.counted), span)
    # Ids that went as text, of which the server may have made others: counted as lm-evaluation-harness
    # counts, from where the context would end.
    listed, size = len(tokens.logprobs), len(span.prompt) + form.begun
    end = size if listed == size and form.counted == 0 else listed - form.listed
    return span.start + form.begun, end


def _left_out(tokens: ScoredTokens, span: Span, form: KeptForm) -> tuple[int, int]:
    """How many tokens need not be kept, and where in the text the next one begins; none where that is not
    certain."""
    try:
        begin, _ = _ends(tokens, span, form)
    except PermanentError:
        return 0, 0
    most = min(begin - BEFORE, len(tokens.logprobs) - 1)
    if most < LEAST_LEFT_OUT:
        return 0, 0
    if not isinstance(span.prompt, str):
        return most, 0
    laid = Alignment.of(tokens.texts, span.prompt, form.listed) if tokens.texts else None
    if laid is None or laid.tokens_at(span.start) != [begin]:
        return 0, 0
    places = ((first, laid.character(first)) for first in range(most, LEAST_LEFT_OUT - 1, -1))
    return next(((first, at) for first, at in places if at is not None), (0, 0))


def _lists(choice: Mapping[str, Any], source: LogprobSource, size: int, first: int) -> dict[str, Any]:
    """The choice's lists of tokens, from the first that is kept on; without lists of another length, which
    say nothing of its tokens."""
    if source == "prompt_logprobs":
        return {"prompt_logprobs": choice["prompt_logprobs"][first:]}
    lists = choice["logprobs"]
    of_size = {
        name: values[first:]
        for name, values in lists.items()
        if isinstance(values, list) and len(values) == size
    }
    return {"logprobs": of_size}
