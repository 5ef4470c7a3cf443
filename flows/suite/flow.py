"""The night as a flow: every evaluation as a subflow, then one task that compares and records.

``python -m flows.suite SUITE.yaml`` runs it here; the deployment ``nightly`` on a schedule. An evaluation
that fails leaves the others running, and a retry computes only what is missing.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.utilities.urls import url_for

from flows.compare.runs import STATE_NAMES, comparison_document
from flows.eval.flow import evaluate, stopped_state, under_control
from flows.eval.publishing import Evaluation
from flows.server import own_flow
from flows.suite.judging import JudgedNight, judge_night, to_confirm
from flows.suite.names import dated
from flows.suite.order import let_earlier_nights_go_first
from flows.suite.page import about_night, write_page
from flows.suite.plan import (
    PlannedEvaluation,
    PlannedNight,
    SuiteConfig,
    SuiteOptions,
    check_margins,
    load_suite,
    may_stop,
    plan_night,
)
from flows.suite.rescoring import Rescoring, as_night, forget, to_rescore
from flows.suite.second_look import asked_anew
from flows.suite.telling import (
    BegunNight,
    begin,
    due_time,
    leave_record,
    notice,
    record_judged,
    record_night_stopped,
    tell,
)
from flows.suite.words import headline, night_document, noteworthy_pairs, summary_markdown, told_sentence
from metrics.errors import printable
from tasks.comparison.runs import open_night
from tasks.history.nights import Night, NightEvaluation, Notice
from tasks.history.notices import outstanding, told_as
from tasks.messages.markdown import as_text
from tasks.models.control import RunControl
from tasks.patience import LOOK_SECONDS, if_possible, retry_until_up
from tasks.processes.endings import interrupted
from tasks.run_page import label_verdict
from tasks.store.home import whole_text, write_json
from tasks.store.storage import Store

DEFAULTS = SuiteOptions()
EVENTS = "nightjar.suite"
"""Of a night whose outcome is not pass comes the event with the outcome's name: ``nightjar.suite.worse``."""
MISSED_AFTER = timedelta(hours=26)
"""A night whose predecessor is older says so."""


def suite_run_name() -> str:
    """Name of the flow run: the suite's file and the time that the night was due."""
    name = Path(str(flow_run.parameters.get("suite", "suite"))).stem
    return dated(name, flow_run.scheduled_start_time)


@own_flow(
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
    begun = begin(night, due_time(_own_run()))
    night = may_stop(night, begun.past, begun.baseline)
    _tell_missed(night, begun.past)
    for sentence in check_margins(night):
        get_run_logger().warning(sentence)
    with under_control(night.run_id, str(flow_run.id), night.suite.timeout) as control:
        rescored = await rescore(night, begun, control)
        evaluations = await evaluate_all(night, control)
        again = await confirm(night, evaluations, begun, rescored, control)
    if control.stopped is not None:
        state = await stopped_state(control, str(flow_run.id))
        if (run := _own_run()) is not None:
            leave_record(night, state, run)
        _tell(night, begun)
        return state
    judged: JudgedNight = judge.submit(night, evaluations, begun, again, rescored).result()
    _tell(night, begun)
    message = printable(headline(judged))
    if not judged.ok:
        return Failed(message=message)
    return Completed(message=message, name=_state_name(judged))


async def rescore(night: PlannedNight, begun: BegunNight, control: RunControl) -> list[Rescoring]:
    """Scores the answers of the baseline and the anchor with tonight's code, where other code scored them;
    before the night's own runs, whose pages then know nothing of it."""
    found = await asyncio.to_thread(to_rescore, night, begun)
    if found:
        names = ", ".join(entry.planned.name for entry in found)
        get_run_logger().info("tonight's code scores kept answers: %s", names)
        done = await evaluate_all(as_night(night, found), control)
        for entry in done:
            if not entry.ok:
                get_run_logger().warning("%s: not scored by tonight's code: %s", entry.name, entry.message)
        await asyncio.to_thread(forget, Store(night.store), found)
    return found


async def confirm(
    night: PlannedNight,
    evaluations: tuple[NightEvaluation, ...],
    begun: BegunNight,
    rescored: Sequence[Rescoring],
    control: RunControl,
) -> tuple[NightEvaluation, ...]:
    """Asks again for what regressed, if the gate wants that before anybody is told."""
    if control.stopped is not None:
        return ()
    names = await asyncio.to_thread(to_confirm, night, evaluations, begun, rescored)
    if not names:
        return ()
    get_run_logger().info("a regression is looked at again: asking again for %s", ", ".join(sorted(names)))
    return await evaluate_all(asked_anew(night, names), control)


def _tell(night: PlannedNight, begun: BegunNight) -> None:
    """Sends what a deployment's night has to tell; a message that can't be sent now fails no night."""
    run = _own_run()
    if run is not None and run.deployment_id is not None:
        tell.submit(night, [entry for entry in begun.past if outstanding(entry)]).wait()


def _own_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


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
            return await asyncio.to_thread(_evaluate, night.suite, planned, control)

    try:
        return tuple(await asyncio.gather(*map(in_turn, night.evaluations)))
    except (asyncio.CancelledError, TerminationSignal):
        # Prefect ends the run: the threads do not hear of it, and the process would wait for them.
        interrupted.set()
        raise


def _evaluate(suite: SuiteConfig, planned: PlannedEvaluation, control: RunControl) -> NightEvaluation:
    """Runs one evaluation as a subflow, again if it failed; whatever goes wrong is its outcome."""
    name, run_id = planned.name, str(planned.options.run_id)
    if planned.config is None:
        return NightEvaluation(name=name, run_id=run_id, ok=False, message=planned.refusal)

    async def run() -> State[Any]:
        state: State[Any] = await evaluate(planned.config, planned.options, return_state=True)
        return state

    def is_whole() -> bool:
        return Evaluation(str(planned.options.output)).is_whole_of(str(state.state_details.flow_run_id))

    try:
        state = retry_until_up(lambda: asyncio.run(run()))
        # Prefect's own retries sleep out their delay: such a run can't be stopped meanwhile.
        for _ in range(suite.retries):
            if not state.is_failed() or is_whole() or not _goes_on_after(suite.retry_delay, control):
                break
            state = retry_until_up(lambda: asyncio.run(run()))
        ok, whole = state.is_completed(), state.is_failed() and is_whole()
    except Exception as error:  # the engine itself failed, not a task: a server that is gone, a full disk
        return NightEvaluation(name=name, run_id=run_id, ok=False, message=f"{type(error).__name__}: {error}")
    return NightEvaluation(name=name, run_id=run_id, ok=ok, whole=whole, message=state.message)


def _goes_on_after(seconds: float, control: RunControl) -> bool:
    """Waits; whether the night still goes on then. One that was stopped is not waited for."""
    until = time.monotonic() + seconds
    while control.stopped is None and not interrupted.is_set() and (left := until - time.monotonic()) > 0:
        interrupted.wait(min(left, LOOK_SECONDS))
    return control.stopped is None and not interrupted.is_set()


@task(name="compare", task_run_name="compare with {night.baseline}", persist_result=False)
def judge(
    night: PlannedNight,
    evaluations: tuple[NightEvaluation, ...],
    begun: BegunNight,
    again: tuple[NightEvaluation, ...] = (),
    rescored: Sequence[Rescoring] = (),
) -> JudgedNight:
    """Compares the night with its baseline, records it with what is to be told, and shows it on the run's
    page."""
    judged = judge_night(night, evaluations, begun, again, rescored)
    told_before = record_judged(night, judged.night, _notice(judged))
    _write(night, judged)
    sentence, page = printable(headline(judged)), summary_markdown(judged)
    told = printable(told_sentence(judged))
    if_possible(
        lambda: create_markdown_artifact(
            page, key=f"suite-{night.artifact_key}", description=as_text(sentence)
        )
    )
    label_verdict(str(flow_run.id), judged.outcome, noteworthy_pairs(judged))
    if not told_before and judged.outcome not in (None, "pass"):
        _emit(night, str(judged.outcome), told, verdict=judged.outcome, pairs=noteworthy_pairs(judged))
    return judged


def _notice(judged: JudgedNight) -> Notice | None:
    """What is told of the night; None where it passed, or there was nothing to compare it with."""
    outcome = judged.outcome if judged.outcome not in (None, "pass") else None
    run = _own_run()
    if run is None or (outcome is None and judged.complete):
        return None
    state = _state_name(judged)
    return notice(
        run,
        judged.night,
        told_as(outcome, state),
        f"{state}: {told_sentence(judged)}",
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
    """Raises FileUnwritable."""
    folder = Path(night.output)
    write_json(folder / "suite.json", night_document(judged))
    with whole_text(folder / "suite.md") as file:
        file.write(summary_markdown(judged))
    about = about_night(judged.night, night.suite.name, printable(headline(judged)), judged.outcome)
    compared = comparison_document(judged.compared) if judged.compared is not None else None
    write_page(folder, about, open_night(judged.night, Store(night.store)), compared)
