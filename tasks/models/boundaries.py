"""Where a continuation begins and ends in a server's list of tokens.

Prompts that went as token ids are counted. Texts are laid along the tokens' own texts, and where these do not
tell, the server's text offsets do.
"""

from typing import NamedTuple

from tasks.models.alignment import Alignment
from tasks.models.errors import BadRequest
from tasks.models.token_lists import Scored
from tasks.models.windows import Span


class Generated(NamedTuple):
    """How many tokens the server was to generate after the prompt, and how many it says it did (None: it
    does not say).
    """

    asked: int
    counted: int | None = None


def span_likelihood(tokens: Scored, generated: Generated, span: Span) -> tuple[float, bool | None]:
    """The sum of the log-probabilities from the span's start on, and whether greedy decoding would have
    produced just that.

    Raises BadRequest where the server's tokens don't fit the prompt.
    """
    if isinstance(span.prompt, tuple):
        begin, end = _ends_of_ids(tokens, generated, span)
    else:
        begin, end = _ends_of_text(tokens, generated, span.prompt, span.start)
        if begin >= end:
            raise BadRequest(
                "the continuation shares its only token with the context; name a tokenizer: for this model"
            )
    return sum_of(tokens, begin, end)


def sum_of(tokens: Scored, begin: int, end: int) -> tuple[float, bool | None]:
    """The sum of the log-probabilities of some tokens, and whether all were the likeliest; 0 and True for
    none.
    """
    values, greedy = tokens.logprobs[begin:end], tokens.greedy[begin:end]
    if any(value is None for value in values):
        raise BadRequest(
            "the server gives no log-probability for a text's first token; name a tokenizer: for this model"
        )
    flag = None if None in greedy else all(greedy)
    return float(sum(value for value in values if value is not None)), flag


def _ends_of_ids(tokens: Scored, generated: Generated, span: Span) -> tuple[int, int]:
    """A list of the length asked for is taken as it is, whatever the server counts: some count no end token,
    and list it. In any other a BOS was added or dropped, or the generated token is not listed.
    """
    listed, size = len(tokens.logprobs), len(span.prompt)
    if listed == size + generated.asked:
        return span.start, size
    if listed == size and (generated.counted == 0 or tokens.logprobs[:1] == [None]):
        return span.start, size
    following = generated.asked if generated.counted is None else generated.counted
    count = listed - following
    shift = count - size
    if shift not in (-1, 0, 1) or span.start + shift < 0:
        raise BadRequest(
            f"the server gave {count} log-probabilities for a prompt of {size} tokens: "
            "the tokenizer: is another one than the model's, or echo is ignored"
        )
    return span.start + shift, count


def _ends_of_text(tokens: Scored, generated: Generated, prompt: str, start: int) -> tuple[int, int]:
    laid = Alignment.of(tokens.texts, prompt, generated.asked) if tokens.texts else None
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


def _ends_of_offsets(tokens: Scored, generated: Generated, prompt: str, start: int) -> tuple[int, int] | None:
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
    end = len(offsets) - generated.asked
    if offsets[end:] != [len(prompt)] * generated.asked:
        if offsets[-1] >= len(prompt) or generated.counted != 0:
            return None
        end = len(offsets)  # the generated token is not listed
    places = range(int(special), end)
    return next((place for place in places if offsets[place] >= start), end), end
