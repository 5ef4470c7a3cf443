"""Sealed files: each holds digests of all of its bytes, so that a reader knows that it reads what was
written.

A *document*, one JSON object, ends with the key ``nightjar_seal``: SHA-256 of everything before it. A
*table*, a Parquet file, has an entry of that name in its footer: a digest of every block of the bytes before
the footer, and SHA-256 of the footer, read as if that digest were zeros. That digest vouches for those of
the blocks, and they for all rows: a table whose seal is whole is whole, and of a damaged one the row groups
whose blocks are sound are still proven. DuckDB and every other reader of Parquet see a plain file.

A seal names the version of the columns. A file without one is of a version before seals; half a seal is
damage.
Nothing here knows of the store: content in, content out.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

SEAL: Final = "nightjar_seal"
BLOCK: Final = 1 << 20
"""Bytes that one digest is of, in a table whose rows can be made again."""
FINE_BLOCK: Final = 1 << 14
"""The same where each row is worth saving: a damaged byte costs the row groups of one such block."""
_DOCUMENT: Final = re.compile(rb'"nightjar_seal":"(\d{1,4}):([0-9a-f]{64})"\}\Z')
_HALF: Final = re.compile(rb'nightjar_seal|"\d{1,4}:[0-9a-f]{64}"\}\Z')
_TABLE: Final = re.compile(rb"sealed:(\d{1,4}):(\d{1,10}):(\d{1,15}):([0-9a-f]{64}):((?:[0-9a-f]{32})*);")
_LONGEST: Final = 120
"""Bytes of the longest seal of a document."""
_TAIL: Final = 8
_MAGIC: Final = b"PAR1"


class Broken(Exception):
    """A file is not what was written; says what is wrong."""


def seal_document(content: bytes, version: int) -> bytes:
    """One JSON object with its seal as the last key; raises ValueError for anything else.

    >>> open_document(seal_document(b'{"a": 1}', 2))
    (b'{"a": 1}', 2)
    """
    text = content.rstrip()
    if not text.startswith(b"{") or not text.endswith(b"}"):
        raise ValueError("expected a JSON object")
    head = text[:-1]
    if head.strip() != b"{":
        head += b","
    return head + b'"%s":"%d:%s"}' % (SEAL.encode(), version, _document_digest(head, version))


def open_document(content: bytes) -> tuple[bytes, int | None]:
    """The object without its seal, and the seal's version; None where it has none. Raises Broken."""
    end = content[-_LONGEST:]
    found = _DOCUMENT.search(end)
    if found is None:
        if _HALF.search(end):
            raise Broken("its seal is cut or altered")
        return content, None
    head, version = content[: len(content) - len(end) + found.start()], int(found[1])
    if found[2] != _document_digest(head, version):
        raise Broken("its bytes are not those that were written")
    return head.removesuffix(b",") + b"}", version


def _document_digest(head: bytes, version: int) -> bytes:
    return hashlib.sha256(b"%d:" % version + head).hexdigest().encode()


@dataclass(frozen=True)
class TableSeal:
    """What the footer of a table says of it: ``blocks`` are digests of ``block`` bytes each, up to the
    footer at ``body``."""

    version: int
    block: int
    body: int
    blocks: tuple[bytes, ...]


@contextmanager
def sealed_table(
    sink: IO[bytes], schema: pa.Schema, version: int, block: int = BLOCK, **options: Any
) -> Iterator[pq.ParquetWriter]:
    """A writer of rows into an empty file, open for reading and writing; the table is sealed when the block
    ends well."""
    hashed = _HashedBlocks(sink, block)
    with pq.ParquetWriter(hashed, schema, **options) as writer:
        yield writer
        body, blocks = hashed.tell(), b"".join(hashed.digests())
        zeros = b"0" * 64
        entry = b"sealed:%d:%d:%d:%s:%s;" % (version, block, body, zeros, blocks)
        writer.add_key_value_metadata({SEAL: entry.decode()})
    sink.seek(body)
    footer = sink.read()
    place = footer.find(entry) + entry.index(zeros)
    if _footer_start(sink) != body or place < entry.index(zeros):
        raise RuntimeError("Arrow wrote the footer of a table elsewhere than it said")
    sink.seek(body + place)
    sink.write(hashlib.sha256(footer).hexdigest().encode())
    sink.seek(0, io.SEEK_END)


def read_seal(file: IO[bytes]) -> TableSeal | None:
    """The seal of a table, which its footer bears out; None where it has none. Raises Broken."""
    body = _footer_start(file)
    file.seek(body)
    footer = file.read()
    found = list(_TABLE.finditer(footer))
    if len(found) != 1:
        if found or SEAL.encode() in footer or b"sealed:" in footer:
            raise Broken("its seal is cut or altered")
        return None
    version, block, end, digest, blocks = found[0].groups()
    start, stop = found[0].span(4)
    if digest != hashlib.sha256(footer[:start] + b"0" * 64 + footer[stop:]).hexdigest().encode():
        raise Broken("its footer is not what was written")
    if int(end) != body or int(block) < 1:
        raise Broken("it was cut, or bytes were added")
    digests = tuple(blocks[at : at + 32] for at in range(0, len(blocks), 32))
    return TableSeal(int(version), int(block), body, digests)


def damaged_blocks(file: IO[bytes], seal: TableSeal) -> frozenset[int]:
    """The blocks of a table that are not what was written, by their numbers."""
    file.seek(0)
    wrong = set()
    for number, digest in enumerate(seal.blocks):
        content = file.read(min(seal.block, seal.body - number * seal.block))
        if hashlib.sha256(content).hexdigest()[:32].encode() != digest:
            wrong.add(number)
    return frozenset(wrong)


def check_table(file: IO[bytes]) -> int | None:
    """The version of a table that is whole; None where it has no seal. Raises Broken. Leaves the file at its
    start."""
    seal = read_seal(file)
    if seal is not None and (wrong := damaged_blocks(file, seal)):
        raise Broken(f"{len(wrong)} of {len(seal.blocks)} blocks are not what was written")
    file.seek(0)
    return None if seal is None else seal.version


def proven_groups(file: IO[bytes]) -> tuple[list[int], int]:
    """The row groups of a damaged table that are proven to be what was written, and the version of its
    columns. Raises Broken where the footer is damaged or unsealed: then nothing is proven."""
    seal = read_seal(file)
    if seal is None:
        raise Broken("it has no seal")
    wrong = damaged_blocks(file, seal)
    file.seek(0)
    metadata = pq.read_metadata(file)
    proven = []
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(at) for at in range(metadata.num_columns)]
        first = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
        last = first + sum(column.total_compressed_size for column in columns) - 1
        if wrong.isdisjoint(range(first // seal.block, last // seal.block + 1)):
            proven.append(group)
    file.seek(0)
    return proven, seal.version


def _footer_start(file: IO[bytes]) -> int:
    size = file.seek(0, io.SEEK_END)
    if size < 2 * _TAIL:
        raise Broken("it was cut")
    file.seek(size - _TAIL)
    tail = file.read(_TAIL)
    start = size - _TAIL - int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or start < len(_MAGIC):
        raise Broken("it was cut, or its end is altered")
    return start


class _HashedBlocks(io.RawIOBase):
    """A file to write to that digests its blocks as they pass."""

    def __init__(self, sink: IO[bytes], block: int) -> None:
        self._sink, self._block = sink, block
        self._position = 0
        self._current = hashlib.sha256()
        self._digests: list[bytes] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        self._sink.write(content)
        at = 0
        while at < len(content):
            room = self._block - self._position % self._block
            part = content[at : at + room]
            self._current.update(part)
            self._position += len(part)
            at += len(part)
            if self._position % self._block == 0:
                self._end_block()
        return len(content)

    def digests(self) -> Sequence[bytes]:
        """Of every block so far, the last perhaps a short one."""
        if self._position % self._block:
            self._end_block()
        return self._digests

    def _end_block(self) -> None:
        self._digests.append(self._current.hexdigest()[:32].encode())
        self._current = hashlib.sha256()
