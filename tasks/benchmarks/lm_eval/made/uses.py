"""What uses of a value say about it: subscripts, comparisons, operators and calls of methods.

An expression stands for a ``Shape`` where it is a value of the row, for a ``Constant`` where the source holds
it, else for None. Templates and functions are read by the same rules.
"""

from collections.abc import Sequence
from typing import Any, Final

from tasks.benchmarks.lm_eval.made.shapes import Several, Shape

OF_TEXT: Final = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "title",
        "capitalize",
        "split",
        "splitlines",
        "replace",
        "startswith",
        "endswith",
        "format",
        "removeprefix",
        "removesuffix",
        "encode",
        "isdigit",
        "find",
        "count",
        "partition",
        "rpartition",
        "casefold",
    ]
)
SAME: Final = frozenset(
    ["strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "replace", "copy", "casefold"]
)
Names = dict[str, Any]


class Constant:
    """A value that the source itself holds."""

    def __init__(self, value: Any) -> None:
        self.value = value


def plain(value: Any) -> Any:
    """The value itself of a constant, None of anything else."""
    return value.value if isinstance(value, Constant) else None


def subscripted(base: Any, key: Any) -> Any:
    """What ``base[key]`` stands for."""
    if isinstance(key, Shape):
        if isinstance(base, Constant) and isinstance(base.value, dict):
            key.one_of([name for name in base.value if name is not None])
        elif isinstance(base, Constant) and isinstance(base.value, list | str):
            key.note("index")
            key.places = len(base.value)
        elif isinstance(base, Shape):
            key.note("index")
            return base.item()
        return None
    if not isinstance(base, Shape):
        if isinstance(base, Constant) and isinstance(key, Constant):
            try:
                return Constant(base.value[key.value])
            except (KeyError, IndexError, TypeError):
                return None
        return None
    if isinstance(key, Constant) and isinstance(key.value, str):
        return base.key(key.value)
    if isinstance(key, Constant) and isinstance(key.value, int):
        return base.item(key.value)
    return base.item()


def compared(left: Any, operator: str, right: Any) -> None:
    """Notes what a comparison says about either side."""
    if operator in ("eq", "ne", "noteq"):
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Shape) and isinstance(other, Constant) and other.value is not None:
                one.one_of([other.value])
    elif operator in ("in", "notin"):
        if isinstance(left, Shape) and isinstance(right, Constant):
            if isinstance(right.value, list | tuple | dict):
                left.one_of([value for value in right.value if value is not None])
        elif isinstance(left, Shape) and isinstance(right, Shape) and right.is_list:
            left.member_of = right
        elif isinstance(plain(left), str) and isinstance(right, Shape) and not right.is_list:
            right.one_of([plain(left)])
    elif isinstance(left, Shape) and operator not in ("is", "isnot"):
        left.note("number")


def combined(left: Any, right: Any, text: bool) -> Any:
    """Notes what an operator says about its sides."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Shape) and isinstance(other, Constant):
            if text or isinstance(other.value, str):
                one.note("text")
            elif isinstance(other.value, int | float) and not isinstance(other.value, bool):
                one.note("index" if isinstance(other.value, int) and other.value in (1, 65) else "number")
    return Several(left, right) if isinstance(left, Shape) and isinstance(right, Shape) else None


def method(base: Any, name: str, arguments: Sequence[Any]) -> Any:
    """What ``base.name(arguments)`` stands for."""
    first = arguments[0] if arguments else None
    if name == "index" and isinstance(first, Shape):
        if isinstance(base, Constant) and isinstance(base.value, list | str | tuple):
            first.one_of(list(base.value))
        elif isinstance(base, Shape):
            base.item()
            first.member_of = base
        return None
    if name == "index" and isinstance(base, Shape) and isinstance(plain(first), int):
        base.item().one_of([plain(first)])
        return None
    if not isinstance(base, Shape):
        if (
            isinstance(base, Constant)
            and isinstance(base.value, dict)
            and name == "get"
            and isinstance(first, Shape)
        ):
            first.one_of(list(base.value))
        return None
    if name == "get" and isinstance(first, Constant) and isinstance(first.value, str):
        return base.key(first.value)
    if name in OF_TEXT:
        base.note("text")
        if name in ("startswith", "endswith") and isinstance(plain(first), str):
            base.one_of([plain(first)])
        return base if name in SAME else None
    if name in ("append", "sort", "extend"):
        base.note("list")
    return None
