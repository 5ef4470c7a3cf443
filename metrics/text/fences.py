"""Fenced blocks of Markdown, read as CommonMark reads them, at any indentation."""

import re
from dataclasses import dataclass

_OPENING = re.compile(
    r"(?P<before>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)"  # it may begin an entry of a list
    r"(?P<fence>`{3,}+(?!.*`)|~{3,}+)[ \t]*(?P<language>[\w+-]*)"
)


@dataclass(frozen=True)
class Block:
    """What stands between two fences, without their indentation; ``language`` is what the first of them
    names, in small letters."""

    language: str
    text: str


def fenced_blocks(text: str) -> list[Block]:
    """The blocks of a text between fences of backticks or tildes; the last may lack its closing fence.

    >>> fenced_blocks("1. So:\\n\\n   ```python\\n   x = 1\\n   ```\\nDone.")
    [Block(language='python', text='x = 1\\n')]
    >>> fenced_blocks("```x``` is no block")
    []
    """
    lines = text.replace("\r\n", "\n").split("\n")
    blocks, place = [], 0
    while place < len(lines) - 1:  # a fence at the very end opens nothing
        opening = _OPENING.match(lines[place])
        place += 1
        if opening is not None:
            end = _closing(lines, place, opening)
            inside = [_unindented(line, opening["before"]) for line in lines[place:end]]
            last = [""] if inside and end < len(lines) else []
            blocks.append(Block(opening["language"].lower(), "\n".join(inside + last)))
            place = end + 1
    return blocks


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """The place of the line that closes a block; behind the last line where none does."""
    furthest = _columns(opening["before"]) + 3
    for place in range(start, len(lines)):
        blanks, fence = _parts(lines[place].rstrip(" \t"))
        closes = fence.startswith(opening["fence"]) and not fence.strip(fence[0])
        if closes and _columns(blanks) <= furthest:
            return place
    return len(lines)


def _unindented(line: str, before: str) -> str:
    """The line without the blanks that stand before the opening fence, as far as it has them."""
    blanks, rest = _parts(line)
    if blanks.startswith(before):
        return line[len(before) :]
    return " " * (_columns(blanks) - _columns(before)) + rest


def _parts(line: str) -> tuple[str, str]:
    """The blanks that a line begins with, and what follows them."""
    rest = line.lstrip(" \t")
    return line[: len(line) - len(rest)], rest


def _columns(blanks: str) -> int:
    return len(blanks.expandtabs(4))
