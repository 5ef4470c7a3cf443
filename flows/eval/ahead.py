"""Reads a dataset before the run of it begins: all of it is checked, so that a line that can't be used is
refused at once, and its rows are kept for the run.

A large file is read by a process of its own (``read_beside``) from the moment that its config is known:
while this one goes on to import Prefect, there is another core. It indexes recorded responses, too.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from flows.config.schema import EvalConfig, RunOptions
from metrics.errors import NightjarError
from tasks.benchmarks.config import BenchmarkFields
from tasks.datasets.selection import Selection
from tasks.models.config import ReplayConfig
from tasks.workers import ForkedCall, cores, may_fork

if TYPE_CHECKING:
    import pyarrow as pa

    from flows.config.checks import MissingReferences
    from tasks.datasets.item import Item
    from tasks.models.replay import RecordingFile, Version

KEPT_BYTES = 1 << 26
"""Rows that are kept of one dataset, at most: a process that reads hands them over as a whole."""
LARGE_BYTES = 1 << 22
"""From so large a file on, a process of its own is worth what it takes to import."""


@dataclass(frozen=True)
class CheckedDataset:
    """What was found in a dataset."""

    rows: "list[pa.RecordBatch] | None"
    """ITEMS rows in order; None where they are too many to keep."""
    count: int
    """How many items there are."""
    missing: "MissingReferences | None"
    """What there is to say of items without a right answer."""
    digest: str = ""
    """The dataset's, as it was when another process began to read it."""
    recordings: "Mapping[Version, RecordingFile]" = field(default_factory=dict)
    """The indices of recorded responses that this process has made."""


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
    from flows.config.checks import check_templates, missing_references
    from tasks.benchmarks.open import open_benchmark

    benchmark = open_benchmark(fields)
    kept = _Kept(KEPT_BYTES, seen)
    items = kept.passing(selection.of(benchmark.items()))
    first = next(items, None)
    if first is None:
        return CheckedDataset([], 0, None)
    check_templates(config, first, overrides)
    missing = missing_references(config, benchmark, chain([first], items))
    return CheckedDataset(kept.rows, kept.count, missing)


def read_beside(
    config: EvalConfig, options: RunOptions, overrides: Sequence[str]
) -> ForkedCall[CheckedDataset] | None:
    """``check_dataset`` in a process of its own, where one may be forked, the file is large, and the options
    leave the run more than one process; else None."""
    wanted = options.workers != 1 and options.limit is None and cores() > 1
    if not wanted or not _is_large(config) or not may_fork():
        return None
    return ForkedCall(_check_beside, config, options.selection(), tuple(overrides))


def _check_beside(config: EvalConfig, selection: Selection, overrides: Sequence[str]) -> CheckedDataset:
    # Arrow would import pandas, where it is installed, to see that a list of rows is no column of it.
    sys.meta_path.insert(0, _WithoutPandas())
    from flows.plan.fields import benchmark_fields
    from tasks.benchmarks.open import open_benchmark
    from tasks.models.replay import open_recordings, recording_file

    fields = benchmark_fields(config)
    digest = open_benchmark(fields).dataset_digest()
    found = check_dataset(config, fields, selection, overrides)
    for model in config.models:
        if isinstance(model.config, ReplayConfig) and model.config.path is not None:
            with suppress(NightjarError):  # whoever looks a response up says so
                recording_file(Path(config.base_dir) / model.config.path)
    return replace(found, digest=digest, recordings=open_recordings())


def _is_large(config: EvalConfig) -> bool:
    if config.harness is not None or config.dataset is None or config.dataset.path is None:
        return False
    try:
        file = Path(config.base_dir) / Path(config.dataset.path).expanduser()
        return file.stat().st_size >= LARGE_BYTES
    except (OSError, ValueError):
        return False  # whoever reads it says so


class _WithoutPandas(MetaPathFinder):
    """Has ``import pandas`` fail as if it were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


class _Kept:
    """Items on their way to a check, kept as rows unless these take more than ``most`` bytes."""

    def __init__(self, most: int, seen: Callable[[int], None] | None) -> None:
        self.rows: list[pa.RecordBatch] | None = []
        self.count = 0
        self._free = most
        self._seen = seen

    def passing(self, items: "Iterable[Item]") -> "Iterator[Item]":
        from tasks.rows.items import chunks, item_batches

        for chunk in chunks(items):
            if self.rows is not None:
                self.rows += item_batches(chunk)
                self._free -= self.rows[-1].nbytes
                self.rows = self.rows if self._free > 0 else None
            self.count += len(chunk)
            if self._seen is not None:
                self._seen(self.count)
            yield from chunk
