"""How a page needs no network and runs nothing that a model wrote.

Templates, styles and scripts become one file whose content security policy allows exactly the style and the
script that are in it, by their digest: no request, no frame, no form, no inline handler. Samples lie in it as
blocks of compressed JSON in elements that no browser runs; they are written as soon as they are full, so that
memory does not grow with the run. Templates escape, scripts set ``textContent``.
"""

import base64
import gzip
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.reporting import numbers

ASSETS: Final = Path(__file__).parent / "assets"
BLOCK_BYTES: Final = 1 << 18
OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def page_parts(template: str, context: Mapping[str, Any], scripts: Sequence[str]) -> tuple[str, str]:
    """The page before and after its samples.

    ``template`` names a file in the assets that holds the marker ``<!-- samples -->`` once; ``scripts`` are
    joined in order into the page's one script.
    """
    style = read_asset("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(read_asset, scripts)) + "\n})();"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = (
        environment()
        .get_template(template)
        .render(**context, style=Markup(style), script=Markup(script), policy=policy)
    )
    before, after = page.split("<!-- samples -->")
    return before, after


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


def packed_element(name: str, value: Any) -> str:
    """One script element with the JSON of ``value``, compressed."""
    packed = base64.b64encode(gzip.compress(json_bytes(value), 6, mtime=0)).decode()
    return f'<script type="application/octet-stream" data-name="{name}">{packed}</script>\n'


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates that escape everything and refuse a variable that is not there."""
    templates = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["n"] = numbers
    templates.filters["inline_json"] = lambda value: Markup(inline_json(value))
    return templates


def read_asset(name: str) -> str:
    """A style or script. Neither may hold ``</``: it could end its element."""
    text = (ASSETS / name).read_text(encoding="utf-8")
    if "</" in text:
        raise ValueError(f"{name} holds '</', which would end its element in the page; write '<\\/'")
    return text


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


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
