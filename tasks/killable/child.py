"""What runs in the process that can be killed: a function, item after item, each with a clock set.

The kernel keeps the clocks: a regular expression that runs away, or a library's C code, lets no other code of
this process run. So nothing outlives its limit even if who waits for it was killed.
"""

import os
import pickle
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO, Final

MEMORY_BYTES: Final = 4 << 30
"""Address space of a process; a formula such as 9^(9^9) asks for more."""
WAITING: Final = 20
"""How many times the limit may pass by the clock of the wall: a loaded machine is slow, but not stuck."""

Reply = tuple[str, Any]
"""``value`` and the value, ``raised`` and the exception, ``memory`` and the reason."""


def main() -> None:
    """Reads ``(target, arguments, seconds, waiting)``, then lists of items; writes a reply for each."""
    requests, replies = _streams()
    target, arguments, seconds, waiting = pickle.load(requests)
    _limit_memory()
    try:
        module, _, name = target.partition(":")
        function = getattr(import_module(module), name)(*arguments)
    except Exception as error:
        _write(replies, ("raised", error))
        return
    _write(replies, ("ready", None))
    while True:
        try:
            items = pickle.load(requests)
        except EOFError:
            return
        for item in items:
            _write(replies, _reply(function, item, seconds, seconds * waiting))


def _reply(function: Callable[[Any], Any], item: Any, seconds: float, by_the_clock: float) -> Reply:
    _leave_to_the_kernel()  # the function may have set an alarm of its own
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, by_the_clock)
    try:
        return "value", function(item)
    except MemoryError:
        return "memory", f"took more than {MEMORY_BYTES >> 30} GiB of memory"
    except Exception as error:
        return "raised", error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _write(replies: BinaryIO, reply: Reply) -> None:
    try:
        frame = pickle.dumps(reply)
    except Exception:  # a value or an exception that can't be sent
        frame = pickle.dumps(("raised", RuntimeError(f"{type(reply[1]).__name__}: {reply[1]}")))
    replies.write(frame)
    replies.flush()


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Streams of our own: what a library prints goes elsewhere, and what it reads is nothing."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    _leave_to_the_kernel()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
    return requests, replies


def _leave_to_the_kernel() -> None:
    """The clocks' signals, which then end the process."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def _limit_memory() -> None:
    with suppress(OSError, ValueError):  # a tighter limit stands already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
