"""Where the marks of a plot stand: forest plots of scores, and curves of a reduction over its k.

Everything is a position on an axis; the templates only draw.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tasks.reporting import numbers
from tasks.reporting.view import MEANING, ResultRow

LEFT, RIGHT, TOP, BOTTOM = 44.0, 348.0, 12.0, 184.0
REDUCTION_OF_K = re.compile(r"(?P<name>.+?)@(?P<k>\d+)$")
Family = tuple[str, str, str]  # title, filter, label


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where (per cent of its length) and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """A linear axis from ``low`` to ``high`` with marks at round numbers."""

    low: float
    high: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """Position of a value in per cent of the axis."""
        return round(100 * (value - self.low) / (self.high - self.low), 3)

    @classmethod
    def around(cls, values: Sequence[float], marks: int = 6, shares: bool = True) -> "Axis":
        """An axis that holds all finite values with some air; ``shares`` between 0 and 1 do not leave that
        range."""
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        air = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
        shares = shares and low >= 0 and high <= 1
        low, high = low - air, high + air
        if shares:
            low, high = max(0.0, low), min(1.0, high)
        step = _round_step((high - low) / marks)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        axis = cls(low, high, ())
        ticks = (Tick(axis.at(n * step), f"{n * step:,.{digits}f}") for n in range(first, last + 1))
        return cls(low, high, tuple(ticks))


@dataclass(frozen=True)
class ForestRow:
    """One group's score: positions in per cent, None where there is no interval."""

    name: str
    text: str
    spoken: str
    at: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Forest:
    """The scores of one pair and reduction over all groups, on one axis; ``zero`` is where a difference is
    none."""

    title: str
    filter: str
    direction: str
    axis: Axis
    rows: tuple[ForestRow, ...]
    zero: float | None = None


@dataclass(frozen=True)
class Curve:
    """One group's curve: SVG points of the line and of its band, and the marks with what they say."""

    name: str
    points: str
    band: str
    marks: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Curves:
    """A reduction over its k ("pass@1, pass@4, pass@8"), one line a group, in a box of 360 × 220."""

    title: str
    filter: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Curve, ...]
    across: str = "k"


def forests(rows: Sequence[ResultRow]) -> list[Forest]:
    """A forest plot for each metric, filter, reduction and label, groups in the order of the results."""
    panels: defaultdict[tuple[str, ...], list[ResultRow]] = defaultdict(list)
    for row in rows:
        if row.value is not None and math.isfinite(row.value):
            panels[row.benchmark, row.metric_key, row.filter, row.label or ""].append(row)
    several = len({row.benchmark for row in rows}) > 1
    names = group_names(rows)
    return [_forest(group, names, several) for group in panels.values()]


def forest_row(
    name: str, estimate: tuple[float, float | None, float | None], text: str, axis: Axis
) -> ForestRow:
    """One line of a plot for (value, low end, high end); ``text`` is what stands beside it."""
    value, low, high = estimate
    known = low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    spoken = f"{name}: {text}"
    if known:
        spoken += f", interval {numbers.number(low, like=value)} to {numbers.number(high, like=value)}"
    ends = (
        (_within(axis.at(low)), _within(axis.at(high)))
        if known and low is not None and high is not None
        else (None, None)
    )
    return ForestRow(name, text, spoken, axis.at(value), *ends)


def curves(rows: Sequence[ResultRow]) -> list[Curves]:
    """A picture for each reduction that was asked for with several k."""
    return [
        _curves(f"{label}: {title}" if label else title, filter_name, groups)
        for (title, filter_name, label), groups in _families(rows).items()
    ]


def curve_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows that are a point of such a picture."""
    return [row for groups in _families(rows).values() for by_k in groups.values() for row in by_k.values()]


def group_names(rows: Sequence[ResultRow]) -> dict[str, str]:
    """Facet group → its name with only what tells the groups of these rows apart; the full name if nothing
    does."""
    parts = {row.group: row.group_parts for row in rows}
    distinguishing = {
        name for some in parts.values() for name in some if len({p.get(name) for p in parts.values()}) > 1
    }
    return {
        group: " · ".join(text for name, text in some.items() if name in distinguishing)
        or some.get("model_name", group)
        for group, some in parts.items()
    }


def _forest(group: Sequence[ResultRow], names: Mapping[str, str], name_benchmark: bool) -> Forest:
    ends = [end for row in group for end in (row.value, row.ci_low, row.ci_high) if end is not None]
    axis = Axis.around(ends)
    first = group[0]
    title = f"{first.label}: {first.metric_key}" if first.label else first.metric_key
    return Forest(
        title=f"{first.benchmark} · {title}" if name_benchmark else title,
        filter=first.filter,
        direction=f"{first.arrow} {MEANING[first.higher_is_better]}".strip(),
        axis=axis,
        rows=tuple(
            forest_row(
                names[row.group],
                (row.value or 0.0, row.ci_low, row.ci_high),
                numbers.value_with_error(row.value, row.stderr),
                axis,
            )
            for row in group
        ),
    )


def _within(at: float) -> float:
    return min(100.0, max(0.0, at))


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 × 10^n that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


def _families(rows: Sequence[ResultRow]) -> dict[Family, dict[str, dict[int, ResultRow]]]:
    """Rows by family, group and k; families with one k only are no curves."""
    families: defaultdict[Family, defaultdict[str, dict[int, ResultRow]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in rows:
        match = REDUCTION_OF_K.match(row.reduction)
        if match and row.value is not None and math.isfinite(row.value):
            title = f"{match['name']}@k({row.metric})"
            families[title, row.filter, row.label or ""][row.group][int(match["k"])] = row
    return {family: dict(groups) for family, groups in families.items() if max(map(len, groups.values())) > 1}


def _curves(title: str, filter_name: str, groups: dict[str, dict[int, ResultRow]]) -> Curves:
    rows = [row for by_k in groups.values() for row in by_k.values()]
    names = group_names(rows)
    ks = sorted({k for by_k in groups.values() for k in by_k})
    axis = Axis.around(
        [end for row in rows for end in (row.value, row.ci_low, row.ci_high) if end is not None]
    )
    low, high = math.log2(ks[0]), math.log2(ks[-1])

    def x(k: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log2(k) - low) / (high - low), 2)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * axis.at(value) / 100, 2)

    lines = []
    for name, by_k in groups.items():
        points = [(k, by_k[k]) for k in sorted(by_k)]
        upper = [(x(k), y(row.ci_high)) for k, row in points if row.ci_high is not None]
        lower = [(x(k), y(row.ci_low)) for k, row in points if row.ci_low is not None]
        marks = tuple(
            (
                x(k),
                y(row.value or 0.0),
                f"{names[name]}, k = {k}: {numbers.value_with_error(row.value, row.stderr)}",
            )
            for k, row in points
        )
        lines.append(
            Curve(names[name], _path([mark[:2] for mark in marks]), _path(upper + lower[::-1]), marks)
        )
    y_ticks = tuple(Tick(BOTTOM - (BOTTOM - TOP) * tick.at / 100, tick.text) for tick in axis.ticks)
    return Curves(title, filter_name, _k_ticks(ks, x), y_ticks, tuple(lines))


def _k_ticks(ks: Sequence[int], x: Callable[[int], float]) -> tuple[Tick, ...]:
    """A mark for every k that leaves room for its number."""
    ticks = [Tick(x(ks[-1]), str(ks[-1]))]
    for k in reversed(ks[:-1]):
        if ticks[-1].at - x(k) >= 18:
            ticks.append(Tick(x(k), str(k)))
    return tuple(reversed(ticks))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
