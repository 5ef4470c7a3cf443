"""The evaluation as a Prefect flow.

::

    load ─► render ─► infer ─► filter ─► score ─► reduce ─► aggregate ─► publish

Each (filter, metric) pair is a subtask of its own; models, prompts and partitions stay apart through
``score``, and ``reduce`` merges them, because statistics add up.
"""

from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import SyncClientContext
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.config.schema import DEFAULT_OPTIONS, EvalConfig, Phase, RunOptions
from flows.eval.publishing import RunOutcome, TaskRuns, publish_run
from flows.eval.result import Evaluation
from flows.eval.run import Future, Run, finished
from flows.eval.runners import processes_for, task_runner_named
from flows.eval.servers import Servers, check_runner, servers_of
from flows.eval.stages import (
    GridResponses,
    ScoreInputs,
    aggregate_all,
    aggregate_verdicts_all,
    ask_all,
    converse,
    execute_all,
    filter_all,
    judge_all,
    play_all,
    rate_all,
    score_all,
)
from flows.eval.start import (
    asking_stops_on_termination,
    flow_run_name,
    refuse_unanswered,
    remember_checkpoints,
    start_run,
)
from flows.eval.watch import leave_record, record_run_stopped, stopped_state, under_control
from flows.plan.forecast import unanswered
from flows.plan.steps import Cell
from metrics.printable import printable
from tasks.history.activity import active_run
from tasks.load import load
from tasks.preflight import preflight
from tasks.render import render
from tasks.workers import working


@flow(
    name="evaluate",
    flow_run_name=flow_run_name,
    task_runner=task_runner_named("threads"),
    on_cancellation=[record_run_stopped],
    on_crashed=[record_run_stopped],
)
async def evaluate(config: EvalConfig, options: RunOptions = DEFAULT_OPTIONS) -> State[Any]:
    """Evaluates models on one benchmark.

    Ends Completed, with the Evaluation as its result, if everything asked for was computed. Where a pair
    failed, or more requests than allowed, it ends Failed and names them; what worked is published all the
    same, and a retry computes only what is missing. A run that is cancelled, or takes longer than its
    ``timeout``, asks no more; one that is paused asks nothing new until it is resumed.
    """
    run = await start_run(config, options)
    # One client for all tasks, as in a sync flow: in an async one each task run would make its own, and read
    # the certificate authorities for it, which takes longer than all else that Prefect does for a task.
    client = SyncClientContext.get_or_create()
    run_id, flow_run_id = str(run.options.run_id), str(flow_run.id)
    mark = active_run(run.workspace.open(), run_id)
    watched = under_control(run_id, flow_run_id, config.timeout)
    if not run.plan.models:
        return Completed(message="no checkpoint is new", name="NothingNew")
    check_runner(run.plan.config)
    with client, mark, watched as run.control, asking_stops_on_termination(), servers_of(run) as servers:
        outcome = _run_stages(run, servers)
    if run.control.stopped is not None:
        state = await stopped_state(run.control, flow_run_id)
        leave_record(run.workspace.open(), run.about(flow_run_id), state)
        return state
    if not outcome.ok:
        return Failed(message=printable(outcome.summary))
    remember_checkpoints(run.plan, run.options)
    return Completed(message=printable(outcome.summary), data=Evaluation(str(run.options.output)))


def _run_stages(run: Run, servers: Servers) -> RunOutcome:
    """The stages of the run, in the order of the picture above."""
    plan, phase = run.plan, run.options.phase
    lacking = unanswered(plan, run.workspace, phase)
    refuse_unanswered(run.options, lacking.names)
    run.check(preflight, lacking.models, lacking.others(phase))

    items = run.submit(load, plan.load)
    cells = plan.cells(items.result().rows)
    with working(processes_for(run.options.workers, cells)) as processes:
        if finished(items).name != "Cached":
            processes.start()  # all of what follows is new
        return _run_cells(run, servers, cells, items, lacking.models)


def _run_cells(
    run: Run, servers: Servers, cells: list[Cell], items: Future, lacking: Sequence[str]
) -> RunOutcome:
    """What is done for every model, prompt and partition, and with all of them together."""
    plan, phase = run.plan, run.options.phase
    requests = {
        cell.place: run.submit(render, plan.prompts[cell.prompt].at(cell.part), items, cell.start, cell.stop)
        for cell in plan.once_a_prompt(cells)
    }
    run.reuse_or_ask(cells, requests)
    responses = servers.ask_all(cells, requests, lacking)
    grid = converse(run, GridResponses(cells, requests, responses))
    task_runs = TaskRuns(grid)
    if phase is not Phase.INFER:
        task_runs.predictions = filter_all(run, grid)
        executions = execute_all(run, grid, task_runs.predictions)
        exchanges = ask_all(run, grid, task_runs.predictions, servers)
        games = play_all(run, grid, task_runs.predictions, exchanges)
        inputs = ScoreInputs(grid, task_runs.predictions, exchanges, executions, games)
        task_runs.statistics = score_all(run, inputs)
        task_runs.verdicts = judge_all(run, grid)
        task_runs.numbers = aggregate_all(run, grid, task_runs.statistics)
        task_runs.ratings = rate_all(run, grid, games)
        task_runs.verdict_numbers = aggregate_verdicts_all(run, grid, task_runs.verdicts)

    run.control.check()
    return publish_run(run, task_runs)
