"""How the progress of an inference is shown: bars on a terminal, lines elsewhere, a table in the Prefect UI.

The inference stage reports each partition apart, from several threads. A board adds a model's partitions up
and shows them: drawn four times a second on a terminal, where the lines go when all is done; as one line that
is written over in a notebook; and as a line for each model every half minute in a log file.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from metrics.errors import printable
from tasks.messages.markdown import as_text, table_row
from tasks.models.progress import Progress, RunningFigure
from tasks.reporting import numbers
from tasks.reporting.streams import raw, safe_console

if TYPE_CHECKING:
    from rich.live import Live


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
        retries=sum(part.retries for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        concurrency=max((part.concurrency for part in parts), default=0),
        rate=sum(part.rate for part in parts if part.done != part.expected),
        tokens_per_second=sum(part.tokens_per_second for part in parts if part.done != part.expected),
        tokens=sum(part.tokens for part in parts),
        cost=sum(part.cost for part in parts),
        seconds_left=None if None in left else max((seconds or 0.0 for seconds in left), default=None),
        running=_together([part.running for part in parts if part.running is not None]),
    )


def _together(figures: Sequence[RunningFigure]) -> RunningFigure | None:
    if not figures:
        return None
    total, items = sum(one.total for one in figures), sum(one.items for one in figures)
    return RunningFigure(figures[0].metric, total, items)


def progress_markdown(models: Mapping[str, Progress]) -> str:
    """A Markdown table with a row for each model, for a progress artifact."""
    lines = [
        "| Model | Done | Requests/s | Errors | Retries | Tokens/s | Cost | Time left | Score so far |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, progress in models.items():
        lines.append(table_row([as_text(printable(name)), *map(as_text, _words(progress).values())]))
    return "\n".join(lines)


def percent(models: Mapping[str, Progress]) -> float:
    """How far all models together are, from 0 to 100; 0 as long as it is not known how much there is."""
    total = combined(models.values())
    return 100 * total.done / total.expected if total.expected else 0.0


PLAIN_SECONDS = 30.0
"""Between two lines about a model where nobody watches."""
NOTEBOOK_SECONDS = 1.0
FRAMES_PER_SECOND = 4
BAR = 16
"""Columns of a whole bar."""
SHORT_NAME = 20
"""Columns that a model's name keeps however narrow it gets, if it has as many."""


class ProgressBoard:
    """Takes the reports of all partitions; as a context manager it shows them while it is open.

    ``expected`` says how many requests a model will have in all, if that is known before its partitions
    start; ``currency`` is what costs are in. Without a terminal it writes a line for each model every
    ``seconds``, in a notebook (``overwrites``) one line again and again. ``idle`` stands on a terminal while
    no model is being asked.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        expected: Mapping[str, int] | None = None,
        *,
        currency: str | None = None,
        seconds: float = PLAIN_SECONDS,
        overwrites: bool = False,
        idle: str = "",
    ) -> None:
        self._file = file or sys.stderr
        self._expected = dict(expected or {})
        self._currency = currency
        self._seconds = seconds
        self._overwrites = overwrites
        self._idle = idle
        self._parts: dict[str, dict[object, Progress]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._live: Live | None = None
        self._writer: threading.Thread | None = None

    def reporter(self, model: str, partition: object = 0) -> ProgressCallback:
        """What the inference of one partition calls with its progress, from any thread."""

        def report(progress: Progress) -> None:
            with self._lock:
                self._parts.setdefault(model, {})[partition] = progress

        return report

    def models(self) -> dict[str, Progress]:
        """The progress of each model, in order of appearance."""
        with self._lock:
            return {model: combined(parts.values()) for model, parts in self._parts.items()}

    def lines(self, width: int | None = None) -> list[str]:
        """A line for each model that is not done, as they stand on the screen; without a width whole, with
        no bar."""
        shown = []
        for model, progress in self.models().items():
            total = max(self._expected.get(model, 0), progress.expected or 0) or None
            if width is None or progress.done != total:
                shown.append(progress_line(model, progress, width, total, self._currency))
        return shown

    def __enter__(self) -> "ProgressBoard":
        """Starts to show it."""
        self._closed.clear()
        if self._file.isatty():
            self._live = _live(self._file, self.lines, self._idle)
            self._live.start()
        else:
            self._writer = threading.Thread(target=self._write, name="progress", daemon=True)
            self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the lines off the screen: what is left is what the run came to."""
        self._closed.set()
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join()

    def _write(self) -> None:
        """Writes lines until the board is closed, but for models whose numbers have not moved."""
        told: dict[str, str] = {}
        while not self._closed.wait(self._seconds):
            lines = dict(zip(self.models(), self.lines(), strict=False))
            for model, line in lines.items():
                if told.get(model) != line:
                    self._put(line)
            told = lines
        if self._overwrites and told:
            self._put("")

    def _put(self, line: str) -> None:
        with suppress(OSError, ValueError):  # the reader may be gone
            if self._overwrites:
                shown = f"{printable(line):<{NOTEBOOK_COLUMNS}.{NOTEBOOK_COLUMNS}}"
                raw(self._file).write(f"\r{shown}" + ("" if line else "\r"))
            else:
                self._file.write(f"{printable(line)}\n")
            self._file.flush()


NOTEBOOK_COLUMNS = 100


def progress_line(
    model: str,
    progress: Progress,
    width: int | None = None,
    total: int | None = None,
    currency: str | None = None,
) -> str:
    """A model's progress in a line of at most ``width`` columns: what matters least is left out first.

    In the order of what stays longest: the name (cut in its middle), how many are done, the time left, the
    bar, errors, rate, running score, cost, tokens, retries. Without a width everything but the bar.
    """
    words = _words(progress, total, currency)
    total = total or progress.expected
    share = progress.done / total if total else 0.0
    left = words["left"] if progress.seconds_left is None else f"{words['left']} left"
    pieces = {
        "done": words["done"],
        "left": "" if progress.seconds_left is None else left,
        "bar": "" if width is None or not total else _bar(share),
        "errors": numbers.plural(progress.failed, "error"),
        "rate": f"{words['rate']}/s",
        "score": words["score"],
        "cost": words["cost"] if progress.cost else "",
        "tokens": f"{numbers.count(progress.tokens)} tokens",
        "speed": f"{words['tokens']} tokens/s",
        "retries": numbers.plural(progress.retries, "retry", "retries") if progress.retries else "",
    }
    order = ("bar", "done", "left", "rate", "errors", "score", "tokens", "speed", "cost", "retries")
    if width is None:
        told = [pieces[name] for name in order if pieces[name]]
        return f"{model}: {', '.join(told)}"
    room = width - 1 - min(len(model), SHORT_NAME)
    kept: set[str] = set()
    for name, piece in pieces.items():
        if piece and (not kept or len(piece) + 2 <= room):
            kept.add(name)
            room -= len(piece) + 2
        elif piece:
            break
    beside = "  ".join(pieces[name] for name in order if name in kept)
    return f"{_cut(model, width - 3 - len(beside))}  {beside}"


def _bar(share: float) -> str:
    whole = min(BAR, int(share * BAR))
    return "━" * whole + "─" * (BAR - whole)


def _cut(name: str, room: int) -> str:
    """A name in so many columns: where it is longer, without its middle."""
    if len(name) <= room:
        return name
    room = max(room, 3)
    head = room // 2
    return f"{name[:head]}…{name[len(name) - (room - head - 1) :]}"


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


@contextmanager
def notebook_board() -> Iterator[ProgressBoard]:
    """The board of the notebook that this process belongs to: opened by the first partition, closed by the
    last."""
    global _notebook
    with _notebook_lock:
        if _notebook is None:
            _notebook = ProgressBoard(sys.stdout, seconds=NOTEBOOK_SECONDS, overwrites=True)
            _notebook.__enter__()
        board = _notebook
        _watching.append(board)
    try:
        yield board
    finally:
        with _notebook_lock:
            _watching.pop()
            if not _watching:
                board.__exit__()
                _notebook = None


_notebook: ProgressBoard | None = None
_watching: list[ProgressBoard] = []
_notebook_lock = threading.Lock()


def in_notebook() -> bool:
    """Whether the process is a Jupyter kernel."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _words(progress: Progress, total: int | None = None, currency: str | None = None) -> dict[str, str]:
    """What a line says beside the model's name and its bar."""
    total = total or progress.expected
    left = progress.seconds_left
    return {
        "done": f"{numbers.count(progress.done)} of {numbers.count(total)}"
        if total
        else numbers.count(progress.done),
        "rate": f"{progress.rate:,.1f}",
        "errors": numbers.count(progress.failed),
        "retries": numbers.count(progress.retries),
        "tokens": numbers.count(progress.tokens_per_second),
        "cost": numbers.money(progress.cost, currency),
        "left": numbers.MISSING if left is None else numbers.duration(left),
        "score": _running_words(progress.running),
    }


def _running_words(figure: RunningFigure | None) -> str:
    """``"exact_match 0.69 so far (128 items)"``: of a sample, and no result."""
    if figure is None or figure.mean is None:
        return ""
    return f"{figure.metric} {figure.mean:.2f} so far ({numbers.plural(figure.items, 'item')})"


def _live(file: TextIO, lines: Callable[[int], list[str]], idle: str) -> "Live":
    from rich.live import Live
    from rich.text import Text

    console = safe_console(file, highlight=False)

    def frame() -> Text:
        shown = lines(console.width) or [f"{idle}…"]
        return Text("\n".join(shown), no_wrap=True, overflow="crop")

    return Live(
        get_renderable=frame,
        console=console,
        refresh_per_second=FRAMES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
    )
