"""``suite.html``: the page of a night, made of what ``flows.suite.page`` found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tasks.reporting.page import page_parts
from tasks.store.home import whole_text

SCRIPTS: Final = ("dom.js", "page.js", "night.js")
CHIPS: Final = {
    "pass": "full",
    "regression": "none",
    "inconclusive": "part",
    "worse": "part",
    "undecided": "part",
}
"""Verdict → the kind of chip that shows it."""


def write_night(path: Path, context: Mapping[str, Any]) -> None:
    """Writes the page; the file appears when it is complete. Raises FileUnwritable."""
    before, after = page_parts("night.html", {**context, "chips": CHIPS}, SCRIPTS)
    with whole_text(path) as file:
        file.write(before)
        file.write(after)
