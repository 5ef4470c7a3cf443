"""A judge's reply → a grade. What cannot be read without guessing is unreadable, with the reason in words."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scorers.judge.config import ChoiceReading, FieldReading, NumberReading, PatternReading, Reading


@dataclass(frozen=True)
class Grade:
    """A grade, or why there is none. ``label`` is what the judge said where grades have names."""

    value: float | None
    label: str | None = None
    error: str | None = None


_NUMBER = r"[-+\u2212\u2013]?(?:\d+(?:\.\d+)?|\.\d+)"
_ENDS = r"(?![\w%/]|[.,]\d|\s*%|\s*[-\u2012-\u2015]\s*\d)"
"""A number ends here: it is no part of 1,000 or 7,5 or 92.5% or 7-8 or a date, all of which take a guess."""
_OF = r"(?:\s*(?:/|out of)\s*(\d+(?:\.\d+)?))"
_ANNOUNCED = (  # "Grade: ", "**Verdict** = ", "the score is "
    r"\b(?:grade|verdict|rating|score|answer|judge?ment|decision|choice|winner|result)\b"
    r"[\s*_`\"']*(?:[:=]|is\b)[\s*_`\"'(\[]*"
)
_MARKUP = " \t\n\r*_`\"'()[]{}.:#<>"
_ANNOUNCED_NUMBER = re.compile(rf"{_ANNOUNCED}(?=[-+\u2212\u2013]?\.?\d)", re.IGNORECASE)
_NUMBER_HERE = re.compile(rf"({_NUMBER}){_OF}?{_ENDS}", re.IGNORECASE)
_BRACKETED_NUMBER = re.compile(rf"\[\[\s*({_NUMBER}){_OF}?\s*\]\]", re.IGNORECASE)
_FRACTION = re.compile(rf"(?<![\w.,/])({_NUMBER}){_OF}{_ENDS}", re.IGNORECASE)
_ANY_NUMBER = re.compile(r"(?<![\w.,])[-+\u2212\u2013]?\.?\d(?:[\d.,]*\d)?")
_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|no|cannot|partially|partly|mostly|hardly|barely|nearly|almost)|n['\u2019]t)"
    r"(?:[\s*_`\"'(]+\w+){0,3}[\s*_`\"'(]+\Z",
    re.IGNORECASE,
)
"""Before a label: what takes back or weakens what is said of it, with up to three words between."""
_LINE_ENDS = re.compile(r"[ \t*_`\"')\].,;!]*(?:\n|\Z)")
_GOES_ON = re.compile(
    r"[ \t]+(?!(?:is|was|wins|won|beats|has|because|since|as|for|by|over|than|and|or|but)\b)[a-z]"
)
"""After an A: a further word makes an article of it, except those that go on about an answer."""
_NAMED = re.compile(
    r"\b(?:answer|response|assistant|option|candidate|choice|model|output)[\s*_`\"'(]+\Z", re.IGNORECASE
)
"""Before an A: then it is none."""


def read_grade(text: str, reading: Reading, cut: bool = False) -> Grade:
    """The grade in a reply, as the config's ``parse`` says it is to be found. Of a reply that was ``cut`` by
    the limit of tokens only what it says expressly counts: it had not come to its end."""
    if isinstance(reading, ChoiceReading):
        return read_choice(text, reading.choices, cut)
    if isinstance(reading, NumberReading):
        found = read_number(text, reading.max, cut)
        return _scaled(_within(found, reading.min, reading.max, text), reading)
    if isinstance(reading, FieldReading):
        return _read_field(text, reading)
    return _read_pattern(text, reading)


def read_choice(text: str, choices: Mapping[str, float], cut: bool = False) -> Grade:
    """The label that a reply settles on.

    In turn: the whole reply; the last label in double brackets; the last one announced (``Grade: A``,
    ``verdict is A``); the only one that occurs as a word of its own, in its own case, unless the reply was
    ``cut``. A reply in which several labels occur and none is announced is unreadable, and so is one that
    denies or weakens the label (``not CORRECT``). A letter in another case counts where nothing follows it
    on its line: in "the result is a tie" there is no label A.

    >>> read_choice("I think so. Grade: **CORRECT**", {"CORRECT": 1.0, "INCORRECT": 0.0}).value
    1.0
    """
    whole = _label(text.strip(_MARKUP), choices)
    if whole is not None:
        return Grade(choices[whole], whole)
    bracketed, announced, standing_alone = _label_patterns(tuple(choices))
    for pattern, read in ((bracketed, _label_of), (announced, _label_at)):
        found = [label for said in pattern.finditer(text) if (label := read(said, choices)) is not None]
        if found:
            return Grade(choices[found[-1]], found[-1])
    places = [said for said in standing_alone.finditer(text) if _label_at(said, choices) is not None]
    named = sorted({place[1] for place in places})
    denied = any(_DENIED.search(text, max(0, place.start() - 80), place.start()) for place in places)
    if len(named) == 1 and not (denied or cut):
        return Grade(choices[named[0]], named[0])
    if len(named) > 1:
        reason = f"several of the labels ({', '.join(named)})"
    elif not named:
        reason = f"none of the labels {', '.join(choices)}"
    else:
        reason = (
            f"label {named[0]} is denied or weakened" if denied else "the reply was cut off before a label"
        )
    return Grade(None, error=f"{reason} in {_quoted(text)}")


def read_number(text: str, highest: float = math.inf, cut: bool = False) -> Grade:
    """The number that a reply settles on.

    In turn: the whole reply; the last number in double brackets; the last announced (``score: 7``), a
    fraction's upper part (``7/10``); the only number there is, unless the reply was ``cut``. What a fraction
    is out of has to be the ``highest`` grade where that is finite. Numbers that take a guess (7,5 or 1,000
    or 70% or 7-8) are none.

    >>> read_number("Clear and short. Rating: [[8]]").value, read_number("3 errors in 2 lines").error
    (8.0, "several numbers in '3 errors in 2 lines'")
    """
    whole = text.strip(_MARKUP.replace(".", "")).rstrip(".")
    if re.fullmatch(_NUMBER, whole):
        return Grade(_number(whole))
    places: list[re.Match[str] | None] = list(_BRACKETED_NUMBER.finditer(text))
    # A number that is announced and can't be read is not made up for by another.
    places = places or [_NUMBER_HERE.match(text, said.end()) for said in _ANNOUNCED_NUMBER.finditer(text)]
    places = places or list(_FRACTION.finditer(text))
    numbers = list(_ANY_NUMBER.finditer(text))
    if not places and len({number[0] for number in numbers}) == 1:
        if cut:
            return Grade(None, error=f"the reply was cut off before a grade in {_quoted(text)}")
        places = [_NUMBER_HERE.match(text, numbers[0].start())]
    if not places:
        return Grade(None, error=f"{'several numbers' if numbers else 'no number'} in {_quoted(text)}")
    last = places[-1]
    if last is None:
        return Grade(None, error=f"no number that can be told without a guess in {_quoted(text)}")
    if last[2] is not None and math.isfinite(highest) and float(last[2]) != highest:
        return Grade(None, error=f"{last[0].strip('[] ')} is not out of {highest:g} in {_quoted(text)}")
    return Grade(_number(last[1]))


def _number(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("\u2013", "-"))


def _label(said: str, choices: Mapping[str, float]) -> str | None:
    """The label that a text is, in whatever case; None: none, or no single one."""
    if said in choices:
        return said
    found = [
        label
        for label in choices
        if label.casefold() == said.casefold() or re.fullmatch(re.escape(label), said, re.IGNORECASE)
    ]
    return found[0] if len(found) == 1 else None


def _read_field(text: str, reading: FieldReading) -> Grade:
    found: Any = None
    path = reading.field.split(".")
    for candidate in _objects(text):
        value: Any = candidate
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        found = value if value is not None else found
    if found is None:
        return Grade(None, error=f"no JSON object with a field {reading.field!r} in {_quoted(text)}")
    return _from_value(found, reading, text)


def _read_pattern(text: str, reading: PatternReading) -> Grade:
    matches = list(re.finditer(reading.pattern, text))
    if not matches:
        return Grade(None, error=f"{reading.pattern!r} matches nothing in {_quoted(text)}")
    return _from_value((matches[-1].group(reading.group) or "").strip(), reading, text)


def _from_value(value: Any, reading: FieldReading | PatternReading, text: str) -> Grade:
    if reading.choices is not None:
        label = _label(_as_label(value), reading.choices)
        if label is None:
            return Grade(None, error=f"{value!r:.60} is none of the labels {', '.join(reading.choices)}")
        return Grade(reading.choices[label], label)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return Grade(None, error=f"{value!r:.60} is not a number")
    low = -math.inf if reading.min is None else reading.min
    high = math.inf if reading.max is None else reading.max
    return _within(Grade(number), low, high, text)


def _label_of(said: re.Match[str], choices: Mapping[str, float]) -> str | None:
    return _label(said[1], choices)


def _label_at(said: re.Match[str], choices: Mapping[str, float]) -> str | None:
    """The label that was found, unless it is a word of the sentence: a letter in another case in the middle
    of a line, or the article."""
    label, before, after = _label(said[1], choices), said.string[: said.start(1)], said.string[said.end(1) :]
    if label is None or (len(label) == 1 and said[1] != label and not _LINE_ENDS.match(after)):
        return None
    is_article = said[1] in ("A", "a") and _GOES_ON.match(after) and not _NAMED.search(before[-40:])
    return None if is_article else label


def _as_label(value: Any) -> str:
    """A field's value as a label may be written: booleans and numbers as in JSON, whole ones without a
    point."""
    if isinstance(value, str):
        return value.strip()
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _within(grade: Grade, low: float, high: float, text: str) -> Grade:
    if grade.value is None:
        return grade
    if math.isfinite(grade.value) and low <= grade.value <= high:
        return grade
    return Grade(None, error=f"grade {grade.value:g} is not between {low:g} and {high:g} in {_quoted(text)}")


def _scaled(grade: Grade, reading: NumberReading) -> Grade:
    if grade.value is None or not reading.normalize:
        return grade
    return Grade((grade.value - reading.min) / (reading.max - reading.min))


def _objects(text: str) -> Iterator[Any]:
    """Every JSON object in the text, those inside another one left to it, even where that one is broken."""
    decoder, position = json.JSONDecoder(), text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
            yield value
        except (ValueError, RecursionError):
            end = _closing_brace(text, position) if _OBJECT.match(text, position) else position + 1
        position = text.find("{", end)


_OBJECT = re.compile(r"\{\s*(?:[\"']|\w+\s*:)")
"""How an object begins, be it broken further on; other braces are the text's."""


def _closing_brace(text: str, position: int) -> int:
    """Where the braces that open here are all closed again; else the text's end."""
    depth = 0
    for brace in re.finditer(r"[{}]", text[position:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return position + brace.end()
    return len(text)


@lru_cache(maxsize=64)
def _label_patterns(labels: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    either = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    word = rf"(?<!\w)({either})(?!\w)"
    return (
        re.compile(rf"\[\[\s*({either})\s*\]\]", re.IGNORECASE),
        re.compile(_ANNOUNCED + word, re.IGNORECASE),
        re.compile(word),
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "…")
