"""The content-addressed store: Parquet artifacts below one URI, local or on any fsspec file system."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict

from metrics.errors import NightjarError
from tasks.store.home import as_open_as_its_folder, folder_within


class ArtifactRef(BaseModel):
    """Names an artifact in the store, and says what must be found there.

    No path is in it: the store's root is configuration, so a store can be moved. Two references with equal
    ``digest`` hold the same bytes, whatever made them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """The stage that made it, which is its folder in the store."""
    key: str
    """The cache key it was made under, 64 hexadecimal digits."""
    digest: str
    """SHA-256 of the file, 64 hexadecimal digits: what must be found there."""
    content: str = ""
    """Digest of the rows in the columns that the next steps read: what their keys hold. Equal answers of two
    nights, whose times differ, have the same. Empty in references of version 0.1.0."""
    rows: int
    bytes: int
    retryable: int = 0
    """Rows worth asking again (requests that failed for now). Above zero the reference is never served from
    a cache."""

    @property
    def keyed(self) -> str:
        """What the keys of steps that read it hold of it."""
        return self.content or self.digest

    @property
    def name(self) -> str:
        """Path of the file below the store's root.

        The digest is part of it, so that two workers that compute the same key at the same time, with
        answers that arrived at different seconds, never replace a file that another reader has been
        promised.
        """
        return f"{self.kind}/{self.key}.{self.digest[:16]}.parquet"


FORMAT: Final = 1
"""Version of what lies in a store. A change that this version would misread raises it; keys and columns that
are only added do not. A store without a mark is of version 0 (0.1.0), and is read as it is."""
FORMAT_MARK: Final = "format.json"

ROW_GROUP = 20_000
"""Rows a row group: smaller ones cost milliseconds to open, larger ones gain nothing."""
BATCH = 4_096
"""Rows read at once: a million-row artifact streams in under 300 MB."""


class StoreError(NightjarError):
    """The store can't be read or written."""


class ArtifactMissing(StoreError):
    """An artifact is gone, or its bytes are not those that its reference promises."""


class Store:
    """Artifacts below a URI (a local folder, ``s3://bucket/prefix`` or any fsspec URL).

    Files are written under a temporary name and renamed (object stores: put at once), so a reader never
    sees half an artifact. Reading verifies the bytes against the reference once per process. Raises
    StoreError for a URI that nothing here can open.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self.fs, self.root = fsspec.core.url_to_fs(uri)
        except (ValueError, ImportError) as error:  # no such protocol, or its library is not installed
            raise StoreError(f"store {uri}: can't be opened: {error}") from error
        self.root = self.root.rstrip("/")
        self.local = isinstance(self.fs, LocalFileSystem)
        self._verified: set[tuple[str, str]] = set()

    def path(self, name: str) -> str:
        """Where ``name`` lies, in the terms of the store's file system."""
        return f"{self.root}/{name}"

    def write(
        self,
        kind: str,
        key: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch | pa.Table],
        read: Sequence[str] | None = None,
    ) -> ArtifactRef:
        """Writes an artifact batch by batch and returns its reference.

        ``read`` names the columns that its content digest is of (None: all).
        Equal rows give equal bytes, so that a step computed again is recognised by what hangs on it. Raises
        StoreError when the store can't be written; nothing is left behind then.
        """
        temporary = self._temporary(kind)
        try:
            content = ContentDigest(schema.names if read is None else read)
            rows = write_parquet(temporary, schema, batches, content)
            size, file_hash = temporary.stat().st_size, _sha256(temporary)
            ref = ArtifactRef(
                kind=kind, key=key, digest=file_hash, content=content.hexdigest(), rows=rows, bytes=size
            )
            self._publish(temporary, ref.name)
        except OSError as error:
            raise StoreError(
                f"store {self.uri}: can't write {kind} artifact: {error.strerror or error}"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        self._verified.add((ref.name, ref.digest))
        return ref

    def holds(self, ref: ArtifactRef) -> bool:
        """Whether the artifact is there and is what its reference promises.

        A local file is read once a process to check its digest; of a remote one the size must do here, and
        its digest is checked when it is read.
        """
        try:
            if int(self.fs.size(self.path(ref.name))) != ref.bytes:
                return False
            if self.local:
                self._verify(ref)
        except (OSError, TypeError, ArtifactMissing):
            return False
        return True

    def batches(
        self,
        ref: ArtifactRef,
        columns: Sequence[str] | None = None,
        size: int = BATCH,
        rows: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Streams an artifact's rows, or those from ``rows[0]`` to ``rows[1]`` (excluded).

        Raises ArtifactMissing when it is gone or altered.
        """
        names = list(columns) if columns is not None else None
        with self._open(ref) as source, pq.ParquetFile(source, pre_buffer=False) as file:
            start, stop = rows if rows is not None else (0, ref.rows)
            groups, position = _row_groups(file, start, stop)
            for batch in file.iter_batches(batch_size=size, columns=names, row_groups=groups):
                first, last = max(start - position, 0), min(stop - position, batch.num_rows)
                if first < last:
                    yield batch.slice(first, last - first)
                position += batch.num_rows

    def table(self, ref: ArtifactRef, columns: Sequence[str] | None = None) -> pa.Table:
        """An artifact as one table; for small ones."""
        with self._open(ref) as source, pq.ParquetFile(source, pre_buffer=False) as file:
            return file.read(columns=list(columns) if columns is not None else None)

    def put_bytes(self, name: str, content: bytes) -> None:
        """Writes a small file (a manifest) whole or not at all; raises StoreError."""
        with self.writing(name) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A local path to write to, which becomes ``name`` when the block ends well: whole or not at all.

        Raises StoreError when the store can't be written; nothing is left behind then.
        """
        temporary = self._temporary(name.rsplit("/", 1)[0] if "/" in name else "")
        try:
            yield temporary
            self._publish(temporary, name)
        except OSError as error:
            raise StoreError(f"store {self.uri}: can't write {name}: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def format(self) -> tuple[int, datetime | None]:
        """The version of what lies here, and since when: 0 and None where nothing says it.

        Raises StoreError for a mark that can't be read, and for a store of a later version: what it holds
        would be misread.
        """
        try:
            mark = json.loads(self.fs.cat_file(self.path(FORMAT_MARK)))
            version, since = int(mark["format"]), datetime.fromisoformat(mark["since"])
        except FileNotFoundError:
            return 0, None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"store {self.uri}: {FORMAT_MARK} can't be read ({type(error).__name__}: {error}); if no"
                " later version of Nightjar has written there, remove it"
            ) from error
        if version > FORMAT:
            raise StoreError(
                f"store {self.uri} has format {version}, of a later version of Nightjar; this one reads"
                f" formats up to {FORMAT}: install that version, or name another store"
            )
        return version, since

    def mark_format(self) -> None:
        """Says in the store which version's records it holds from now on; raises StoreError as ``format``
        does."""
        if self.format()[0] < FORMAT:
            mark = {"format": FORMAT, "since": datetime.now(UTC).isoformat(timespec="seconds")}
            self.put_bytes(FORMAT_MARK, json.dumps(mark).encode())

    def remove(self, name: str) -> None:
        """Removes a small file; one that is gone is removed already. Raises StoreError."""
        try:
            self.fs.rm_file(self.path(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"store {self.uri}: can't remove {name}: {error.strerror or error}") from error

    def check_writable(self) -> None:
        """Raises StoreError where nothing can be written, better before a run than after its answers, and for
        a store of a later version."""
        name = f".{uuid.uuid4().hex}"
        with self._reachable():
            self.format()
            self.put_bytes(name, b"")
            self.fs.rm_file(self.path(name))

    def check_readable(self) -> None:
        """Raises StoreError where nobody can say what is there, and for a store of a later version; a store
        that is not there yet is an empty one.
        """
        with self._reachable():
            self.fs.exists(self.root)
            self.format()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        # An object store's own errors (no credentials, no bucket, no such host) share no class.
        try:
            yield
        except StoreError:
            raise
        except NotADirectoryError as error:
            raise StoreError(f"store {self.uri}: can't create {self.root}: {error.strerror}") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise StoreError(f"store {self.uri}: can't be used: {reason}") from error

    def _temporary(self, folder: str) -> Path:
        """A path to write to: beside the target where a rename is possible, else on the local disk."""
        base = Path(self.root) if self.local else Path(os.environ.get("TMPDIR", "/tmp"))
        target = base / folder if self.local else base
        try:
            if self.local:
                folder_within(base, target)
        except OSError as error:
            raise StoreError(f"store {self.uri}: can't create {target}: {error.strerror or error}") from error
        return target / f".{uuid.uuid4().hex}.tmp"

    def _publish(self, temporary: Path, name: str) -> None:
        if self.local:
            target = Path(self.path(name))
            folder_within(Path(self.root), target.parent)
            as_open_as_its_folder(temporary)
            temporary.replace(target)
        else:
            self.fs.put_file(str(temporary), self.path(name))

    def _open(self, ref: ArtifactRef) -> IO[bytes]:
        try:
            self._verify(ref)
            stream: IO[bytes] = self.fs.open(self.path(ref.name), "rb")
        except FileNotFoundError as error:
            raise ArtifactMissing(
                f"store {self.uri}: {ref.name} is gone; run again to compute it anew"
            ) from error
        return stream

    def _verify(self, ref: ArtifactRef) -> None:
        if (ref.name, ref.digest) in self._verified:
            return
        with self.fs.open(self.path(ref.name), "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != ref.digest:
            # Out of the way, so that the next run finds it missing and computes it.
            self.fs.rm_file(self.path(ref.name))
            raise ArtifactMissing(f"store {self.uri}: {ref.name} was altered; run again to compute it anew")
        self._verified.add((ref.name, ref.digest))


def _row_groups(file: pq.ParquetFile, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups that hold rows ``start`` to ``stop``, and the number of the first row in them."""
    wanted: list[int] = []
    first, position = 0, 0
    for group in range(file.num_row_groups):
        end = position + file.metadata.row_group(group).num_rows
        if position < stop and end > start:
            first = position if not wanted else first
            wanted.append(group)
        position = end
    return wanted, first


class ContentDigest:
    """Digest of the values of some columns, whatever the batches they come in and however they are encoded.

    Each column has a digest of its values' presence, one of their lengths where they have any, and one of
    their bytes, so that no two different columns have the same stream.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._streams: dict[str, Any] = {}

    def add(self, table: pa.Table) -> None:
        """Takes the next rows."""
        for name in self._columns:
            for chunk in table.column(name).chunks:
                self._add(name, chunk)

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        total = hashlib.sha256()
        for name in sorted(self._streams):
            total.update(name.encode() + b"\0" + self._streams[name].digest())
        return total.hexdigest()

    def _add(self, name: str, array: pa.Array) -> None:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self._feed(f"{name}/valid", np.asarray(array.is_valid()).astype(np.uint8))
        present = array.drop_null()
        if pa.types.is_list(array.type):
            self._feed(f"{name}/lengths", pc.list_value_length(present).to_numpy(zero_copy_only=False))
            self._add(f"{name}/item", present.flatten())
        elif pa.types.is_string(array.type):
            lengths = pc.binary_length(present).to_numpy(zero_copy_only=False)
            self._feed(f"{name}/lengths", lengths)
            if len(present):
                offsets = np.frombuffer(present.buffers()[1], np.int32)[present.offset :]
                self._feed(name, memoryview(present.buffers()[2])[offsets[0] : offsets[len(present)]])
        else:
            self._feed(name, np.ascontiguousarray(present.to_numpy(zero_copy_only=False)))

    def _feed(self, stream: str, data: Any) -> None:
        self._streams.setdefault(stream, hashlib.sha256()).update(data)


def write_parquet(
    path: Path, schema: pa.Schema, batches: Iterable[Any], content: ContentDigest | None = None
) -> int:
    """Streams batches into one Parquet file (zstd, row groups of ``ROW_GROUP``) and returns the number of
    rows; ``content`` sees them as they pass.

    Rows are regrouped, so that the bytes depend on the rows alone and not on how they were batched.
    """
    rows = 0
    pending: list[pa.Table] = []
    waiting = 0
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, store_schema=True) as writer:
        for batch in batches:
            table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            pending.append(_conform(table, schema))
            if content is not None:
                content.add(pending[-1])
            waiting += table.num_rows
            rows += table.num_rows
            while waiting >= ROW_GROUP:
                whole = pa.concat_tables(pending)
                writer.write_table(_plain_chunks(whole.slice(0, ROW_GROUP)), row_group_size=ROW_GROUP)
                pending, waiting = [whole.slice(ROW_GROUP)], waiting - ROW_GROUP
        if waiting:
            writer.write_table(_plain_chunks(pa.concat_tables(pending)), row_group_size=ROW_GROUP)
    return rows


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    return table.select(schema.names).cast(schema)


def _plain_chunks(table: pa.Table) -> pa.Table:
    # Dictionaries are built anew, in order of appearance: batches may carry values that no row uses.
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            encoded = table.column(index).cast(field.type.value_type).combine_chunks().dictionary_encode()
            table = table.set_column(index, field, encoded)
    return table.combine_chunks()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
