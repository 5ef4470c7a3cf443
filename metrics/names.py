"""What a name may be that results and files go by."""

import re
from typing import Final

from metrics.errors import printable

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
