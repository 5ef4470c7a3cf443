"""The one line on a terminal that says what a command is doing while it has nothing to draw yet.

Imports nothing that takes time, so that it is on the screen before what does.
"""

import atexit
import os
import sys

from metrics.printable import printable
from tasks.reporting.streams import raw

_CLEARED = "\r\x1b[K"
_shown = False


def status(text: str) -> None:
    """Shows the line in the place of the one before; nowhere but on a terminal."""
    global _shown
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return
    if not _shown:
        atexit.register(clear_status)
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    raw(sys.stderr).write(f"{_CLEARED}{printable(text)[: columns - 2]}…")
    sys.stderr.flush()
    _shown = True


def clear_status() -> None:
    """Takes the line away, before anything else is printed."""
    global _shown
    if _shown:
        raw(sys.stderr).write(_CLEARED)
        sys.stderr.flush()
        atexit.unregister(clear_status)
        _shown = False
