"""One embedded server a process for equal options, however many partitions use it at once."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tasks.models.demo.options import DemoOptions
from tasks.models.demo.serving import serve


class _Shared:
    def __init__(self) -> None:
        self.users = 0
        self.base_url = ""
        self.stack = ExitStack()


_lock = threading.Lock()
_running: dict[DemoOptions, _Shared] = {}


@contextmanager
def shared_server(options: DemoOptions) -> Iterator[str]:
    """The address of the process's server with these options; it stops when its last user leaves."""
    with _lock:
        shared = _running.setdefault(options, _Shared())
        if not shared.users:
            try:
                shared.base_url = shared.stack.enter_context(serve(options)).base_url
            except BaseException:
                del _running[options]
                raise
        shared.users += 1
    try:
        yield shared.base_url
    finally:
        with _lock:
            shared.users -= 1
            if not shared.users:
                del _running[options]
                shared.stack.close()
