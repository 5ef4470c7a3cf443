"""Tables for a terminal of any width, in which no digit and no name is ever cut.

A table that is too wide first moves the columns marked ``second`` (notes, intervals) to a line below each
row. Where that is not enough, each row becomes a block: one column a line, beside its name. The same in every
command.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from metrics.errors import ASCII, printable

GAPS = (3, 2)
"""Blanks between two columns: as many as fit."""
INDENT = 4
"""Blanks before a second line."""


def one_line(text: str) -> str:
    """The text with a blank for every break: in a table, and in a sentence that has a line.

    >>> one_line("red\\ngate: pass")
    'red gate: pass'
    """
    return " ".join(text.splitlines())


@dataclass(frozen=True)
class Column:
    """A column. ``second``: it goes to a line below its row where the terminal is narrow.

    A column without a name belongs to the one before it (an arrow, a star).
    """

    name: str
    right: bool = False
    second: bool = False


@dataclass(frozen=True)
class FittedTable:
    """A rich renderable: as many cells a row as there are columns; ``styles``, if given, is one a row."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text | str]]
    styles: Sequence[str | None] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The first of the three forms that fits; for a file or a pipe that is the first."""
        drawn = _Drawn(self, options)
        for below in (frozenset[int](), drawn.second):
            for gap in GAPS:
                if drawn.width_without(below, gap) <= options.max_width:
                    yield from drawn.lines(below, gap)
                    return
        yield from drawn.blocks()


class _Drawn:
    """A table's texts as they will be shown, with their widths."""

    def __init__(self, table: FittedTable, options: ConsoleOptions) -> None:
        self.width = options.max_width
        self.ascii_only = options.ascii_only
        self.columns = table.columns
        self.names = [self._shown(Text(column.name, style="bold")) for column in table.columns]
        self.rows = [
            [self._shown(cell if isinstance(cell, Text) else Text(cell)) for cell in row]
            for row in table.rows
        ]
        self.styles = list(table.styles) or [None] * len(self.rows)
        self.widths = [
            max(text.cell_len for text in (name, *(row[at] for row in self.rows)))
            for at, name in enumerate(self.names)
        ]
        self.second = frozenset(at for at, column in enumerate(self.columns) if column.second)

    def _shown(self, cell: Text | str) -> Text:
        """The cell on one line, as the terminal will show it."""
        text = cell if isinstance(cell, Text) else Text(cell)
        line = printable(one_line(text.plain))
        return Text(line.translate(ASCII) if self.ascii_only else line, style=text.style)

    def width_without(self, below: frozenset[int], gap: int) -> int:
        widths = [width for at, width in enumerate(self.widths) if at not in below]
        return sum(widths) + gap * (len(widths) - 1)

    def lines(self, below: frozenset[int], gap: int) -> Iterator[Text]:
        """A line a row under a head; the columns of ``below`` on lines below their row."""
        yield self._line(self.names, below, gap)
        rule = "-" if self.ascii_only else "─"
        yield _whole(Text(rule * self.width_without(below, gap)))
        for row, style in zip(self.rows, self.styles, strict=True):
            yield self._line(row, below, gap, style or "")
            yield from self._second_lines(row, below)

    def _line(self, texts: Sequence[Text], below: frozenset[int], gap: int, style: str = "") -> Text:
        line = Text(style=style)
        for at, (text, column) in enumerate(zip(texts, self.columns, strict=True)):
            if at in below:
                continue
            blanks = " " * (self.widths[at] - text.cell_len)
            line.append(blanks if column.right else "").append_text(text)
            line.append(("" if column.right else blanks) + " " * gap)
        line.rstrip()
        return _whole(line)

    def _second_lines(self, row: Sequence[Text], below: frozenset[int]) -> Iterator[Text]:
        """Names and values of the columns below a row, as many on a line as fit; no value is parted unless it
        is longer than a line."""
        room = self.width - INDENT
        line = ""
        for at in sorted(below):
            if not row[at].plain:
                continue
            piece = f"{self.names[at].plain} {row[at].plain}".strip()
            if line and cell_len(line) + 2 + cell_len(piece) > room:
                yield from self._indented(line, INDENT)
                line = ""
            line = f"{line}  {piece}" if line else piece
        if line:
            yield from self._indented(line, INDENT)

    def _indented(self, text: str, indent: int) -> Iterator[Text]:
        for part in folded(text, max(self.width - indent, 1)):
            yield _whole(Text(" " * indent + part, style="dim"))

    def blocks(self) -> Iterator[Text]:
        """A block a row: name and value a line; a value that does not fit beside its name stands below it."""
        names = max((name.cell_len for name in self.names), default=0)
        for number, (row, style) in enumerate(zip(self.rows, self.styles, strict=True)):
            if number:
                yield Text()
            for name, value in self._named(row):
                head = Text(style=style or "").append(name.plain.ljust(names), style="bold")
                if names + 2 + value.cell_len <= self.width:
                    yield _whole(head.append("  ").append_text(value))
                    continue
                yield _whole(head)
                for part in folded(value.plain, max(self.width - 2, 1)):
                    yield _whole(Text(f"  {part}", style=value.style))

    def _named(self, row: Sequence[Text]) -> Iterator[tuple[Text, Text]]:
        """Name and value of each column; one without a name is joined to the one before it."""
        found: list[tuple[Text, Text]] = []
        for name, value in zip(self.names, row, strict=True):
            if not name.plain and found:
                joined = found[-1][1].copy()
                found[-1] = (found[-1][0], joined.append(" ").append_text(value) if value.plain else joined)
            elif value.plain:
                found.append((name, value))
        return iter(found)


def folded(text: str, width: int) -> Iterator[str]:
    """The text in lines of at most ``width``, parted at blanks; a word only if longer than a line.

    >>> list(folded("12.5 and alongname", 6))
    ['12.5', 'and', 'alongn', 'ame']
    """
    line = ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) <= width:
            line = f"{line} {word}"
            continue
        if line:
            yield line
        line = ""
        for character in word:
            if line and cell_len(line) + cell_len(character) > width:
                yield line
                line = ""
            line += character
    yield line


def _whole(line: Text) -> Text:
    """A line that rich neither wraps nor cuts."""
    return Text.assemble(line, style=line.style, no_wrap=True, overflow="ignore")
