"""Stage "filter": responses become predictions. Nothing is scored here."""

from collections.abc import Iterator

import pyarrow as pa

from tasks.caching import Workspace, artifact_task
from tasks.rows.predictions import (
    REQUEST_COLUMNS,
    RESPONSE_COLUMNS,
    FilterSetup,
    LimitedPipeline,
    prediction_batches,
)
from tasks.store.keys import Answered, Step
from tasks.store.schemas import PREDICTIONS
from tasks.store.storage import ArtifactRef


@artifact_task("filter", PREDICTIONS, where="anywhere")
def filter_responses(
    step: Step[FilterSetup], requests: ArtifactRef, answered: Answered, workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """Applies one filter pipeline to the responses of one model to one prompt."""
    setup, store = step.setup, workspace.open()
    with LimitedPipeline(setup.pipeline(), setup.config, setup.item_timeout) as limited:
        yield from prediction_batches(
            limited,
            store.batches(requests, REQUEST_COLUMNS),
            store.batches(answered.responses, RESPONSE_COLUMNS),
            setup.cut_as_text,
            setup.read(),
        )
