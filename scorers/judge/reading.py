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


_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)"
_ANNOUNCED = (  # "Grade: ", "**Verdict** = ", "the score is "
    r"\b(?:grade|verdict|rating|score|answer|judge?ment|decision|choice|winner|result)\b"
    r"[\s*_`\"']*(?:[:=]|is\b)[\s*_`\"'(\[]*"
)
_MARKUP = " \t\n\r*_`\"'()[]{}.:#<>"
_NUMBER_PLACES = (
    re.compile(rf"\[\[\s*({_NUMBER})\s*\]\]"),
    re.compile(rf"{_ANNOUNCED}({_NUMBER})(?![\w%])", re.IGNORECASE),
    re.compile(rf"({_NUMBER})\s*(?:/|out of)\s*\d+(?:\.\d+)?", re.IGNORECASE),
)


def read_grade(text: str, reading: Reading) -> Grade:
    """The grade in a reply, as the config's ``parse`` says it is to be found."""
    if isinstance(reading, ChoiceReading):
        return read_choice(text, reading.choices)
    if isinstance(reading, NumberReading):
        return _scaled(_within(read_number(text), reading.min, reading.max, text), reading)
    if isinstance(reading, FieldReading):
        return _read_field(text, reading)
    return _read_pattern(text, reading)


def read_choice(text: str, choices: Mapping[str, float]) -> Grade:
    """The label that a reply settles on.

    In turn: the whole reply; the last label in double brackets; the last one announced (``Grade: A``,
    ``verdict is A``); the only one that occurs as a word of its own, in its own case. A reply in which
    several labels occur and none is announced is unreadable.

    >>> read_choice("I think so. Grade: **CORRECT**", {"CORRECT": 1.0, "INCORRECT": 0.0}).value
    1.0
    """
    labels = {label.casefold(): label for label in choices}
    whole = labels.get(text.strip(_MARKUP).casefold())
    if whole is not None:
        return Grade(choices[whole], whole)
    bracketed, announced, standing_alone = _label_patterns(tuple(choices))
    for pattern in (bracketed, announced):
        found = pattern.findall(text)
        if found:
            label = labels[found[-1].casefold()]
            return Grade(choices[label], label)
    named = sorted(set(standing_alone.findall(text)))
    if len(named) == 1:
        return Grade(choices[named[0]], named[0])
    reason = (
        f"several of the labels ({', '.join(named)})" if named else f"none of the labels {', '.join(choices)}"
    )
    return Grade(None, error=f"{reason} in {_quoted(text)}")


def read_number(text: str) -> Grade:
    """The number that a reply settles on.

    In turn: the whole reply; the last number in double brackets; the last announced (``score: 7``), a
    fraction's upper part (``7/10``); the only number there is.

    >>> read_number("Clear and short. Rating: [[8]]").value, read_number("3 errors in 2 lines").error
    (8.0, "several numbers in '3 errors in 2 lines'")
    """
    whole = text.strip(_MARKUP.replace(".", ""))
    if re.fullmatch(_NUMBER, whole.rstrip(".")):
        return Grade(float(whole.rstrip(".")))
    for pattern in _NUMBER_PLACES:
        found = pattern.findall(text)
        if found:
            return Grade(float(found[-1]))
    numbers = re.findall(rf"(?<![\w.]){_NUMBER}(?![\w%])", text)
    if len(set(numbers)) == 1:
        return Grade(float(numbers[0]))
    return Grade(None, error=f"{'several numbers' if numbers else 'no number'} in {_quoted(text)}")


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
    if reading.choices is not None and isinstance(value, str):
        labels = {label.casefold(): label for label in reading.choices}
        label = labels.get(value.strip().casefold())
        if label is None:
            return Grade(None, error=f"{value!r} is none of the labels {', '.join(reading.choices)}")
        return Grade(reading.choices[label], label)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return Grade(None, error=f"{value!r:.60} is not a number")
    low = -math.inf if reading.min is None else reading.min
    high = math.inf if reading.max is None else reading.max
    return _within(Grade(number), low, high, text)


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
    """Every JSON object in the text, those inside another one left to it."""
    decoder, position = json.JSONDecoder(), text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
            yield value
        except (ValueError, RecursionError):
            end = position + 1
        position = text.find("{", end)


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
