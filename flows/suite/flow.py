"""The night as a flow: every evaluation as a subflow, then one task that compares and records; and how a
night is judged and told, against its baseline, with the nights before, in words and as JSON.

``python -m flows.suite SUITE.yaml`` runs it here; the deployment ``nightly`` on a schedule. An evaluation
that fails leaves the others running, and a retry computes only what is missing. ``judge_night`` compares;
``headline``, ``summary_markdown`` and ``night_document`` say it to the Prefect UI, the terminal and
programs.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, cast

import orjson
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.utilities.urls import url_for

from flows.compare.runs import (
    DOUBT,
    STATE_NAMES,
    change_line,
    compare_opened,
    comparison_document,
    flipped_line,
    group_of,
    name_of,
    told_pairs,
)
from flows.eval.flow import evaluate, stopped_state, under_control
from flows.suite.order import let_earlier_nights_go_first
from flows.suite.plan import (
    PlannedEvaluation,
    PlannedNight,
    SuiteOptions,
    check_margins,
    load_suite,
    plan_night,
)
from flows.suite.telling import (
    BegunNight,
    begin,
    leave_record,
    notice,
    record_judged,
    record_night_stopped,
    tell,
)
from metrics.errors import NightjarError, printable
from metrics.statistics.gate import Verdict, worst_of
from tasks.comparison.compare import ComparedPair, ComparedRuns, Gate
from tasks.comparison.runs import (
    ComparedRun,
    baseline_run,
    merged_run,
    night_changes,
    open_night,
    reused_groups,
)
from tasks.comparison.trends import PairCourse, pair_courses
from tasks.history.layout import (
    Night,
    NightEvaluation,
    Notice,
    Skipped,
    baseline_nights,
)
from tasks.history.notices import outstanding
from tasks.models.engine import RunControl, interrupted
from tasks.models.errors import shortened
from tasks.models.records import asked_and_reused
from tasks.server import if_possible, label_verdict, retry_until_up
from tasks.store.home import private_folder
from tasks.store.storage import Store

ROWS = 100
"""Rows of a table in the UI, at most: the whole is in suite.json."""
FLIPS = 10
NOTABLE = 0.05
"""Level below which a trend is worth a line."""


Outcome = Literal["regression", "undecided", "inconclusive", "worse", "pass"]
"""How a night counts. Undecided is the last of too many inconclusive nights in a row."""


@dataclass(frozen=True)
class JudgedNight:
    """A night with what stands against it; ``compared`` is None where there was no baseline yet.

    ``anchored`` is the comparison with the gate's fixed second baseline, if it has one. ``inconclusive`` is
    how many nights in a row, this one included, could not be decided; ``spent`` how many of those that share
    an alpha have taken their part of it, this one included. ``skipped`` are records of earlier nights that
    nobody can read.
    """

    night: Night
    compared: ComparedRuns | None
    courses: tuple[PairCourse, ...]
    gate: Gate | None = None
    anchored: ComparedRuns | None = None
    inconclusive: int = 0
    spent: int = 0
    skipped: tuple[Skipped, ...] = ()

    @property
    def outcome(self) -> Outcome | None:
        """The verdict, and what the nights before make of it; None without one."""
        verdict = cast(Verdict | None, self.night.verdict)
        if verdict == "inconclusive" and self.gate and self.inconclusive >= self.gate.inconclusive_nights:
            return "undecided"
        return verdict

    @property
    def complete(self) -> bool:
        """Everything was evaluated."""
        return all(entry.ok for entry in self.night.evaluations)

    @property
    def ok(self) -> bool:
        """Everything was evaluated, and the gate does not fail the night."""
        fails = {
            "regression",
            "undecided",
            *({"worse"} if self.gate and self.gate.fail_on == "worse" else ()),
        }
        return self.complete and self.outcome not in fails

    @property
    def anchored_to(self) -> str | None:
        """The run that stays the second baseline."""
        return self.gate.anchor if self.gate is not None else None

    @property
    def losses(self) -> tuple[ComparedPair, ...]:
        """The pairs that lost more than the margin against the anchor."""
        pairs = self.anchored.pairs if self.anchored is not None else ()
        return tuple(pair for pair in pairs if pair.verdict == "regression")


def judge_night(
    planned: PlannedNight, evaluations: tuple[NightEvaluation, ...], begun: BegunNight
) -> JudgedNight:
    """Holds a night against its baseline and the gate's anchor, and looks back on the nights before it.

    A loss against the anchor makes *worse* of a night that passes otherwise. Raises ConfigError for a
    baseline or an anchor that is not there.
    """
    store, gate = Store(planned.store), planned.suite.gate
    night = begun.own.model_copy(update={"evaluations": evaluations, "ended": True})
    past, chosen = begun.past, begun.baseline
    if chosen is None:
        chosen = tuple(baseline_nights(store, past, planned.baseline, planned.suite.nights))
    tonight = open_night(night, store)
    night = night.model_copy(
        update={"evaluations": tuple(_with_requests(entry, tonight) for entry in evaluations)}
    )
    compared = _compared(planned, planned.baseline, [open_night(entry, store) for entry in chosen], tonight)
    verdict = compared.verdict if compared is not None else None
    anchored = None
    if gate is not None and gate.anchor is not None:
        fixed = baseline_nights(store, past, gate.anchor, planned.suite.nights)
        anchored = _compared(planned, gate.anchor, [open_night(entry, store) for entry in fixed], tonight)
        if anchored is not None and any(pair.verdict == "regression" for pair in anchored.pairs):
            verdict = "worse" if verdict is None else worst_of([verdict, "worse"])
    spending = _spending(planned)
    night = night.model_copy(
        update={
            "baseline": tuple(entry.run_id for entry in chosen),
            "verdict": verdict,
            "spending": spending if verdict is not None else None,
        }
    )
    earlier = [open_night(entry, store) for entry in past[-(planned.suite.nights - 1) :]]
    undecided = takewhile(lambda entry: entry.verdict == "inconclusive", (night, *reversed(past)))
    return JudgedNight(
        night=night,
        compared=compared,
        courses=pair_courses([*earlier, tonight]),
        gate=gate,
        anchored=anchored,
        inconclusive=sum(1 for _ in undecided),
        spent=_spent(night, past, gate),
        skipped=begun.skipped,
    )


def _spending(planned: PlannedNight) -> str | None:
    """By what the nights that share an alpha are known; another baseline that the suite names starts anew."""
    gate = planned.suite.gate
    if gate is None or gate.alpha_over is None:
        return None
    return f"{gate.alpha:g} over {gate.alpha_over.nights} nights against {planned.baseline}"


def _spent(night: Night, past: Sequence[Night], gate: Gate | None) -> int:
    """The night's place among those that share an alpha, from 1; 0 where none is shared."""
    if gate is None or night.spending is None:
        return 0
    tested = [entry for entry in reversed(past) if entry.verdict is not None]
    before = sum(1 for _ in takewhile(lambda entry: entry.spending == night.spending, tested))
    return before % gate.shares + 1


def _with_requests(entry: NightEvaluation, tonight: Mapping[str, ComparedRun]) -> NightEvaluation:
    """The evaluation with what its models were asked; judges are asked what the answers call for."""
    models = (tonight[entry.name].manifest.get("models") or {}) if entry.name in tonight else {}
    if not models:
        return entry
    names = ("sent", "cached", "same_night")
    counts = {name: sum(tally.get(name) or 0 for tally in models.values()) for name in names}
    paid = tonight[entry.name].manifest.get("cost")
    cost = {str(tonight[entry.name].manifest.get("currency") or ""): float(paid)} if paid else {}
    canaries = tonight[entry.name].manifest.get("canaries") or {}
    doubts = tuple(f"{name}: {found['said']}" for name, found in canaries.items() if found.get("said"))
    return entry.model_copy(update={"requests": counts, "doubts": doubts, "cost": cost})


def _compared(
    planned: PlannedNight,
    name: str,
    base: Sequence[Mapping[str, ComparedRun]],
    tonight: Mapping[str, ComparedRun],
) -> ComparedRuns | None:
    """The comparison with the nights of a baseline; None where there is nothing to compare."""
    base = [night for night in base if night]
    if not base or not tonight:
        return None
    candidate = merged_run(planned.run_id, tonight)
    compared = compare_opened(
        baseline_run(name, base), candidate, planned.suite.gate, reused=reused_groups(tonight)
    )
    return replace(compared, changes=night_changes(base[-1], tonight))


def headline(judged: JudgedNight) -> str:
    """The night in one sentence."""
    entries = judged.night.evaluations
    failed = [entry for entry in entries if not entry.ok]
    sentences = [f"{len(entries) - len(failed)} of {len(entries)} evaluations complete"]
    if failed:
        sentences.append(f"failed: {_with_reasons(failed)}")
    if asked := [entry.requests for entry in entries if entry.requests is not None]:
        counts = {name: sum(entry[name] for entry in asked) for name in asked[0]}
        sentences.append(asked_and_reused(counts, judged.night.attempt > 1))
    sentences += dict.fromkeys(doubt for entry in entries for doubt in entry.doubts)
    if judged.compared is None:
        sentences.append("nothing to compare with yet")
    else:
        sentences.append(
            f"against {', '.join(judged.night.baseline)}: {judged.compared.verdict or 'no gate'}"
        )
    if judged.outcome == "undecided":
        sentences.append(f"undecided: {judged.inconclusive} inconclusive nights in a row")
    if judged.spent and judged.gate is not None:
        sentences.append(_alpha_sentence(judged.gate, judged.spent))
    if judged.losses:
        lost = ", ".join(map(name_of, judged.losses))
        sentences.append(f"lost more than the margin against the anchor {judged.anchored_to}: {lost}")
    if judged.compared is not None and any(
        change.kind == "model identity" for change in judged.compared.changes
    ):
        sentences.append("the identity of a model changed")
    return "; ".join(sentences)


def _with_reasons(failed: Sequence[NightEvaluation]) -> str:
    """The evaluations that failed, and behind all that have a reason in common, in short, that reason."""
    names: dict[str, list[str]] = {}
    for entry in failed:
        names.setdefault(shortened(entry.message or ""), []).append(entry.name)
    return ", ".join(", ".join(same) + (f" ({reason})" if reason else "") for reason, same in names.items())


def _alpha_sentence(gate: Gate, spent: int) -> str:
    part = gate.alpha / gate.shares
    return (
        f"night {spent} of {gate.shares} that share alpha {gate.alpha:g}: {part:.2g} a night, "
        f"{spent * part:.2g} spent"
    )


def summary_markdown(judged: JudgedNight) -> str:
    """The summary artifact."""
    return "\n".join(_markdown(judged))


def _markdown(judged: JudgedNight) -> Iterator[str]:
    yield f"# {judged.night.suite}: {headline(judged)}\n"
    yield "| evaluation | state | answers | run | said |\n|---|---|---|---|---|"
    for entry in judged.night.evaluations:
        state = "complete" if entry.ok else "**failed**"
        again = judged.night.attempt > 1
        answers = "" if entry.requests is None else asked_and_reused(entry.requests, again)
        yield f"| {entry.name} | {state} | {answers} | `{entry.run_id}` | {_cell(entry.message)} |"
    if judged.compared is not None:
        yield from _comparison(judged.compared)
    if judged.anchored is not None:
        yield from _comparison(judged.anchored)
    yield from _courses(judged.courses)
    if judged.skipped:
        yield "\n## Records of earlier nights that can't be read\n"
        yield from (f"- {_cell(str(skipped))}" for skipped in judged.skipped)


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
        "outcome": judged.outcome,
        "headline": headline(judged),
        "inconclusive_nights": judged.inconclusive,
        "alpha": None
        if judged.gate is None or not judged.spent
        else {
            "night": judged.spent,
            "nights": judged.gate.shares,
            "tonight": judged.gate.alpha / judged.gate.shares,
            "spent": judged.spent * judged.gate.alpha / judged.gate.shares,
        },
        "skipped": [str(skipped) for skipped in judged.skipped],
        "comparison": comparison_document(judged.compared) if judged.compared is not None else None,
        "anchor": comparison_document(judged.anchored) if judged.anchored is not None else None,
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


def noteworthy_pairs(judged: JudgedNight) -> list[dict[str, Any]]:
    """What a notification says of each pair that did not pass, worst first; against the anchor, of those that
    lost."""
    pairs = (
        [] if judged.compared is None else [(judged.compared.base, pair) for pair in judged.compared.pairs]
    )
    return told_pairs([*pairs, *((str(judged.anchored_to), pair) for pair in judged.losses)])


DEFAULTS = SuiteOptions()
EVENTS = "nightjar.suite"
"""Of a night whose outcome is not pass comes the event with the outcome's name: ``nightjar.suite.worse``."""
MISSED_AFTER = timedelta(hours=26)
"""A night whose predecessor is older says so."""


def suite_run_name() -> str:
    """Name of the flow run: the suite's file and the time that the night was due, so that names are in the
    order of the nights."""
    name, due = Path(str(flow_run.parameters.get("suite", "suite"))).stem, flow_run.scheduled_start_time
    return f"{name} {due:%Y-%m-%d %H:%M}" + (f"{due::%S}" if due.second else "")


@flow(
    name="suite",
    flow_run_name=suite_run_name,
    on_cancellation=[record_night_stopped],
    on_crashed=[record_night_stopped],
    on_failure=[record_night_stopped],
)
async def run_suite(suite: str, options: SuiteOptions = DEFAULTS) -> State[Any]:
    """Evaluates a suite and compares the night with its baseline.

    ``suite`` is the suite's YAML file. Ends Failed if an evaluation did not complete, the gate says
    regression, or too many nights in a row were inconclusive; whatever was computed is published and compared
    all the same. A night that is inconclusive or worse ends Completed under that name.
    """
    night = plan_night(load_suite(suite), options, str(flow_run.id))
    if not night.evaluations:
        return Completed(message="no checkpoint is new", name="NothingNew")
    await let_earlier_nights_go_first(_own_run())
    label_verdict(str(flow_run.id), None, ())  # a retry has no verdict yet
    begun = begin(night, _due())
    _tell_missed(night, begun.past)
    for sentence in check_margins(night):
        get_run_logger().warning(sentence)
    with under_control(night.run_id, str(flow_run.id), night.suite.timeout) as control:
        evaluations = await evaluate_all(night, control)
    if control.stopped is not None:
        state = await stopped_state(control, str(flow_run.id))
        if (run := _own_run()) is not None:
            leave_record(night, state, run)
        _tell(night, begun)
        return state
    judged: JudgedNight = judge.submit(night, evaluations, begun).result()
    _tell(night, begun)
    message = printable(headline(judged))
    if not judged.ok:
        return Failed(message=message)
    return Completed(message=message, name=_state_name(judged))


def _tell(night: PlannedNight, begun: BegunNight) -> None:
    """Sends what a deployment's night has to tell; a message that can't be sent now fails no night."""
    run = _own_run()
    if run is not None and run.deployment_id is not None:
        tell.submit(night, [entry for entry in begun.past if outstanding(entry)]).wait()


def _own_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


def _due() -> str | None:
    """When the run was to begin: that stays, whatever it waits for and however often it is retried."""
    run = _own_run()
    due = run.expected_start_time if run is not None else None
    return due.isoformat(timespec="microseconds") if due is not None else None


def _state_name(judged: JudgedNight) -> str:
    return STATE_NAMES.get(judged.outcome, "Completed") if judged.ok else "Failed"


async def evaluate_all(night: PlannedNight, control: RunControl) -> tuple[NightEvaluation, ...]:
    """Every evaluation of the night, some at once; none of them ends another, and none begins in a night that
    was stopped."""
    places = asyncio.Semaphore(night.suite.parallel)

    async def in_turn(planned: PlannedEvaluation) -> NightEvaluation:
        async with places:
            if (stop := control.stopped) is not None:
                run_id = str(planned.options.run_id)
                return NightEvaluation(name=planned.name, run_id=run_id, ok=False, message=stop.reason)
            # A thread and a loop of its own: an evaluation waits for its tasks, and would hold up the others.
            return await asyncio.to_thread(_evaluate, night, planned)

    try:
        return tuple(await asyncio.gather(*map(in_turn, night.evaluations)))
    except (asyncio.CancelledError, TerminationSignal):
        # Prefect ends the run: the threads do not hear of it, and the process would wait for them.
        interrupted.set()
        raise


def _evaluate(night: PlannedNight, planned: PlannedEvaluation) -> NightEvaluation:
    """Runs one evaluation as a subflow; whatever goes wrong is its outcome."""
    name, run_id = planned.name, str(planned.options.run_id)
    if planned.config is None:
        return NightEvaluation(name=name, run_id=run_id, ok=False, message=planned.refusal)
    subflow = evaluate.with_options(retries=night.suite.retries, retry_delay_seconds=night.suite.retry_delay)

    async def run() -> State[Any]:
        state: State[Any] = await subflow(planned.config, planned.options, return_state=True)
        return state

    try:
        state = retry_until_up(lambda: asyncio.run(run()))
    except Exception as error:  # the engine itself failed, not a task: a server that is gone, a full disk
        return NightEvaluation(name=name, run_id=run_id, ok=False, message=f"{type(error).__name__}: {error}")
    return NightEvaluation(name=name, run_id=run_id, ok=state.is_completed(), message=state.message)


@task(name="compare", task_run_name="compare with {night.baseline}", persist_result=False)
def judge(night: PlannedNight, evaluations: tuple[NightEvaluation, ...], begun: BegunNight) -> JudgedNight:
    """Compares the night with its baseline, records it with what is to be told, and shows it on the run's
    page."""
    judged = judge_night(night, evaluations, begun)
    told_before = record_judged(night, judged.night, _notice(judged))
    _write(night, judged)
    sentence, page = printable(headline(judged)), printable(summary_markdown(judged))
    if_possible(
        lambda: create_markdown_artifact(page, key=f"suite-{night.artifact_key}", description=sentence)
    )
    label_verdict(str(flow_run.id), judged.outcome, noteworthy_pairs(judged))
    if not told_before and judged.outcome not in (None, "pass"):
        _emit(night, str(judged.outcome), sentence, verdict=judged.outcome, pairs=noteworthy_pairs(judged))
    return judged


def _notice(judged: JudgedNight) -> Notice | None:
    """What is told of the night; None where it passed, or there was nothing to compare it with."""
    outcome = judged.outcome if judged.outcome not in (None, "pass") else None
    run = _own_run()
    if run is None or (outcome is None and judged.complete):
        return None
    return notice(
        run,
        judged.night.run_id,
        outcome or "incomplete",
        f"{_state_name(judged)}: {printable(headline(judged))}",
        verdict=outcome,
        pairs=noteworthy_pairs(judged),
        cost=judged.night.cost,
    )


def _tell_missed(night: PlannedNight, past: Sequence[Night]) -> None:
    """Says of a night that the schedule began that the one before it is too long ago."""
    run = _own_run()
    if not past or run is None or not run.auto_scheduled:
        return
    ago = datetime.now(UTC) - datetime.fromisoformat(past[-1].started)
    if ago > MISSED_AFTER:
        hours = ago.total_seconds() / 3600
        _emit(night, "missed", f"the night before this one, {past[-1].run_id}, was {hours:.0f} hours ago")


def _emit(
    night: PlannedNight, name: str, text: str, verdict: str | None = None, pairs: Sequence[Any] = ()
) -> None:
    """Emits one of the suite's events."""
    place = f"{EVENTS}.{night.artifact_key}"
    emit_event(
        f"{EVENTS}.{name}",
        resource={"prefect.resource.id": place, "prefect.resource.name": night.suite.name},
        payload={
            "headline": text,
            "text": text,
            "url": url_for("flow-run", obj_id=str(flow_run.id)),
            "run_id": night.run_id,
            "verdict": verdict,
            "pairs": list(pairs),
        },
    )


def _write(night: PlannedNight, judged: JudgedNight) -> None:
    folder = Path(night.output)
    try:
        private_folder(folder)
        document = orjson.dumps(night_document(judged), option=orjson.OPT_INDENT_2)
        (folder / "suite.json").write_bytes(document)
        (folder / "suite.md").write_text(summary_markdown(judged), encoding="utf-8")
    except OSError as error:
        raise NightjarError(f"{folder}: can't be written: {error.strerror or error}") from error
