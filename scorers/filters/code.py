"""The filter step that finds a program in an answer."""

import re

from scorers.filters.registry import Docs, ItemResponses, each_text, filter_step

_FENCE = re.compile(
    r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)


@filter_step("code_block", keeps="all", source="this project")
def code_block(
    resps: ItemResponses, docs: Docs, language: str = "python", which: str = "last"
) -> list[list[str | None]]:
    """The ``which`` (first or last) block between ``` that is of ``language`` or names none, else of any; an
    answer without blocks is taken whole, one whose last block was not closed to its end.

    >>> code_block([["So:\\n```python\\nx = 1\\n```\\nDone."]], [{}])
    [['x = 1\\n']]
    >>> code_block([["x = 2"]], [{}])
    [['x = 2']]
    """
    if which not in ("first", "last"):
        raise ValueError(f"which is first or last, not {which!r}")

    def found(text: str) -> str:
        blocks = [(name.lower(), code) for name, code in _FENCE.findall(text)]
        names = (language.lower(), "py" if language.lower() == "python" else language.lower(), "python3", "")
        own = [code for name, code in blocks if name in names] or [code for _, code in blocks]
        return text if not own else own[0 if which == "first" else -1]

    return each_text(resps, "code_block", found)
