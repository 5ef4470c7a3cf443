"""What is known of the value of a column: a tree of facts, filled while templates and functions are read.

Uses of a value say it: subscripts, comparisons, operators and calls of methods. An expression stands for
a ``Shape`` where it is a value of the row, for a ``Constant`` where the source holds it, else for None.
Templates and functions are read by the same rules.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["text", "number", "list", "index"]


@dataclass
class Shape:
    """Facts about one value.

    ``fields`` are those of a mapping, ``element`` what a list holds, ``parsed`` what a JSON text stands for.
    ``literals`` are constants that it is compared with, ``member_of`` the list that it is looked up in, and
    ``places`` how many places a list has that it is an index of.
    """

    fields: dict[str, "Shape"] = field(default_factory=dict)
    element: "Shape | None" = None
    parsed: "Shape | None" = None
    kinds: Counter[Kind] = field(default_factory=Counter)
    literals: list[Any] = field(default_factory=list)
    member_of: "Shape | None" = None
    places: int | None = None
    length: int = 0

    def key(self, name: str) -> "Shape":
        """The field of that name."""
        return self.fields.setdefault(name, Shape())

    def item(self, index: int | None = None) -> "Shape":
        """What the list holds; ``index`` is a place that is asked for."""
        if index is not None:
            self.length = max(self.length, index + 1 if index >= 0 else -index)
        if self.element is None:
            self.element = Shape()
        return self.element

    def read(self) -> "Shape":
        """What the text stands for."""
        if self.parsed is None:
            self.parsed = Shape()
        return self.parsed

    def note(self, kind: Kind) -> None:
        """Counts one use that only a value of that kind allows."""
        self.kinds[kind] += 1

    def one_of(self, values: Iterator[Any] | list[Any]) -> None:
        """Adds constants that the value may be."""
        self.literals += [value for value in values if value not in self.literals]

    @property
    def alike(self) -> str:
        """What two columns share that are used in the same way."""
        return repr((sorted(self.fields), self.element, self.parsed, sorted(self.kinds)))

    @property
    def is_list(self) -> bool:
        """Whether it is used as a list; a text may be indexed too."""
        taken = self.element is not None or self.kinds["list"] > 0
        return taken and not self.fields and self.kinds["text"] == 0


class Several(Shape):
    """Values that an operator joins: what is noted about the outcome holds of each."""

    def __init__(self, *shapes: Shape) -> None:
        super().__init__()
        self._shapes = shapes

    def note(self, kind: Kind) -> None:
        """Notes it of each."""
        for shape in self._shapes:
            shape.note(kind)


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
