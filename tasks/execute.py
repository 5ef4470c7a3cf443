"""Stage "execute": answers that are programs run in a sandbox, between filter and score."""

import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from scorers.execution import ExecutionScorer
from scorers.programs import ProgramOutcome
from tasks.caching import Workspace, artifact_key, artifact_task, cached_task
from tasks.execution.runner import CORES, OutcomeStore, ProgramRunner, RunnerProgress
from tasks.models.options import Progress
from tasks.pair import PairSetup
from tasks.rows.scoring import joined_batches, statistics_batch
from tasks.sandboxes.run import chosen_sandbox
from tasks.server import progress_of
from tasks.steps import Answered, Step
from tasks.store.claims import claim
from tasks.store.schemas import EXECUTIONS, STATISTICS, VERDICT_COLUMNS
from tasks.store.storage import ArtifactRef, Store

PROGRAMS = "programs"
"""What runs of programs are called where progress is shown."""


class ExecuteSetup(PairSetup):
    """Outcomes that were kept before ``not_before`` (seconds since 1970) are not looked at."""

    not_before: float = 0.0


@cached_task("execute")
def execute(
    step: Step[ExecuteSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    workspace: Workspace,
) -> ArtifactRef:
    """Runs the program of every prediction; what the sandbox failed at makes the result worth running
    again."""
    store = workspace.open()
    scorer = _scorer(step.setup)
    key = artifact_key(
        "execute",
        inspect.unwrap(execute.fn),
        {"step": step, "requests": requests, "predictions": predictions, "answered": answered},
    )
    lost = 0

    def rows(runner: ProgramRunner) -> Iterator[pa.RecordBatch]:
        nonlocal lost
        for part in joined_batches(store, requests, predictions, answered.responses):
            outcomes = runner.run(scorer.programs(part.batch))
            lost += sum(outcome is not None and outcome.verdict == "sandbox_error" for outcome in outcomes)
            yield _batch(part.samples, outcomes)

    # Two workers on the same programs take turns: the second finds the outcomes of the first.
    with claim(store, f"execute/{key}"), progress_of(PROGRAMS, step.name) as progress:
        report = _reporter(progress, predictions.rows)
        kept = OutcomeStore(store, Path(workspace.journal_dir), step.setup.not_before)
        with ProgramRunner(kept, chosen_sandbox, report) as runner:
            ref = store.write("execute", key, EXECUTIONS, rows(runner), VERDICT_COLUMNS)
    return ref.model_copy(update={"retryable": lost})


@artifact_task("score", STATISTICS)
def score_executed(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    executed: ArtifactRef,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A pair's scores from what came of the programs."""
    store = workspace.open()
    scorer = _scorer(step.setup)
    metric = step.setup.metric_record(scorer)
    outcomes = _outcomes(store, executed)
    for part in joined_batches(store, requests, predictions, answered.responses):
        given = [next(outcomes) for _ in range(len(part.batch))]
        yield statistics_batch(part.samples, scorer.score_outcomes(part.batch, metric, given))


def _scorer(setup: PairSetup) -> ExecutionScorer:
    scorer = setup.scorer()
    assert isinstance(scorer, ExecutionScorer), "the plan makes this step for programs only"
    return scorer


def _reporter(progress: Callable[[Progress], None], expected: int) -> Callable[[RunnerProgress], None]:
    """Shows how far the programs are as the progress of requests is shown."""
    began = time.monotonic()

    def report(now: RunnerProgress) -> None:
        rate = (now.done - now.cached) / max(1e-6, time.monotonic() - began)
        progress(
            Progress(
                done=now.done,
                expected=expected,
                cached=now.cached,
                failed=now.failed,
                model_errors=0,
                retries=0,
                in_flight=CORES,
                concurrency=CORES,
                rate=rate,
                tokens_per_second=0.0,
                cost=0.0,
                seconds_left=(expected - now.done) / rate if rate else None,
            )
        )

    return report


def _batch(samples: pa.Table, outcomes: list[ProgramOutcome | None]) -> pa.RecordBatch:
    ids = samples.select(["item_id", "doc_id", "sample_index"]).to_pylist()
    rows = [
        {**row, **({} if outcome is None else outcome.as_dict())}
        for row, outcome in zip(ids, outcomes, strict=True)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EXECUTIONS)


def _outcomes(store: Store, ref: ArtifactRef) -> Iterator[ProgramOutcome | None]:
    names = [name for name in EXECUTIONS.names if name not in ("item_id", "doc_id", "sample_index")]
    for batch in store.batches(ref, names):
        for row in batch.to_pylist():
            yield None if row["verdict"] is None else ProgramOutcome.from_dict(row)
