"""Stage "execute": answers that are programs run in a sandbox, between filter and score.

A scorer makes one program of each prediction. A benchmark's own function may ask about programs instead
(``evaluate.load("code_eval")``): it is called twice, as judges are. ``execute_asked`` notes what it asks and
runs that; ``score_asked`` and ``process_asked`` call it again and tell it the verdicts.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from scorers.base import Batch, Scorer
from scorers.config import ProgramOutcome
from scorers.execution import ExecutionScorer
from scorers.process_results import ProcessResultsScorer
from tasks.caching import Workspace, artifact_task, cached_task
from tasks.models.progress import Progress
from tasks.rows.execution import (
    CORES,
    AskedVerdicts,
    OutcomeStore,
    ProgramRunner,
    RunnerProgress,
    asked_by_row,
)
from tasks.rows.parts import PairSetup
from tasks.rows.scoring import joined_batches, processed_batch, statistics_batch
from tasks.run_page import progress_of
from tasks.sandboxes.run import chosen_sandbox
from tasks.store.claims import claim
from tasks.store.keys import Answered, Step
from tasks.store.schemas import ASKED, ASKED_COLUMNS, EXECUTIONS, PROCESSED, STATISTICS, VERDICT_COLUMNS
from tasks.store.storage import ArtifactRef, Store
from tasks.usercode.evaluate import Asked, answering, collecting
from tasks.usercode.surroundings import Generators, stand_ins

PROGRAMS = "programs"
"""What runs of programs are called where progress is shown."""


class ExecuteSetup(PairSetup):
    """Outcomes that were kept before ``not_before`` (seconds since 1970) are not looked at.

    ``asking`` are the metrics whose functions ask about programs; empty where the scorer makes them.
    """

    not_before: float = 0.0
    asking: tuple[str, ...] = ()


@cached_task("execute", where="machines")
def execute(
    step: Step[ExecuteSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    workspace: Workspace,
) -> ArtifactRef:
    """Runs the program of every prediction; what the sandbox failed at makes the result worth running
    again."""
    scorer, store, lost = _scorer(step.setup), workspace.open(), 0

    def rows(runner: ProgramRunner) -> Iterator[pa.RecordBatch]:
        nonlocal lost
        for part in joined_batches(store, requests, predictions, answered.responses):
            outcomes = runner.run(scorer.programs(part.batch))
            lost += _lost(outcomes)
            yield _batch(part.samples, outcomes)

    with _running(step, workspace, predictions.rows) as runner:
        ref = store.write("execute", workspace.key, EXECUTIONS, rows(runner), VERDICT_COLUMNS)
    return ref.model_copy(update={"retryable": lost})


@cached_task("execute", where="machines")
def execute_asked(
    step: Step[ExecuteSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    workspace: Workspace,
) -> ArtifactRef:
    """Runs every program that a benchmark's own functions ask about; what the sandbox failed at makes the
    result worth running again."""
    store, setup, lost = workspace.open(), step.setup, 0

    def asked() -> Iterator[tuple[Batch | None, list[Asked]]]:
        for name in setup.asking:
            with collecting() as imported:
                scorer = setup.scorer()
            metric = next(entry for entry in scorer.get_metrics(setup.filter) if entry.name == name)
            yield None, [imported]
            generators = Generators()
            for part in joined_batches(store, requests, predictions, answered.responses, setup.cut_off):
                with generators.drawn_from():
                    programs = asked_by_row(scorer, metric, part.batch)
                yield part.batch, programs

    def rows(runner: ProgramRunner) -> Iterator[pa.RecordBatch]:
        nonlocal lost
        for batch, programs in asked():
            outcomes = runner.run([program for own in programs for program in own.values()])
            lost += _lost(outcomes)
            yield _asked_batch(batch, programs, outcomes)

    with _running(step, workspace, predictions.rows) as runner:
        ref = store.write("execute", workspace.key, ASKED, rows(runner), ASKED_COLUMNS)
    return ref.model_copy(update={"retryable": lost})


@contextmanager
def _running(step: Step[ExecuteSetup], workspace: Workspace, expected: int) -> Iterator[ProgramRunner]:
    """Runs programs for one step. Two workers on the same programs take turns: the second finds the outcomes
    of the first."""
    store = workspace.open()
    with claim(store, f"execute/{workspace.key}"), progress_of(PROGRAMS, step.name) as progress:
        kept = OutcomeStore(store, Path(workspace.journal_dir), step.setup.not_before)
        with ProgramRunner(kept, chosen_sandbox, _reporter(progress, expected)) as runner:
            yield runner


def _lost(outcomes: list[ProgramOutcome | None]) -> int:
    return sum(outcome is not None and outcome.verdict == "sandbox_error" for outcome in outcomes)


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


@artifact_task("score", STATISTICS)
def score_asked(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    executed: ArtifactRef,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A pair's metric, whose function is told what came of the programs that it asks about."""
    store, setup = workspace.open(), step.setup
    scorer, verdicts = _told(setup, store, executed)
    metric, generators = setup.metric_record(scorer), Generators()
    for part in joined_batches(store, requests, predictions, answered.responses, setup.cut_off):
        batch, errors = verdicts.without_lost(part.batch)
        with answering(verdicts.known), stand_ins(), generators.drawn_from():
            scored = scorer.score(batch, metric)
        yield statistics_batch(part.samples, verdicts.with_reasons(scored, errors))


@artifact_task("process", PROCESSED)
def process_asked(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    executed: ArtifactRef,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """``process_results`` as above, once for a filter."""
    store, setup = workspace.open(), step.setup
    scorer, verdicts = _told(setup, store, executed)
    assert isinstance(scorer, ProcessResultsScorer), "the plan makes this step for process_results only"
    generators = Generators()
    for part in joined_batches(store, requests, predictions, answered.responses, setup.cut_off):
        batch, errors = verdicts.without_lost(part.batch)
        with answering(verdicts.known), stand_ins(), generators.drawn_from():
            results = scorer.process(batch)
        yield processed_batch(part.samples, results, errors)


def _told(setup: PairSetup, store: Store, executed: ArtifactRef) -> tuple[Scorer, AskedVerdicts]:
    verdicts = AskedVerdicts.read(store, executed)
    with answering(verdicts.known):  # files may ask while they are imported
        return setup.scorer(), verdicts


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
                in_flight=CORES,
                concurrency=CORES,
                rate=rate,
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


def _asked_batch(
    batch: Batch | None, programs: list[Asked], outcomes: list[ProgramOutcome | None]
) -> pa.RecordBatch:
    """A row a program; of those that a file asks about while it is imported, without an item."""
    found = iter(outcomes)
    rows: list[Mapping[str, Any]] = []
    for row, own in enumerate(programs):
        place: dict[str, Any] = {"item_id": None, "sample_index": None}
        if batch is not None:
            place = {"item_id": batch.item_ids[row], "sample_index": int(batch.sample_index[row])}
        for name in own:
            outcome = next(found)
            assert outcome is not None, "there is one beside each program"
            rows.append({**place, "digest": name, **outcome.as_dict()})
    return pa.RecordBatch.from_pylist(rows, schema=ASKED)


def _outcomes(store: Store, ref: ArtifactRef) -> Iterator[ProgramOutcome | None]:
    names = [name for name in EXECUTIONS.names if name not in ("item_id", "doc_id", "sample_index")]
    for batch in store.batches(ref, names):
        for row in batch.to_pylist():
            yield None if row["verdict"] is None else ProgramOutcome.from_dict(row)
