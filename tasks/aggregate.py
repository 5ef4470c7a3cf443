"""Stage "aggregate": the item rows of a pair become numbers with error bars."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from metrics.config import StatisticsConfig
from tasks.caching import Workspace, artifact_task
from tasks.pair import PairSetup
from tasks.reduction import FailedPart, aggregate_pair
from tasks.steps import Step
from tasks.store.refs import ArtifactRef
from tasks.store.schemas import RESULTS


class AggregateSetup(PairSetup):
    """The pair, and how its error bars are made."""

    statistics: StatisticsConfig


@artifact_task("aggregate", RESULTS)
def aggregate(
    step: Step[AggregateSetup], item_rows: ArtifactRef, failed: Sequence[FailedPart], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """One row a reduction, label and facet group; groups that a failed part belongs to are failed with its
    error."""
    setup = step.setup
    rows = workspace.open().batches(item_rows)
    yield from aggregate_pair(setup.identity(), rows, setup.statistics, failed, setup.facets)
