"""A judge's reply → a grade. What cannot be read without guessing is unreadable, with the reason in words."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scorers.judge.config import ChoiceReading, FieldReading, NumberReading, PatternReading, Reading
from scorers.judge.evidence import Unsettled
from scorers.judge.labels import find_label, label_of
from scorers.judge.numbers import find_number


@dataclass(frozen=True)
class Grade:
    """A grade, or why there is none. ``label`` is what the judge said where grades have names."""

    value: float | None
    label: str | None = None
    error: str | None = None


def read_grade(text: str, reading: Reading, cut: bool = False) -> Grade:
    """The grade in a reply, as the config's ``parse`` says it is to be found. Of a reply that was ``cut`` by
    the limit of tokens only what it says expressly counts: it had not come to its end."""
    if isinstance(reading, ChoiceReading):
        return read_choice(text, reading.choices, cut)
    if isinstance(reading, NumberReading):
        found = read_number(text, reading.max, cut)
        return _scaled(_within(found, reading.min, reading.max, text), reading)
    if isinstance(reading, FieldReading):
        return _read_field(text, reading, cut)
    return _read_pattern(text, reading, cut)


def read_choice(text: str, choices: Mapping[str, float], cut: bool = False) -> Grade:
    """The label that a reply settles on (see ``find_label``).

    >>> read_choice("I think so. Grade: **CORRECT**", {"CORRECT": 1.0, "INCORRECT": 0.0}).value
    1.0
    """
    try:
        label = find_label(text, choices, cut)
    except Unsettled as why:
        return Grade(None, error=f"{why} in {_quoted(text)}")
    return Grade(choices[label], label)


def read_number(text: str, highest: float = math.inf, cut: bool = False) -> Grade:
    """The number that a reply settles on (see ``find_number``).

    >>> read_number("Clear and short. Rating: [[8]]").value, read_number("3 errors in 2 lines").error
    (8.0, "several numbers in '3 errors in 2 lines'")
    """
    try:
        return Grade(find_number(text, highest, cut))
    except Unsettled as why:
        return Grade(None, error=f"{why} in {_quoted(text)}")


def _read_field(text: str, reading: FieldReading, cut: bool) -> Grade:
    """The field in the last object that has it. An object behind it that is broken, and may hold another
    grade, leaves that one a draft."""
    found: Any = None
    error = f"no JSON object with a field {reading.field!r}"
    path = reading.field.split(".")
    for candidate, written in _objects(text):
        value: Any = candidate
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found = value
        elif candidate is None and found is not None:
            if cut and text.endswith(written):
                found, error = None, "the reply was cut off within a JSON object"
            elif all(re.search(rf"(?<!\w){re.escape(key)}[\"']?\s*:", written) for key in path):
                found, error = None, f"the last JSON object with a field {reading.field!r} is broken"
    if found is None:
        return Grade(None, error=f"{error} in {_quoted(text)}")
    return _from_value(found, reading, text)


def _read_pattern(text: str, reading: PatternReading, cut: bool) -> Grade:
    matches = list(re.finditer(reading.pattern, text))
    if not matches:
        return Grade(None, error=f"{reading.pattern!r} matches nothing in {_quoted(text)}")
    said = (matches[-1].group(reading.group) or "").strip()
    grade = _from_value(said, reading, text)
    if not cut or grade.value is None:
        return grade
    further = (_read_pattern(text + more, reading, cut=False) for more in _continuations(said, reading))
    if any(other.value is not None and other != grade for other in further):
        return Grade(None, error=f"the reply was cut off behind {said}, which may have gone on")
    return grade


def _continuations(said: str, reading: PatternReading) -> Iterator[str]:
    """What may have been to come of a grade that a limit cut: the rest of another label, or a digit."""
    if reading.choices is None:
        yield "0"  # the least that one more digit makes of a number
        return
    for label in reading.choices:
        if label.casefold().startswith(said.casefold()):
            yield label[len(said) :]


def _from_value(value: Any, reading: FieldReading | PatternReading, text: str) -> Grade:
    if reading.choices is not None:
        label = label_of(_as_label(value), reading.choices)
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


def _objects(text: str) -> Iterator[tuple[Any, str]]:
    """Every JSON object in the text, those inside another one left to it, even where that one is broken, and
    as it is written. A broken one is None."""
    decoder, position = json.JSONDecoder(strict=False), text.find("{")  # line breaks may stand in a text
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
            yield value, text[position:end]
        except (ValueError, RecursionError):
            end = position + 1
            if _OBJECT.match(text, position):
                end = _closing_brace(text, position)
                yield None, text[position:end]
        position = text.find("{", end)


_OBJECT = re.compile(r"\{\s*(?:[\"']|\w+\s*:|\w*\Z)")
"""How an object begins, be it broken further on, or cut off; other braces are the text's."""


def _closing_brace(text: str, position: int) -> int:
    """Where the braces that open here are all closed again; where they never are, the next brace that begins
    a line, and else the text's end."""
    depth = 0
    for brace in re.finditer(r"[{}]", text[position:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return position + brace.end()
    begun = text.find("\n{", position)
    return len(text) if begun < 0 else begun


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "…")
