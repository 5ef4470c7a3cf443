"""Stage "load": a dataset becomes the items artifact."""

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace, artifact_task
from tasks.rows.items import item_batches
from tasks.steps import Step, Unkeyed
from tasks.store.schemas import ITEMS


class LoadSetup(Unkeyed):
    """Where the items come from, and how many of them are wanted (None: all)."""

    benchmark: BenchmarkFields
    limit: int | None = None


@artifact_task("load", ITEMS)
def load(step: Step[LoadSetup], workspace: Workspace) -> Iterator[pa.RecordBatch]:
    """Reads the dataset, item by item."""
    items = open_benchmark(step.setup.benchmark).items()
    yield from item_batches(islice(items, step.setup.limit))
