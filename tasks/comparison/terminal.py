"""A comparison for people: the table, what flipped, what else changed, and the gate's answer."""

import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from tasks.comparison.changes import Change
from tasks.comparison.compare import ComparedPair, ComparedRuns

STYLES = {"regression": "bold red", "inconclusive": "yellow", "worse": "yellow", "pass": "green"}
DOUBT = ("model identity", "dataset", "scoring")
"""Changes that a difference may come from instead of the model."""


class ComparisonTable:
    """A rich renderable; ``flips`` is how many flipped items are named for each pair."""

    def __init__(self, compared: ComparedRuns, flips: int = 5) -> None:
        self.compared = compared
        self.flips = flips

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table first, then words."""
        compared = self.compared
        yield _table(
            [pair for pair in compared.pairs if pair.comparison is not None], compared.gate is not None
        )
        yield Group(*_words(compared, self.flips))
        if compared.verdict is not None:
            yield Text(f"gate: {compared.verdict}", style=STYLES[compared.verdict])


def _words(compared: ComparedRuns, flips: int) -> Iterator[Text]:
    for pair in compared.pairs:
        if pair.comparison is None or pair.reason:
            yield Text(f"{name_of(pair)}: {pair.reason}", style="yellow")
    for pair in compared.pairs:
        if pair.flipped and flips:
            yield Text(flipped_line(pair, flips))
    for change in compared.changes:
        if change.kind in DOUBT:
            yield Text(
                change_line(change), style="bold yellow" if change.kind == "model identity" else "yellow"
            )
    if minor := [change.what for change in compared.changes if change.kind not in DOUBT]:
        yield Text(f"also different: {', '.join(minor)}")


def name_of(pair: ComparedPair) -> str:
    """The pair with what tells it from others of its name."""
    key = pair.key
    own = group_of(pair)
    return f"{key.pair} ({', '.join(own)})" if own else key.pair


def group_of(pair: ComparedPair) -> list[str]:
    """The values of the facets and the label; where the runs differ in one, both of its values."""
    after = dict(pair.match.candidate.facets) if pair.match.candidate is not None else {}
    facets = [
        value if after.get(name, value) == value else f"{value} → {after[name]}"
        for name, value in pair.key.facets
    ]
    return facets + ([pair.key.label] if pair.key.label else [])


def flipped_line(pair: ComparedPair, shown: int) -> str:
    """Which items flipped, losses first: ``-id`` was right and is wrong now, ``+id`` the other way round."""
    lost = [
        f"-{item.item_id}" for item in pair.flipped if (item.candidate < item.base) == pair.higher_is_better
    ]
    won = [
        f"+{item.item_id}" for item in pair.flipped if (item.candidate < item.base) != pair.higher_is_better
    ]
    named = [*lost, *won]
    rest = f" and {len(named) - shown} more" if len(named) > shown else ""
    return f"flipped, {name_of(pair)}: {' '.join(named[:shown])}{rest}"


def change_line(change: Change) -> str:
    """A change in words."""
    before, after = (value if value is not None else "not said" for value in (change.base, change.candidate))
    return f"{change.kind} changed: {change.what}: {before} → {after}"


def _table(pairs: Sequence[ComparedPair], gated: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("Benchmark", "Group", "Filter", "Metric"):
        table.add_column(name)
    for name in (
        "Base",
        "Candidate",
        "Difference",
        "Interval",
        "p adj.",
        "W/L/T",
        "MDE",
        "Items",
        "Coverage",
    ):
        table.add_column(name, justify="right")
    table.add_column("Gate" if gated else "")
    for pair in pairs:
        table.add_row(*_row(pair))
    return table


def _row(pair: ComparedPair) -> list[Text | str]:
    key, found, joined = pair.key, pair.comparison, pair.joined
    assert found is not None
    assert joined is not None
    arrow = "↑" if pair.higher_is_better else "↓"
    metric = key.pair.removesuffix(f",{key.filter}")
    group = " ".join(group_of(pair))
    return [
        key.benchmark, group, key.filter, f"{metric} {arrow}", _number(found.base), _number(found.candidate),
        _number(found.difference, "+"), f"[{_number(found.ci_low, '+')}, {_number(found.ci_high, '+')}]",
        _number(pair.p_adjusted), f"{found.wins}/{found.losses}/{found.ties}", _number(found.mde),
        str(found.n_items), f"{joined.coverage:.1%}", _answer(pair),
    ]  # fmt: skip


def _answer(pair: ComparedPair) -> Text:
    if pair.verdict is not None:
        return Text(pair.verdict, style=STYLES[pair.verdict])
    return (
        Text("")
        if pair.terms is not None or pair.p_adjusted is None or pair.p_adjusted >= 0.05
        else Text("*")
    )


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None or math.isnan(value) else f"{value:{sign}.4g}"
