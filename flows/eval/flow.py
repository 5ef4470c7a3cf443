"""The evaluation as a Prefect flow.

::

    load ─► render ─► infer ─► filter ─► score ─► reduce ─► aggregate ─► publish

Each (filter, metric) pair is a subtask of its own; models, prompts and partitions stay apart through
``score``, and ``reduce`` merges them, because statistics add up.
"""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import SyncClientContext
from prefect.states import Completed, Failed

from flows.config.schema import DEFAULT_OPTIONS, EvalConfig, Phase, RunOptions
from flows.eval.publishing import RunOutcome, TaskRuns, publish_run
from flows.eval.result import Evaluation
from flows.eval.run import Run
from flows.eval.runners import task_runner_named
from flows.eval.stages import (
    GridResponses,
    ScoreInputs,
    aggregate_all,
    ask_all,
    count_all,
    filter_all,
    judge_all,
    score_all,
)
from flows.eval.start import asking_stops, flow_run_name, refuse_asking, start_run
from flows.plan.forecast import unanswered
from tasks.history.record import active_run
from tasks.infer import infer
from tasks.load import load
from tasks.preflight import preflight
from tasks.render import render


@flow(name="evaluate", flow_run_name=flow_run_name, task_runner=task_runner_named("threads"))
async def evaluate(config: EvalConfig, options: RunOptions = DEFAULT_OPTIONS) -> State[Any]:
    """Evaluates models on one benchmark.

    Ends Completed, with the Evaluation as its result, if everything asked for was computed. Where a pair
    failed, or more requests than allowed, it ends Failed and names them; what worked is published all the
    same, and a retry computes only what is missing.
    """
    run = await start_run(config, options)
    # One client for all tasks, as in a sync flow: in an async one each task run would make its own, and read
    # the certificate authorities for it, which takes longer than all else that Prefect does for a task.
    active = active_run(run.workspace.open(), str(run.options.run_id))
    with SyncClientContext.get_or_create(), active, asking_stops():
        outcome = _evaluated(run)
    if not outcome.ok:
        return Failed(message=outcome.summary)
    return Completed(message=outcome.summary, data=Evaluation(str(run.options.output)))


def _evaluated(run: Run) -> RunOutcome:
    """The steps of the run, in the order of the picture above."""
    options = run.options
    lacking = unanswered(run.plan, run.workspace, options.phase)
    refuse_asking(options, lacking.models)
    run.check(preflight, lacking.models, lacking.judges)

    items = run.submit(load, run.plan.load)
    cells = run.plan.cells(items.result().rows)
    requests = {
        cell.place: run.submit(
            render, run.plan.prompts[cell.prompt].at(cell.part), items, cell.start, cell.stop
        )
        for cell in run.plan.once_a_prompt(cells)
    }
    answers = {
        cell: run.submit(
            infer, run.plan.models[cell.model].at(cell.suffix, **cell.about), requests[cell.place]
        )
        for cell in cells
    }
    made = TaskRuns(GridResponses(cells, requests, answers))
    if options.phase is not Phase.INFER:
        made.predictions = filter_all(run, made.responses)
        asked = ask_all(run, made.responses, made.predictions)
        made.statistics = score_all(run, ScoreInputs(made.responses, made.predictions, asked))
        made.verdicts = judge_all(run, made.responses)
        made.numbers = aggregate_all(run, made.responses, made.statistics)
        made.counted = count_all(run, made.responses, made.verdicts)

    return publish_run(run, made)
