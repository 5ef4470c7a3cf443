"""Times as configs write them: ``90s``, ``10m``, ``6h``, ``30d``, or a number of seconds."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def seconds_of(value: Any) -> Any:
    """A written time in seconds; what is no text is left as it is. Raises ValueError.

    >>> seconds_of("6h"), seconds_of("1.5m"), seconds_of(30)
    (21600.0, 90.0, 30)
    """
    if not isinstance(value, str):
        return value
    match = _WRITTEN.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"expected a time such as 90s, 10m, 6h or 30d, got '{value}'")
    return float(match[1]) * UNITS[match[2]]


def written(seconds: float) -> str:
    """A time as configs write it, in the largest unit that it is a whole number of.

    >>> written(21600), written(90), written(0.5)
    ('6h', '90s', '0.5s')
    """
    unit = next((name for name in "dhm" if seconds >= UNITS[name] and seconds % UNITS[name] == 0), "s")
    return f"{seconds / UNITS[unit]:g}{unit}"


Duration = Annotated[
    float,
    BeforeValidator(seconds_of),
    Field(gt=0, allow_inf_nan=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": f"^{_WRITTEN.pattern}$"},
            ]
        }
    ),
]
"""Seconds, above 0."""
