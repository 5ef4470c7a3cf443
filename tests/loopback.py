"""Servers that tests start on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer


@contextmanager
def answering(server: BaseServer) -> Iterator[None]:
    """A block in which the server answers, in a thread; it is closed after it."""
    # As often as this the server looks whether it is to end; by default its end would wait half a second.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
