"""Stage "load": a dataset becomes the items artifact.

Who starts a run reads the whole dataset before, so that a line that can't be used is refused at once; what
``read_ahead`` has read, the stage does not read again.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace, artifact_task
from tasks.datasets.item import Item
from tasks.datasets.selection import Selection
from tasks.rows.items import chunks, item_batches
from tasks.store.keys import Step, Unkeyed, digest
from tasks.store.schemas import ITEMS

AHEAD_BYTES = 1 << 26
"""What is kept of a dataset between the check before a run and its load, at most."""
_ahead: dict[str, list[pa.RecordBatch]] = {}


class LoadSetup(Unkeyed):
    """Where the items come from, and which of them are wanted."""

    benchmark: BenchmarkFields
    selection: Selection = Selection()


@artifact_task("load", ITEMS)
def load(step: Step[LoadSetup], workspace: Workspace) -> Iterator[pa.RecordBatch]:
    """Reads the dataset, item by item."""
    ahead = _ahead.pop(digest(step.identity), None)
    if ahead is not None:
        yield from ahead
    else:
        items = open_benchmark(step.setup.benchmark).items()
        yield from item_batches(step.setup.selection.of(items))


def read_ahead(step: Step[LoadSetup], items: Iterable[Item]) -> Iterator[Item]:
    """The step's items, as they are read to be checked; once all of them were, their rows wait here for the
    step, unless that would take too much memory."""
    rows: list[pa.RecordBatch] = []
    free = AHEAD_BYTES - sum(batch.nbytes for batches in _ahead.values() for batch in batches)
    for chunk in chunks(items):
        if free > 0:
            rows += item_batches(chunk)
            free -= rows[-1].nbytes
        yield from chunk
    if free > 0:
        _ahead[digest(step.identity)] = rows
