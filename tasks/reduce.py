"""The numbers of a pair. Stage "reduce" makes one row an item of its samples, from all models, prompts and
partitions; stage "aggregate" makes numbers with error bars of these rows."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from metrics.config import StatisticsConfig
from tasks.caching import Workspace, artifact_task
from tasks.reduction.aggregate import aggregate_pair
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import FailedPart, Origin, PairSetup, Part, calibrated_scorer
from tasks.store.keys import Answered, Step
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import ArtifactRef


@artifact_task("reduce", ITEM_ROWS, where="anywhere")
def reduce(
    step: Step[PairSetup],
    origins: Sequence[Origin],
    statistics: Sequence[ArtifactRef],
    requests: Sequence[ArtifactRef],
    answers: Sequence[Answered],
    calibration: ArtifactRef | None,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """Groups by facets and label, then reduces the repeats of each item. The sequences stand beside each
    other; ``calibration`` are a judge's verdicts on what people judged, if it had to be asked for them."""
    store = workspace.open()
    scorer = calibrated_scorer(step.setup, store, calibration)
    parts = [Part.kept(store, *place) for place in zip(origins, statistics, requests, answers, strict=True)]
    yield from reduce_pair(step.setup.identity(scorer), parts, step.setup.facets)


class AggregateSetup(PairSetup):
    """The pair, and how its error bars are made."""

    statistics: StatisticsConfig


@artifact_task("aggregate", RESULTS)
def aggregate(
    step: Step[AggregateSetup],
    item_rows: ArtifactRef,
    failed: Sequence[FailedPart],
    calibration: ArtifactRef | None,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """One row a reduction, label and facet group; groups that a failed part belongs to are failed with its
    error.

    A scorer that knows more of a number's uncertainty than its items say has the first word;
    ``calibration`` are a judge's verdicts on what people judged, if it had to be asked for them.
    """
    setup, store = step.setup, workspace.open()
    scorer = calibrated_scorer(setup, store, calibration)
    pair, rows = setup.identity(scorer), store.batches(item_rows)
    yield from aggregate_pair(
        pair, rows, setup.statistics, failed, setup.facets, estimator=partial(scorer.estimate, pair.metric)
    )
