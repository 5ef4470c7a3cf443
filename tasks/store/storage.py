"""The store: files below one URI, local or on any fsspec file system, of which every byte is checked.

Four kinds of files, one rule each, and every reader goes through it:

*artifacts*, ``<stage>/<key>.<digest>.parquet``: named by a digest of their bytes (``write``, ``table``,
``batches``); *media*, named by their digest as well; *documents*, one JSON object with a seal
(``put_document``, ``document``); *tables*, Parquet files with a seal (``writing_table``, ``open_table``).

A reader verifies the whole file, once a process as long as the file is the same, and gets FileDamaged where
it is not what was written. Code that adds a kind of file writes it with ``put_document`` or
``writing_table``. Every call of the backend passes ``Boundary.call``: nobody else touches ``fs``.
"""

import hashlib
import io
import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Self

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from pydantic import BaseModel, ConfigDict

from tasks.store import seals
from tasks.store.digests import file_digest
from tasks.store.errors import (
    STORE_LOG,
    Boundary,
    FileDamaged,
    FileMissing,
    StoreError,
    StoreUnavailable,
    is_passing,
    reason_of,
)
from tasks.store.home import as_open_as_its_folder, folder_within
from tasks.store.rows import ContentDigest, write_parquet
from tasks.store.schemas import COLUMNS_VERSION, declared_columns
from tasks.store.thresholds import Threshold


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

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """The reference in a manifest's entry, which says more than it does."""
        return cls(**{name: entry[name] for name in cls.model_fields if name in entry})

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


FORMAT: Final = 2
"""Version of what is in a store. A change that this version would misread raises it; keys and columns that
are only added do not. A store without a mark is of version 0 (0.1.0), and is read as it is. Version 2 seals
its files."""
SEALED_SINCE: Final = 2
FORMAT_MARK: Final = "format.json"
MEDIA: Final = "media"
RECORDS: Final = "records"
OF_RUNS: Final = (RECORDS, "runs", "history", "suites")
"""Folders that tell a store that was used from a new one."""

BATCH = Threshold("rows_read", 4_096)
"""Rows read at once: a million-row artifact streams in under 300 MB."""
IN_MEMORY: Final = 64 << 20
"""Bytes of a file of an object store up to which it is fetched at once."""
DAMAGED: Final = ".damaged"
"""End of the name of a file that was set aside."""


_URI: Final = re.compile(r"([^:/]+://)([^/]*)(.*)", re.DOTALL)
_PASSWORD: Final = re.compile(r"(://[^:/@]*):(?!\d+(?:/|$))[^@]*@")


def store_uri(uri: str) -> str:
    """A store's URI as every process names it: a local folder by its whole path, others without the slashes
    before and after the prefix, which object stores write into keys and leave out of listings. Raises
    StoreError for one with a password: manifests, pages and Prefect's database hold it.

    >>> store_uri("s3://bucket//prefix/"), store_uri("file:///data/store/")
    ('s3://bucket/prefix', '/data/store')
    """
    protocol, _ = fsspec.core.split_protocol(uri)
    if protocol in (None, *LocalFileSystem.protocol) and "::" not in uri:
        return str(fsspec.core.url_to_fs(uri)[1])
    if (shown := _PASSWORD.sub(r"\1@", uri)) != uri:
        raise StoreError(
            f"store {shown}: a password in its URI would be shown on pages and kept in manifests; leave it"
            f" out and set FSSPEC_{str(protocol or 'PROTOCOL').upper()}_PASSWORD"
        )
    parts = _URI.fullmatch(uri)
    if parts is None:
        return uri
    scheme, bucket, prefix = parts.groups()
    return f"{scheme}{bucket}/{prefix.strip('/')}" if prefix.strip("/") else f"{scheme}{bucket}"


class ArtifactMissing(StoreError):
    """An artifact is gone, or its bytes are not those that its reference promises."""


@dataclass(frozen=True)
class Entry:
    """A file of the store as a listing tells it: its name below the root, its size, and a ``token`` that is
    another one when it was written again."""

    name: str
    bytes: int
    token: str


@dataclass(frozen=True)
class Table:
    """A table that was verified; ``version`` is that of its columns, None before seals."""

    file: pq.ParquetFile
    version: int | None

    def complete(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows of this table in the columns of ``schema``; those that came after its version are null.
        Raises seals.Broken for columns that its version has not, and for one that it lacks."""
        try:
            return declared_columns(table, schema, self.version)
        except (ValueError, pa.ArrowException) as error:
            raise seals.Broken(str(error)) from error


class Store:
    """Files below a URI (a local folder, ``s3://bucket/prefix`` or any fsspec URL).

    Files are written under a temporary name and renamed (object stores: put at once), so a reader never
    sees half of one. Raises StoreError for a URI that nothing here can open; every method raises
    StoreUnavailable where the store stays away.
    """

    def __init__(self, uri: str) -> None:
        self.uri = store_uri(uri)
        try:
            self.fs, self.root = fsspec.core.url_to_fs(self.uri)
        except Exception as error:  # no such protocol, no library for it, and what each of these raises
            raise StoreError(f"store {self.uri}: can't be opened: {error}") from error
        self.root = self.root.rstrip("/")
        self.local = isinstance(self.fs, LocalFileSystem)
        self.in_memory = isinstance(self.fs, MemoryFileSystem)  # of this process: no other sees it
        self.boundary = Boundary(self.uri, self.local)
        self._verified: dict[str, tuple[object, int | None]] = {}
        self._all_sealed = False

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
        Equal rows give equal bytes, so that a step computed again is recognised by what depends on it. Raises
        StoreError when the store can't be written; nothing is left behind then.
        """
        try:
            with self._temporary(kind) as temporary:
                content = ContentDigest(schema.names if read is None else read)
                rows = write_parquet(temporary, schema, batches, content)
                size, file_hash = temporary.stat().st_size, file_digest(temporary)
                ref = ArtifactRef(
                    kind=kind, key=key, digest=file_hash, content=content.hexdigest(), rows=rows, bytes=size
                )
                self._publish(temporary, ref.name)
        except OSError as error:
            raise StoreError(f"store {self.uri}: can't write {kind} artifact: {reason_of(error)}") from error
        if self.local:
            with self.open(ref.name) as source:
                self._verified[ref.name] = self._identity(ref.name, source), None
        return ref

    def know(self, folders: Iterable[str]) -> None:
        """Lists folders of an object store, so that code that reads their files by its file system next asks
        for none of them."""
        for folder in sorted(folders):
            self.boundary.call("list", folder, partial(self.fs.ls, self.path(folder), detail=True))

    def holds(self, ref: ArtifactRef) -> bool:
        """Whether the artifact is there and is what its reference promises.

        A local file is read once a process to check its digest; of a remote one the size must do here, and
        its digest is checked when it is read.
        """
        try:
            if self.size(ref.name) != ref.bytes:
                return False
            if self.local:
                with self.open(ref.name) as source:
                    self._verify(ref, source)
        except (FileMissing, ArtifactMissing):
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
        with self._artifact(ref) as file:
            start, stop = rows if rows is not None else (0, ref.rows)
            groups, position = _row_groups(file, start, stop)
            for batch in file.iter_batches(batch_size=size, columns=names, row_groups=groups):
                first, last = max(start - position, 0), min(stop - position, batch.num_rows)
                if first < last:
                    yield batch.slice(first, last - first)
                position += batch.num_rows

    def table(self, ref: ArtifactRef, columns: Sequence[str] | None = None) -> pa.Table:
        """An artifact as one table; for small ones."""
        with self._artifact(ref) as file:
            return file.read(columns=list(columns) if columns is not None else None)

    def read(self, name: str) -> bytes:
        """The bytes of a small file that says of itself what it holds: a medium, a claim. Raises
        FileMissing."""
        return bytes(self.boundary.call("read", name, partial(self.fs.cat_file, self.path(name))))

    def document(self, name: str, sealed: bool = False) -> bytes:
        """A document as ``put_document`` got it. Raises FileMissing, and FileDamaged where it is not what was
        written; ``sealed``: also where it has no seal."""
        content = self.read(name)
        with self._named(name):
            document, version = seals.open_document(content)
            if version is None:
                self._accept_unsealed(sealed)
        return document

    def record(self, key: str, sealed: bool = True) -> bytes:
        """What Prefect keeps of a step under its key. Raises FileMissing, and FileDamaged where it is not
        what was written, or another step's."""
        name = f"{RECORDS}/{key}"
        content = self.document(name, sealed)
        try:
            written_as = json.loads(content)["metadata"]["storage_key"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise self.damage(name, "it is no record of a step") from error
        if written_as != key:
            raise self.damage(name, f"it is the record of {written_as}: it was copied or renamed")
        return content

    def has_seal(self, name: str) -> bool:
        """Whether a whole document has one; raises FileMissing and FileDamaged."""
        with self._named(name):
            return seals.open_document(self.read(name))[1] is not None

    def put_document(self, name: str, content: bytes, patience: float | None = None) -> None:
        """Writes one JSON object, sealed, whole or not at all; raises StoreError."""
        self.put_bytes(name, seals.seal_document(content, COLUMNS_VERSION), patience)

    @contextmanager
    def open_table(self, name: str, **options: Any) -> Iterator[Table]:
        """A table, verified as a whole. Raises FileMissing, and FileDamaged where it is not what was
        written, then or while it is read in the block."""
        with self._named(name), self.open(name) as source:
            version = self._check_table(name, source)
            with pq.ParquetFile(source, pre_buffer=False, **options) as file:
                yield Table(file, version)

    @contextmanager
    def writing_table(
        self, name: str, schema: pa.Schema, block: int = seals.BLOCK, **options: Any
    ) -> Iterator[pq.ParquetWriter]:
        """A writer of a table, sealed, which becomes ``name`` when the block ends well: whole or not at all.
        Raises StoreError."""
        with self.writing(name) as temporary, temporary.open("w+b") as file:
            options = {"compression": "zstd", **options}
            with seals.sealed_table(file, schema, COLUMNS_VERSION, block, **options) as writer:
                yield writer

    def proven_rows(self, name: str, schema: pa.Schema) -> list[pa.Table]:
        """Of a damaged table the row groups that are proven to be what was written; raises FileMissing."""
        try:
            with self._named(name), self.open(name) as source:
                groups, version = seals.proven_groups(source)
                with pq.ParquetFile(source, pre_buffer=False) as file:
                    table = Table(file, version)
                    return [table.complete(file.read_row_group(group), schema) for group in groups]
        except FileDamaged:
            return []

    def checked(self, name: str) -> str:
        """The name, of a file that is whole; raises FileMissing and FileDamaged."""
        folder, _, file = name.rpartition("/")
        if is_artifact(name) or folder == MEDIA:
            with self._named(name), self.open(name) as source:
                self._check_digest(name, file.split(".")[1] if is_artifact(name) else file, source)
        elif file.endswith(".parquet"):
            with self.open_table(name):
                pass
        else:
            with self._named(name):
                _json_object(self.document(name))
        return name

    def damage(self, name: str, wrong: str) -> FileDamaged:
        """The error that names a damaged file, and says what to do."""
        return FileDamaged(f"store {self.uri}: {name} is damaged: {wrong}; {remedy(name)}")

    def put_bytes(self, name: str, content: bytes, patience: float | None = None) -> None:
        """Writes a small file as it is, whole or not at all; raises StoreError. Only for what has a digest
        elsewhere: all else is a document or a table."""
        with self.writing(name, patience) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def writing(self, name: str, patience: float | None = None) -> Iterator[Path]:
        """A local path to write to, which becomes ``name`` when the block ends well: whole or not at all.

        Raises StoreError when the store can't be written; nothing is left behind then.
        """
        try:
            with self._temporary(name.rsplit("/", 1)[0] if "/" in name else "") as temporary:
                yield temporary
                self._publish(temporary, name, patience)
        except OSError as error:
            raise StoreError(f"store {self.uri}: can't write {name}: {reason_of(error)}") from error

    def entries(self, folder: str) -> list[Entry]:
        """The files directly in a folder, by name; those that are being written are none of them."""
        return self._entries(folder, lambda path: self.fs.ls(path, detail=True))

    def all_entries(self, folder: str = "") -> list[Entry]:
        """The files in a folder and below it, by name."""
        return self._entries(folder, lambda path: list(self.fs.find(path, detail=True).values()), True)

    def _entries(
        self, folder: str, listing: Callable[[str], list[Mapping[str, Any]]], hidden: bool = False
    ) -> list[Entry]:
        path = self.path(folder) if folder else self.root

        def listed() -> list[Mapping[str, Any]]:
            self.fs.invalidate_cache()
            return listing(path)

        try:
            found = self.boundary.call("list", folder or "its files", listed)
        except FileMissing:
            return []
        entries = []
        for entry in found:
            name = str(entry["name"]).rstrip("/")[len(self.root) + 1 :]
            if entry.get("type") != "directory" and (hidden or not name.rpartition("/")[2].startswith(".")):
                entries.append(Entry(name, int(entry.get("size") or 0), _token(entry)))
        return sorted(entries, key=lambda entry: entry.name)

    def names(self, folder: str, suffix: str) -> list[str]:
        """The files directly in a folder that end with ``suffix``, without folder and suffix, sorted."""
        files = (entry.name.rpartition("/")[2] for entry in self.entries(folder))
        return sorted(file.removesuffix(suffix) for file in files if file.endswith(suffix))

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        try:  # a backend's own ``exists`` may say no of what it can't look up
            self.boundary.call("look for", name, partial(self.fs.info, self.path(name)))
        except FileMissing:
            return False
        return True

    def size(self, name: str) -> int:
        """Bytes of a file; raises FileMissing."""
        return int(self.boundary.call("look for", name, partial(self.fs.size, self.path(name))) or 0)

    def modified(self, name: str) -> datetime:
        """When a file was written; raises FileMissing."""
        found: datetime = self.boundary.call("look for", name, partial(self.fs.modified, self.path(name)))
        return found

    def set_aside(self, name: str) -> str:
        """Renames a damaged file, so that it counts as missing from now on; returns its new name."""
        path, aside = self.path(name), name + DAMAGED

        def rename() -> None:
            if self.local:
                Path(path).replace(self.path(aside))
            else:  # fsspec's own takes the signs in a name for a pattern
                self.fs.cp_file(path, self.path(aside))
                self.fs.rm_file(path)

        with suppress(FileMissing):  # another process was faster
            self.boundary.call("rename", name, rename)
        return aside

    def format(self) -> tuple[int, datetime | None]:
        """The version of what lies here, and since when there are marks: 0 and None where nothing says it.

        Raises StoreError for a mark that can't be read, and for a store of a later version: what it holds
        would be misread.
        """
        try:
            content, sealed = seals.open_document(self.read(FORMAT_MARK))
            mark = json.loads(content)
            version, since = int(mark["format"]), datetime.fromisoformat(mark["since"])
            if sealed is None and SEALED_SINCE <= version <= FORMAT:
                raise seals.Broken("it has no seal")
            self._all_sealed = mark.get("unsealed") is False
        except FileMissing:
            return 0, None
        except StoreError:  # away, or not to be read: the mark may be whole
            raise
        except (ValueError, KeyError, TypeError, seals.Broken) as error:
            raise FileDamaged(
                f"store {self.uri}: {FORMAT_MARK} can't be read ({type(error).__name__}: {error}); if no"
                " later version of Nightjar has written there, python -m flows.store --repair makes it again"
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
        version, since = self.format()
        if version < FORMAT:
            before = version > 0 or any(self.exists(folder) for folder in OF_RUNS)
            self._mark(before, since)

    def mark_sealed(self) -> None:
        """Says that every file here has a seal: from now on one without is damaged."""
        if not self._all_sealed:
            self._mark(False, self.format()[1])

    def _mark(self, unsealed: bool, since: datetime | None) -> None:
        began = (since or datetime.now(UTC)).isoformat(timespec="seconds")
        mark = {"format": FORMAT, "since": began, "unsealed": unsealed}
        self.put_document(FORMAT_MARK, json.dumps(mark).encode())
        self._all_sealed = not unsealed

    def remove(self, name: str, patience: float | None = None) -> None:
        """Removes a file; one that is gone is removed already. Raises StoreError."""
        with suppress(FileMissing):
            self.boundary.call("remove", name, partial(self.fs.rm_file, self.path(name)), patience)

    def check_writable(self) -> None:
        """Raises StoreError where nothing can be written, better before a run than after its answers, and for
        a store of a later version."""
        name = f".{uuid.uuid4().hex}"
        self.format()
        self.put_bytes(name, b"")
        self.remove(name)

    def check_readable(self) -> None:
        """Raises StoreError where nobody can say what is there, and for a store of a later version; a store
        that is not there yet is an empty one.
        """
        self.boundary.call("look for", "its folder", partial(self.fs.exists, self.root))
        self.format()

    @contextmanager
    def _temporary(self, folder: str) -> Iterator[Path]:
        """A path to write to: beside the target where a rename is possible, else on the local disk in a
        folder for this user alone; what is left there when the block ends is removed."""
        name = f".{uuid.uuid4().hex}.tmp"
        if not self.local:
            with tempfile.TemporaryDirectory(prefix="nightjar-", ignore_cleanup_errors=True) as private:
                temporary = Path(private, name)
                temporary.touch(mode=0o600)
                yield temporary
            return
        target = Path(self.root) / folder
        try:
            folder_within(Path(self.root), target)
        except OSError as error:
            raise StoreError(f"store {self.uri}: can't create {target}: {error.strerror or error}") from error
        temporary = target / name
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _publish(self, temporary: Path, name: str, patience: float | None = None) -> None:
        if self.local:
            target = Path(self.path(name))
            folder_within(Path(self.root), target.parent)
            as_open_as_its_folder(temporary)
            temporary.replace(target)
        else:
            put = partial(self.fs.put_file, str(temporary), self.path(name))
            self.boundary.call("write", name, put, patience)

    def open(self, name: str) -> IO[bytes]:
        """A file to read and to seek in, whatever the backend; raises FileMissing."""
        path = self.path(name)
        if self.local:
            return self.boundary.call("read", name, lambda: open(path, "rb"))
        if self.size(name) <= IN_MEMORY:
            return io.BytesIO(self.read(name))
        source = self.boundary.call("read", name, lambda: self.fs.open(path, "rb"))
        return io.BufferedReader(_PatientFile(source, self.boundary, name), 1 << 20)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """What a reader of a file finds wrong with it becomes an error that names the file."""
        try:
            yield
        except (seals.Broken, pa.ArrowException) as error:
            raise self.damage(name, " ".join(str(error).split())) from error
        except OSError as error:  # Arrow's word for a file that it does not understand, too
            if is_passing(error, self.local):
                reason = reason_of(error)
                raise StoreUnavailable(f"store {self.uri}: can't read {name}: {reason}") from error
            raise self.damage(name, reason_of(error)) from error

    def _check_table(self, name: str, source: IO[bytes]) -> int | None:
        identity = self._identity(name, source)
        known = self._verified.get(name)
        if known is not None and known[0] == identity is not None:
            return known[1]
        version = seals.check_table(source)
        if version is None:
            self._accept_unsealed()
        self._verified[name] = identity, version
        return version

    def _accept_unsealed(self, never: bool = False) -> None:
        """Raises Broken where every file has a seal: the store was new when it came to have them."""
        if not self._all_sealed and not never:
            self.format()
        if self._all_sealed or never:
            raise seals.Broken("it has no seal")

    def _identity(self, name: str, source: IO[bytes]) -> object:
        """What is another one when a file has changed; None where it was fetched whole and is here."""
        if isinstance(source, io.BytesIO):
            return None
        if self.local:
            found = os.fstat(source.fileno())
            return found.st_size, found.st_mtime_ns, found.st_ino
        return _token(self.boundary.call("look for", name, partial(self.fs.info, self.path(name))))

    @contextmanager
    def _artifact(self, ref: ArtifactRef) -> Iterator[pq.ParquetFile]:
        try:
            source = self.open(ref.name)
        except FileMissing as error:
            raise ArtifactMissing(
                f"store {self.uri}: {ref.name} is gone; run again: it is computed"
            ) from error
        with source:
            self._verify(ref, source)
            with pq.ParquetFile(source, pre_buffer=False) as file:
                if file.metadata.num_rows != ref.rows:
                    raise ArtifactMissing(
                        f"store {self.uri}: {ref.name} has {file.metadata.num_rows} rows and its reference"
                        f" says {ref.rows}; run again with --refresh {ref.kind}"
                    )
                yield file

    def _verify(self, ref: ArtifactRef, source: IO[bytes]) -> None:
        try:
            self._check_digest(ref.name, ref.digest, source)
        except FileDamaged as error:
            # Out of the way, so that the next run finds it missing and computes it.
            STORE_LOG.warning("%s; it is set aside as %s", error, self.set_aside(ref.name))
            raise ArtifactMissing(
                f"store {self.uri}: {ref.name} was altered; run again: it is computed"
            ) from error

    def _check_digest(self, name: str, digest: str, source: IO[bytes]) -> None:
        """Raises FileDamaged for a file of which SHA-256 does not begin so; leaves it at its start."""
        identity = self._identity(name, source)
        if identity is None or self._verified.get(name) != (identity, None):
            found = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
            if not found.startswith(digest):
                raise self.damage(name, "its bytes are not those that were written")
            self._verified[name] = identity, None
            source.seek(0)


def _json_object(content: bytes) -> None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise seals.Broken(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise seals.Broken("it holds no JSON object")


def _token(entry: Mapping[str, Any]) -> str:
    said = (entry.get(key) for key in ("size", "mtime", "ino", "ETag", "LastModified", "created"))
    return " ".join(str(value) for value in said if value is not None)


def is_artifact(name: str) -> bool:
    """Whether a name is ``<stage>/<key>.<digest>.parquet``, whatever the stage."""
    _, _, file = name.partition("/")
    key, *rest = file.split(".")
    return (
        "/" not in file and len(key) == 64 and len(rest) == 2 and len(rest[0]) == 16 and rest[1] == "parquet"
    )


def remedy(name: str) -> str:
    """What to do about a damaged file of this name, or what happens anyway."""
    folder = name.partition("/")[0]
    if is_artifact(name) or folder == RECORDS:
        return "its step is computed again by the next run"
    if folder == "answers" and name.endswith(".parquet"):
        return "its answers are asked for again"
    return "python -m flows.store --repair sets it aside, and makes it again where it can"


class _PatientFile(io.RawIOBase):
    """A large file of an object store, each read of which waits for a store that is away."""

    def __init__(self, source: Any, boundary: Boundary, name: str) -> None:
        self._source, self._boundary, self._name = source, boundary, name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        return int(self._source.tell())

    def readinto(self, buffer: Any) -> int:
        content = self._boundary.call("read", self._name, partial(self._source.read, len(buffer)))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._source.close()
        super().close()


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
