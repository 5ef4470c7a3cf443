"""All runs of a store at a glance: what each came to, who leads, and what was changed from one to the
next.

A run comes to a line: its headline number, the first pair of the config that has one, for each model and
prompt. ``glances`` reads it from the history for any number of runs with one query; ``index.html`` of a
folder of results shows leaderboard, curves over time, runs and comparisons in one file.
"""

import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from tasks.comparison.runs import changes, costs, unpriced
from tasks.comparison.stopping import stopped_sentence
from tasks.comparison.trends import Known, known_of_models, ordering_facet, placed, trainings
from tasks.history.layout import Skipped
from tasks.history.query import PLACE, query
from tasks.models.tally import AnswerCounts
from tasks.reporting import numbers
from tasks.reporting.page import isolated, page_parts
from tasks.reporting.plots import Axis, Frame, Point
from tasks.reporting.view import short_run_name
from tasks.store.home import default_store, finite, whole_text
from tasks.store.schemas import CELL_FACETS
from tasks.store.storage import Store

COMPARABLE: Final = 1.959964
"""Standard errors of a difference within which two numbers are not distinguished (95 %, two-sided)."""
_RUNS: Final = """
SELECT run_id, run_name, benchmark, status, started, wall_seconds, manifest->'$.requests', cost,
       dataset_digest, manifest->>'$.currency', manifest->>'$.output', manifest->'$.limit',
       manifest->>'$.samples', manifest->'$.config', manifest->'$.models', manifest->'$.judges',
       manifest->'$.stopped', manifest->'$.tokens.total', manifest->'$.shuffle'
FROM runs ORDER BY started DESC, run_id DESC
"""
_RECORDED: Final = "SELECT run_id, status FROM runs"
_ROWS: Final = f"""
SELECT run_id, model_name, prompt_template, filter, metric, reduction, label, facets, value, stderr,
       ci_low, ci_high, n_items, n_samples, n_scored, higher_is_better
FROM all_results WHERE status = 'ok' AND value IS NOT NULL ORDER BY {PLACE}
"""


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
    n_samples: int
    n_scored: int
    higher_is_better: bool | None
    step: float | None = None
    """Of a checkpoint: where it stands among those of its run."""
    training: str = ""
    """Of a checkpoint: of which training it is, where its run has several."""

    @property
    def text(self) -> str:
        """``"0.6905 ± 0.0722"``."""
        return numbers.value_with_error(self.value, self.stderr)

    @property
    def scored(self) -> str:
        """``"57 of 60 samples scored"``; empty where all were."""
        if self.n_scored == self.n_samples:
            return ""
        return f"{numbers.count(self.n_scored)} of {numbers.plural(self.n_samples, 'sample')} scored"


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
    samples: str | None = None
    shuffle: bool = False
    """Whether the limit took random items; always the same ones."""
    scores: tuple[Score, ...] = ()
    changed: tuple[str, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    """"MODEL answering" or "MODEL judging" → what its answers cost, reused ones too."""
    unpriced: tuple[str, ...] = ()
    """Models and judges that have no price beside others that have: the cost leaves them out."""
    stopped: str | None = None
    """After how many items of how many it stopped, in words; None: it asked all."""
    tokens: int | None = None
    """Of all answers that this run asked for; None where the endpoints do not say."""

    @property
    def short_name(self) -> str:
        """The name; of one that ends with a whole id, its first eight digits."""
        return short_run_name(self.name)

    def as_dict(self) -> dict[str, Any]:
        """As ``python -m flows.history --json`` prints it."""
        own = {key: value for key, value in vars(self).items() if key not in ("scores", "changed")}
        scores = [vars(score) for score in self.scores]
        return {**own, "scores": scores, "changed": list(self.changed)}


@dataclass(frozen=True)
class Glances:
    """Runs of a store, the newest first, and the records that nobody can read."""

    runs: tuple[Glance, ...]
    skipped: tuple[Skipped, ...] = ()


def glances(store: Store, newest: int | None = None) -> Glances:
    """The runs of the store; all, or so many of the newest."""
    runs, results = query(store, _RUNS), query(store, _ROWS)
    found = runs.rows
    shown = found if newest is None else found[:newest]
    known = {row[0]: known_of_models({"config": json.loads(row[13] or "null")}) for row in shown}
    rows = _headlines(results.rows, known)
    earlier = _before(found)
    return Glances(
        runs=tuple(_glance(row, rows.get(row[0], ()), earlier.get(row[0])) for row in shown),
        skipped=tuple(dict.fromkeys([*runs.skipped, *results.skipped])),
    )


def _headlines(rows: Iterable[Sequence[Any]], known: Mapping[str, Known]) -> dict[str, list[Score]]:
    """Run → its numbers of the first pair, in the order of its rows; ``known`` is what each run's config says
    of its models."""
    first: dict[str, tuple[Any, ...]] = {}
    checkpoints = {run_id: _checkpoints(own) for run_id, own in known.items()}
    found: dict[str, dict[tuple[str, str], Score]] = {}
    for run_id, model, prompt, *pair, facets, value, stderr, low, high, items, sent, scored, higher in rows:
        if run_id not in known or first.setdefault(run_id, tuple(pair)) != tuple(pair):
            continue
        named = json.loads(facets or "{}")
        if not set(named) <= set(CELL_FACETS):
            continue
        step, training = checkpoints[run_id].get(str(model), (None, ""))
        place = str(model or "all"), str(prompt or "")
        ends, counts = (low, high), (int(items or 0), int(sent or 0), int(scored or 0))
        score = Score(*place, _pair_name(pair), value, stderr, *ends, *counts, higher, step, training)
        found.setdefault(run_id, {})[place] = score
    return {run_id: list(scores.values()) for run_id, scores in found.items()}


def _checkpoints(known: Known) -> dict[str, tuple[float, str]]:
    """Model → the step of a checkpoint, and the training that it is of."""
    facet = ordering_facet(known)
    if facet is None:
        return {}
    places = placed(known, facet)
    return {
        model: (places[model], " · ".join(text for _, text in apart))
        for model, apart in trainings(known, places).items()
    }


def _pair_name(pair: Sequence[Any]) -> str:
    name, metric, reduction, label = pair
    shown = metric if reduction in (None, "", "mean") else f"{reduction}({metric})"
    return f"{shown},{name}" + (f" · {label}" if label else "")


def _before(rows: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Run → the row of the run of its benchmark before it, of the same models where there is one: a suite has
    several beside each other. ``rows`` are the newest first."""
    found: dict[str, Sequence[Any]] = {}
    last: dict[Any, str] = {}
    for same_models in (False, True):
        for row in rows:
            key = row[2], frozenset(json.loads(row[14] or "null") or ()) if same_models else None
            if key in last:
                found[last[key]] = row
            last[key] = row[0]
    return found


def _glance(row: Sequence[Any], scores: Iterable[Score], before: Sequence[Any] | None) -> Glance:
    names = ("run_id", "name", "benchmark", "status", "started", "seconds")
    has_config = bool(json.loads(row[13] or "null"))  # a run that was cancelled has none
    answers = AnswerCounts.of(json.loads(row[6] or "null") or {})
    return Glance(
        **dict(zip(names, row[:6], strict=True)),
        asked=answers.asked,
        reused=answers.reused,
        cost=row[7],
        dataset=row[8],
        currency=row[9],
        output=row[10],
        limit=json.loads(row[11] or "null"),
        samples=row[12],
        shuffle=_shuffles(row),
        scores=tuple(scores),
        changed=_changed(before, row) if before and has_config else (),
        costs={" ".join(place): cost for place, cost in costs(_accounts(row)).items()},
        unpriced=unpriced(_accounts(row)),
        stopped=_stopped(row[16]),
        tokens=json.loads(row[17] or "null"),
    )


def _shuffles(row: Sequence[Any]) -> bool:
    """Whether the items are a random choice: without a limit all of them are there."""
    return json.loads(row[11] or "null") is not None and json.loads(row[18] or "null") is True


def _stopped(part: str | None) -> str | None:
    stopped = json.loads(part or "null")
    return stopped_sentence(stopped) if stopped else None


def _changed(before: Sequence[Any], after: Sequence[Any]) -> tuple[str, ...]:
    """Names of what differs, models first; nothing that follows from another version of the program."""
    old, new = _manifest(before), _manifest(after)
    named = [change.what for change in changes(old, new) if change.kind != "version"]
    models = [sorted(side["models"]) for side in (old, new)]
    different = [] if models[0] == models[1] else [f"models: {', '.join(models[1])}"]
    return tuple(dict.fromkeys([*different, *(name for name in named if name != "name")]))


def _accounts(row: Sequence[Any]) -> dict[str, Any]:
    names = ("config", "models", "judges")
    return dict(zip(names, (json.loads(part or "null") for part in row[13:16]), strict=True))


def _manifest(row: Sequence[Any]) -> dict[str, Any]:
    config, models = (json.loads(part or "null") or {} for part in row[13:15])
    return {
        "config": config, "models": models, "dataset_digest": row[8], "limit": json.loads(row[11] or "null"),
        "samples": row[12], "shuffle": _shuffles(row),
    }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A model's newest number on a benchmark; ``ties``: not distinguished from the best one."""

    run: Glance
    score: Score
    best: bool
    ties: bool

    @property
    def failed(self) -> bool:
        """Whether the run has failed: such a number takes no place, and stands behind those that do."""
        return self.run.status != "ok"


@dataclass(frozen=True)
class Board:
    """The models of one benchmark by their newest numbers, the best first."""

    benchmark: str
    pair: str
    items: str
    """How many, and which."""
    higher_is_better: bool | None
    places: tuple[Place, ...] = ()


def boards(runs: Sequence[Glance]) -> list[Board]:
    """A leaderboard for each benchmark and prompt; ``runs`` are the newest first.

    Only runs over the same items are beside each other: those of the newest dataset, of them those with the
    most items, and of these those that chose them as the newest one did. Runs that failed decide nothing of
    this where there are others, and replace no number.
    """
    groups: dict[tuple[str, str, str], dict[tuple[str, str], tuple[Glance, Score]]] = {}
    for benchmark in dict.fromkeys(run.benchmark for run in runs if run.scores):
        own = [run for run in runs if run.benchmark == benchmark and run.scores]
        newest = next((run for run in own if run.status == "ok"), own[0])
        pair = newest.scores[0].pair
        scored = [
            (run, score)
            for run in own
            for score in run.scores
            if run.dataset == newest.dataset and score.pair == pair
        ]
        most = max(score.n_items for run, score in scored if run.status == newest.status)
        widest = [(run, score) for run, score in scored if score.n_items == most]
        if any((run.limit, run.samples, run.stopped) == (None, None, None) for run, _ in widest):
            # It asked all that there are, so that no limit of as many left anything out.
            widest = [(replace(run, limit=None), score) for run, score in widest]
        choice = next(_choice(run, most) for run, _ in widest if run.status == newest.status)
        for run, score in widest:
            found = groups.setdefault((benchmark, score.prompt, pair), {})
            # A number of a run that failed is told until the model has a newer one.
            if _choice(run, most) == choice and (score.model, "ok") not in found:
                found.setdefault((score.model, run.status), (run, score))
    return [_board(key, list(found.values())) for key, found in groups.items() if found]


def _choice(run: Glance, n_items: int) -> tuple[int | None, str | None, bool]:
    """Which items a run asked, as far as its number has so many; a limit beyond them left nothing out."""
    if run.limit is None or run.limit > n_items:
        return None, run.samples, False
    return run.limit, run.samples, run.shuffle


def _items(run: Glance, n_items: int) -> str:
    """How many items a number has, and which were chosen."""
    _, samples, shuffled = _choice(run, n_items)
    many = numbers.plural(n_items, "random item" if shuffled else "item")
    return many if samples is None else f"{many} ({samples})"


def _board(key: tuple[str, str, str], found: Sequence[tuple[Glance, Score]]) -> Board:
    benchmark, prompt, pair = key
    higher = found[0][1].higher_is_better
    ordered = sorted(found, key=lambda entry: entry[1].value, reverse=higher is not False)
    ordered.sort(key=lambda entry: entry[0].status != "ok")
    best = ordered[0][1]
    places = tuple(
        Place(
            run,
            score,
            best=run.status == "ok" and score is best,
            ties=run.status == "ok" and score is not best and _within_noise(best, score),
        )
        for run, score in ordered
    )
    name = benchmark if prompt in ("", "default") else f"{benchmark} · {prompt}"
    return Board(name, pair, _items(ordered[0][0], best.n_items), higher, places)


def _within_noise(one: Score, other: Score) -> bool:
    """Whether the difference lies within its error, the two taken as independent: on the same items it is
    rather smaller, so that a tie here may be none in a comparison."""
    if one.stderr is None or other.stderr is None:
        return one.value == other.value
    return abs(one.value - other.value) <= COMPARABLE * math.hypot(one.stderr, other.stderr)


def sweeps(runs: Sequence[Glance]) -> dict[tuple[str, str], tuple[Glance, list[Score]]]:
    """Benchmark and pair → the newest run over several checkpoints, one that failed where all did, and their
    numbers in order."""
    found: dict[tuple[str, str], tuple[Glance, list[Score]]] = {}
    for run in sorted(runs, key=lambda run: run.status != "ok"):
        by_pair: dict[str, list[Score]] = {}
        for score in run.scores:
            if isinstance(score.step, int | float):
                by_pair.setdefault(score.pair, []).append(score)
        for pair, scores in by_pair.items():
            if len(scores) > 1:
                ordered = sorted(scores, key=lambda score: score.step or 0.0)
                found.setdefault((run.benchmark, pair), (run, ordered))
    return found


SCRIPTS: Final = ("dom.js", "page.js", "curves.js", "index.js")
PAGE: Final = "index.html"
ROWS: Final = "index-runs.js"
COMPARISON: Final = "comparison.html"
NEWEST: Final = 20
"""Runs that the page names where no script runs, and comparisons that it lists."""
LEFT, RIGHT, TOP, BOTTOM = 44.0, 348.0, 10.0, 186.0
_STORE = re.compile(r'<meta name="nightjar-store" content="([^"]*)">')
_RUNS_OF = re.compile(r'<meta name="nightjar-runs" content="([^"]*)">')
HEAD: Final = 4096  # characters of a page in which its ``meta`` elements stand


def write_index(store: Store, folder: Path) -> Path:
    """Writes the page of the store's runs into ``folder``; reports and comparisons below it are linked.

    The runs are in a script beside it, so that the page itself stays small whatever their number. Runs that
    end at the same moment each write the page: it is written again as long as others were recorded meanwhile,
    since it may have taken the place of one that had them.
    """
    shown: set[tuple[str, str]] | None = None
    while shown is None or shown != set(query(store, _RECORDED).rows):
        runs = glances(store).runs
        _write_index(runs, store, folder)
        shown = {(run.run_id, run.status) for run in runs}
    return folder / PAGE


def _write_index(runs: Sequence[Glance], store: Store, folder: Path) -> None:
    rows, compared = [_row(run, folder) for run in runs], _comparisons(folder)
    called = {name for run in runs for name in (run.benchmark, *(score.model for score in run.scores))}
    for row in rows:
        row |= {key: isolated(row[key], called) for key in ("models", "changed")}
    context = {
        "title": "All runs",
        "names_shown": called,
        "run": f"store {store.uri}",
        "store": store.uri,
        "rows_file": ROWS,
        "count": len(runs),
        "newest": rows[:NEWEST],
        "boards": [
            {"board": board, "links": [_link(place.run, folder) for place in board.places]}
            for board in boards(runs)
        ],
        "steps": [
            _steps(f"{benchmark}: {pair}", *found) for (benchmark, pair), found in sweeps(runs).items()
        ],
        "comparisons": compared[:NEWEST],
        "written": numbers.moment(time.time()),
    }
    before, after = page_parts("index.html", context, SCRIPTS, secrets.token_urlsafe(16))
    named = None if store.uri == Store(default_store()).uri else store.uri
    document = {"runs": rows, "comparisons": compared, "store": named, "folder": folder.name}
    with whole_text(folder / ROWS) as file:
        file.write(f"globalThis.nightjarRuns = {orjson.dumps(document).decode()};\n")
    with whole_text(folder / PAGE) as file:
        file.write(before)
        file.write(after)


def renew_index(store: Store, folder: Path) -> None:
    """Writes the page of the store's runs again where ``folder`` has one: what it links may be gone."""
    if shows_store(folder, store):
        write_index(store, folder)


def shows_store(folder: Path, store: Store) -> bool:
    """Whether ``folder`` has a page of this store's runs."""
    found = _meta(folder / PAGE, _STORE)
    return found is not None and unescape(found) == store.uri


def _meta(page: Path, pattern: re.Pattern[str]) -> str | None:
    """What an element in the head of a page says; None where there is no such page or element."""
    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            found = pattern.search(file.read(HEAD))
    except OSError:
        return None
    return found[1] if found else None


def _row(run: Glance, folder: Path) -> dict[str, Any]:
    """A run as the page's script reads it; its best score, what it took, and a point a curve."""
    best = run.scores[0] if run.scores else None
    return {
        "id": run.run_id,
        "name": run.short_name,
        "when": run.started[:16].replace("T", " "),
        "benchmark": run.benchmark,
        "models": ", ".join(dict.fromkeys(score.model for score in run.scores)),
        "status": run.status,
        "link": _link(run, folder),
        "folder": _folder(run, folder),
        "value": finite(best.value) if best else None,
        "headline": best.text + (f" +{len(run.scores) - 1}" if run.scores[1:] else "") if best else "",
        "interval": numbers.interval(best.ci_low, best.ci_high, best.value) if best else "",
        "pair": best.pair if best else "",
        "items": best.n_items if best else None,
        "asked": run.asked,
        "reused": run.reused,
        "cost": run.cost,
        "tokens": run.tokens,
        "money": numbers.money(run.cost, run.currency),
        "seconds": run.seconds,
        "changed": ", ".join(run.changed),
        "stopped": run.stopped,
        "points": [_point(run, score) for score in run.scores],
    }


def _point(run: Glance, score: Score) -> list[Any]:
    """Curve, pair, value, both ends of its interval, text: runs over other items are curves of their own."""
    name = score.model if score.prompt in ("", "default") else f"{score.model} · {score.prompt}"
    if any(part is not None for part in (run.limit, run.samples, run.stopped)):
        name += f" · {_items(run, score.n_items)}"
    ends = [finite(end) for end in (score.value, score.ci_low, score.ci_high)]
    return [name, score.pair, *ends, score.text]


def _folder(run: Glance, folder: Path) -> str | None:
    """The run's folder as a command names it; None where it is not there any more."""
    if not run.output or not Path(run.output).is_dir():
        return None
    output = Path(run.output)
    return (
        str(Path(folder.name) / output.relative_to(folder)) if output.is_relative_to(folder) else str(output)
    )


def _link(run: Glance, folder: Path) -> str | None:
    """The run's report as seen from the page; None where it is not there any more."""
    if not run.output:
        return None
    report = Path(run.output) / "report.html"
    return quote(os.path.relpath(report, folder)) if report.is_file() else None


def _comparisons(folder: Path) -> list[dict[str, Any]]:
    """The comparisons below the folder, the newest first."""
    found = [path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/{COMPARISON}")]
    found += [path for path in (folder / COMPARISON,) if path.is_file()]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [
        {
            "link": quote(os.path.relpath(path, folder)),
            "name": str(path.parent.relative_to(folder)),
            "runs": (_meta(path, _RUNS_OF) or "").split(),
            "when": numbers.moment(path.stat().st_mtime),
        }
        for path in found
    ]


def _steps(title: str, run: Glance, scores: Sequence[Score]) -> Mapping[str, Any]:
    """A run's checkpoints by their steps, a line for each prompt and training."""
    frame = Frame(Axis.around([end for score in scores for end in _ends(score)]), TOP, BOTTOM)
    first, last = scores[0].step or 0.0, scores[-1].step or 0.0

    def x(score: Score) -> float:
        share = ((score.step or 0.0) - first) / (last - first) if last > first else 0.5
        return round(LEFT + (RIGHT - LEFT) * share, 2)

    def point(score: Score) -> Point:
        low, high = (score.ci_low, score.ci_high) if len(_ends(score)) == 3 else (None, None)
        return Point(x(score), score.value, low, high, f"{score.model}: {score.text}")

    lines = []
    for place in dict.fromkeys((score.prompt, score.training) for score in scores):
        name = run.short_name if run.status == "ok" else f"{run.short_name} (failed)"
        name = " · ".join([name, *(said for said in place if said not in ("", "default"))])
        own = [score for score in scores if (score.prompt, score.training) == place]
        lines.append(frame.curve(name, [point(score) for score in own]))
    return {
        "title": title,
        "y_ticks": frame.ticks(),
        "from": f"{first:,g}",
        "to": f"{last:,g}",
        "lines": lines,
        "left_out": 0,
    }


def _ends(score: Score) -> list[float]:
    return [
        end for end in (score.value, score.ci_low, score.ci_high) if end is not None and math.isfinite(end)
    ]
