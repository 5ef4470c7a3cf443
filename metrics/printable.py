"""Text of others as it may be shown: what a terminal would obey, or a reader be deceived by, is written out.

Messages, item ids, labels and names come from datasets, endpoints and users' files. An escape character in
one of them could clear the screen or write into the window's title, a mark of direction turn ``exe.txt``
around. Every way out of the program takes its text through ``printable``.
"""

import re
from typing import Any, Final

_OBEYED: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks of direction
    "\u2028\u2029"  # separators that some take for line breaks
    "\ud800-\udfff"  # halves of characters, which no encoding holds
    "]"
)


def printable(text: str) -> str:
    r"""The text with each such character as its escape, as in JSON; JSON stays the same document.

    >>> print(printable("\x1b[2Jfine\n"), end="")
    \u001b[2Jfine
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_values(value: Any) -> Any:
    """As ``printable``, for every text in lists and mappings, their keys included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(entry) for key, entry in value.items()}
    return [printable_values(entry) for entry in value] if isinstance(value, list | tuple) else value


LONGEST_NAME: Final = 200
"""Bytes of a name: files are called after benchmarks, and no file system takes more than 255."""


def check_name(name: str) -> str:
    """The name, if results and files can go by it; raises ValueError saying why not.

    >>> check_name("Qwen/Qwen3-8B")
    'Qwen/Qwen3-8B'
    """
    if printable(name) != name or "\n" in name or "\t" in name:
        raise ValueError(f"holds characters that can't be shown: {printable(ascii(name)[1:-1])}")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"is {len(name.encode())} bytes long, expected {LONGEST_NAME} at most")
    if {".", ".."} & set(re.split(r"[/\\]", name)):
        raise ValueError(f"is a path ({name}), expected a name")
    return name
