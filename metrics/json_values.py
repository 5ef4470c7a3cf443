"""Values of JSON: those that models write, read alike by every Python, and what lies inside one."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

MOST_LEVELS: Final = 100
"""Lists and objects inside each other. Python itself ends between 1,000 and 10,000 levels, by its version and
by what called it: without a limit of our own, an answer would be right here and wrong there."""


def read_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """The value of a JSON text, as ``json.loads`` reads it; ``ValueError``: none, or nested too deeply."""
    try:
        return shallow(json.loads(text, parse_constant=parse_constant))
    except RecursionError:  # an answer that loops
        raise ValueError(_TOO_DEEP) from None


def shallow(value: Any) -> Any:
    """The same value; ``ValueError`` where it has more than ``MOST_LEVELS`` levels."""
    if levels(value) > MOST_LEVELS:
        raise ValueError(_TOO_DEEP)
    return value


def levels(value: Any) -> int:
    """How deep lists and objects lie inside each other, counted to one more than ``MOST_LEVELS``.

    >>> levels([[1], 2]), levels(1)
    (2, 0)
    """
    count, layer = 0, [value]
    while count <= MOST_LEVELS and (layer := [one for one in layer if isinstance(one, list | dict)]):
        layer = [inner for one in layer for inner in (one.values() if isinstance(one, dict) else one)]
        count += 1
    return count


def leaves(value: Any) -> Iterator[Any]:
    """All that lies inside a value and is neither a list nor a mapping, in order; fields' names do not count.

    >>> list(leaves({"a": [1, {"b": "x"}], "c": None}))
    [1, 'x', None]
    """
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for entry in value:
        yield from leaves(entry)


def with_leaves(
    value: Any, change: Callable[[Any], Any], rename: Callable[[Any], Any] = lambda name: name
) -> Any:
    """The same value with what ``change`` makes of each leaf, and ``rename`` of each field's name.

    >>> with_leaves({"a": (1, {"b": 2})}, lambda leaf: -leaf, str.upper)
    {'A': [-1, {'B': -2}]}
    """
    if isinstance(value, Mapping):
        return {rename(name): with_leaves(inner, change, rename) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [with_leaves(inner, change, rename) for inner in value]
    return change(value)


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a value, but for the names of its fields."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, str))


_TOO_DEEP = f"nested too deeply: more than {MOST_LEVELS} levels"
