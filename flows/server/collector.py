"""Garbage of the server's process is collected by a thread of its own.

Whoever collects an unfinished cursor of SQLite waits for its connection, and where that waits for SQLite's
lock, for the whole busy time-out. On the event loop's thread that stops the server, and with it the lock's
holder, who needs the loop to commit: 60 s without an answer, seen once in twenty nights on a busy machine.
"""

import gc
import threading
import time
from typing import Final

PAUSE_SECONDS: Final = 0.5


def collect_beside() -> None:
    """From now on no thread that works collects garbage."""
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    while True:
        time.sleep(PAUSE_SECONDS)
        due = [count > most for count, most in zip(gc.get_count(), gc.get_threshold(), strict=True)]
        if any(due):
            gc.collect(max(generation for generation, is_due in enumerate(due) if is_due))
