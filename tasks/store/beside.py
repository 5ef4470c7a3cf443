"""What a thread does beside a block, again and again, until the block is over."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def beside(
    work: Callable[[threading.Event], None], name: str, patience: float | None = None
) -> Iterator[None]:
    """A block beside which ``work`` runs, in a thread with this one's context variables. It gets the event
    that says that the block is over, which then waits for it: ``patience`` seconds at most, None: to its end.

    The thread is a daemon: what it waits for never keeps a process from ending.
    """
    over = threading.Event()
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(work, over), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)


@contextmanager
def beating(
    look: Callable[[], bool | None], seconds: float, name: str, patience: float | None = None
) -> Iterator[None]:
    """A block beside which ``look`` is called every so many seconds, until it returns True.

    Others rely on these calls, which renew what says that this process lives: an error that ``look`` lets out
    is logged, and the next call comes all the same.
    """

    def work(over: threading.Event) -> None:
        while not over.wait(seconds):
            try:
                if look():
                    return
            except Exception:
                if not over.is_set():  # else the block has just closed what it looked at
                    _log.warning("%s: goes on after an error", name, exc_info=True)

    with beside(work, name, patience):
        yield
