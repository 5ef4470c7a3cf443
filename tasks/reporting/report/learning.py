"""Learning curves as the report shows them: pictures, a sentence a curve, a table of differences."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.comparison.compare import ComparedPair
from tasks.comparison.trends import CurvePoint, LearningCurve, is_worse
from tasks.reporting import numbers
from tasks.reporting.page.plots import BOTTOM, LEFT, RIGHT, TOP, Axis, Curve, Curves, Tick

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
