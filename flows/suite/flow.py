"""The night as a flow: every evaluation as a subflow, then one task that compares and records.

``python -m flows.suite SUITE.yaml`` runs it here; the deployment ``nightly`` on a schedule. An evaluation
that fails leaves the others running, and a retry computes only what is missing.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from prefect import Flow, flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.utilities.urls import url_for

from flows.compare.runs import STATE_NAMES
from flows.eval.flow import evaluate, stopped_state, under_control
from flows.suite.night import (
    JudgedNight,
    headline,
    judge_night,
    night_document,
    noteworthy_pairs,
    summary_markdown,
)
from flows.suite.plan import (
    PlannedEvaluation,
    PlannedNight,
    SuiteOptions,
    check_margins,
    load_suite,
    plan_night,
)
from metrics.errors import NightjarError
from metrics.printable import printable
from tasks.history.layout import Night, NightEvaluation, past_nights, record_night
from tasks.models.control import RunControl
from tasks.models.engine import interrupted
from tasks.server import if_possible, label_verdict, patiently
from tasks.store.home import private_folder
from tasks.store.storage import Store

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


def record_night_stopped(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Records that a night ended in ``state`` and why, unless it was judged before.

    Prefect calls it when a night was cancelled or crashed, in its process or, where that was killed, in the
    worker's.
    """
    options = SuiteOptions.model_validate(flow_run.parameters.get("options") or {})
    night = plan_night(load_suite(flow_run.parameters["suite"]), options, str(flow_run.id))
    started = flow_run.start_time or flow_run.created
    leave_record(night, state, started.isoformat(timespec="seconds") if started else "")


def leave_record(night: PlannedNight, state: State[Any], started: str) -> None:
    """The night with none of its evaluations complete, unless there is a record already."""
    store = Store(night.store)
    if night.run_id in {past.run_id for past in past_nights(store, night.slug)}:
        return
    reason = f"{state.name}: {state.message}"
    evaluations = tuple(
        NightEvaluation(name=entry.name, run_id=str(entry.options.run_id), ok=False, message=reason)
        for entry in night.evaluations
    )
    record_night(
        store, Night(suite=night.slug, run_id=night.run_id, started=started, evaluations=evaluations)
    )


@flow(
    name="suite",
    flow_run_name=suite_run_name,
    on_cancellation=[record_night_stopped],
    on_crashed=[record_night_stopped],
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
    label_verdict(str(flow_run.id), None, ())  # a retry has no verdict yet
    _tell_missed(night)
    for sentence in check_margins(night):
        get_run_logger().warning(sentence)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with under_control(night.run_id, str(flow_run.id), night.suite.timeout) as control:
        evaluations = await evaluate_all(night, control)
    if control.stopped is not None:
        state = await stopped_state(control, str(flow_run.id))
        leave_record(night, state, began)
        return state
    judged: JudgedNight = judge.submit(night, evaluations).result()
    message = printable(headline(judged))
    if not judged.ok:
        return Failed(message=message)
    return Completed(message=message, name=STATE_NAMES.get(judged.outcome, "Completed"))


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
        state = patiently(lambda: asyncio.run(run()))
    except Exception as error:  # the engine itself failed, not a task: a server that is gone, a full disk
        return NightEvaluation(name=name, run_id=run_id, ok=False, message=f"{type(error).__name__}: {error}")
    return NightEvaluation(name=name, run_id=run_id, ok=state.is_completed(), message=state.message)


@task(name="compare", task_run_name="compare with {night.baseline}", persist_result=False)
def judge(night: PlannedNight, evaluations: tuple[NightEvaluation, ...]) -> JudgedNight:
    """Compares the night with its baseline, records it, and shows it on the run's page."""
    judged = judge_night(night, evaluations)
    record_night(Store(night.store), judged.night)
    _write(night, judged)
    sentence, page = printable(headline(judged)), printable(summary_markdown(judged))
    if_possible(
        lambda: create_markdown_artifact(page, key=f"suite-{night.artifact_key}", description=sentence)
    )
    label_verdict(str(flow_run.id), judged.outcome, noteworthy_pairs(judged))
    if judged.outcome not in (None, "pass"):
        _emit(night, str(judged.outcome), sentence, verdict=judged.outcome, pairs=noteworthy_pairs(judged))
    return judged


def _tell_missed(night: PlannedNight) -> None:
    """Says of a night that the schedule began that the one before it is too long ago."""
    context = FlowRunContext.get()
    past = past_nights(Store(night.store), night.slug, before=night.run_id)
    if not past or context is None or context.flow_run is None or not context.flow_run.auto_scheduled:
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
