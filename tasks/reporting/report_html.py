"""Templates, styles and scripts become one page that needs no network.

The page's content security policy allows exactly the style and the script that are in it, by their digest,
and nothing else: no request, no frame, no form, no inline handler. Whatever a model wrote could not run even
if it were taken for markup, and it is not: templates escape, scripts set ``textContent``.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.reporting import report_numbers as numbers
from tasks.reporting.report_chunks import inline_json

ASSETS: Final = Path(__file__).parent / "assets"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates that escape everything and refuse a variable that is not there."""
    made = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["n"] = numbers
    made.filters["inline_json"] = lambda value: Markup(inline_json(value))
    return made


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


def read_asset(name: str) -> str:
    """A style or script. Neither may hold ``</``: it could end its element."""
    text = (ASSETS / name).read_text(encoding="utf-8")
    if "</" in text:
        raise ValueError(f"{name} holds '</', which would end its element in the page; write '<\\/'")
    return text


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
