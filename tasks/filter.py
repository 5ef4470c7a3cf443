"""Stage "filter": responses become predictions. Nothing is scored here."""

from collections.abc import Iterator
from typing import Literal

import orjson
import pyarrow as pa

from metrics.types import OutputType
from scorers.config import ITEM_SECONDS, FilterConfig
from scorers.filters import FilterPipeline
from scorers.letters import read_first_token, read_letter
from tasks.caching import Workspace, artifact_task
from tasks.rows.predictions import (
    REQUEST_COLUMNS,
    RESPONSE_COLUMNS,
    LimitedPipeline,
    Read,
    prediction_batches,
)
from tasks.store.keys import Answered, Step, Unkeyed
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
    letters: Literal["letter", "first_token"] | None = None
    """How choices that were asked for by their letters are read."""
    coverage: float = 0.0
    """Of first tokens: the least probability of all letters together."""
    cut_as_text: bool = False
    """A response that was cut off passes as the empty text."""
    item_timeout: float = ITEM_SECONDS
    """Seconds of CPU that a pattern may take for one item."""

    def read(self) -> Read | None:
        """What reads a response as a choice; None where choices are not asked for by letters."""
        if self.letters is None:
            return None
        coverage = self.coverage
        if self.letters == "letter":
            return lambda response, choices: read_letter(response["response"], choices)
        return lambda response, choices: read_first_token(
            response["logprobs_json"] and orjson.loads(response["logprobs_json"]), len(choices), coverage
        )

    def pipeline(self) -> FilterPipeline:
        """The pipeline, ready to be applied."""
        resolve = resolver(self.base_dir, own=self.own_modules)
        return FilterPipeline.build(self.config, resolve, self.output_type)


@artifact_task("filter", PREDICTIONS, anywhere=True)
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
