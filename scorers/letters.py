"""Choices that were asked for by their letters: how an answer names one, and the metric that counts it.

``read_letter`` reads a text by rules, one after the other; ``read_first_token`` the log-probabilities of an
answer's first token. Both give a ``Reading``: a position among the choices as they were shown. The stage
filter makes of it the choice's index in the order of the item, whatever order it was shown in.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from string import ascii_uppercase
from typing import Any, Final

from metrics.metric import Metric
from metrics.types import HIGHEST_LOG_PROBABILITY
from scorers.base import BaseScorer, Batch, ModelReply, SampleScores, score_values

ACC_LETTER: Final = "acc_letter"
"""The metric of choices that were asked for by their letters."""
FIRST_TOKEN: Final = "first_token"
NO_RULE: Final = "none"
SPACES: Final = " \t\r\n▁ĠĊ"
"""White space, and what vocabularies write for it."""


@dataclass(frozen=True)
class Reading:
    """What an answer says: the position of the choice among those shown (None: no choice), the rule that
    found it.

    ``coverage`` is the probability of all letters together at the first token, ``probabilities`` what each
    has of that; ``error`` says why an answer that is there can't be scored.
    """

    rule: str
    position: int | None = None
    coverage: float | None = None
    probabilities: tuple[float, ...] | None = None
    error: str | None = None

    def record(self, order: Sequence[int], gold: Sequence[int]) -> dict[str, Any]:
        """The reading as details of a sample: ``order`` says which choice stood at each position, ``right``
        where the right ones stood."""
        shown = {name: value for name, value in asdict(self).items() if value is not None}
        places = {choice: place for place, choice in enumerate(order)}
        letter = {} if self.position is None else {"letter": ascii_uppercase[self.position]}
        right = [places[choice] for choice in gold if choice in places]
        return {**letter, **shown, "right": right, "order": list(order)}


_WRAP: Final = r"[\s*_`\"'(\[{<$.:]*"
_AFTER: Final = r"(?![\w'’])"


def _alone(text: str, letters: str) -> str | None:
    found = re.fullmatch(rf"{_WRAP}([{letters}{letters.lower()}])[\s*_`\"')\]}}>$.:,;!]*", text)
    return found[1].upper() if found else None


def _boxed(text: str, letters: str) -> str | None:
    found = re.findall(rf"\\boxed\s*\{{\s*(?:\\text(?:bf)?\s*\{{)?\s*\(?([{letters}])\)?\s*\}}", text)
    return found[-1] if found else None


def _announced(text: str, letters: str) -> str | None:
    said = rf"(?i:answer|choice|option)\b{_WRAP}(?i:(?:is|was|=|would be|should be)\b)?{_WRAP}"
    found = re.findall(
        rf"{said}(?:(?i:the|option|choice|letter)\b{_WRAP})*([{letters}])[*_`\"')\]}}]*{_AFTER}", text
    )
    return found[-1] if found else None


def _first_line(text: str, letters: str) -> str | None:
    found = re.match(rf"\s*[*_(\[]*([{letters}])(?:[*_)\]]*[.):]|[*_)\]]+|[ \t]*\n)(?!\w)", text)
    return found[1] if found else None


def _marked(text: str, letters: str) -> str | None:
    found = re.findall(rf"(?:\(([{letters}])\)|\*\*\(?([{letters}])[.):]*\)?\*\*)", text)
    return next(filter(None, found[-1])) if found else None


def _last_line(text: str, letters: str) -> str | None:
    lines = text.strip().splitlines()
    return _alone(lines[-1], letters) if len(lines) > 1 else None


RULES: Final[Mapping[str, Callable[[str, str], str | None]]] = {
    "alone": _alone,
    "boxed": _boxed,
    "announced": _announced,
    "last_line": _last_line,
    "first_line": _first_line,
    "marked": _marked,
}
"""Tried one after the other: the letter is all there is; stands in the last ``\\boxed{}``; behind the last
"answer is", "answer:" or "option"; alone on the last line; at the beginning as "B." or "B)"; in the last
parentheses or in bold. Then the choice's own text, where just one of them is in the answer."""
BY_TEXT: Final = "text"


def read_letter(text: str | None, choices: Sequence[str]) -> Reading:
    """The choice that an answer names, ``choices`` being those that were shown, in that order.

    >>> read_letter("The answer is (B).", ["red", "blue"]).position, read_letter("Red.", ["red", "blue"])
    (1, Reading(rule='text', position=0, coverage=None, probabilities=None, error=None))
    >>> read_letter("I can't tell.", ["red", "blue"])
    Reading(rule='none', position=None, coverage=None, probabilities=None, error=None)
    """
    answer, letters = text or "", ascii_uppercase[: len(choices)]
    for name, rule in RULES.items():
        letter = rule(answer, letters)
        if letter is not None:
            return Reading(name, letters.index(letter))
    named = _named(answer, choices)
    return Reading(BY_TEXT, named) if named is not None else Reading(NO_RULE)


def _named(answer: str, choices: Sequence[str]) -> int | None:
    """The only choice whose text stands in the answer; one inside a longer one that stands there too does
    not count."""
    said = answer.casefold()
    texts = [choice.strip().casefold() for choice in choices]
    found = [
        place
        for place, choice in enumerate(texts)
        if choice and re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", said)
    ]
    longest = [
        place
        for place in found
        if not any(texts[place] in texts[other] and texts[place] != texts[other] for other in found)
    ]
    return longest[0] if len(longest) == 1 else None


def read_first_token(logprobs: Any, n: int, coverage: float) -> Reading:
    """The likeliest letter of the first token, from the ``logprobs`` of a choice of chat or completions.

    A letter's probability is that of all tokens which are the letter but for white space; one that is not
    among the alternatives has none. Below ``coverage`` the letters together are too unlikely to be what the
    model would have said: there is an ``error`` then, as there is without log-probabilities.

    >>> read_first_token({"top_logprobs": [{" A": -0.7, "B": -2.3, "The": -1.6}]}, 2, 0.5).coverage
    0.597
    """
    tops = first_alternatives(logprobs)
    if not tops:
        return Reading(
            FIRST_TOKEN, error="the answer came without top_logprobs, which choices_by: first_token needs"
        )
    if impossible := [value for _, value in tops if value > HIGHEST_LOG_PROBABILITY]:
        said = f"{impossible[0]} is no log-probability: none is above 0; the server is broken"
        return Reading(FIRST_TOKEN, error=said)
    weights = [0.0] * n
    for token, value in tops:
        letter = token.strip(SPACES)
        if len(letter) == 1 and letter in ascii_uppercase[:n]:
            weights[ascii_uppercase.index(letter)] += math.exp(value)
    total = math.fsum(weights)
    covered = round(total, 3) if total < 1 else 1.0
    if total <= 0 or total < coverage:
        reason = f"the letters have a probability of {total:.3f} at the first token, below {coverage:g}"
        return Reading(FIRST_TOKEN, coverage=covered, error=reason)
    shares = tuple(weight / total for weight in weights)
    return Reading(FIRST_TOKEN, max(range(n), key=shares.__getitem__), covered, shares)


def first_alternatives(logprobs: Any) -> list[tuple[str, float]]:
    """The tokens that the first one was chosen from, with their log-probabilities; none where the endpoint
    gave none."""
    if not isinstance(logprobs, Mapping):
        return []
    content = logprobs.get("content")
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        entries = content[0].get("top_logprobs") or []
        pairs = [
            (entry.get("token"), entry.get("logprob")) for entry in entries if isinstance(entry, Mapping)
        ]
    else:
        listed = logprobs.get("top_logprobs")
        first = listed[0] if isinstance(listed, list) and listed else None
        pairs = list(first.items()) if isinstance(first, Mapping) else []
    return [
        (token, float(value))
        for token, value in pairs
        if isinstance(token, str)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and not math.isnan(value)
    ]


@dataclass(frozen=True)
class LetterScorer(BaseScorer):
    """Whether the choice that was read is a right one: the metric ``acc_letter``.

    No choice is wrong; an answer that can't be read as one (``Reading.error``) is unscored.
    """

    metrics: Mapping[str, tuple[Metric, ...]]

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Scores of ``acc_letter`` for every scored row, with how each was read as its details."""
        readings: Sequence[Mapping[str, Any] | None] = batch.readings or [None] * len(batch)
        gold = batch.gold or [()] * len(batch)
        errors = [None if reading is None else reading.get("error") for reading in readings]
        values = [
            None if not ok or error else float(prediction is not None and prediction in right)
            for ok, error, prediction, right in zip(
                batch.scored, errors, batch.predictions, gold, strict=True
            )
        ]
        details = [None if reading is None else dict(reading) for reading in readings]
        return score_values(batch, metric, values, errors, details)
