"""Servers that tests start on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import Any

import pytest


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


def s3_with_bucket(monkeypatch: pytest.MonkeyPatch) -> Any:
    """moto's server, started, with a bucket called nightjar; the environment points there."""
    server_module, boto3 = pytest.importorskip("moto.server"), pytest.importorskip("boto3")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    address, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{address}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="nightjar")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()  # of another server's
    return server
