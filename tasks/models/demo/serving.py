"""Runs the embedded server in a thread of this process, on a free loopback port.

``serve`` starts a server of its own, ``shared_server`` the process's one server for equal options, however
many partitions use it at once.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import DemoServer

BACKLOG = 1024


@dataclass(frozen=True)
class Serving:
    """A running server: where it is, and what it has counted."""

    base_url: str
    server: DemoServer

    def stats(self) -> dict[str, Any]:
        """The counts as ``/stats`` shows them."""
        return self.server.stats.snapshot()


@contextmanager
def serve(options: DemoOptions | None = None, port: int = 0) -> Iterator[Serving]:
    """Starts the server (port 0: a free one), yields where it is, and stops it in the end."""
    server = DemoServer(options or DemoOptions())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="nightjar-demo", daemon=True)
    thread.start()

    def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    runner: web.AppRunner | None = None
    try:
        runner, bound = on_loop(start(server, port))
        yield Serving(f"http://127.0.0.1:{bound}/v1", server)
    finally:
        if runner is not None:
            on_loop(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def start(server: DemoServer, port: int, host: str = "127.0.0.1") -> tuple[web.AppRunner, int]:
    """Binds the server on the running loop; returns its runner and the port it has."""
    # A client that hangs up frees its place at once, as a real server's scheduler would.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=BACKLOG)
    await site.start()
    return runner, int(runner.addresses[0][1])


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
