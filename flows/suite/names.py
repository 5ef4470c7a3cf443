"""How a night's sentences name what they speak of: with the benchmark where there are several."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flows.compare.runs import name_of, outcome_line
from tasks.comparison.compare import ComparedPair
from tasks.comparison.runs import OutcomeChange


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
