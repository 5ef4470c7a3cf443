"""One night of a suite: what is evaluated under which ids, and what came of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flows.compare.runs import compare_opened
from flows.config.load import load_configs
from flows.config.schema import EvalConfig, RunOptions
from flows.eval.start import RESULTS, slug
from flows.suite.config import SuiteBenchmark, SuiteConfig
from metrics.errors import ConfigError, NightjarError
from tasks.comparison.compare import ComparedRuns
from tasks.comparison.document import comparison_document
from tasks.comparison.runs import ComparedRun, Course, courses, night_changes, open_night, pooled, together
from tasks.comparison.terminal import DOUBT, change_line, flipped_line, group_of, name_of
from tasks.history.record import Night, NightEvaluation, baseline_nights, past_nights
from tasks.store.home import default_store
from tasks.store.storage import Store


class SuiteOptions(BaseModel):
    """How one run of a suite goes about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int | None = Field(None, ge=1, description="Only the first items of every benchmark")
    output: str | None = Field(None, description="Folder of the night's files; default: results/<id>")
    store: str | None = Field(None, description="URI of the artifact store")
    baseline: str | None = Field(None, description="Instead of the suite's own")


@dataclass(frozen=True)
class PlannedEvaluation:
    """One benchmark on one model. ``refusal`` says why it can't be run; it then has no config."""

    name: str
    options: RunOptions
    config: EvalConfig | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class PlannedNight:
    """A suite's evaluations with everything decided: ids, folders, store."""

    suite: SuiteConfig
    run_id: str
    store: str
    output: str
    baseline: str
    evaluations: tuple[PlannedEvaluation, ...]

    @property
    def slug(self) -> str:
        """The suite's name as part of file names and artifact keys."""
        return slug(self.suite.name)


def plan_night(suite: SuiteConfig, options: SuiteOptions, unique: str) -> PlannedNight:
    """The night's evaluations, benchmarks × models; ``unique`` is the same for a flow run and its retries.

    A benchmark whose config is refused becomes an evaluation that fails: the others are not its hostages.
    """
    run_id = f"{slug(suite.name)}-{unique[:8]}"
    night = PlannedNight(
        suite=suite,
        run_id=run_id,
        store=options.store or default_store(),
        output=str(Path(options.output or RESULTS / run_id).resolve()),
        baseline=options.baseline or suite.baseline,
        evaluations=(),
    )
    planned = tuple(
        evaluation
        for benchmark, file in zip(suite.benchmarks, suite.files(), strict=True)
        for evaluation in _planned(night, benchmark, file, options)
    )
    names = [evaluation.name for evaluation in planned]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"suite '{suite.name}': '{min(twice)}' is there twice; give the benchmarks names of their own"
        )
    return replace(night, evaluations=planned)


def _planned(
    night: PlannedNight, benchmark: SuiteBenchmark, file: Path, options: SuiteOptions
) -> Iterator[PlannedEvaluation]:
    overrides = [f"{key}={json.dumps(value)}" for key, value in benchmark.set.items()]
    if night.suite.models:
        models = [model.model_dump(mode="json", exclude_unset=True) for model in night.suite.models]
        overrides.append(f"models={json.dumps(models)}")
    limit = options.limit or benchmark.limit
    try:
        configs = load_configs(file, overrides)
    except NightjarError as error:
        yield PlannedEvaluation(file.stem, _options(night, file.stem, limit), refusal=str(error))
        return
    for config in configs:
        for model in config.models:
            name = f"{config.name} × {model.name}"
            single = config.model_copy(update={"models": (model,)})
            yield PlannedEvaluation(name, _options(night, name, limit), single)


def _options(night: PlannedNight, name: str, limit: int | None) -> RunOptions:
    return RunOptions(
        limit=limit,
        output=str(Path(night.output) / slug(name)),
        store=night.store,
        run_name=f"{night.suite.name}: {name}",
        run_id=f"{night.run_id}-{slug(name)}",
    )


@dataclass(frozen=True)
class JudgedNight:
    """A night with what stands against it; ``compared`` is None where there was no baseline yet."""

    night: Night
    compared: ComparedRuns | None
    courses: tuple[Course, ...]

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
    return JudgedNight(night, compared, courses([*earlier, tonight]))


def _compared(
    planned: PlannedNight, base: Sequence[Mapping[str, ComparedRun]], tonight: Mapping[str, ComparedRun]
) -> ComparedRuns | None:
    """The comparison with the baseline's nights; None where there is nothing to compare."""
    base = [night for night in base if night]
    if not base or not tonight:
        return None
    baseline = pooled(planned.baseline, base)
    compared = compare_opened(baseline, together(planned.run_id, tonight), planned.suite.gate)
    return replace(compared, changes=night_changes(base[-1], tonight))


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
