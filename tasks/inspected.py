"""Stage "inspect": Inspect's own metric functions over the scores of all samples, for its numbers."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from tasks.caching import Workspace, artifact_task
from tasks.inspecting import FOLDER, InspectRun, task_numbers
from tasks.models.control import check_run
from tasks.store.home import private_folder
from tasks.store.keys import Answered, Step, Unkeyed
from tasks.store.schemas import INSPECT_NUMBERS
from tasks.store.storage import ArtifactRef, Store


class InspectNumbers(Unkeyed):
    """The task, and whose samples its metrics are of."""

    run: InspectRun
    base_dir: str
    run_id: str | None
    model_name: str
    prompt_template: str


@artifact_task("inspect", INSPECT_NUMBERS)
def inspect_numbers(
    step: Step[InspectNumbers], answered: Sequence[Answered], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """A row for each metric of each score, as the task's log would have them."""
    setup, store = step.setup, workspace.open()
    texts = (
        text
        for one in answered
        for batch in store.batches(one.responses, ["metadata_json"])
        for text in batch.column(0).to_pylist()
    )
    metadata = [orjson.loads(text) for text in texts if text is not None]
    around = private_folder(Path(workspace.journal_dir) / FOLDER)
    with tempfile.TemporaryDirectory(dir=around) as place:
        check = partial(check_run, setup.run_id)
        found = task_numbers(setup.run, metadata, Path(place), Path(setup.base_dir), check)
    about = {"model_name": setup.model_name, "prompt_template": setup.prompt_template}
    rows = [
        {**about, "scorer": score["scorer"], "name": score["name"], "reducer": score["reducer"],
         "metric": metric, "value": value}
        for score in found
        for metric, value in score["metrics"].items()
    ]  # fmt: skip
    yield pa.RecordBatch.from_pylist(rows, schema=INSPECT_NUMBERS)


def read_inspected(store: Store, refs: Iterable[ArtifactRef]) -> list[dict[str, Any]]:
    """The rows of ``inspect_numbers``."""
    return [row for ref in refs for row in store.table(ref).to_pylist()]
