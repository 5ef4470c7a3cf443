"""Reads a dataset before the run of it begins: all of it is checked, so that a line that can't be used is
refused at once, and its rows are kept for the run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from flows.config.checks import MissingReferences, check_templates, located_unfit, missing_references
from flows.config.schema import EvalConfig
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.config import DatasetError, UnfitItem
from tasks.datasets.item import Item
from tasks.datasets.items import FaultyRows
from tasks.datasets.selection import Selection
from tasks.load import AHEAD_BYTES
from tasks.rows.items import chunks, item_batches


@dataclass(frozen=True)
class CheckedDataset:
    """What was found in a dataset."""

    rows: Sequence[pa.RecordBatch] | None
    """ITEMS rows in order; None where they are too many to keep."""
    held: int
    """Bytes of memory that the rows take."""
    count: int
    """How many items there are."""
    missing: MissingReferences | None
    """What there is to say of items without a right answer."""


def check_dataset(
    config: EvalConfig,
    fields: BenchmarkFields,
    selection: Selection,
    overrides: Sequence[str],
    seen: Callable[[int], None] | None = None,
) -> CheckedDataset:
    """Reads the selected items, checks the templates with the first and looks at the right answer of each.

    ``overrides`` are those that the config was loaded with; ``seen`` is told now and then how many items were
    read. Raises NightjarError for what can't be used.
    """
    benchmark = open_benchmark(fields)
    kept = _Kept(seen)
    faults: list[str] = []
    items = kept.passing(_past(selection.of(benchmark.items()), faults))
    first = next(items, None)
    if first is None and not faults:
        return CheckedDataset([], 0, 0, None)
    if first is not None and not faults:
        check_templates(config, first, overrides)
    try:
        missing = missing_references(config, benchmark, items if first is None else chain([first], items))
    except UnfitItem as error:
        raise DatasetError(located_unfit(error, config, overrides)) from error
    if faults:
        raise DatasetError("\n".join([*faults, *([] if missing is None else [missing.sentence])]))
    return CheckedDataset(kept.rows, kept.held, kept.count, missing)


def _past(items: Iterator[Item], faults: list[str]) -> Iterator[Item]:
    """The items, and those behind rows that are none: what is wrong with these goes into ``faults``."""
    try:
        yield from items
    except FaultyRows as error:
        faults.append(str(error))
        yield from error.beside


class _Kept:
    """Items on their way to a check, kept as rows, too, unless these take more memory than may wait."""

    def __init__(self, seen: Callable[[int], None] | None) -> None:
        self.rows: list[pa.RecordBatch] | None = []
        self.held = 0
        self.count = 0
        self._seen = seen

    def passing(self, items: Iterable[Item]) -> Iterator[Item]:
        for chunk in chunks(items):
            for batch in item_batches(chunk) if self.rows is not None else ():
                self._keep(batch)
            self.count += len(chunk)
            if self._seen is not None:
                self._seen(self.count)
            yield from chunk

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self.rows is not None:
            self.rows.append(batch)
            self.held += batch.nbytes
            if self.held > AHEAD_BYTES:
                self.rows, self.held = None, 0
