"""Dotted paths into an item's data, as configs name fields."""

from collections.abc import Mapping
from typing import Any


def field_at(data: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, list positions as numbers (a field whose name holds dots wins); raises
    KeyError with the part not there.

    >>> field_at({"a": [{"b": 1}]}, "a.0.b")
    1
    """
    if path in data:
        return data[path]
    value: Any = data
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(part)
    return value
