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
from scorers.articles import may_be_word
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


_WRAP: Final = r"(?:[\s*_`\"'“‘(（\[{<>$.:：=]|\\[(\[]|\\(?:text(?:bf)?|mathrm|mathbf)\b)*"
_CLOSED: Final = r"[*_`\"'”’)）\]}]*"
_AFTER: Final = r"(?![^\W\u2e80-\uffff]|['’])"
"""No further letter of the word, which in Chinese or Japanese does not end with one."""
_ENDS: Final = r"(?=\s*(?:[.)\]}<$。]|\\[)\]]|\Z|\n))"
_HEADS: Final = (
    r"(?:\b(?i:answer|letter|antwort|respuesta|réponse|resposta|risposta|ответ|jawaban|jibu)\b"
    r"|答案|答え|回答|正解|정답|답|उत्तर|উত্তর|الإجابة|الجواب)"
)
_IS: Final = (
    r"(?i:(?:is|was|would be|should be|must be|has to be|ist|lautet|es|est|é|è|adalah)\b"
    r"(?:\s+(?:clearly|therefore)\b)?|[:：=>是为は])"
)
_NAMES: Final = rf"(?:(?i:the|option|choice|letter)\b{_WRAP}){{0,3}}"


def _alone(text: str, letters: str) -> str | None:
    found = re.fullmatch(rf"{_WRAP}([{letters}{letters.lower()}])[\s*_`\"'”’)）\]}}>$.:,;!。]*", text)
    return found[1].upper() if found else None


def _boxed(text: str, letters: str) -> str | None:
    dress = r"(?:\\(?:text(?:bf)?|mathrm|mathbf)\s*\{)?"
    found = re.findall(rf"\\boxed\s*\{{\s*{dress}\s*\(?([{letters}{letters.lower()}])\)?\s*\}}", text)
    return found[-1].upper() if found else None


def _announced(text: str, letters: str) -> str | None:
    said = rf"{_HEADS}[\s*_`\"')\]]*{_IS}{_WRAP}{_NAMES}"
    found = _found(rf"{said}(?:([{letters}]){_CLOSED}{_AFTER}|([{letters.lower()}]){_CLOSED}{_ENDS})", text)
    return found[-1] if found else None


def _called(text: str, letters: str) -> str | None:
    right = r"(?:is|was)\s+(?:the\s+)?(?:correct|right|best)\b"
    return _only(_found(rf"(?<![\w'’])\(?([{letters}])\)?[*_`\"')\]]*\s+{right}", text))


def _option(text: str, letters: str) -> str | None:
    said = rf"\b(?i:answer|option|choice|choose|chose|pick|select)\b{_WRAP}(?:(?i:is|was)\b{_WRAP})?{_NAMES}"
    return _only(_found(rf"{said}([{letters}]){_CLOSED}{_AFTER}", text))


def _first_line(text: str, letters: str) -> str | None:
    ends = r"[*_)\]]*[.):]|[*_)\]]+|[ \t]*\n|,(?=\s+(?i:because|since|as)\b)"
    found = re.match(rf"\s*[*_(\[]*([{letters}])(?:{ends})(?!\w)", text)
    return found[1] if found else None


def _marked(text: str, letters: str) -> str | None:
    found = re.findall(rf"(?:\(([{letters}])\)|\*\*\(?([{letters}])[.):]*\)?\*\*)", text)
    return next(filter(None, found[-1])) if found else None


def _last_line(text: str, letters: str) -> str | None:
    lines = text.strip().splitlines()
    return _alone(lines[-1], letters) if len(lines) > 1 else None


def _found(pattern: str, text: str) -> list[str]:
    """The letters that a pattern finds, but those that are words of the sentence."""
    places = re.finditer(pattern, text)
    letters = [(said, next(group for group in said.groups() if group)) for said in places]
    return [letter.upper() for said, letter in letters if not may_be_word(letter, text, said.end())]


def _only(letters: Sequence[str]) -> str | None:
    """The letter that all of them are; None: there are several, or none."""
    return letters[0] if len(set(letters)) == 1 else None


RULES: Final[Mapping[str, Callable[[str, str], str | None]]] = {
    "alone": _alone,
    "boxed": _boxed,
    "announced": _announced,
    "last_line": _last_line,
    "first_line": _first_line,
    "called": _called,
    "option": _option,
    "marked": _marked,
}
"""Tried one after the other: the letter is all there is; stands in the last ``\\boxed{}``; behind the last
"answer is" or "answer:"; alone on the last line; at the beginning as "B." or "B)"; is the only one that is
called correct; the only one behind "option" or "I choose"; in the last parentheses or in bold. Then the
choice's own text, where just one of them is in the answer."""
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
