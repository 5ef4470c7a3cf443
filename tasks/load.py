"""Stage "load": a dataset becomes the items artifact.

Who starts a run reads the whole dataset before, so that a line that can't be used is refused at once; the
rows that it hands over with ``keep_ahead`` the stage does not read again where it runs in the same process.
Another process reads for itself: rows and open files stay where they are.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace, artifact_task
from tasks.datasets.selection import Selection
from tasks.rows.items import item_batches
from tasks.store.keys import Step, Unkeyed, digest
from tasks.store.schemas import ITEMS
from tasks.store.thresholds import Threshold

AHEAD_BYTES = Threshold("bytes_waiting", 1 << 26)
"""What is kept of datasets between the check before a run and their load, at most."""
_ahead: dict[str, tuple[Iterable[pa.RecordBatch], int]] = {}


class LoadSetup(Unkeyed):
    """Where the items come from, and which of them are wanted."""

    benchmark: BenchmarkFields
    selection: Selection = Selection()


@artifact_task("load", ITEMS, where="here")
def load(step: Step[LoadSetup], workspace: Workspace) -> Iterator[pa.RecordBatch]:
    """Reads the dataset, item by item."""
    ahead = take_ahead(step)
    if ahead is not None:
        yield from ahead
    else:
        items = open_benchmark(step.setup.benchmark).items()
        yield from item_batches(step.setup.selection.of(items))


def keep_ahead(step: Step[LoadSetup], rows: Iterable[pa.RecordBatch], held: int) -> None:
    """Has the step take these rows, unless too much waits already; ``held`` bytes of memory are theirs."""
    ahead = list(_ahead.values())  # copied at once: another run of this process may take its own meanwhile
    if sum(waiting for _, waiting in ahead) + held <= AHEAD_BYTES:
        _ahead[digest(step.identity)] = rows, held


def take_ahead(step: Step[LoadSetup]) -> Iterable[pa.RecordBatch] | None:
    """The rows that this process keeps for the step, once; None where it keeps none.

    The stage calls this by name: a global that it named itself would go with it to another process.
    """
    rows, _ = _ahead.pop(digest(step.identity), (None, 0))
    return rows
