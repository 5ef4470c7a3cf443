"""Reductions over k as curves ("pass@1, pass@4, pass@8"): points that the templates only draw."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.reporting import report_numbers as numbers
from tasks.reporting.report_plots import Axis, Tick, group_names
from tasks.reporting.report_rows import ResultRow


@dataclass(frozen=True)
class Line:
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
    lines: tuple[Line, ...]


LEFT, RIGHT, TOP, BOTTOM = 44.0, 348.0, 12.0, 184.0
REDUCTION_OF_K = re.compile(r"(?P<name>.+?)@(?P<k>\d+)$")


Family = tuple[str, str, str]  # title, filter, label


def curves(rows: Sequence[ResultRow]) -> list[Curves]:
    """A picture for each reduction that was asked for with several k."""
    return [
        _curves(f"{label}: {title}" if label else title, filter_name, groups)
        for (title, filter_name, label), groups in _families(rows).items()
    ]


def curve_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows that are a point of such a picture."""
    return [row for groups in _families(rows).values() for by_k in groups.values() for row in by_k.values()]


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
            Line(names[name], _path([mark[:2] for mark in marks]), _path(upper + lower[::-1]), marks)
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
