"""How the progress of an inference is shown: a line for each model on a terminal, a table in the Prefect UI.

The inference stage reports each partition apart, from several threads. A board adds a model's partitions up
and draws them; where the output is not a terminal nothing is drawn, and reporting costs a dictionary entry.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from tasks.models.options import Progress
from tasks.reporting import numbers

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


ProgressCallback = Callable[[Progress], None]


def combined(parts: Iterable[Progress]) -> Progress:
    """The progress of a model from that of its partitions: numbers add up, the longest time left is the
    model's.

    ``expected`` and ``seconds_left`` are None as long as one partition can't say; a finished one has nothing
    left.
    """
    parts = list(parts)
    expected = [part.expected for part in parts]
    left = [0.0 if part.done == part.expected else part.seconds_left for part in parts]
    return Progress(
        done=sum(part.done for part in parts),
        expected=None if None in expected else sum(n or 0 for n in expected),
        cached=sum(part.cached for part in parts),
        failed=sum(part.failed for part in parts),
        model_errors=sum(part.model_errors for part in parts),
        retries=sum(part.retries for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        concurrency=max((part.concurrency for part in parts), default=0),
        rate=sum(part.rate for part in parts if part.done != part.expected),
        tokens_per_second=sum(part.tokens_per_second for part in parts if part.done != part.expected),
        cost=sum(part.cost for part in parts),
        seconds_left=None if None in left else max((seconds or 0.0 for seconds in left), default=None),
    )


def progress_markdown(models: Mapping[str, Progress]) -> str:
    """A Markdown table with a row for each model, for a progress artifact."""
    lines = [
        "| Model | Done | Requests/s | Errors | Retries | Tokens/s | Cost | Time left |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, progress in models.items():
        cells = [name.replace("|", "\\|"), *_words(progress).values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(models: Mapping[str, Progress]) -> float:
    """How far all models together are, from 0 to 100; 0 as long as it is not known how much there is."""
    total = combined(models.values())
    return 100 * total.done / total.expected if total.expected else 0.0


class ProgressBoard:
    """Takes the reports of all partitions; as a context manager it draws them while it is open.

    ``expected`` says how many requests a model will have in all, if that is known before its partitions
    start.
    """

    def __init__(self, file: TextIO | None = None, expected: Mapping[str, int] | None = None) -> None:
        self._file = file or sys.stderr
        self._expected = dict(expected or {})
        self._parts: dict[str, dict[object, Progress]] = {}
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._rows: dict[str, Any] = {}

    def reporter(self, model: str, partition: object = 0) -> ProgressCallback:
        """What the inference of one partition calls with its progress, from any thread."""

        def report(progress: Progress) -> None:
            with self._lock:
                self._parts.setdefault(model, {})[partition] = progress
                self._draw(model)

        return report

    def models(self) -> dict[str, Progress]:
        """The progress of each model, in order of appearance."""
        with self._lock:
            return {model: combined(parts.values()) for model, parts in self._parts.items()}

    def __enter__(self) -> "ProgressBoard":
        """Starts drawing, if the output is a terminal."""
        if self._file.isatty():
            self._bars = _bars(self._file)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the last state on the screen."""
        bars, self._bars = self._bars, None
        if bars is not None:
            bars.stop()

    def _draw(self, model: str) -> None:
        if self._bars is None:
            return
        progress = combined(self._parts[model].values())
        total = max(self._expected.get(model, 0), progress.expected or 0) or None
        words = _words(progress, total)
        if model not in self._rows:
            self._rows[model] = self._bars.add_task(model, total=total, words=words)
        self._bars.update(self._rows[model], completed=progress.done, total=total, words=words)


_boards: list[ProgressBoard] = []


@contextmanager
def open_board(board: ProgressBoard) -> Iterator[ProgressBoard]:
    """Makes the board the one that `reporter` reports to, in this process, and draws it meanwhile."""
    _boards.append(board)
    try:
        with board:
            yield board
    finally:
        _boards.remove(board)


def board_is_open() -> bool:
    """Whether this process has a board that draws progress."""
    return bool(_boards)


def reporter(model: str, partition: object = 0) -> ProgressCallback:
    """A report to the open board; where none is open (another process, a worker) it goes nowhere."""
    return _boards[-1].reporter(model, partition) if _boards else lambda progress: None


def _words(progress: Progress, total: int | None = None) -> dict[str, str]:
    """What a line says beside the model's name and its bar."""
    total = total or progress.expected
    left = progress.seconds_left
    errors = progress.failed + progress.model_errors
    return {
        "done": f"{numbers.count(progress.done)} of {numbers.count(total)}"
        if total
        else numbers.count(progress.done),
        "rate": f"{progress.rate:,.1f}",
        "errors": numbers.count(errors),
        "retries": numbers.count(progress.retries),
        "tokens": numbers.count(progress.tokens_per_second),
        "cost": f"{progress.cost:,.4g}" if progress.cost else numbers.MISSING,
        "left": numbers.MISSING if left is None else numbers.duration(left),
    }


def _bars(file: TextIO) -> "Bars":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    def cell(text: str, **column: Any) -> TextColumn:
        return TextColumn(text, markup=False, table_column=Column(no_wrap=True, **column))

    return Progress(
        cell("{task.description}", overflow="ellipsis", ratio=1),
        BarColumn(bar_width=20),
        cell("{task.fields[words][done]}", justify="right"),
        cell("{task.fields[words][rate]}/s", justify="right"),
        cell("{task.fields[words][errors]} errors", justify="right"),
        cell("{task.fields[words][retries]} retries", justify="right"),
        cell("{task.fields[words][tokens]} tokens/s", justify="right"),
        cell("{task.fields[words][left]} left", justify="right"),
        console=Console(file=file),
        refresh_per_second=4,
        expand=True,
    )
