"""What is known of the value of a column, a tree of facts that is filled while templates and functions are
read; and rows drawn of what is known.

Uses of a value say it: subscripts, comparisons, operators and calls of methods. An expression stands for
a ``Shape`` where it is a value of the row, for a ``Constant`` where the source holds it, else for None.
Templates and functions are read by the same rules.

Rows are drawn from a seed: the same seed gives the same rows. What the shape leaves open may be put in by
hand: ``Choices`` maps a column's path to one of ``CANDIDATES``, which is how ``trial`` corrects a guess.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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


WORDS: Final = (
    "the", "nightjar", "sleeps", "by", "day", "and", "flies", "at", "dusk", "over", "heath", "moth", "silent",
    "river", "stone", "city", "Paris", "apple", "seven", "green", "music", "winter", "12", "3.5", "don't",
    "co-operate", "Müller", "naïve",
)  # fmt: skip
PLACES: Final = 4
Path = tuple[str, ...]
Choices = Mapping[Path, str]


class RowMaker:
    """Makes rows of one shape."""

    def __init__(self, shape: Shape, seed: int, choices: Choices | None = None) -> None:
        self._shape = shape
        self._random = random.Random(seed)
        self._choices = choices or {}

    def rows(self, count: int) -> list[dict[str, Any]]:
        """That many rows, every one with every column."""
        return [self._row(number) for number in range(count)]

    def _row(self, number: int) -> dict[str, Any]:
        made: dict[int, Any] = {}
        row = {name: self._value(one, (name,), made) for name, one in self._shape.fields.items()}
        for name, one in self._shape.fields.items():
            row[name] = self._joined(one, row[name], made, (name,))
        if "id" in row and isinstance(row["id"], str) and ("id",) not in self._choices:
            row["id"] = f"row-{number}"
        return row

    def _value(self, shape: Shape, path: Path, made: dict[int, Any]) -> Any:
        value = self._made(shape, path, made)
        made[id(shape)] = value
        return value

    def _made(self, shape: Shape, path: Path, made: dict[int, Any]) -> Any:
        if path in self._choices:
            return CANDIDATES[self._choices[path]](self._random)
        if shape.parsed is not None:
            return json.dumps(self._value(shape.parsed, (*path, "json"), made), ensure_ascii=False)
        if shape.fields:
            return {name: self._value(one, (*path, name), made) for name, one in shape.fields.items()}
        if shape.is_list:
            element = shape.element or Shape()
            size = max(PLACES, shape.length)
            return [self._value(element, (*path, "*"), made) for _ in range(size)]
        if shape.literals:
            return self._random.choice(shape.literals)
        if shape.kinds["text"] and not shape.kinds["number"]:
            return sentence(self._random)
        if shape.kinds["index"]:
            return self._random.randrange(shape.places or PLACES)
        if shape.kinds["number"]:
            return self._random.randrange(1, 9)
        return sentence(self._random)

    def _joined(self, shape: Shape, value: Any, made: Mapping[int, Any], path: Path) -> Any:
        """A value that is looked up in a list of the same row becomes one of the list's."""
        if path in self._choices:
            return value
        if shape.fields and isinstance(value, dict):
            return {
                name: self._joined(one, value[name], made, (*path, name))
                for name, one in shape.fields.items()
            }
        if isinstance(value, list) and shape.element is not None and shape.element.member_of is not None:
            return [self._joined(shape.element, one, made, (*path, "*")) for one in value]
        options = made.get(id(shape.member_of)) if shape.member_of is not None else None
        return self._random.choice(options) if isinstance(options, list) and options else value


def sentence(draw: random.Random, least: int = 3, most: int = 9) -> str:
    """A few words."""
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def texts(draw: random.Random, count: int = PLACES) -> list[str]:
    """Several texts, no two of them equal."""
    return [f"{sentence(draw, 1, 3)} {at}" for at in range(count)]


def solved(draw: random.Random) -> str:
    """A worked answer in the forms that benchmarks look for: boxed, behind ####, in brackets."""
    number = draw.randrange(1, 40)
    return f"{sentence(draw)} so it is $\\boxed{{{number}}}$.\n#### {number}\nThe answer is (A)"


def _options(draw: random.Random) -> dict[str, list[str]]:
    return {"text": texts(draw), "label": list("ABCD")}


CANDIDATES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "text": sentence,
    "index": lambda draw: draw.randrange(2),
    "texts": texts,
    "letter": lambda draw: draw.choice("ABCD"),
    "options": _options,
    "number text": lambda draw: str(draw.randrange(1, 3)),
    "solution": solved,
    "number": lambda draw: round(draw.uniform(0.1, 4.9), 2),
    "truth": lambda draw: draw.random() < 0.5,
    "JSON texts": lambda draw: json.dumps(texts(draw)),
    "labelled": lambda draw: [{"text": text, "label": "A"} for text in texts(draw)],
    "numbers": lambda draw: [draw.randrange(2) for _ in range(PLACES)],
    "lists": lambda draw: [texts(draw, 2) for _ in range(PLACES)],
    "JSON mapping": lambda draw: json.dumps(dict(zip("ABCD", texts(draw), strict=True))),
    "lettered": lambda draw: dict(zip("ABCD", texts(draw), strict=True)),
    "nothing": lambda draw: None,
    "empty": lambda draw: "",
    "yes": lambda draw: draw.choice(("yes", "no")),
    "Yes": lambda draw: draw.choice(("Yes", "No")),
    "true": lambda draw: draw.choice(("True", "False")),
    "empty list": lambda draw: [],
    "one text": lambda draw: texts(draw, 1),
    "year": lambda draw: str(draw.randrange(1900, 2020)),
    "lines": lambda draw: "\n".join(texts(draw)),
    "options text": lambda draw: " ".join(f"({letter}) {sentence(draw, 1, 2)}" for letter in "ABCD"),
    "small letter": lambda draw: draw.choice("abcd"),
}
"""What a column may hold where its uses do not say, the likeliest first."""
