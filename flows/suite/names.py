"""How a night's sentences name what they speak of: with the benchmark where there are several, and with the
items where a pair is not of all."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from flows.compare.runs import name_of, outcome_line
from tasks.comparison.compare import ComparedPair
from tasks.comparison.matching import JoinedItems
from tasks.comparison.runs import OutcomeChange
from tasks.reporting.numbers import count, moment, plural


def dated(name: str, due: datetime) -> str:
    """The name and when the night was due, so that names are in the order of the nights."""
    return f"{name} {moment(due.timestamp(), seconds=due.second > 0)}"


def is_several(benchmarks: Iterable[Any]) -> bool:
    """Whether these are more than one benchmark, each as often as it comes."""
    return len(set(benchmarks)) > 1


def pair_names(pairs: Iterable[ComparedPair]) -> Callable[[ComparedPair], str]:
    """What sentences call each pair among these."""
    several = is_several(pair.key.benchmark for pair in pairs)
    return lambda pair: f"{pair.key.benchmark} {name_of(pair)}" if several else name_of(pair)


def risen_outcomes(changes: Iterable[OutcomeChange], several: bool) -> Iterator[str]:
    """Which answers are cut off, empty or refused more often, and not by chance."""
    for change in changes:
        if change.risen:
            yield f"{change.key.benchmark}: {outcome_line(change)}" if several else outcome_line(change)


def items_sentence(joined: JoinedItems | None) -> str:
    """On which items a pair is compared, and what became of the others; empty where there are no others, or
    items are not compared one by one."""
    if joined is None or not joined.paired:
        return ""
    others = [
        (joined.new, "new one decides nothing", "new ones decide nothing"),
        (joined.missing, "of the baseline's is not there", "of the baseline's are not there"),
        (joined.unscored, "has no score", "have no score"),
        (joined.unscored_base, "had no score before", "had no score before"),
    ]
    said = [f"{count(n)} {one if n == 1 else many}" for n, one, many in others if n]
    return f"compared on the {plural(len(joined), 'item')} of both; {', '.join(said)}" if said else ""
