"""What a run comes to in a line: its headline numbers, what was changed since the run before, where it is.

The headline is the first pair of the config that has a number, for each model and prompt. ``glances`` reads
it for any number of runs with one query.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tasks.comparison.changes import changes, costs
from tasks.comparison.trends import Known, known_of_models, ordering_facet
from tasks.history.query import query
from tasks.reporting import numbers
from tasks.reporting.view import short_run_name
from tasks.store.storage import Store

COMPARABLE: Final = 1.959964
"""Standard errors of a difference within which two numbers are not told apart (95 %, two-sided)."""
_RUNS: Final = """
SELECT run_id, run_name, benchmark, status, started, wall_seconds, sent, cached, cost, dataset_digest,
       manifest->>'$.currency', manifest->>'$.output', manifest->'$.limit', manifest->>'$.samples',
       manifest->'$.config', manifest->'$.models', manifest->'$.judges'
FROM runs ORDER BY started DESC, run_id DESC
"""
_ROWS: Final = """
SELECT run_id, model_name, prompt_template, filter, metric, reduction, label, facets, value, stderr,
       ci_low, ci_high, n_items, higher_is_better
FROM results WHERE status = 'ok' AND value IS NOT NULL
"""
_OF_PLACE: Final = frozenset({"model_name", "prompt_template"})


@dataclass(frozen=True)
class Score:
    """A number of a run's headline pair, for one model and prompt."""

    model: str
    prompt: str
    pair: str
    value: float
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n_items: int
    higher_is_better: bool | None
    step: float | None = None
    """Of a checkpoint: where it stands among those of its run."""

    @property
    def text(self) -> str:
        """``"0.6905 ± 0.0722"``."""
        return numbers.value_with_error(self.value, self.stderr)


@dataclass(frozen=True)
class Glance:
    """One run. ``changed`` names the settings that are not those of the run of this benchmark before it."""

    run_id: str
    name: str
    benchmark: str
    status: str
    started: str
    seconds: float | None
    asked: int
    reused: int
    cost: float | None
    currency: str | None
    output: str | None
    dataset: str | None
    limit: int | None
    scores: tuple[Score, ...] = ()
    changed: tuple[str, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    """"MODEL answering" or "MODEL judging" → what its answers cost, reused ones too."""

    @property
    def short_name(self) -> str:
        """The name; of one that ends with a whole id, its first eight digits."""
        return short_run_name(self.name)

    def as_dict(self) -> dict[str, Any]:
        """As ``python -m flows.history --json`` prints it."""
        own = {key: value for key, value in vars(self).items() if key not in ("scores", "changed")}
        scores = [vars(score) for score in self.scores]
        return {**own, "scores": scores, "changed": list(self.changed)}


def glances(store: Store, newest: int | None = None) -> list[Glance]:
    """The runs of the store, the newest first; all or so many."""
    found = query(store, _RUNS).rows
    shown = found if newest is None else found[:newest]
    known = {row[0]: known_of_models({"config": json.loads(row[14] or "null")}) for row in shown}
    rows = _headlines(query(store, _ROWS).rows, known)
    earlier = _before(found)
    return [_glance(row, rows.get(row[0], ()), earlier.get(row[0])) for row in shown]


def _headlines(rows: Iterable[Sequence[Any]], known: Mapping[str, Known]) -> dict[str, list[Score]]:
    """Run → its numbers of the first pair, in the order of its rows; ``known`` is what each run's config says
    of its models."""
    first: dict[str, tuple[Any, ...]] = {}
    found: dict[str, dict[tuple[str, str], Score]] = {}
    for run_id, model, prompt, *pair, facets, value, stderr, low, high, items, higher in rows:
        if run_id not in known or first.setdefault(run_id, tuple(pair)) != tuple(pair):
            continue
        named = json.loads(facets or "{}")
        if not _OF_PLACE.issuperset(named):
            continue
        facet = ordering_facet(known[run_id])
        step = known[run_id].get(str(model), {}).get(facet) if facet is not None else None
        place = str(model or "all"), str(prompt or "")
        score = Score(*place, _pair_name(pair), value, stderr, low, high, int(items or 0), higher, step)
        found.setdefault(run_id, {})[place] = score
    return {run_id: list(scores.values()) for run_id, scores in found.items()}


def _pair_name(pair: Sequence[Any]) -> str:
    name, metric, reduction, label = pair
    shown = metric if reduction in (None, "", "mean") else f"{reduction}({metric})"
    return f"{shown},{name}" + (f" · {label}" if label else "")


def _before(rows: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Run → the row of the run of its benchmark before it; ``rows`` are the newest first."""
    found: dict[str, Sequence[Any]] = {}
    last: dict[str, str] = {}
    for row in rows:
        if row[2] in last:
            found[last[row[2]]] = row
        last[row[2]] = row[0]
    return found


def _glance(row: Sequence[Any], scores: Iterable[Score], before: Sequence[Any] | None) -> Glance:
    names = ("run_id", "name", "benchmark", "status", "started", "seconds")
    return Glance(
        **dict(zip(names, row[:6], strict=True)),
        asked=row[6] or 0,
        reused=row[7] or 0,
        cost=row[8],
        dataset=row[9],
        currency=row[10],
        output=row[11],
        limit=json.loads(row[12] or "null"),
        scores=tuple(scores),
        changed=_changed(before, row) if before else (),
        costs={" ".join(place): cost for place, cost in costs(_accounts(row)).items()},
    )


def _changed(before: Sequence[Any], after: Sequence[Any]) -> tuple[str, ...]:
    """Names of what differs, models first; nothing that follows from another version of the program."""
    old, new = _manifest(before), _manifest(after)
    named = [change.what for change in changes(old, new) if change.kind != "version"]
    models = [sorted(side["models"]) for side in (old, new)]
    different = [] if models[0] == models[1] else [f"models: {', '.join(models[1])}"]
    return tuple(dict.fromkeys([*different, *(name for name in named if name != "name")]))


def _accounts(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(("models", "judges"), (json.loads(part or "null") for part in row[15:17]), strict=True))


def _manifest(row: Sequence[Any]) -> dict[str, Any]:
    config, models = (json.loads(part or "null") or {} for part in row[14:16])
    return {
        "config": config, "models": models, "dataset_digest": row[9], "limit": json.loads(row[12] or "null"),
    }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A model's newest number on a benchmark; ``ties``: not told apart from the best one."""

    run: Glance
    score: Score
    best: bool
    ties: bool


@dataclass(frozen=True)
class Board:
    """The models of one benchmark by their newest numbers, the best first."""

    benchmark: str
    pair: str
    n_items: int
    higher_is_better: bool | None
    places: tuple[Place, ...] = ()


def boards(runs: Sequence[Glance]) -> list[Board]:
    """A leaderboard for each benchmark and prompt; ``runs`` are the newest first.

    Only runs over the same items are beside each other: those of the newest dataset, and of them those with
    the most items.
    """
    groups: dict[tuple[str, str, str], dict[str, tuple[Glance, Score]]] = {}
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        own = [run for run in runs if run.benchmark == benchmark and run.scores]
        own = [run for run in own if run.dataset == own[0].dataset]
        pair = own[0].scores[0].pair if own else ""
        scored = [(run, score) for run in own for score in run.scores if score.pair == pair]
        most = max((score.n_items for _, score in scored), default=0)
        for run, score in scored:
            if score.n_items == most:
                groups.setdefault((benchmark, score.prompt, pair), {}).setdefault(score.model, (run, score))
    return [_board(key, found) for key, found in groups.items()]


def _board(key: tuple[str, str, str], found: Mapping[str, tuple[Glance, Score]]) -> Board:
    benchmark, prompt, pair = key
    higher = next(iter(found.values()))[1].higher_is_better
    ordered = sorted(found.values(), key=lambda entry: entry[1].value, reverse=higher is not False)
    best = ordered[0][1]
    places = tuple(
        Place(run, score, score is best, score is not best and _within_noise(best, score))
        for run, score in ordered
    )
    name = benchmark if prompt in ("", "default") else f"{benchmark} · {prompt}"
    return Board(name, pair, best.n_items, higher, places)


def _within_noise(one: Score, other: Score) -> bool:
    """Whether the difference lies within its error, the two taken as independent: on the same items it is
    rather smaller, so that a tie here may be none in a comparison."""
    if one.stderr is None or other.stderr is None:
        return one.value == other.value
    return abs(one.value - other.value) <= COMPARABLE * math.hypot(one.stderr, other.stderr)


def sweeps(runs: Sequence[Glance]) -> dict[tuple[str, str], tuple[Glance, list[Score]]]:
    """Benchmark and pair → the newest run over several checkpoints, and their numbers in order."""
    found: dict[tuple[str, str], tuple[Glance, list[Score]]] = {}
    for run in runs:
        by_pair: dict[str, list[Score]] = {}
        for score in run.scores:
            if isinstance(score.step, int | float):
                by_pair.setdefault(score.pair, []).append(score)
        for pair, scores in by_pair.items():
            if len(scores) > 1:
                ordered = sorted(scores, key=lambda score: score.step or 0.0)
                found.setdefault((run.benchmark, pair), (run, ordered))
    return found


@dataclass
class Course:
    """A model's numbers on a benchmark over time, oldest first."""

    model: str
    points: list[tuple[Glance, Score]] = field(default_factory=list)


def courses(runs: Sequence[Glance]) -> dict[tuple[str, str], list[Course]]:
    """Benchmark and pair → the course of each model and prompt that has several runs over as many items."""
    found: dict[tuple[str, str], dict[str, Course]] = {}
    for run in reversed(runs):
        for score in run.scores:
            name = score.model if score.prompt in ("", "default") else f"{score.model} · {score.prompt}"
            if run.limit is not None:
                name += f" · {score.n_items} items"
            by_model = found.setdefault((run.benchmark, score.pair), {})
            by_model.setdefault(name, Course(name)).points.append((run, score))
    several = {
        key: [course for course in by_model.values() if len(course.points) > 1]
        for key, by_model in found.items()
    }
    return {key: lines for key, lines in several.items() if lines}
