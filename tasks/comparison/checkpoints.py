"""Learning curves: a score by what orders the checkpoints of a run (their step, the tokens they have seen).

Every checkpoint is compared with the one before it and with the best, on the items that both answered; the
first one behind the best that is significantly worse is named. Readers enter by ``learning_curves``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from metrics.config import StatisticsConfig
from tasks.comparison.compare import ComparedPair, ComparisonRules, compare_runs
from tasks.comparison.items import GroupKey, aggregations, result_key
from tasks.comparison.matching import Match
from tasks.comparison.runs import MODEL, ComparedRun
from tasks.comparison.trends import Trend, trend

SWEEP: Final = "sweep"
"""The facet that tells several sweeps of one run apart."""
Known = Mapping[str, Mapping[str, Any]]
"""What is known of models, by their names: their step, the tokens they have seen."""
ALPHA: Final = 0.05
"""The level, over all comparisons of a run together (Holm), at which a checkpoint counts as worse."""
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

    ``key`` is what its groups share, ``facet`` what orders them. ``trend`` counts checkpoints as it counts
    nights: its slope is the change from one to the next. ``worse`` is the first checkpoint after the best
    that is significantly worse than it, None if there is none; the best is chosen by the same numbers, which
    makes it look somewhat better than it is.
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
    places = {model: float(one[facet]) for model, one in known.items() if facet in one}
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
    pairs = compare_runs(run, run, matches, rules).pairs
    compared = {(pair.match.base, pair.match.candidate): pair for pair in pairs}
    return tuple(
        _curve(shared, keys, (facet, places), peaks[shared], results, compared)
        for shared, keys in series.items()
    )


def known_of_models(manifest: Mapping[str, Any]) -> Known:
    """What the config of a run says of its models besides their names, such as their step, by their names."""
    models = (manifest.get("config") or {}).get("models") or ()
    return {
        str(model.get("name")): model.get("metadata") or {} for model in models if isinstance(model, Mapping)
    }


def ordering_facet(known: Known) -> str | None:
    """What orders checkpoints: their step, else the first of what is known that is a number and differs."""
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for one in known.values():
        for name, value in one.items():
            values[name].append(value)
    ordering = [
        name
        for name, found in values.items()
        if len(set(found)) > 1 and all(isinstance(value, int | float) for value in found)
    ]
    return "step" if "step" in ordering else next(iter(ordering), None)


Compared = Mapping[tuple[GroupKey | None, GroupKey | None], ComparedPair]
Results = Mapping[GroupKey, Mapping[str, object]]


def _series(
    run: ComparedRun, results: Results, places: Mapping[str, float], known: Known
) -> dict[GroupKey, list[GroupKey]]:
    """The groups of each curve in the order of their places; where there are two checkpoints at least.

    What is known of models tells no two groups of one curve apart, the name of the sweep does.
    """
    dropped = frozenset(name for one in known.values() for name in one) | {MODEL}
    found: defaultdict[GroupKey, dict[float, GroupKey]] = defaultdict(dict)
    for key in run.groups:
        model = key.facet(MODEL) or ""
        if model in places and key in results:
            shared = key.without(dropped)
            sweep = known[model].get(SWEEP)
            if sweep is not None:
                shared = replace(shared, facets=(*shared.facets, (SWEEP, str(sweep))))
            found[shared].setdefault(places[model], key)
    return {shared: [by_x[x] for x in sorted(by_x)] for shared, by_x in found.items() if len(by_x) > 1}


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
