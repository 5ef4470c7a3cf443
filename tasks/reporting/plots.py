"""Where the marks of a plot stand: forest plots of scores, curves of a reduction over its k, scores by
what orders checkpoints and by the tokens that answers took.

Everything is a position on an axis; the templates only draw. Learning curves are pictures, a sentence a
curve, and a table of differences. Scores by tokens, thoughts included, say what thinking longer goes
along with. One pass over the samples counts them in bins of half a doubling, so that memory does not grow
with the run; ``spent_curves`` draws a line for each model and prompt.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tasks.comparison.compare import ComparedPair
from tasks.comparison.trends import CurvePoint, Known, LearningCurve, is_worse, misplaced
from tasks.reduction.facets import facet_words
from tasks.reporting import numbers
from tasks.reporting.view import MEANING, Place, ResultRow, SampleView

LEFT, RIGHT, TOP, BOTTOM = 44.0, 348.0, 12.0, 184.0
GROUPS_SHOWN: Final = 12
"""Rows of a forest plot that a person compares; of more, the most telling are drawn, and all are folded."""
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
    shown: str = ""
    """Which of the rows these are, in words; ``every`` has them all then."""
    every: tuple[ForestRow, ...] = ()


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


@dataclass(frozen=True)
class Point:
    """One mark of a curve: its place across the box, its value with the ends of an interval, if it has one,
    and what it says."""

    x: float
    value: float
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Frame:
    """The box of curves, by the axis that goes up."""

    axis: Axis
    top: float = TOP
    bottom: float = BOTTOM

    def y(self, at: float) -> float:
        """The height of a place on the axis, in per cent of it."""
        return self.bottom - (self.bottom - self.top) * at / 100

    def ticks(self) -> tuple[Tick, ...]:
        """The marks of the axis, by their heights."""
        return tuple(Tick(self.y(tick.at), tick.text) for tick in self.axis.ticks)

    def curve(self, name: str, points: Sequence[Point]) -> Curve:
        """A line through the points, and a band between the ends of their intervals; what is beyond the axis
        stands at its end."""

        def place(point: Point, value: float) -> tuple[float, float]:
            return point.x, round(self.y(_within(self.axis.at(value))), 2)

        marks = tuple((*place(point, point.value), point.text) for point in points)
        upper = [place(point, point.high) for point in points if point.high is not None]
        lower = [place(point, point.low) for point in points if point.low is not None]
        return Curve(name, _path([mark[:2] for mark in marks]), _path(upper + lower[::-1]), marks)


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


def group_names(rows: Sequence[ResultRow]) -> dict[Place, str]:
    """Facet group → its name with only what tells the groups of these rows apart; the full name if nothing
    does."""
    groups = {row.place: row for row in rows}
    parts = [row.group_parts for row in groups.values()]
    distinguishing = {name for some in parts for name in some if len({p.get(name) for p in parts}) > 1}
    return {
        place: " · ".join(facet_words(text) for name, text in place if name in distinguishing)
        or row.group_parts.get("model_name", row.group)
        for place, row in groups.items()
    }


def _forest(group: Sequence[ResultRow], names: Mapping[Place, str], name_benchmark: bool) -> Forest:
    ends = [end for row in group for end in (row.value, row.ci_low, row.ci_high) if end is not None]
    axis = Axis.around(ends)
    first = group[0]
    title = f"{first.label}: {first.metric_key}" if first.label else first.metric_key
    rows = tuple(
        forest_row(
            names[row.place],
            (row.value or 0.0, row.ci_low, row.ci_high),
            numbers.value_with_error(row.value, row.stderr),
            axis,
        )
        for row in group
    )
    lower = first.higher_is_better is False
    plot = Forest(
        title=f"{first.benchmark} · {title}" if name_benchmark else title,
        filter=first.filter,
        direction=f"{first.arrow} {MEANING[first.higher_is_better]}".strip(),
        axis=axis,
        rows=rows,
    )
    return limited(plot, [(row.value or 0.0) * (-1 if lower else 1) for row in group], "best")


def limited(plot: Forest, weights: Sequence[float], name: str) -> Forest:
    """The plot with no more rows than a person compares, those with the greatest weights in that order;
    ``name`` says which these are."""
    if len(plot.rows) <= GROUPS_SHOWN:
        return plot
    ordered = sorted(zip(weights, plot.rows, strict=True), key=lambda entry: -entry[0])
    every = tuple(row for _, row in ordered)
    said = f"the {GROUPS_SHOWN} {name} of {numbers.count(len(every))}"
    return replace(plot, rows=every[:GROUPS_SHOWN], shown=said, every=every)


def _within(at: float) -> float:
    return min(100.0, max(0.0, at))


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 × 10^n that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


def _families(rows: Sequence[ResultRow]) -> dict[Family, dict[Place, dict[int, ResultRow]]]:
    """Rows by family, group and k; families with one k only are no curves."""
    families: defaultdict[Family, defaultdict[Place, dict[int, ResultRow]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in rows:
        match = REDUCTION_OF_K.match(row.reduction)
        if match and row.value is not None and math.isfinite(row.value):
            title = f"{match['name']}@k({row.metric})"
            families[title, row.filter, row.label or ""][row.place][int(match["k"])] = row
    return {family: dict(groups) for family, groups in families.items() if max(map(len, groups.values())) > 1}


def _curves(title: str, filter_name: str, groups: dict[Place, dict[int, ResultRow]]) -> Curves:
    rows = [row for by_k in groups.values() for row in by_k.values()]
    names = group_names(rows)
    ks = sorted({k for by_k in groups.values() for k in by_k})
    frame = Frame(
        Axis.around([end for row in rows for end in (row.value, row.ci_low, row.ci_high) if end is not None])
    )
    low, high = math.log2(ks[0]), math.log2(ks[-1])

    def x(k: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log2(k) - low) / (high - low), 2)

    def point(name: str, k: int, row: ResultRow) -> Point:
        text = f"{name}, k = {k}: {numbers.value_with_error(row.value, row.stderr)}"
        return Point(x(k), row.value or 0.0, row.ci_low, row.ci_high, text)

    lines = [
        frame.curve(names[place], [point(names[place], k, by_k[k]) for k in sorted(by_k)])
        for place, by_k in groups.items()
    ]
    return Curves(title, filter_name, _k_ticks(ks, x), frame.ticks(), tuple(lines))


def _k_ticks(ks: Sequence[int], x: Callable[[int], float]) -> tuple[Tick, ...]:
    """A mark for every k that leaves room for its number."""
    ticks = [Tick(x(ks[-1]), str(ks[-1]))]
    for k in reversed(ks[:-1]):
        if ticks[-1].at - x(k) >= 18:
            ticks.append(Tick(x(k), str(k)))
    return tuple(reversed(ticks))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


TREND_LEVEL = 0.05


def learning_context(curves: Sequence[LearningCurve], known: Known | None = None) -> Mapping[str, Any] | None:
    """What the page says of a sweep, of whose models so much is known; None where there is none."""
    if not curves:
        return None
    without = [f"{model} ({value})" for model, value in misplaced(known or {}, curves[0].facet).items()]
    lacking = [(f"in no curve, since their {curves[0].facet} is no number: {', '.join(without)}", True)]
    families: defaultdict[tuple[str, str, str], list[LearningCurve]] = defaultdict(list)
    for curve in curves:
        key = curve.key
        families[key.pair, key.label or "", curve.facet].append(curve)
    several = len(curves) > len(families)
    return {
        "facet": curves[0].facet,
        "plots": [_plot(pair, label, own) for (pair, label, _), own in families.items()],
        "sentences": [
            *(lacking if without else ()),
            *((sentence(curve, several), curve.worse is not None) for curve in curves),
        ],
        "rows": [row for curve in curves for row in _rows(curve, several)],
    }


def sentence(curve: LearningCurve, several: bool) -> str:
    """Where the curve peaks, where it goes, and from where on it is worse than at its best."""
    peak = curve.points[curve.peak]
    said = [f"{_title(curve, several)}: best at {curve.facet} {peak.x:,g} ({numbers.number(peak.value)})"]
    if curve.trend.p_adjusted < TREND_LEVEL:
        slope, p = numbers.signed(curve.trend.slope, peak.value), numbers.p_said(curve.trend.p_adjusted)
        said.append(f"from one checkpoint to the next {slope} ({p})")
    elif len(curve.points) > 2:
        said.append("no significant trend")
    if curve.worse is None:
        said.append("no later checkpoint is significantly worse")
    else:
        point = curve.points[curve.worse]
        said.append(
            f"{curve.facet} {point.x:,g} ({point.model}) is the first that is significantly worse: "
            f"{_difference(point.best, point)}"
        )
    return "; ".join(said)


def _title(curve: LearningCurve, several: bool) -> str:
    shared = [facet_words(value) for name, value in curve.key.facets if several or name == "sweep"]
    label = [curve.key.label] if curve.key.label else []
    return " · ".join([curve.key.pair, *label, *shared])


def _difference(pair: ComparedPair | None, point: CurvePoint) -> str:
    if pair is None:
        return numbers.MISSING
    if pair.comparison is None:
        return pair.reason or numbers.MISSING
    found = pair.comparison
    interval = numbers.interval(found.ci_low, found.ci_high, point.value)
    return f"{numbers.signed(found.difference, point.value)} {interval}, {numbers.p_said(pair.p_adjusted)}"


def _rows(curve: LearningCurve, several: bool) -> list[Mapping[str, Any]]:
    return [
        {
            "title": _title(curve, several),
            "x": f"{point.x:,g}",
            "model": point.model,
            "value": numbers.number(point.value),
            "interval": numbers.interval(point.ci_low, point.ci_high, point.value),
            "before": _difference(point.before, point),
            "best": "the best" if number == curve.peak else _difference(point.best, point),
            "worse": is_worse(point.best, curve.higher_is_better) and number > curve.peak,
        }
        for number, point in enumerate(curve.points)
    ]


def _plot(pair: str, label: str, curves: Sequence[LearningCurve]) -> Curves:
    points = [point for curve in curves for point in curve.points]
    ends = [end for point in points for end in (point.value, point.ci_low, point.ci_high) if end is not None]
    frame, steps = Frame(Axis.around(ends)), Axis.around([point.x for point in points], marks=5, shares=False)

    def x(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * steps.at(value) / 100, 2)

    def mark(facet: str, point: CurvePoint) -> Point:
        text = f"{facet} {point.x:,g}: {numbers.number(point.value)}"
        return Point(x(point.x), point.value, point.ci_low, point.ci_high, text)

    lines = []
    for curve in curves:
        name = " · ".join(curve.key.facet_words) or curve.key.pair
        lines.append(frame.curve(name, [mark(curve.facet, point) for point in curve.points]))
    filter_name = curves[0].key.filter
    title = pair.removesuffix(f",{filter_name}") + (f" · {label}" if label else "")
    x_ticks = tuple(Tick(LEFT + (RIGHT - LEFT) * tick.at / 100, tick.text) for tick in steps.ticks)
    return Curves(title, filter_name, x_ticks, frame.ticks(), tuple(lines), across=curves[0].facet)


LEAST: Final = 5
"""Samples of a mark, at least: fewer join their neighbours."""
Z95: Final = 1.96


@dataclass
class Bin:
    """Samples that took about as many tokens: how many, their tokens, scores and squared scores summed."""

    n: int = 0
    tokens: float = 0.0
    score: float = 0.0
    squares: float = 0.0

    def add(self, other: "Bin") -> None:
        """Takes the samples of another bin."""
        self.n, self.tokens = self.n + other.n, self.tokens + other.tokens
        self.score, self.squares = self.score + other.score, self.squares + other.squares

    @property
    def mean(self) -> float:
        """The mean score."""
        return self.score / self.n

    @property
    def spent(self) -> float:
        """The mean of the tokens."""
        return self.tokens / self.n

    @property
    def half_width(self) -> float:
        """Half an interval of 95 % around the mean, by the spread of the scores."""
        return Z95 * math.sqrt(max(self.squares / self.n - self.mean**2, 0.0) / self.n)


@dataclass
class TokensSpent:
    """Bins by pair, group and half doublings of the tokens; ``thoughts`` says whether there was any."""

    bins: defaultdict[tuple[str, str], defaultdict[int, Bin]] = field(
        default_factory=lambda: defaultdict(partial(defaultdict, Bin))
    )
    thoughts: bool = False

    def add(self, sample: SampleView) -> None:
        """Takes the responses of a sample that have both tokens and a score of their own."""
        self.thoughts = self.thoughts or any(response.reasoning for response in sample.responses)
        if not any(response.completion_tokens for response in sample.responses):
            return
        group = f"{sample.model_name} · {sample.prompt_template}"
        for pair, scores in sample.scores.items():
            if len(scores) != len(sample.responses):
                continue  # a filter made one prediction of several
            for response, score in zip(sample.responses, scores, strict=True):
                tokens = response.completion_tokens
                if tokens and score is not None and math.isfinite(score):
                    place = math.floor(2 * math.log2(tokens))
                    self.bins[pair, group][place].add(Bin(1, tokens, score, score * score))

    def merge(self, other: "TokensSpent") -> None:
        """Takes the samples of another pass."""
        self.thoughts = self.thoughts or other.thoughts
        for key, bins in other.bins.items():
            for place, one in bins.items():
                self.bins[key][place].add(one)


def spent_curves(spent: TokensSpent) -> list[Curves]:
    """A picture a pair, of those whose samples differ in the tokens that they took; none without thoughts."""
    if not spent.thoughts:
        return []
    pairs: defaultdict[str, dict[str, list[Bin]]] = defaultdict(dict)
    for (pair, group), bins in spent.bins.items():
        marks = _merged(bins)
        if len(marks) > 1:
            pairs[pair][group] = marks
    return [_picture(pair, groups) for pair, groups in pairs.items()]


def _merged(bins: Mapping[int, Bin]) -> list[Bin]:
    """The bins in order, each with enough samples; a last one with fewer joins the one before."""
    merged: list[Bin] = []
    for place in sorted(bins):
        if not merged or merged[-1].n >= LEAST:
            merged.append(Bin())
        merged[-1].add(bins[place])
    if len(merged) > 1 and merged[-1].n < LEAST:
        merged[-2].add(merged.pop())
    return merged


def _picture(pair: str, groups: Mapping[str, list[Bin]]) -> Curves:
    every = [one for bins in groups.values() for one in bins]
    ends = [end for one in every for end in (one.mean, one.mean - one.half_width, one.mean + one.half_width)]
    shares = all(0 <= one.mean <= 1 for one in every)
    frame = Frame(Axis.around([min(max(end, 0.0), 1.0) if shares else end for end in ends]))
    spent = [one.spent for one in every]
    low, high = math.log2(min(spent)), math.log2(max(spent))

    def x(tokens: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log2(tokens) - low) / ((high - low) or 1.0), 2)

    def point(name: str, one: Bin) -> Point:
        text = (
            f"{name}, {numbers.count(round(one.spent))} tokens: {numbers.number(one.mean)} "
            f"({numbers.plural(one.n, 'sample')})"
        )
        return Point(x(one.spent), one.mean, one.mean - one.half_width, one.mean + one.half_width, text)

    lines = [frame.curve(name, [point(name, one) for one in bins]) for name, bins in groups.items()]
    metric, _, filter_name = pair.partition(",")
    x_ticks = tuple(_doublings(low, high, x))
    return Curves(metric, filter_name, x_ticks, frame.ticks(), tuple(lines), "tokens")


def _doublings(low: float, high: float, x: Callable[[float], float]) -> list[Tick]:
    """A mark at powers of two, at most six of them."""
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 6))
    powers = range(first, last + 1, step)
    return [Tick(x(2.0**power), numbers.count(2**power)) for power in powers if power >= 0]
