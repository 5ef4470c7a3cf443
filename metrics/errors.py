"""Errors that a person can act on: one sentence with what was expected, what came and what to do.

::

    NightjarError (ValueError)
    ├── ConfigError      a config, an argument or a user's function that cannot be used; refused at the start
    ├── DataError        a dataset or recorded responses that cannot be read, naming file and line
    └── MetricError      a metric, reduction or aggregation could not make a number of what it was given

Users' code may end with what is no error for Python, as ``sys.exit`` does: it would end the run without a
word. Where their code is called, a block of ``users_code()`` makes an ``EscapeError`` of it.

Errors say what others wrote: messages, item ids, labels and names come from datasets, endpoints and
users' files. An escape character in one of them could clear the screen or write into the window's title,
a mark of direction turn ``exe.txt`` around. Every way out of the program takes its text through
``printable``, which writes out what a terminal would obey, or a reader be deceived by.
"""

import re
from pathlib import PurePath
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final

from metrics.json_values import with_leaves

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

    def shown(leaf: Any) -> Any:
        return printable(leaf) if isinstance(leaf, str) else leaf

    return with_leaves(value, shown, shown)


ASCII: Final = str.maketrans(
    {"↑": "^", "↓": "v", "±": "+", "–": "-", "→": ">", "×": "x", "∞": "inf", "…": ".", "·": "|", "─": "-"}
)
"""The signs of this program's texts, for what shows ASCII only: some terminals, the graph in Prefect's UI."""


class NightjarError(ValueError):
    """Base of every error whose text is meant for the person who started the run."""

    def __str__(self) -> str:
        """The sentence as it may be shown: names and values in it are somebody else's."""
        return printable(super().__str__())


class ConfigError(NightjarError):
    """A config names something that does not exist, does not fit, or has the wrong type."""


class DataError(NightjarError):
    """A dataset, or a file of responses, that cannot be read."""


class MetricError(NightjarError):
    """A metric failed on its input; ``index`` is the row of the batch it failed on, None if it is not one
    row."""

    def __init__(self, message: str, index: int | None = None):
        super().__init__(message)
        self.index = index


class EscapeError(RuntimeError):
    """Users' code raised what is no ``Exception``: its cause."""


_SENT: Final = frozenset(
    {
        "prefect.exceptions.TerminationSignal",
        "prefect._internal.concurrency.cancellation.CancelledError",
    }
)
"""What Prefect raises in code that did not ask for it, at a signal or after too long a time. Its other
classes of this kind, and asyncio's, come from what the code has called."""


def interrupts(error: BaseException) -> bool:
    """Whether an exception was sent to end the work that goes on, and is not the word of the code that it was
    met in: by Python, Prefect or a time limit of this project's."""
    if isinstance(error, Exception):
        return False
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    sent = any(kind in _SENT or kind.startswith("tasks.") for kind in kinds)
    return sent or isinstance(error, KeyboardInterrupt)


class users_code:  # noqa: N801  # it reads as a block
    """A block that calls users' code, and from which only errors and interruptions come.

    Raises EscapeError for anything else, such as the SystemExit of ``sys.exit``.
    """

    def __enter__(self) -> None:
        """Begins the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Makes an error of what is none."""
        if error is not None and not isinstance(error, Exception) and not interrupts(error):
            raise EscapeError(named(error)) from error


def named(error: BaseException) -> str:
    """An error's class and what it says: ``ValueError: no``; a user's class may fail to say anything."""
    if isinstance(error, EscapeError) and error.__cause__ is not None:
        error = error.__cause__
    try:
        with users_code():
            text = str(error)
    except Exception:
        return type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def described(error: BaseException) -> str:
    """What a function that was called here raised, and the line of its file: ``ValueError: no (mine.py:7)``.

    The line is the last one within the function's own file, whatever it called in turn; there is none where
    the call itself did not fit.
    """
    raised = error.__cause__ if isinstance(error, EscapeError) and error.__cause__ is not None else error
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(raised.__traceback__)]
    sentence = named(raised)
    file = next((name for name, _ in frames if name != frames[0][0]), None)
    if file is None:
        return sentence
    line = [line for name, line in frames if name == file][-1]
    return f"{sentence} ({PurePath(file).name}:{line})"
