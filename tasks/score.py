"""Stages "process" and "score": predictions become statistics, one task a pair. No model is called here."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from scorers.base import AcrossFilters, Batch
from tasks.caching import Workspace, artifact_task
from tasks.rows.limited import LimitedProcessing, LimitedScorer, processing_scorer
from tasks.rows.parts import PairSetup
from tasks.rows.scoring import ScorerInput, joined_batches, processed_batch, statistics_batch
from tasks.store.keys import Answered, Step, text_value
from tasks.store.schemas import PROCESSED, STATISTICS
from tasks.store.storage import ArtifactRef


@artifact_task("score", STATISTICS, where="anywhere")
def score(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """The pair's metric over the predictions of its filter, batch by batch."""
    with LimitedScorer(step.setup) as scorer:
        for part in joined_batches(
            workspace.open(),
            requests,
            predictions,
            answered.responses,
            step.setup.cut_off,
            scorer.takes_answer,
        ):
            yield statistics_batch(part.samples, scorer.score(part.batch))


@artifact_task("score", STATISTICS, where="anywhere")
def score_across(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: dict[str, ArtifactRef],
    answered: Answered,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A metric that looks at the predictions of all filters at once."""
    scorer, metric = step.setup.built()
    assert isinstance(scorer, AcrossFilters), "agreement and some users' scorers look across filters"
    store = workspace.open()
    streams = {
        name: joined_batches(store, requests, ref, answered.responses, step.setup.cut_off)
        for name, ref in predictions.items()
    }
    for parts in zip(*streams.values(), strict=True):
        batch = scorer.combine({name: part.batch for name, part in zip(streams, parts, strict=True)})
        yield statistics_batch(_samples_of(batch, parts), scorer.score(batch, metric))


@artifact_task("process", PROCESSED, where="anywhere")
def process_results(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A user's ``process_results``, once for a filter; its pairs then take their columns."""
    cut_off = step.setup.cut_off
    with LimitedProcessing(step.setup) as processing:
        for part in joined_batches(workspace.open(), requests, predictions, answered.responses, cut_off):
            results, errors = processing.process(part.batch)
            yield processed_batch(part.samples, results, errors)


@artifact_task("score", STATISTICS, where="anywhere")
def score_processed(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    processed: ArtifactRef,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A pair's column of what ``process_results`` returned."""
    scorer, metric = processing_scorer(step.setup), step.setup.metric_record()
    store = workspace.open()
    results = _processed_rows(store.batches(processed, ["results_json", "error"]))
    for part in joined_batches(store, requests, predictions, answered.responses, step.setup.cut_off):
        rows = [next(results) for _ in range(len(part.batch))]
        scored = scorer.column([row for row, _ in rows], metric, part.batch)
        errors = [reason or own for (_, reason), own in zip(rows, scored.errors, strict=True)]
        yield statistics_batch(part.samples, replace(scored, errors=errors))


def _processed_rows(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[dict[str, object] | None, str | None]]:
    """What ``process_results`` returned of each sample, or why it was not called."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("results_json", "error"))
        for text, reason in zip(*columns, strict=True):
            yield None if text is None else text_value(text), reason


def _samples_of(batch: Batch, parts: tuple[ScorerInput, ...]) -> pa.Table:
    """Identifier columns of a combined batch, whose samples are any that one of the parts has; the outcome is
    that of the first part that has the sample."""
    doc_ids: dict[str, int] = {}
    outcomes: dict[tuple[str, int], str] = {}
    for part in parts:
        columns = (part.samples.column(name).to_pylist() for name in ("item_id", "sample_index", "outcome"))
        for item_id, sample, outcome in zip(*columns, strict=True):
            outcomes.setdefault((item_id, sample), outcome)
        names = part.samples.column("item_id").to_pylist()
        doc_ids.update(zip(names, part.samples.column("doc_id").to_pylist(), strict=True))
    samples = zip(batch.item_ids, batch.sample_index.tolist(), strict=True)
    return pa.table(
        {
            "item_id": pa.array(batch.item_ids, pa.string()),
            "doc_id": pa.array([doc_ids[name] for name in batch.item_ids], pa.int64()),
            "sample_index": pa.array(batch.sample_index, pa.int32()),
            "outcome": pa.array([outcomes[sample] for sample in samples], pa.string()),
        }
    )
