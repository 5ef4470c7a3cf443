"""Scores by the tokens that answers took, thoughts included: what thinking longer goes along with.

One pass over the samples counts them in bins of half a doubling, so that memory does not grow with the run;
``spent_curves`` draws a line for each model and prompt.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tasks.reporting import numbers
from tasks.reporting.page.plots import BOTTOM, LEFT, RIGHT, TOP, Axis, Curve, Curves, Tick
from tasks.reporting.view import SampleView

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
