"""What is known of the value of a column: a tree of facts, filled while templates and functions are read."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

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
