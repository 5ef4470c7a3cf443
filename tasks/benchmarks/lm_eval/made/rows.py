"""Draws rows of a known shape from a seed.

The same seed gives the same rows. What the shape leaves open may be put in by hand: ``Choices`` maps a
column's path to one of ``CANDIDATES``, which is how ``trial`` corrects a guess.
"""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from tasks.benchmarks.lm_eval.made.shapes import Shape

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
