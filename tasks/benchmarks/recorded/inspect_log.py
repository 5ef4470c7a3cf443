"""Inspect's logs, read as they are: ``.eval``, a zip archive with a file for each sample, and ``.json``.

The format is that of inspect_ai 0.3 (``inspect_ai.log``, version 2 of a log); its package is not needed.
"""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from metrics.json_values import with_leaves
from tasks.benchmarks.recorded.inspect_shape import checked_header, checked_sample
from tasks.datasets.config import DatasetError, parsed_json

ZSTANDARD: Final = 93
"""The zip format's number of a compression that Python's ``zipfile`` reads from 3.14 on."""
SAMPLE_BYTES: Final = 1 << 30
"""The most that a sample may take unpacked, its attachments in their places: a small log that comes from
elsewhere must not fill the memory. Inspect's own samples with pictures take some megabytes."""
ATTACHMENT: Final = re.compile(r"attachment://([0-9a-f]{32})")
HALF: Final = re.compile("[\ud800-\udfff]")
ESCAPED_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
VALUES: Final[Mapping[str, float]] = {
    "C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0,
}  # fmt: skip
"""What Inspect's ``value_to_float`` makes of its words; the first four as they are written."""


@dataclass(frozen=True)
class InspectLog:
    """One log: its header (``eval``, ``status``, ``results``; of a run that was killed what it began with)
    and how to read its samples."""

    path: Path
    header: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "InspectLog":
        """Raises DatasetError for a file that is no log of Inspect's."""
        try:
            header = _parsed(path.read_bytes(), str(path)) if path.suffix == ".json" else _header(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DatasetError(f"{path}: can't be read as a log of Inspect: {error}") from error
        if not isinstance(header, Mapping) or not isinstance(header.get("eval"), Mapping):
            raise DatasetError(
                f"{path}: is no log of Inspect: it has no 'eval'; expected FILE.eval or FILE.json"
            )
        checked_header(header, str(path))
        return cls(path, header)

    @property
    def task(self) -> str:
        """The evaluation's name."""
        return str(self.header["eval"].get("task") or self.path.stem)

    @property
    def model(self) -> str:
        """The model as Inspect names it, such as ``openai/gpt-4o``."""
        return str(self.header["eval"].get("model") or "model")

    @property
    def epochs(self) -> int:
        """How often each sample was run."""
        return int((self.header["eval"].get("config") or {}).get("epochs") or 1)

    @property
    def expected(self) -> tuple[str, ...]:
        """The ids of the samples that the evaluation was about; empty where the log does not say."""
        return tuple(str(one) for one in (self.header["eval"].get("dataset") or {}).get("sample_ids") or ())

    def results(self) -> Sequence[Mapping[str, Any]]:
        """What the log says of each score: its name, scorer, reducer, and metrics with their values."""
        return (self.header.get("results") or {}).get("scores") or ()

    def samples(self) -> Iterator[dict[str, Any]]:
        """Its samples, long texts put back where the log refers to them; raises DatasetError naming the file
        of a sample that can't be read or takes more than ``SAMPLE_BYTES``."""
        if self.path.suffix == ".json":
            for number, sample in enumerate(self.header.get("samples") or ()):
                yield _whole(sample, f"{self.path}: samples[{number}]")
            return
        with self.path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                if entry.filename.startswith("samples/") and entry.filename.endswith(".json"):
                    place = f"{self.path}: {entry.filename}"
                    yield _whole(_parsed(_bytes(archive, entry), place), place)


def number_of(value: Any) -> float | None:
    """A score's value as Inspect counts it; None for what is no number (it counts a text that says nothing as
    0).

    >>> [number_of(value) for value in ("C", "P", True, 3, "0.5", "abc", None)]
    [1.0, 0.5, 1.0, 3.0, 0.5, None, None]
    """
    if isinstance(value, str):
        known = VALUES.get(value, VALUES.get(value.lower()) if len(value) > 1 else None)
        if known is not None:
            return known
        try:
            value = float(value)
        except ValueError:
            return None
    try:
        return float(value) if isinstance(value, (bool, int, float)) and math.isfinite(value) else None
    except OverflowError:  # an integer that no float holds
        return None


def text_of(content: Any) -> str:
    """The text of a message's content: itself, or that of its parts; other parts are named by their type."""
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, Mapping) and part.get("type") != "reasoning"]
    return "\n".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)


def _header(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        for name in ("header.json", "_journal/start.json"):  # the second alone: the run was killed
            if name in entries:
                return _parsed(_bytes(archive, entries[name]), f"{path}: {name}")
    return None


def _parsed(text: bytes, place: str) -> Any:
    """The document; a half of a character, which no file can hold, becomes the sign for an unknown one."""
    document = parsed_json(text, place)
    try:
        return _with_texts(document, partial(HALF.sub, "\ufffd")) if ESCAPED_HALF.search(text) else document
    except RecursionError:
        raise _too_deep(place) from None


def _with_texts(value: Any, changed: Callable[[str], str]) -> Any:
    """The document with each text, names too, as the function changes it."""
    return with_leaves(value, lambda leaf: changed(leaf) if isinstance(leaf, str) else leaf, changed)


def _too_deep(place: str) -> DatasetError:
    return DatasetError(f"{place}: is nested too deeply to be read")


def _bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > SAMPLE_BYTES:
        raise _too_large(f"{archive.filename}: {entry.filename}")
    try:
        return _unpacked(archive, entry) if entry.compress_type == ZSTANDARD else archive.read(entry)
    except (OSError, EOFError, struct.error, pa.ArrowInvalid, zlib.error, zipfile.BadZipFile) as error:
        raise DatasetError(f"{archive.filename}: {entry.filename} is damaged: {error}") from error


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    file = archive.fp
    assert file is not None
    file.seek(entry.header_offset)
    # The local header says again how long the name and the extra field before the data are.
    name, extra = struct.unpack("<26xHH", file.read(30))
    file.seek(name + extra, 1)
    with pa.input_stream(pa.py_buffer(file.read(entry.compress_size)), compression="zstd") as stream:
        unpacked: bytes = stream.read(entry.file_size + 1)  # never more than the archive says of it
    if zlib.crc32(unpacked) != entry.CRC:
        raise zipfile.BadZipFile("its checksum is another")
    return unpacked


def _too_large(place: str) -> DatasetError:
    return DatasetError(
        f"{place}: is larger than {SAMPLE_BYTES >> 20:,} MiB unpacked, the most that is read of one sample; "
        "write the log again without it"
    )


def _whole(sample: dict[str, Any], place: str) -> dict[str, Any]:
    """The sample with its attachments in their places; ``place`` says in an error where it stands."""
    attachments = checked_sample(sample, place).get("attachments") or {}
    left = SAMPLE_BYTES

    def attached(found: re.Match[str]) -> str:
        nonlocal left
        text = str(attachments.get(found[1], found[0]))
        left -= len(text)
        if left < 0:
            raise _too_large(place)
        return text

    kept = {name: value for name, value in sample.items() if name not in ("events", "attachments", "store")}
    try:
        return _with_texts(kept, partial(ATTACHMENT.sub, attached)) if attachments else kept
    except RecursionError:
        raise _too_deep(place) from None
