"""Stage "filter": responses become predictions. Nothing is scored here."""

from collections.abc import Iterator

import pyarrow as pa

from metrics.types import OutputType
from scorers.config import FilterConfig
from scorers.filters import FilterPipeline
from tasks.caching import Workspace, artifact_task
from tasks.rows.predictions import REQUEST_COLUMNS, RESPONSE_COLUMNS, prediction_batches
from tasks.steps import Answered, Step, Unkeyed
from tasks.store.schemas import PREDICTIONS
from tasks.store.storage import ArtifactRef
from tasks.usercode.load import resolver


class FilterSetup(Unkeyed):
    """The pipeline's config and the folder that its functions are relative to.

    ``own_modules``: its functions' files are imported for it alone (see ``UserModules``).
    """

    config: FilterConfig
    output_type: OutputType
    base_dir: str
    own_modules: bool = False
    cut_as_text: bool = False
    """A response that was cut off passes as the empty text."""

    def pipeline(self) -> FilterPipeline:
        """The pipeline, ready to be applied."""
        resolve = resolver(self.base_dir, own=self.own_modules)
        return FilterPipeline.build(self.config, resolve, self.output_type)


@artifact_task("filter", PREDICTIONS)
def filter_responses(
    step: Step[FilterSetup], requests: ArtifactRef, answered: Answered, workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """Applies one filter pipeline to the responses of one model to one prompt."""
    setup, store = step.setup, workspace.open()
    pipeline = setup.pipeline()
    yield from prediction_batches(
        pipeline,
        store.batches(requests, REQUEST_COLUMNS),
        store.batches(answered.responses, RESPONSE_COLUMNS),
        setup.cut_as_text,
    )
