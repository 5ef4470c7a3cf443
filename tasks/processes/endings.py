"""What is ended, too, where a run's process is ended in the middle of everything: jobs of a queue, files for
them, a run's mark in the store. And that a process is to ask no more.

Ctrl-C ends the process without waiting for what its threads do, so that no block of it comes to its end.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")
_open: list[ExitStack] = []
interrupted = threading.Event()
"""Set to stop all inference of the process: what is answered is kept, what is in flight is dropped."""


@contextmanager
def ended_with_process(block: AbstractContextManager[T]) -> Iterator[T]:
    """The block, which ``ending_all`` ends as well."""
    stack = ExitStack()
    _open.append(stack)
    try:
        with stack:
            yield stack.enter_context(block)
    finally:
        _open.remove(stack)


@contextmanager
def ending_all(seconds: float) -> Iterator[None]:
    """A block beside which all such blocks are ended, each in a thread; waits for them for so many seconds at
    most. The process has to end then: what goes on in the blocks may lack what they gave."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_end, args=(stack,), daemon=True) for stack in _open]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _end(stack: ExitStack) -> None:
    with suppress(Exception):  # nobody is left who could do something about it
        stack.close()
