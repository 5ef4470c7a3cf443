"""Where numbers go: over the nights of a suite, and over the checkpoints of a model's training.

``pair_courses`` gives suites, for every pair of the last night, its drift since the anchor and the items
that flip back and forth. ``learning_curves`` orders a score by the step of a checkpoint or the tokens it
has seen: every checkpoint is compared with the one before it and with the best, on the items that both
answered, and the first one behind the best that is significantly worse is named.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any, Final

import numpy as np

from metrics.config import StatisticsConfig
from metrics.statistics.gate import adjust
from tasks.comparison.compare import ComparedPair, ComparisonRules, compare_runs
from tasks.comparison.drift import AnchorNight, Drift, drift_tests, pair_drifts
from tasks.comparison.matching import (
    GroupKey,
    ItemGroup,
    Match,
    aggregations,
    counterparts,
    result_key,
    row_keys,
)
from tasks.comparison.runs import MODEL, ComparedRun, merged_run
from tasks.reduction.facets import facet_text

MINIMUM_POINTS: Final = 3
"""Below this there is a difference, and no trend."""


@dataclass(frozen=True)
class Trend:
    """The course of one number over consecutive checkpoints.

    ``slope`` is the change from one to the next (Theil–Sen: the median over all pairs, so that one odd
    checkpoint does not make a trend), in the number's own units; ``p_value`` says how often items' courses
    read backwards or forwards by chance go one way as far (``metrics.statistics.drift``), two-sided, and
    ``p_adjusted`` the same over all curves. They are NaN where there are too few checkpoints.
    """

    slope: float
    one_way: bool = False  # in three of four pairs of checkpoints the later is the lower, or the higher
    p_value: float = math.nan
    p_adjusted: float = math.nan


@dataclass(frozen=True)
class Flapping:
    """An item whose answer changed between right and wrong more than once; ``course`` is oldest night first,
    as in "1101", "-" for a night that did not score it. ``place`` is how people find one without an id of
    its own."""

    item_id: str
    course: str
    flips: int
    item_digest: str = ""
    place: str = ""

    @property
    def name(self) -> str:
        """Its place, else its id."""
        return self.place or self.item_id


@dataclass(frozen=True)
class PairCourse:
    """One pair of the last night: how far it went since the anchor, and which items flip back and forth."""

    key: GroupKey
    drift: Drift | None
    flapping: tuple[Flapping, ...]


def pair_courses(
    nights: Sequence[Mapping[str, ComparedRun]], anchor: AnchorNight | None
) -> tuple[PairCourse, ...]:
    """The course of every pair of the last of the nights, oldest first; no drift without an anchor."""
    runs = [merged_run("", night) for night in nights]
    if not runs:
        return ()
    drifts = pair_drifts(nights[-1], anchor)
    last = runs[-1].groups
    known = [{key: run.groups[own] for key, own in counterparts(last, run.groups).items()} for run in runs]
    return tuple(PairCourse(key, drifts.get(key), tuple(flapping_items(key, known))) for key in last)


def trend(values: Sequence[float]) -> Trend:
    """The slope of a number, oldest first.

    Source: Sen 1968.

    >>> trend([0.70, 0.71, 0.72, 0.73, 0.74, 0.75]).slope
    0.01
    """
    if len(values) < MINIMUM_POINTS:
        return Trend(math.nan)
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(values), 2)]
    one_way = abs(int(np.sign(slopes).sum())) >= len(slopes) / 2
    return Trend(round(float(np.median(slopes)), 15), one_way)


def flapping_items(key: GroupKey, runs: Sequence[Mapping[GroupKey, ItemGroup]]) -> list[Flapping]:
    """Items of one group that flip back and forth over the runs (oldest first), most flips first.

    Only for metrics whose values are 0 and 1: of others every item moves every night.
    """
    courses: dict[tuple[str, int], list[str]] = {}
    names: dict[tuple[str, int], tuple[str, str]] = {}
    for night, run in enumerate(runs):
        group = run.get(key)
        if group is None:
            continue
        if not np.isin(group.value[group.scored], (0.0, 1.0)).all():
            return []
        for place, *own, value, scored in zip(
            row_keys(group), group.item_ids, group.digests, group.value, group.scored, strict=True
        ):
            course = courses.setdefault(place, ["-"] * len(runs))
            course[night] = str(int(value)) if scored else "-"
            names[place] = own[0], str(own[1])
    found = [
        Flapping(item_id, "".join(course), _flips(course), digest)
        for (item_id, digest), course in ((names[place], course) for place, course in courses.items())
    ]
    return sorted((item for item in found if item.flips > 1), key=lambda item: (-item.flips, item.item_id))


def _flips(course: Sequence[str]) -> int:
    seen = [value for value in course if value != "-"]
    return sum(a != b for a, b in pairwise(seen))


SWEEP: Final = "sweep"
"""The facet that tells several sweeps of one run apart."""
Known = Mapping[str, Mapping[str, Any]]
"""What is known of models, by their names: their step, the tokens they have seen."""
ALPHA: Final = 0.05
"""The level, over any two checkpoints of all curves together (Holm), at which one counts as worse."""
ITERATIONS: Final = 2_000
"""Resamples of metrics that have no formula: a sweep has many comparisons."""


@dataclass(frozen=True)
class CurvePoint:
    """One checkpoint's number; ``before`` and ``best`` compare it with the checkpoint before it and with the
    best one (None: it is the first, the best)."""

    x: float
    model: str
    value: float
    ci_low: float | None
    ci_high: float | None
    before: ComparedPair | None = None
    best: ComparedPair | None = None


@dataclass(frozen=True)
class LearningCurve:
    """One number over the checkpoints of a sweep, in their order.

    ``key`` is what its groups share, ``facet`` what orders them. ``worse`` is the first checkpoint after the
    best that is significantly worse than it, None if there is none; the best is chosen by the same numbers,
    which makes it look somewhat better than it is.
    """

    key: GroupKey
    facet: str
    points: tuple[CurvePoint, ...]
    peak: int
    trend: Trend
    worse: int | None
    higher_is_better: bool


def learning_curves(run: ComparedRun, known: Known) -> tuple[LearningCurve, ...]:
    """The curves of a run over its checkpoints, of which ``known`` says, model by model, what orders them."""
    facet = ordering_facet(known)
    if facet is None:
        return ()
    results = {result_key(row): row for row in run.results if row["value"] is not None}
    places = placed(known, facet)
    series = _series(run, results, places, known)
    peaks = {shared: _peak(keys, results) for shared, keys in series.items()}
    matches: list[Match] = []
    for shared, keys in series.items():
        matches += [Match(one, other) for one, other in pairwise(keys)]
        best = keys[peaks[shared]]
        matches += [Match(best, key) for key in keys if key != best]
    rules = ComparisonRules(
        aggregations({}, run.results), statistics=StatisticsConfig(bootstrap_iters=ITERATIONS)
    )
    pairs = compare_runs(run, run, list(dict.fromkeys(matches)), rules).pairs
    compared = {(pair.match.base, pair.match.candidate): pair for pair in _over_any_two(pairs, series)}
    tested = drift_tests(rules.aggregation)
    curves = [
        _curve(shared, keys, (facet, places), peaks[shared], results, compared)
        for shared, keys in series.items()
    ]
    p_values = [tested([run.groups[key] for key in keys], keys[-1]) for keys in series.values()]
    return _with_trend_tests(curves, p_values)


def _over_any_two(
    pairs: Sequence[ComparedPair], series: Mapping[GroupKey, Sequence[GroupKey]]
) -> Iterator[ComparedPair]:
    """The pairs, their p-values adjusted over any two checkpoints of each curve: which of them is the best,
    and so compared with all others, the same numbers decided."""
    tests = {
        frozenset((pair.match.base, pair.match.candidate)): pair.comparison.p_value
        for pair in pairs
        if pair.comparison is not None
    }
    others = sum(math.comb(len(keys), 2) for keys in series.values()) - len(tests)
    adjusted = dict(zip(tests, adjust([*tests.values(), *[1.0] * others]).tolist(), strict=False))
    for pair in pairs:
        p_adjusted = adjusted.get(frozenset((pair.match.base, pair.match.candidate)))
        yield replace(pair, p_adjusted=p_adjusted)


def _with_trend_tests(
    curves: Sequence[LearningCurve], p_values: Sequence[float]
) -> tuple[LearningCurve, ...]:
    """The curves with the tests of their trends. Of a number that rises and falls the test finds what
    remains, which is no trend."""
    own = [
        p if curve.trend.one_way else math.nan if math.isnan(curve.trend.slope) else max(p, 1.0)
        for curve, p in zip(curves, p_values, strict=True)
    ]
    return tuple(
        replace(curve, trend=replace(curve.trend, p_value=p, p_adjusted=over_all))
        for curve, p, over_all in zip(curves, own, adjust(own).tolist(), strict=True)
    )


def known_of_models(manifest: Mapping[str, Any]) -> Known:
    """What the config of a run says of its models besides their names, such as their step, by their names."""
    models = (manifest.get("config") or {}).get("models") or ()
    return {
        str(model.get("name")): model.get("metadata") or {} for model in models if isinstance(model, Mapping)
    }


def ordering_facet(known: Known) -> str | None:
    """What orders checkpoints: their step, else the first of what is known that is a number and differs. One
    whose step is no number takes no curve from the others."""
    ordering = [
        name
        for name in dict.fromkeys(name for one in known.values() for name in one)
        if len(set(placed(known, name).values())) > 1 and (name == "step" or not misplaced(known, name))
    ]
    return "step" if "step" in ordering else next(iter(ordering), None)


def placed(known: Known, facet: str) -> dict[str, float]:
    """Model → its number of what orders checkpoints."""
    return {
        model: float(one[facet]) for model, one in known.items() if isinstance(one.get(facet), int | float)
    }


def misplaced(known: Known, facet: str) -> dict[str, Any]:
    """Model → what it has in place of such a number."""
    return {
        model: one[facet]
        for model, one in known.items()
        if facet in one and model not in placed(known, facet)
    }


Compared = Mapping[tuple[GroupKey | None, GroupKey | None], ComparedPair]
Results = Mapping[GroupKey, Mapping[str, object]]


def _series(
    run: ComparedRun, results: Results, places: Mapping[str, float], known: Known
) -> dict[GroupKey, list[GroupKey]]:
    """The groups of each curve in the order of their places; where there are two places at least."""
    dropped = frozenset(name for one in known.values() for name in one) | {MODEL}
    apart = trainings(known, places)
    found: defaultdict[GroupKey, list[tuple[float, GroupKey]]] = defaultdict(list)
    for key in run.groups:
        model = key.facet(MODEL) or ""
        if model in places and key in results:
            shared = key.without(dropped)
            found[replace(shared, facets=(*shared.facets, *apart[model]))].append((places[model], key))
    return {
        shared: [key for _, key in sorted(own, key=lambda point: point[0])]
        for shared, own in found.items()
        if len({place for place, _ in own}) > 1
    }


def trainings(known: Known, places: Mapping[str, float]) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Model → what tells its training from others of the run, such as the run or the sweep: it differs
    between two at one place, or is a text that several share and others do not. Else it goes with the place,
    as tokens do."""
    names = dict.fromkeys(name for model in places for name in known[model])
    apart = []
    for name in names:
        values = [(places[model], known[model].get(name)) for model in places]
        several = len({value for _, value in values}) > 1
        texts = [value for _, value in values if isinstance(value, str)]
        at_one_place = len(set(values)) > len({place for place, _ in values})
        if at_one_place or (several and (name == SWEEP or len(set(texts)) < len(texts))):
            apart.append(name)
    return {
        model: tuple((name, facet_text(known[model][name])) for name in apart if name in known[model])
        for model in places
    }


def _peak(keys: Sequence[GroupKey], results: Results) -> int:
    """The place of the best checkpoint, the earliest of several."""
    values = [float(str(results[key]["value"])) for key in keys]
    return values.index(max(values) if _higher(keys[0], results) else min(values))


def _higher(key: GroupKey, results: Results) -> bool:
    return results[key].get("higher_is_better") is not False


def _curve(
    shared: GroupKey,
    keys: Sequence[GroupKey],
    by: tuple[str, Mapping[str, float]],
    peak: int,
    results: Results,
    compared: Compared,
) -> LearningCurve:
    facet, places = by
    points = tuple(
        CurvePoint(
            x=places[key.facet(MODEL) or ""],
            model=key.facet(MODEL) or "",
            value=float(str(results[key]["value"])),
            ci_low=_end(results[key]["ci_low"]),
            ci_high=_end(results[key]["ci_high"]),
            before=compared.get((keys[number - 1], key)) if number else None,
            best=compared.get((keys[peak], key)),
        )
        for number, key in enumerate(keys)
    )
    higher = _higher(keys[0], results)
    worse = next((n for n in range(peak + 1, len(points)) if is_worse(points[n].best, higher)), None)
    return LearningCurve(shared, facet, points, peak, trend([point.value for point in points]), worse, higher)


def is_worse(pair: ComparedPair | None, higher_is_better: bool) -> bool:
    """Whether a checkpoint is significantly worse than the one it was compared with."""
    if pair is None or pair.comparison is None or pair.p_adjusted is None:
        return False
    loss = -pair.comparison.difference if higher_is_better else pair.comparison.difference
    return loss > 0 and pair.p_adjusted < ALPHA


def _end(value: object) -> float | None:
    return float(str(value)) if value is not None else None
