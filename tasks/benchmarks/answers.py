"""What is right: references of an item, its choices, and which of them are gold."""

import string
from collections.abc import Sequence
from typing import Any

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.records import Item
from tasks.benchmarks.templates import Template
from tasks.datasets.errors import DataError

IGNORED = -100  # an index that stands for "no choice", as label columns have it


class Answers:
    """The target and choices of a benchmark, compiled."""

    def __init__(self, fields: BenchmarkFields) -> None:
        self._target = _templates(fields.target, "target")
        self._choices = _templates(fields.choices, "choices")

    def references(self, item: Item) -> tuple[Any, ...]:
        """The acceptable answers: none without a ground truth, several where the target is a list.

        Numbers become text; mappings (a JSON answer) stay what they are.
        """
        return tuple(_as_text(value) for value in self._values(item))

    def choices(self, item: Item) -> tuple[str, ...]:
        """The texts of an item's choices, in order; raises DataError if a template gives no list of them."""
        if isinstance(self._choices, Template):
            found = self._choices.value(item)
            if not isinstance(found, list | tuple):
                raise DataError(f"choices of item '{item.item_id}' must be a list, got {found!r}")
        else:
            found = [_filled(choice, item) for choice in self._choices or ()]
        if not found:
            raise DataError(
                f"item '{item.item_id}' has no choices; a multiple_choice item needs at least one"
            )
        return tuple(str(choice) for choice in found)

    def gold(self, item: Item, choices: Sequence[str]) -> tuple[int, ...]:
        """Indices of the right choices; −100 stays, for whoever counts to leave out.

        A number is an index from 0; a text is the choice of that text, else its letter, else an index in
        digits.
        """
        values = self._values(item)
        if not values:
            raise DataError(
                f"item '{item.item_id}' has no target; multiple_choice needs the index or text of a choice"
            )
        return tuple(_index(value, choices, item) for value in values)

    def _values(self, item: Item) -> list[Any]:
        if self._target is None:
            found = item.ground_truth
        elif isinstance(self._target, Template):
            found = self._target.value(item)
        else:
            found = [value for target in self._target for value in _as_list(_filled(target, item))]
        return _as_list(found)


def _templates(value: Any, label: str) -> "Template | list[Template | int | float] | None":
    if value is None:
        return None
    if isinstance(value, str):
        return Template(value, label)
    entries = value if isinstance(value, tuple) else (value,)
    return [Template(entry, label) if isinstance(entry, str) else entry for entry in entries]


def _filled(entry: "Template | int | float", item: Item) -> Any:
    return entry.value(item) if isinstance(entry, Template) else entry


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_text(value: Any) -> Any:
    return value if isinstance(value, str | dict | list) or value is None else str(value)


def _index(value: Any, choices: Sequence[str], item: Item) -> int:
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (0 <= value < len(choices) or value == IGNORED)
    ):
        return value
    if isinstance(value, str):
        text = value.strip()
        stripped = [choice.strip() for choice in choices]
        if text in stripped:
            return stripped.index(text)
        if len(text) == 1 and text.upper() in string.ascii_uppercase[: len(choices)]:
            return string.ascii_uppercase.index(text.upper())
        if text.isascii() and text.isdigit() and int(text) < len(choices):
            return int(text)
    raise DataError(
        f"target {value!r} of item '{item.item_id}' is none of its choices: expected an index from 0 to "
        f"{len(choices) - 1}, a letter, or one of {', '.join(map(repr, choices))}"
    )
