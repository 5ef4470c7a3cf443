"""``index.html`` of a folder of results: leaderboard, curves over time, runs and comparisons in one file."""

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tasks.reporting.overview.runs import Course, Glance, Score, boards, courses, glances, sweeps
from tasks.reporting.page.html import page_parts
from tasks.reporting.page.plots import Axis
from tasks.reporting.report.write import replacing
from tasks.store.storage import Store

SCRIPTS: Final = ("dom.js", "page.js", "index.js")
PAGE: Final = "index.html"
COMPARISON: Final = "comparison.html"
LINES: Final = 8
"""Curves of one picture, at most: the models with the newest runs."""
LEFT, RIGHT, TOP, BOTTOM = 44.0, 348.0, 10.0, 186.0


def write_index(store: Store, folder: Path) -> Path:
    """Writes the page of the store's runs into ``folder``; reports and comparisons below it are linked."""
    runs = glances(store)
    context = {
        "title": "All runs",
        "run": f"store {store.uri}",
        "runs": [_row(run, folder) for run in runs],
        "boards": [_board(board, folder) for board in boards(runs)],
        "curves": [
            _curves(f"{benchmark}: {pair}", lines) for (benchmark, pair), lines in courses(runs).items()
        ],
        "steps": [
            _steps(f"{benchmark}: {pair}", *found) for (benchmark, pair), found in sweeps(runs).items()
        ],
        "comparisons": _comparisons(folder),
        "written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
    }
    before, after = page_parts("index.html", context, SCRIPTS)
    path = folder / PAGE
    with replacing(path) as file:
        file.write(before)
        file.write(after)
    return path


def _row(run: Glance, folder: Path) -> dict[str, Any]:
    return {
        "glance": run,
        "when": run.started[:16].replace("T", " "),
        "models": ", ".join(dict.fromkeys(score.model for score in run.scores)),
        "link": _link(run, folder),
        "best": run.scores[0] if run.scores else None,
        "more": len(run.scores) - 1,
    }


def _board(board: Any, folder: Path) -> dict[str, Any]:
    return {"board": board, "links": [_link(place.run, folder) for place in board.places]}


def _link(run: Glance, folder: Path) -> str | None:
    """The run's report as seen from the page; None where it is not there any more."""
    if not run.output:
        return None
    report = Path(run.output) / "report.html"
    return quote(os.path.relpath(report, folder)) if report.is_file() else None


def _comparisons(folder: Path) -> list[dict[str, str]]:
    """The comparisons below the folder, the newest first."""
    found = [path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/{COMPARISON}")]
    found += [path for path in (folder / COMPARISON,) if path.is_file()]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [
        {
            "link": quote(os.path.relpath(path, folder)),
            "name": str(path.parent.relative_to(folder)),
            "when": datetime.fromtimestamp(path.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M"),
        }
        for path in found
    ]


def _curves(title: str, lines: Sequence[Course]) -> Mapping[str, Any]:
    shown = sorted(lines, key=lambda line: line.points[-1][0].started)[-LINES:]
    points = [point for line in shown for point in line.points]
    axis = Axis.around([end for _, score in points for end in _ends(score)])
    times = [_seconds(run) for run, _ in points]
    first, last = min(times), max(times)

    def x(run: Glance) -> float:
        return round(
            LEFT + (RIGHT - LEFT) * ((_seconds(run) - first) / (last - first) if last > first else 0.5), 2
        )

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * axis.at(value) / 100, 2)

    def path(ends: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{across},{up}" for across, up in ends)

    drawn = []
    for line in shown:
        bands = [(run, score) for run, score in line.points if len(_ends(score)) == 3]
        upper = [(x(run), y(score.ci_high or 0.0)) for run, score in bands]
        lower = [(x(run), y(score.ci_low or 0.0)) for run, score in bands]
        drawn.append(
            {
                "name": line.model,
                "points": path([(x(run), y(score.value)) for run, score in line.points]),
                "band": path(upper + lower[::-1]),
                "marks": [
                    (x(run), y(score.value), f"{run.name}, {run.started[:16]}: {score.text}")
                    for run, score in line.points
                ],
            }
        )
    moments = [points[times.index(moment)][0].started for moment in (first, last)]
    digits = 10 if moments[0][:10] != moments[1][:10] else 16  # within a day, to the minute
    moments = [moment[:digits].replace("T", " ") for moment in moments]
    return {
        "title": title,
        "y_ticks": [{"at": y(_value(axis, tick.at)), "text": tick.text} for tick in axis.ticks],
        "from": moments[0],
        "to": moments[1],
        "lines": drawn,
        "left_out": len(lines) - len(shown),
    }


def _steps(title: str, run: Glance, scores: Sequence[Score]) -> Mapping[str, Any]:
    """A run's checkpoints by their steps, a line for each prompt."""
    axis = Axis.around([end for score in scores for end in _ends(score)])
    first, last = scores[0].step or 0.0, scores[-1].step or 0.0

    def x(score: Score) -> float:
        share = ((score.step or 0.0) - first) / (last - first) if last > first else 0.5
        return round(LEFT + (RIGHT - LEFT) * share, 2)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * axis.at(value) / 100, 2)

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{across},{up}" for across, up in places)

    lines = []
    for prompt in dict.fromkeys(score.prompt for score in scores):
        own = [score for score in scores if score.prompt == prompt]
        bands = [score for score in own if len(_ends(score)) == 3]
        upper = [(x(score), y(score.ci_high or 0.0)) for score in bands]
        lower = [(x(score), y(score.ci_low or 0.0)) for score in bands]
        lines.append(
            {
                "name": f"{run.short_name} · {prompt}" if prompt not in ("", "default") else run.short_name,
                "points": path([(x(score), y(score.value)) for score in own]),
                "band": path(upper + lower[::-1]),
                "marks": [(x(score), y(score.value), f"{score.model}: {score.text}") for score in own],
            }
        )
    return {
        "title": title,
        "y_ticks": [{"at": y(_value(axis, tick.at)), "text": tick.text} for tick in axis.ticks],
        "from": f"{first:,g}",
        "to": f"{last:,g}",
        "lines": lines,
        "left_out": 0,
    }


def _value(axis: Axis, at: float) -> float:
    return axis.low + (axis.high - axis.low) * at / 100


def _ends(score: Score) -> list[float]:
    return [
        end for end in (score.value, score.ci_low, score.ci_high) if end is not None and math.isfinite(end)
    ]


def _seconds(run: Glance) -> float:
    try:
        return datetime.fromisoformat(run.started).timestamp()
    except ValueError:
        return 0.0
