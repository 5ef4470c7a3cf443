"""Lengths of time in configs: ``45s``, ``30m``, ``20h``, ``90d``, ``2w``."""

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST: Final = timedelta(days=36_500)
"""A hundred years: what is further back is before the first date that Python counts."""
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def parse_duration(value: Any) -> timedelta:
    """A length of time above zero and of ``LONGEST`` at most from its text; raises ValueError for anything
    else.

    >>> parse_duration("20h") == timedelta(hours=20)
    True
    """
    if isinstance(value, timedelta):
        found = value
    else:
        match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected a number with s, m, h, d or w, such as 20h or 90d, got {value!r}")
        try:
            found = timedelta(**{UNITS[match[2]]: float(match[1])})
        except OverflowError:
            found = timedelta.max
    if found <= timedelta():
        raise ValueError(f"expected a length of time above zero, got {value!r}")
    if found > LONGEST:
        raise ValueError(f"expected at most {duration_text(LONGEST)}, got {value!r}")
    return found


def duration_text(value: timedelta) -> str:
    """The text that ``parse_duration`` reads, in the largest unit that gives a whole number.

    >>> duration_text(timedelta(hours=48)), duration_text(timedelta(hours=20))
    ('2d', '20h')
    """
    for unit in ("d", "h", "m"):
        one = timedelta(**{UNITS[unit]: 1})
        if not value % one:
            return f"{value // one}{unit}"
    return f"{value.total_seconds():g}s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*[smhdw]$", "examples": ["20h", "90d"]}),
]
"""A field of a config that holds a length of time."""


def seconds_of(value: Any) -> Any:
    """A length of time in seconds; a number is seconds already.

    >>> seconds_of("20h"), seconds_of(1.5)
    (72000.0, 1.5)
    """
    return parse_duration(value).total_seconds() if isinstance(value, str) else value


Seconds = Annotated[
    float,
    BeforeValidator(seconds_of),
    Field(gt=0, allow_inf_nan=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[smhdw]$"},
            ]
        }
    ),
]
"""A field of a config that holds a length of time in seconds: a number, or a text as above."""
