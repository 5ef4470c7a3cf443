"""Batches that can be read only once, kept on disk so that they can be read again."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa


class Spool:
    """Batches in a temporary file."""

    def __init__(self, batches: Iterator[pa.RecordBatch], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the spool)
        writer = None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(self._file, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
        self._empty = writer is None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._empty:
            return
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Gives the disk space back."""
        self._file.close()


def rereadable(batches: Iterable[pa.RecordBatch], folder: Path) -> Iterable[pa.RecordBatch]:
    """The batches themselves if they can be read again, else a spool of them in ``folder``."""
    return Spool(batches, folder) if isinstance(batches, Iterator) else batches
