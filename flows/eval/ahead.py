"""Reads a dataset before the run of it begins: all of it is checked, so that a line that can't be used is
refused at once, and its rows are kept for the run.

A large file is read by a process of its own (``read_beside``) from the moment that its config is known:
while this one goes on to import Prefect, there is another core. It indexes recorded responses, too.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flows.config.schema import EvalConfig, RunOptions
from metrics.errors import NightjarError
from tasks.benchmarks.config import BenchmarkFields
from tasks.datasets.config import DatasetError, UnfitItem
from tasks.datasets.items import FaultyRows
from tasks.datasets.selection import Selection
from tasks.models.providers.provider import provider_of
from tasks.processes.workers import ForkedCall, cores, may_fork
from tasks.store.home import named_path
from tasks.store.thresholds import Threshold

if TYPE_CHECKING:
    import pyarrow as pa

    from flows.config.checks import MissingReferences
    from tasks.datasets.item import Item
    from tasks.models.providers.recordings import RecordingFile, Version

KEPT_BYTES = Threshold("bytes_kept_ahead", 1 << 26)
"""Rows of one dataset that are kept in memory, at most."""
LARGE_BYTES = Threshold("bytes_read_beside", 1 << 22)
"""From so large a file on, a process of its own is worth what it takes to import."""


@dataclass(frozen=True)
class CheckedDataset:
    """What was found in a dataset."""

    rows: "Iterable[pa.RecordBatch] | None"
    """ITEMS rows in order; None where they are too many to keep."""
    held: int
    """Bytes of memory that the rows take."""
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
    spool: IO[bytes] | None = None,
) -> CheckedDataset:
    """Reads the selected items, checks the templates with the first and looks at the right answer of each.

    ``overrides`` are those that the config was loaded with; ``seen`` is told now and then how many items were
    read; the rows are written into ``spool`` where there is one. Raises NightjarError for what can't be used.
    """
    from flows.config.checks import check_templates, located_unfit, missing_references
    from tasks.benchmarks.open import open_benchmark

    benchmark = open_benchmark(fields)
    kept = _Kept(KEPT_BYTES, seen) if spool is None else _Spooled(spool)
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
    return CheckedDataset(kept.close(), kept.held, kept.count, missing)


def _past(items: "Iterator[Item]", faults: list[str]) -> "Iterator[Item]":
    """The items, and those behind rows that are none: what is wrong with these goes into ``faults``."""
    try:
        yield from items
    except FaultyRows as error:
        faults.append(str(error))
        yield from error.beside


class ReadingBeside:
    """``check_dataset`` in a process of its own, which writes the rows into a file that has no name."""

    def __init__(self, config: EvalConfig, selection: Selection, overrides: Sequence[str]) -> None:
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 — open as long as the rows are wanted
        try:
            self._call = ForkedCall(_check_beside, config, selection, tuple(overrides), self._spool)
        except OSError:
            self._spool.close()
            raise

    def result(self) -> CheckedDataset:
        """What it found, or raises what it raised; WorkerDied where the process did."""
        found = self._call.result()
        return found if found.rows is None else replace(found, rows=_SpooledRows(self._spool))

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._call.close()
        self._spool.close()


def read_beside(config: EvalConfig, options: RunOptions, overrides: Sequence[str]) -> ReadingBeside | None:
    """Begins to read where a process may be forked, the file is large, and the options leave the run more
    than one process; None where this machine lets no process begin or no file be made."""
    wanted = options.workers != 1 and options.limit is None and cores() > 1
    if not wanted or not _is_large(config) or not may_fork():
        return None
    try:
        return ReadingBeside(config, options.selection(), overrides)
    except OSError:  # a limit of the user's processes, no folder for temporary files
        return None


def _check_beside(
    config: EvalConfig, selection: Selection, overrides: Sequence[str], spool: IO[bytes]
) -> CheckedDataset:
    # Arrow would import pandas, where it is installed, to see that a list of rows is no column of it.
    sys.meta_path.insert(0, _WithoutPandas())
    from flows.plan.fields import benchmark_fields
    from tasks.benchmarks.open import open_benchmark
    from tasks.models.providers.recordings import open_recordings, recording_file

    fields = benchmark_fields(config)
    digest = open_benchmark(fields).dataset_digest()
    found = check_dataset(config, fields, selection, overrides, spool=spool)
    for model in config.models:
        recording = provider_of(model, Path(config.base_dir)).recording
        if recording is not None:
            with suppress(NightjarError):  # said when a response is looked up
                recording_file(recording)
    return replace(found, digest=digest, recordings=open_recordings())


def _is_large(config: EvalConfig) -> bool:
    if config.harness is not None or config.dataset is None or config.dataset.path is None:
        return False
    try:
        return named_path(config.base_dir, config.dataset.path).stat().st_size >= LARGE_BYTES
    except (OSError, ValueError):
        return False  # its reader says so


class _WithoutPandas(MetaPathFinder):
    """Has ``import pandas`` fail as if it were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


class _Passing:
    """Items on their way to a check, kept as rows, too."""

    keeps = True

    def __init__(self, seen: Callable[[int], None] | None) -> None:
        self.held = 0
        self.count = 0
        self._seen = seen

    def passing(self, items: "Iterable[Item]") -> "Iterator[Item]":
        from tasks.rows.items import chunks, item_batches

        for chunk in chunks(items):
            for batch in item_batches(chunk) if self.keeps else ():
                self.keep(batch)
            self.count += len(chunk)
            if self._seen is not None:
                self._seen(self.count)
            yield from chunk

    def keep(self, batch: "pa.RecordBatch") -> None:
        raise NotImplementedError

    def close(self) -> "Sequence[pa.RecordBatch] | None":
        """The rows; none of those that lie elsewhere; None where not all of them were kept."""
        raise NotImplementedError


class _Kept(_Passing):
    """Rows in memory, unless they take more than ``most`` bytes."""

    def __init__(self, most: int, seen: Callable[[int], None] | None) -> None:
        super().__init__(seen)
        self._rows: list[pa.RecordBatch] = []
        self._most = most

    def keep(self, batch: "pa.RecordBatch") -> None:
        self._rows.append(batch)
        self.held += batch.nbytes
        if self.held > self._most:
            self.keeps, self._rows, self.held = False, [], 0

    def close(self) -> "Sequence[pa.RecordBatch] | None":
        return self._rows if self.keeps else None


class _Spooled(_Passing):
    """Rows in a file, unless its disk is full."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa

        from tasks.store.schemas import ITEMS

        super().__init__(None)
        self._file = file
        self._stream = pa.ipc.new_stream(file, ITEMS)

    def keep(self, batch: "pa.RecordBatch") -> None:
        try:
            self._stream.write_batch(batch)
        except OSError:
            self.keeps = False

    def close(self) -> "Sequence[pa.RecordBatch] | None":
        with suppress(OSError):
            self._stream.close()
            self._file.flush()
            return () if self.keeps else None
        return None


class _SpooledRows:
    """What another process has written, as often as it is gone through."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as stream:
            yield from stream
