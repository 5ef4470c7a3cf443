"""A night in words: for the Prefect UI (markdown), the terminal and programs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from flows.suite_night import JudgedNight
from tasks.comparison.compare import ComparedRuns
from tasks.comparison.runs import Course
from tasks.comparison.show import DOUBT, change_line, comparison_document, flipped_line, group_of, name_of

ROWS = 100
"""Rows of a table in the UI, at most: the whole is in suite.json."""
FLIPS = 10
NOTABLE = 0.05
"""Level below which a trend is worth a line."""


def headline(judged: JudgedNight) -> str:
    """The night in one sentence."""
    entries = judged.night.evaluations
    failed = [entry.name for entry in entries if not entry.ok]
    said = [f"{len(entries) - len(failed)} of {len(entries)} evaluations complete"]
    if failed:
        said.append(f"failed: {', '.join(failed)}")
    if judged.compared is None:
        said.append("nothing to compare with yet")
    else:
        said.append(f"against {', '.join(judged.night.baseline)}: {judged.night.verdict or 'no gate'}")
    if judged.compared is not None and any(
        change.kind == "model identity" for change in judged.compared.changes
    ):
        said.append("the identity of a model changed")
    return "; ".join(said)


def summary_markdown(judged: JudgedNight) -> str:
    """The summary artifact."""
    return "\n".join(_markdown(judged))


def _markdown(judged: JudgedNight) -> Iterator[str]:
    yield f"# {judged.night.suite}: {headline(judged)}\n"
    yield "| evaluation | state | run | said |\n|---|---|---|---|"
    for entry in judged.night.evaluations:
        state = "complete" if entry.ok else "**failed**"
        yield f"| {entry.name} | {state} | `{entry.run_id}` | {_cell(entry.message)} |"
    if judged.compared is not None:
        yield from _comparison(judged.compared)
    yield from _courses(judged.courses)


def _comparison(compared: ComparedRuns) -> Iterator[str]:
    yield f"\n## Against {compared.base}\n"
    yield (
        "| benchmark | group | pair | base | candidate | difference | interval | p adj. | gate |\n"
        + "|---" * 9
        + "|"
    )
    for pair in compared.pairs[:ROWS]:
        found = pair.comparison
        if found is None:
            yield (
                f"| {pair.key.benchmark} | {' '.join(group_of(pair))} | {pair.key.pair} |"
                + " |" * 5
                + f" {pair.reason} |"
            )
            continue
        p_value = "" if pair.p_adjusted is None else f"{pair.p_adjusted:.3g}"
        yield (
            f"| {pair.key.benchmark} | {' '.join(group_of(pair))} | {pair.key.pair} | {found.base:.4g} "
            f"| {found.candidate:.4g} | {found.difference:+.4g} | {found.ci_low:+.3g} … {found.ci_high:+.3g} "
            f"| {p_value} | {pair.verdict or ''} |"
        )
    yield ""
    yield from (f"- {change_line(change)}" for change in compared.changes if change.kind in DOUBT)
    yield from (f"- {flipped_line(pair, FLIPS)}" for pair in compared.pairs if pair.flipped)
    yield from (
        f"- {name_of(pair)}: {pair.reason}" for pair in compared.pairs if pair.comparison and pair.reason
    )


def _courses(courses: tuple[Course, ...]) -> Iterator[str]:
    moving = [course for course in courses if course.trend.p_value < NOTABLE]
    flapping = [course for course in courses if course.flapping]
    if moving:
        yield "\n## Trends\n"
    for course in moving:
        way, name = course.trend, _course_name(course)
        yield f"- {name}: {way.slope:+.3g} a night over {way.nights} nights (p = {way.p_value:.2g})"
    if flapping:
        yield "\n## Items that flip back and forth\n"
    for course in flapping:
        named = ", ".join(f"`{item.item_id}` {item.course}" for item in course.flapping[:FLIPS])
        rest = len(course.flapping) - FLIPS
        yield f"- {_course_name(course)}: {named}" + (f" and {rest} more" if rest > 0 else "")


def _course_name(course: Course) -> str:
    group = " ".join(value for _, value in course.key.facets)
    return (
        f"{course.key.benchmark} {course.key.pair} ({group})"
        if group
        else f"{course.key.benchmark} {course.key.pair}"
    )


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\n", " ")


def night_document(judged: JudgedNight) -> dict[str, Any]:
    """The night as ``--json`` prints it and ``suite.json`` keeps it."""
    return {
        **judged.night.model_dump(mode="json"),
        "passed": judged.night.passed,
        "headline": headline(judged),
        "comparison": comparison_document(judged.compared) if judged.compared is not None else None,
        "trends": [
            {"benchmark": course.key.benchmark, "pair": course.key.pair, "facets": dict(course.key.facets)}
            | asdict(course.trend)
            for course in judged.courses
        ],
        "flapping": [
            {"benchmark": course.key.benchmark, "pair": course.key.pair} | asdict(item)
            for course in judged.courses
            for item in course.flapping
        ],
    }
