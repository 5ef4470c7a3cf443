"""Stage "aggregate": the item rows of a pair become numbers with error bars."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from metrics.config import StatisticsConfig
from tasks.caching import Workspace, artifact_task
from tasks.reduction.aggregate import aggregate_pair
from tasks.rows.parts import FailedPart, PairSetup, calibrated_scorer
from tasks.store.keys import Step
from tasks.store.schemas import RESULTS
from tasks.store.storage import ArtifactRef


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
