"""The curves of a report: scores by what orders checkpoints, and by the tokens that answers took.

Learning curves are pictures, a sentence a curve, and a table of differences.

Scores by tokens, thoughts included, say what thinking longer goes along with. One pass over the samples
counts them in bins of half a doubling, so that memory does not grow with the run; ``spent_curves`` draws
a line for each model and prompt.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tasks.comparison.compare import ComparedPair
from tasks.comparison.trends import CurvePoint, LearningCurve, is_worse
from tasks.reporting import numbers
from tasks.reporting.page.plots import BOTTOM, LEFT, RIGHT, TOP, Axis, Curve, Curves, Tick
from tasks.reporting.view import SampleView

TREND_LEVEL = 0.05


def learning_context(curves: Sequence[LearningCurve]) -> Mapping[str, Any] | None:
    """What the page says of a sweep; None where there is none."""
    if not curves:
        return None
    families: defaultdict[tuple[str, str, str], list[LearningCurve]] = defaultdict(list)
    for curve in curves:
        key = curve.key
        families[key.pair, key.label or "", curve.facet].append(curve)
    several = len(curves) > len(families)
    return {
        "facet": curves[0].facet,
        "plots": [_plot(pair, label, own) for (pair, label, _), own in families.items()],
        "sentences": [(sentence(curve, several), curve.worse is not None) for curve in curves],
        "rows": [row for curve in curves for row in _rows(curve, several)],
    }


def sentence(curve: LearningCurve, several: bool) -> str:
    """Where the curve peaks, where it goes, and from where on it is worse than at its best."""
    peak = curve.points[curve.peak]
    said = [f"{_title(curve, several)}: best at {curve.facet} {peak.x:,g} ({numbers.number(peak.value)})"]
    if curve.trend.p_value < TREND_LEVEL:
        slope, p = numbers.signed(curve.trend.slope, peak.value), numbers.p_value(curve.trend.p_value)
        said.append(f"from one checkpoint to the next {slope} (Mann–Kendall p = {p})")
    elif len(curve.points) > 2:
        said.append("no trend that can be told from chance")
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
    shared = [value for name, value in curve.key.facets if several or name == "sweep"]
    label = [curve.key.label] if curve.key.label else []
    return " · ".join([curve.key.pair, *label, *shared])


def _difference(pair: ComparedPair | None, point: CurvePoint) -> str:
    if pair is None:
        return numbers.MISSING
    if pair.comparison is None:
        return pair.reason or numbers.MISSING
    found = pair.comparison
    interval = numbers.interval(found.ci_low, found.ci_high, point.value)
    return (
        f"{numbers.signed(found.difference, point.value)} {interval}, p = {numbers.p_value(pair.p_adjusted)}"
    )


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
    axis, steps = Axis.around(ends), Axis.around([point.x for point in points], marks=5, shares=False)

    def x(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * steps.at(value) / 100, 2)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * axis.at(value) / 100, 2)

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{across},{up}" for across, up in places)

    lines = []
    for curve in curves:
        name = " · ".join(value for _, value in curve.key.facets) or curve.key.pair
        upper = [(x(point.x), y(point.ci_high)) for point in curve.points if point.ci_high is not None]
        lower = [(x(point.x), y(point.ci_low)) for point in curve.points if point.ci_low is not None]
        marks = tuple(
            (x(point.x), y(point.value), f"{curve.facet} {point.x:,g}: {numbers.number(point.value)}")
            for point in curve.points
        )
        line = path([mark[:2] for mark in marks])
        lines.append(Curve(name, line, path(upper + lower[::-1]), marks))
    filter_name = curves[0].key.filter
    title = pair.removesuffix(f",{filter_name}") + (f" · {label}" if label else "")
    y_ticks = tuple(Tick(BOTTOM - (BOTTOM - TOP) * tick.at / 100, tick.text) for tick in axis.ticks)
    x_ticks = tuple(Tick(LEFT + (RIGHT - LEFT) * tick.at / 100, tick.text) for tick in steps.ticks)
    return Curves(title, filter_name, x_ticks, y_ticks, tuple(lines), across=curves[0].facet)


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
    axis = Axis.around([min(max(end, 0.0), 1.0) if shares else end for end in ends])
    spent = [one.spent for one in every]
    low, high = math.log2(min(spent)), math.log2(max(spent))

    def x(tokens: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (math.log2(tokens) - low) / ((high - low) or 1.0), 2)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * min(max(axis.at(value), 0.0), 100.0) / 100, 2)

    lines = []
    for name, bins in groups.items():
        marks = tuple(
            (
                x(one.spent),
                y(one.mean),
                f"{name}, {numbers.count(round(one.spent))} tokens: {numbers.number(one.mean)} "
                f"({numbers.plural(one.n, 'sample')})",
            )
            for one in bins
        )
        upper = [(x(one.spent), y(one.mean + one.half_width)) for one in bins]
        lower = [(x(one.spent), y(one.mean - one.half_width)) for one in bins]
        lines.append(Curve(name, _path([mark[:2] for mark in marks]), _path(upper + lower[::-1]), marks))
    metric, _, filter_name = pair.partition(",")
    y_ticks = tuple(Tick(BOTTOM - (BOTTOM - TOP) * tick.at / 100, tick.text) for tick in axis.ticks)
    return Curves(metric, filter_name, tuple(_doublings(low, high, x)), y_ticks, tuple(lines), "tokens")


def _doublings(low: float, high: float, x: Callable[[float], float]) -> list[Tick]:
    """A mark at powers of two, at most six of them."""
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 6))
    powers = range(first, last + 1, step)
    return [Tick(x(2.0**power), numbers.count(2**power)) for power in powers if power >= 0]


def _path(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{across},{up}" for across, up in points)
