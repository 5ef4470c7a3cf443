"""Which items flipped between two runs, and how people find them: by their own id, else by their place in the
dataset and the beginning of their text.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tasks.comparison.compare import ComparedPair, ComparedRuns
from tasks.comparison.matching import Flipped, GroupKey
from tasks.comparison.runs import ComparedRun
from tasks.comparison.trends import Flapping, PairCourse
from tasks.reporting.items import ItemName, is_derived, item_names, unknown
from tasks.reporting.tables import one_line

LEAST_TEXT = 24
"""Characters of an item's text that stand beside its place, at least; else it has a line of its own."""


def with_item_names(compared: ComparedRuns, runs: Collection[ComparedRun]) -> ComparedRuns:
    """The comparison with a place and a text for each flipped item without an id of its own."""
    found = _names(((pair.key, pair.flipped) for pair in compared.pairs), runs)

    def named(item: Flipped) -> Flipped:
        if not is_derived(item.item_id, item.item_digest):
            return item
        name = found.get(item.item_id, unknown(item.item_id))
        return replace(item, place=name.place, text=name.text)

    pairs = (replace(pair, flipped=tuple(map(named, pair.flipped))) for pair in compared.pairs)
    return replace(compared, pairs=tuple(pairs))


def with_flapping_names(
    courses: Sequence[PairCourse], runs: Collection[ComparedRun]
) -> tuple[PairCourse, ...]:
    """The courses with a place for each item that flips back and forth and has no id of its own."""
    found = _names(((course.key, course.flapping) for course in courses), runs)

    def named(item: Flapping) -> Flapping:
        if not is_derived(item.item_id, item.item_digest):
            return item
        return replace(item, place=found.get(item.item_id, unknown(item.item_id)).place)

    return tuple(replace(course, flapping=tuple(map(named, course.flapping))) for course in courses)


def _names(
    groups: Iterable[tuple[GroupKey, Iterable[Flipped | Flapping]]], runs: Collection[ComparedRun]
) -> dict[str, ItemName]:
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for key, items in groups:
        wanted[key.benchmark].update(
            item.item_id for item in items if is_derived(item.item_id, item.item_digest)
        )
    return item_names({benchmark: ids for benchmark, ids in wanted.items() if ids}, runs)


def signed_flips(pair: ComparedPair) -> list[tuple[str, Flipped]]:
    """The items that flipped, losses first, each with a sign: ``-`` was right and is wrong now, ``+`` the
    other way round."""
    signed = [
        ("-" if (item.candidate < item.base) == pair.items_better_up else "+", item) for item in pair.flipped
    ]
    return sorted(signed, key=lambda entry: entry[0] == "+")


def flips(pair: ComparedPair) -> list[str]:
    """The items that flipped, losses first, as ``-id`` or ``+id``."""
    return [f"{sign}{item.name}" for sign, item in signed_flips(pair)]


def more_than(found: Sequence[object], shown: int) -> str:
    """How many of the flipped items are not shown, in words."""
    return f" and {len(found) - shown} more" if len(found) > shown else ""


class FlippedItems:
    """A rich renderable: the first flipped items of a pair on one line, each on its own line where it is
    shown with its text."""

    def __init__(self, name: str, pair: ComparedPair, shown: int) -> None:
        self.name, self.pair, self.shown = name, pair, shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A heading; places are never cut, texts are."""
        found = signed_flips(self.pair)
        rest = more_than(found, self.shown)
        if not any(item.text for _, item in found):
            line = f"flipped, {self.name}: {' '.join(flips(self.pair)[: self.shown])}{rest}"
            yield Text(one_line(line))
            return
        yield Text(f"flipped, {self.name}{rest and f': {self.shown} of {len(found)}'} (- lost, + won):")
        for sign, item in found[: self.shown]:
            yield from _lines(f"  {sign}{one_line(item.name)}", one_line(item.text), options.max_width)


def _lines(place: str, text: str, width: int) -> Iterator[Text]:
    beside = width - len(place) - 2 >= LEAST_TEXT
    if not beside:
        yield Text(place, overflow="fold")
    if text:
        said = f"{place}  {text}" if beside else f"    {text}"
        yield Text(said, no_wrap=True, overflow="ellipsis")
    elif beside:
        yield Text(place)
