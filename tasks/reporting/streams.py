"""Standard output and standard error of a command line, with what a terminal would obey written out.

``shown_safely`` puts an ``EscapedStream`` before each of them, so that whatever is printed by whomever goes
through ``printable``. Who draws with escape sequences of its own (Rich, the status line) writes to ``raw``
and takes the texts through ``printable`` itself, as ``SafeConsole`` does.

A pipe that nobody reads any more ends nothing: neither a command (``| head``) nor a run whose worker was
killed. What is written to it is dropped after that. Rich would end the process, Prefect's log as well.
"""

import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, TextIO

from metrics.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


class EscapedStream:
    """A text stream that escapes what is written to it; everything else is the stream's behind it."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        """Writes the text as it may be shown."""
        with _without_readers(self.behind):
            self.behind.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """As the stream behind it."""
        with _without_readers(self.behind):
            self.behind.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """As ``write``, for several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def raw(stream: TextIO) -> TextIO:
    """The stream that takes escape sequences."""
    return stream.behind if isinstance(stream, EscapedStream) else stream


@contextmanager
def _without_readers(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        drop_unread(stream)


def drop_unread(stream: IO[str]) -> None:
    """Has what is written to a pipe that nobody reads any more go nowhere, by this stream, and by standard
    output and standard error where they lead there, too."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:  # a stream without a descriptor
        pipe = os.fstat(stream.fileno())
        for descriptor in (1, 2, stream.fileno()):
            with suppress(OSError):  # it is closed
                if os.path.samestat(os.fstat(descriptor), pipe):
                    os.dup2(nothing.fileno(), descriptor)


def outlive_readers() -> None:
    """Keeps Rich's consoles, of any library, from ending this process where nobody reads any more what they
    print."""
    from rich.console import Console

    def on_broken_pipe(console: Console) -> None:
        drop_unread(console.file)

    Console.on_broken_pipe = on_broken_pipe  # type: ignore[method-assign,assignment]


@contextmanager
def shown_safely() -> Iterator[None]:
    """A block in which standard output and standard error escape what is printed, and what their encoding
    lacks: an arrow on a Latin-1 terminal is no error of the command. Nor is it one that who began the process
    has closed them.
    """
    before = sys.stdout, sys.stderr
    with ExitStack() as opened:
        there = [stream or opened.enter_context(open(os.devnull, "w", encoding="utf-8")) for stream in before]
        strict = [behind for stream in there if getattr(behind := raw(stream), "errors", None) == "strict"]
        for behind in strict:
            _on_errors(behind, "backslashreplace")
        sys.stdout, sys.stderr = (EscapedStream(raw(stream)) for stream in there)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for behind in strict:
                _on_errors(behind, "strict")


def _on_errors(stream: TextIO, errors: str) -> None:
    if isinstance(stream, io.TextIOWrapper) and not stream.closed:
        stream.reconfigure(errors=errors)


def safe_console(file: TextIO | None = None, **options: Any) -> "Console":
    """A Rich console on ``file`` (default: standard output) whose colours are its own and whose texts are
    printable."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    outlive_readers()

    class SafeConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None and segment.text:
                    yield Segment(printable(segment.text), segment.style)
                else:
                    yield segment

    return SafeConsole(file=raw(file or sys.stdout), **options)


class PrintableLog(logging.Filter):
    """A record as it may be shown: message and traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escapes; lets every record pass."""
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = printable(logging.Formatter().formatException(record.exc_info))
        return True


_filter = PrintableLog()
RUN_LOGS = ("prefect.flow_runs", "prefect.task_runs")
"""Prefect's logs of runs, which its UI and a worker's terminal show."""


def escape_logs() -> None:
    """Makes what flows, tasks and this project's modules log printable, in this process, from now on."""
    places: list[logging.Filterer] = [logging.getLogger(name) for name in RUN_LOGS]
    places += [*logging.getLogger().handlers, *logging.getLogger("prefect").handlers]
    for place in (*places, logging.lastResort):
        if place is not None:
            place.addFilter(_filter)
