"""Stage "reduce": the samples of a pair, from all models, prompts and partitions, become one row an item."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from tasks.caching import Workspace, artifact_task
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import Origin, PairSetup, Part, calibrated_scorer
from tasks.store.keys import Answered, Step
from tasks.store.schemas import ITEM_ROWS
from tasks.store.storage import ArtifactRef, Store


@artifact_task("reduce", ITEM_ROWS, anywhere=True)
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
    parts = [
        Part(origin, _source(store, scored), _source(store, asked), _source(store, answered.responses))
        for origin, scored, asked, answered in zip(origins, statistics, requests, answers, strict=True)
    ]
    yield from reduce_pair(step.setup.identity(scorer), parts, step.setup.facets)


def _source(store: Store, ref: ArtifactRef) -> "partial[Iterator[pa.RecordBatch]]":
    return partial(store.batches, ref)
