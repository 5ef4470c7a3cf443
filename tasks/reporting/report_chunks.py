"""Samples inside an HTML page: compressed blocks of JSON that the browser unpacks when it needs them.

A block is gzip in base64 in a ``<script type="application/octet-stream">`` element, which no browser runs, so
that text from models can't end the element or begin another, whatever it holds. Blocks are written as soon as
they are full: memory does not grow with the run.
"""

import base64
import gzip
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

BLOCK_BYTES: Final = 1 << 18
OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8; NaN and infinities become null, lone surrogates U+FFFD, unknown objects their text."""
    try:
        return orjson.dumps(value, default=str, option=OPTIONS)
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits
        return orjson.dumps(_representable(value), default=str, option=OPTIONS)


def inline_json(value: Any) -> str:
    """JSON for a ``<script type="application/json">`` element: no ``<``, ``>`` or ``&`` stands in it as
    itself."""
    text = json_bytes(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed_element(name: str, value: Any) -> str:
    """One script element with the JSON of ``value``, compressed."""
    packed = base64.b64encode(gzip.compress(json_bytes(value), 6, mtime=0)).decode()
    return f'<script type="application/octet-stream" data-name="{name}">{packed}</script>\n'


def _representable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, Mapping):
        return {_representable(key): _representable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_representable(entry) for entry in value]
    return value


class BlockWriter:
    """Collects records and writes an element whenever a block is full.

    ``sizes`` tells afterwards how many samples each block holds.
    """

    def __init__(self, name: str, write: Callable[[str], Any]) -> None:
        self.name = name
        self.sizes: list[int] = []
        self.written = 0
        self._write = write
        self._questions: list[Any] = []
        self._samples: list[Any] = []
        self._pending = 0

    def add(self, sample: Any, question: Any | None, size: int) -> None:
        """Adds a sample of about ``size`` characters, and the question it answers if that is new."""
        if question is not None:
            self._questions.append(question)
        self._samples.append(sample)
        self._pending += size
        if self._pending >= BLOCK_BYTES:
            self.close()

    def close(self) -> None:
        """Writes what is pending."""
        if not self._samples:
            return
        element = packed_element(self.name, {"questions": self._questions, "samples": self._samples})
        self._write(element)
        self.written += len(element)
        self.sizes.append(len(self._samples))
        self._questions, self._samples, self._pending = [], [], 0
