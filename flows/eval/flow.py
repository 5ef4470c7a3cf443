"""The evaluation as a Prefect flow, and what people and time do to it: cancelled in the UI, paused, over
its time-out.

::

    load ─► render ─► infer ─► filter ─► score ─► reduce ─► aggregate ─► publish

Each (filter, metric) pair is a subtask of its own; models, prompts and partitions stay apart through
``score``, and ``reduce`` merges them, because statistics add up.

Prefect tells a flow run's process only by a signal, and of that only the main thread hears.
``under_control`` asks the server for the state of the run instead, and passes it on to the run's
``RunControl``; ``stopped_state`` is how such a run ends. Either way it leaves a record in the store's
history: the flow's own where it knows why it ends, else that of ``record_run_stopped``, which Prefect
calls.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import Flow, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import SyncClientContext
from prefect.exceptions import Pause, PrefectException
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.config.errors import revalidated
from flows.config.reference import declare_short_forms
from flows.config.schema import DEFAULT_OPTIONS, EvalConfig, Phase, RunOptions
from flows.eval.publishing import Evaluation, RunOutcome, TaskRuns, publish_run
from flows.eval.run import Run, check_servers, servers_end_with
from flows.eval.runners import computing, stop_elsewhere, task_runner_named
from flows.eval.start import (
    asking_stops_on_termination,
    flow_run_name,
    refuse_unanswered,
    remember_checkpoints,
    run_id_of,
    start_run,
)
from flows.graph.forecast import unanswered, unscored
from flows.graph.stages import walk
from flows.server import own_flow
from metrics.errors import printable
from tasks.history.layout import known_runs, record_run
from tasks.history.prune import active_run
from tasks.models.control import Interrupted, RunControl, controlled
from tasks.preflight import preflight
from tasks.processes.endings import ended_with_process
from tasks.store.beside import beating
from tasks.store.durations import duration_text
from tasks.store.home import default_store
from tasks.store.storage import Store

POLL_SECONDS = 1.5
"""How often the state is asked for: a run that is cancelled stops asking within 5 seconds."""


@contextmanager
def under_control(run_id: str, flow_run_id: str, timeout: float | None = None) -> Iterator[RunControl]:
    """A block in which a flow run can be cancelled and paused, and may take ``timeout`` seconds; waiting for
    batches is not counted.

    Gives its control. A run that is stopped leaves the block early and without an error: its control says so.
    """
    began = time.monotonic()
    with controlled(run_id) as control, get_client(sync_client=True) as client:

        def look() -> None:
            if timeout is not None and time.monotonic() - began - control.waited >= timeout:
                control.stop("timed out", f"timeout: {duration_text(timedelta(seconds=timeout))} is over")
            if control.stopped is not None:
                stop_elsewhere()
            # A server that is away: nobody can have told it anything.
            with suppress(httpx.HTTPError, PrefectException):
                if (state := client.read_flow_run(UUID(flow_run_id)).state) is not None:
                    apply_state(state, control)

        try:
            with beating(look, POLL_SECONDS, f"watch {flow_run_id}", patience=POLL_SECONDS):
                yield control
        except Interrupted:
            if control.stopped is None:
                raise


def apply_state(state: State[Any], control: RunControl) -> None:
    """Passes on what the state of a run in progress says."""
    if state.is_cancelling() or state.is_cancelled():
        control.stop("cancelled", "the run was cancelled")
    elif state.is_paused() and state.state_details.pause_reschedule:
        control.stop("suspended", "the run was suspended")
    elif state.is_final():
        control.stop("cancelled", f"the run was set to {state.name}")
    control.pause(state.is_paused())


async def stopped_state(control: RunControl, flow_run_id: str) -> State[Any]:
    """How a run that was stopped ends; what only stopped with the run that it is part of is cancelled.

    Raises Prefect's Pause for a run that is suspended: its process ends, and resuming it starts another.
    """
    stop = control.own_stop or control.stopped
    reason = stop.reason if stop else "stopped"
    message = printable(f"{reason}; what was answered is kept, a retry asks only for the rest")
    if control.own_stop is not None and control.own_stop.kind == "timed out":
        return Failed(name="TimedOut", message=message)
    if control.own_stop is not None and control.own_stop.kind == "suspended":
        async with get_client() as client:
            raise Pause(message, state=(await client.read_flow_run(UUID(flow_run_id))).state)
    return Cancelled(message=message)


def record_run_stopped(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Records that an evaluation ended in ``state`` and why, unless it has published its results before.

    Prefect calls it for a run that was cancelled or crashed, in its process or, where that was killed, in the
    worker's.
    """
    parameters: Mapping[str, Any] = flow_run.parameters
    config, options = (_plain(parameters.get(name)) for name in ("config", "options"))
    name = str(config.get("name", "evaluation"))
    run_id = str(options.get("run_id") or run_id_of(options.get("run_name") or name, str(flow_run.id)))
    started = flow_run.start_time or flow_run.created
    about = {"run_id": run_id, "run_name": options.get("run_name") or run_id, "benchmark": name}
    about |= {"flow_run_id": str(flow_run.id), "started": started.timestamp() if started else None}
    about |= {"night": options.get("night")}
    leave_record(Store(str(options.get("store") or default_store())), about, state)


def leave_record(store: Store, about: Mapping[str, Any], state: State[Any]) -> None:
    """Adds a run without results to the history: ``about`` it, its state and why; unless it is there."""
    if about["run_id"] not in known_runs(store):
        record_run(store, {**about, "status": state.name, "message": state.message}, [], [])


def _plain(parameter: Any) -> dict[str, Any]:
    """A parameter as JSON has it: a flow run of this process still holds the models."""
    if parameter is None:
        return {}
    return dict(parameter) if isinstance(parameter, Mapping) else parameter.model_dump(mode="json")


declare_short_forms()  # Prefect makes the form of the deployment when the flow is defined


@own_flow(
    name="evaluate",
    flow_run_name=flow_run_name,
    task_runner=task_runner_named("threads"),
    on_cancellation=[record_run_stopped],
    on_crashed=[record_run_stopped],
)
async def evaluate(config: EvalConfig, options: RunOptions = DEFAULT_OPTIONS) -> State[Any]:
    """Evaluates models on one benchmark.

    Ends Completed, with the Evaluation as its result, if everything asked for was computed. Where a pair
    failed, or more requests than allowed, or a finding is an error, it ends Failed and names them; what
    worked is published all the same, and a retry computes only what is missing. A run that is cancelled, or
    takes longer than its ``timeout``, asks no more; one that is paused asks nothing new until it is resumed.
    """
    config, options = revalidated(config), revalidated(options)
    run = await start_run(config, options)
    # One client for all tasks, as in a sync flow: in an async one each task run would make its own, and read
    # the certificate authorities for it, which takes longer than all else that Prefect does for a task.
    client = SyncClientContext.get_or_create()
    run_id, flow_run_id = str(run.options.run_id), str(flow_run.id)
    mark = ended_with_process(active_run(run.workspace.open(), run_id))
    watched = under_control(run_id, flow_run_id, config.timeout)
    if not run.plan.models:
        return Completed(message="no checkpoint is new", name="NothingNew")
    check_servers(run.plan.config)
    with client, mark, watched as run.control, asking_stops_on_termination(), servers_end_with(run):
        outcome = _run_stages(run)
    if run.control.stopped is not None:
        state = await stopped_state(run.control, flow_run_id)
        leave_record(run.workspace.open(), run.about(flow_run_id), state)
        return state
    if not outcome.ok:
        return Failed(message=printable(outcome.summary))
    remember_checkpoints(run.plan, run.options)
    return Completed(message=printable(outcome.summary), data=Evaluation(str(run.options.output)))


def _run_stages(run: Run) -> RunOutcome:
    """The stages of the run, in the order of the picture above."""
    plan, phase = run.plan, run.options.phase
    lacking = unanswered(plan, run.workspace, phase)
    refuse_unanswered(run.options, lacking.names)
    open_pairs = unscored(plan, run.workspace, lacking, phase)
    run.check(preflight, plan.checks(lacking.models, lacking.others(phase), open_pairs))
    run.lacking = lacking.models

    stages = walk(run)
    begun = stages.through("cells")
    folder, store = Path(str(run.options.output)), run.workspace.open()
    with computing(run.options.workers, begun["cells"], folder, store) as processes:
        if not run.is_cached(begun["items"]):
            processes.start()  # all of what follows is new
        given = stages.through("grid") if phase is Phase.INFER else stages.all()
        run.control.check()
        return publish_run(run, TaskRuns.of(given))
