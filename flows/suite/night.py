"""How a night is judged and told: against its baseline, with the nights before, in words and as JSON.

``judge_night`` compares; ``headline``, ``summary_markdown`` and ``night_document`` say it to the Prefect UI,
the terminal and programs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from flows.compare.runs import compare_opened
from flows.suite.plan import PlannedNight
from tasks.comparison.compare import ComparedRuns
from tasks.comparison.presentation import (
    DOUBT,
    change_line,
    comparison_document,
    flipped_line,
    group_of,
    name_of,
)
from tasks.comparison.runs import ComparedRun, baseline_run, merged_run, night_changes, open_night
from tasks.comparison.trends import PairCourse, pair_courses
from tasks.history.record import Night, NightEvaluation, baseline_nights, past_nights
from tasks.store.storage import Store

ROWS = 100
"""Rows of a table in the UI, at most: the whole is in suite.json."""
FLIPS = 10
NOTABLE = 0.05
"""Level below which a trend is worth a line."""


@dataclass(frozen=True)
class JudgedNight:
    """A night with what stands against it; ``compared`` is None where there was no baseline yet."""

    night: Night
    compared: ComparedRuns | None
    courses: tuple[PairCourse, ...]

    @property
    def ok(self) -> bool:
        """Everything was evaluated, and the gate found no regression."""
        return all(entry.ok for entry in self.night.evaluations) and self.night.verdict != "regression"


def judge_night(planned: PlannedNight, evaluations: tuple[NightEvaluation, ...]) -> JudgedNight:
    """Holds a night against its baseline, and looks back on the nights before.

    Raises ConfigError for a baseline that is not there.
    """
    store = Store(planned.store)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    night = Night(suite=planned.slug, run_id=planned.run_id, started=started, evaluations=evaluations)
    past = past_nights(store, planned.slug, before=planned.run_id)
    chosen = baseline_nights(store, past, planned.baseline, planned.suite.nights)
    tonight = open_night(night, store)
    compared = _compared(planned, [open_night(entry, store) for entry in chosen], tonight)
    verdict = compared.verdict if compared is not None else None
    night = night.model_copy(update={"baseline": tuple(entry.run_id for entry in chosen), "verdict": verdict})
    earlier = [open_night(entry, store) for entry in past[-(planned.suite.nights - 1) :]]
    return JudgedNight(night, compared, pair_courses([*earlier, tonight]))


def _compared(
    planned: PlannedNight, base: Sequence[Mapping[str, ComparedRun]], tonight: Mapping[str, ComparedRun]
) -> ComparedRuns | None:
    """The comparison with the baseline's nights; None where there is nothing to compare."""
    base = [night for night in base if night]
    if not base or not tonight:
        return None
    baseline = baseline_run(planned.baseline, base)
    compared = compare_opened(baseline, merged_run(planned.run_id, tonight), planned.suite.gate)
    return replace(compared, changes=night_changes(base[-1], tonight))


def headline(judged: JudgedNight) -> str:
    """The night in one sentence."""
    entries = judged.night.evaluations
    failed = [entry.name for entry in entries if not entry.ok]
    sentences = [f"{len(entries) - len(failed)} of {len(entries)} evaluations complete"]
    if failed:
        sentences.append(f"failed: {', '.join(failed)}")
    if judged.compared is None:
        sentences.append("nothing to compare with yet")
    else:
        sentences.append(f"against {', '.join(judged.night.baseline)}: {judged.night.verdict or 'no gate'}")
    if judged.compared is not None and any(
        change.kind == "model identity" for change in judged.compared.changes
    ):
        sentences.append("the identity of a model changed")
    return "; ".join(sentences)


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


def _courses(courses: tuple[PairCourse, ...]) -> Iterator[str]:
    moving = [course for course in courses if course.trend.p_value < NOTABLE]
    flapping = [course for course in courses if course.flapping]
    if moving:
        yield "\n## Trends\n"
    for course in moving:
        trend, name = course.trend, _course_name(course)
        yield f"- {name}: {trend.slope:+.3g} a night over {trend.nights} nights (p = {trend.p_value:.2g})"
    if flapping:
        yield "\n## Items that flip back and forth\n"
    for course in flapping:
        named = ", ".join(f"`{item.item_id}` {item.course}" for item in course.flapping[:FLIPS])
        rest = len(course.flapping) - FLIPS
        yield f"- {_course_name(course)}: {named}" + (f" and {rest} more" if rest > 0 else "")


def _course_name(course: PairCourse) -> str:
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
