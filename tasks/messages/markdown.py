"""Texts of others in Markdown: names, answers and fields of a dataset are data, and never markup.

Prefect's UI shows pages, descriptions and tables as Markdown (artifacts), and so does ``suite.md``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SIGNS: Final = re.compile(r"([\\`*{}\[\]<>#|~$&!@]|(?<![^\W_])_|_(?![^\W_]))")
_ADDRESS: Final = re.compile(r"(?i)(?<=\w):(?=//)|(?<=\bwww)\.")
_OPENING: Final = re.compile(r"^([-+=]|\d+(?=[.)](\s|$)))")


def as_text(said: str) -> str:
    r"""What Markdown shows as these very signs, on one line.

    >>> as_text("a_b | <c>"), as_text("1. see http://a.b"), as_text("- _no_")
    ('a_b \\| \\<c\\>', '1\\. see http\\://a.b', '\\- \\_no\\_')
    """
    text = _ADDRESS.sub(lambda found: f"\\{found[0]}", _SIGNS.sub(r"\\\1", " ".join(said.split())))
    return _OPENING.sub(lambda found: f"\\{found[0]}" if found[0] in "-+=" else f"{found[0]}\\", text)


def as_code(said: str, *, cell: bool = False) -> str:
    """The text as a span of code, on one line; ``cell``: of a table."""
    text = " ".join(said.split())
    text = text.replace("|", "\\|") if cell else text
    fence = "`" * (_longest_fence(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""


def as_block(text: str) -> str:
    """The text as a block of code, line by line."""
    fence = "`" * max(3, _longest_fence(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def as_cells(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table of Prefect's, whose UI reads the texts in cells as Markdown."""
    return [
        {name: as_text(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    ]


def table_row(cells: Iterable[str]) -> str:
    """A row of a table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |"


def _longest_fence(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
