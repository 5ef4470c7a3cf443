"""Stage "load": a dataset becomes the items artifact."""

from collections.abc import Iterator

import pyarrow as pa

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace, artifact_task
from tasks.datasets.selection import Selection
from tasks.rows.items import item_batches
from tasks.steps import Step, Unkeyed
from tasks.store.schemas import ITEMS


class LoadSetup(Unkeyed):
    """Where the items come from, and which of them are wanted."""

    benchmark: BenchmarkFields
    selection: Selection = Selection()


@artifact_task("load", ITEMS)
def load(step: Step[LoadSetup], workspace: Workspace) -> Iterator[pa.RecordBatch]:
    """Reads the dataset, item by item."""
    items = open_benchmark(step.setup.benchmark).items()
    yield from item_batches(step.setup.selection.of(items))
