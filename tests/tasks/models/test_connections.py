"""Connections are opened one after the other, and none is waited for for long."""

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from tasks.models import http
from tasks.models.errors import ConnectionFault
from tasks.models.http import GAP_SECONDS, RAMP_SECONDS, StaggeredConnector
from tasks.models.records import Call


@pytest.mark.parametrize("connections", [8, 1_000])
async def test_each_new_connection_waits_for_its_turn(monkeypatch, connections):
    waited, opened = [], []

    async def sleep(seconds):
        waited.append(seconds)

    async def create(self, *arguments, **options):
        opened.append(arguments)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: 100.0)
    monkeypatch.setattr("tasks.models.http.asyncio.sleep", sleep)
    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", create)
    connector = StaggeredConnector(connections)
    for number in range(connections):
        await connector._create_connection(number)
    assert opened == [(number,) for number in range(connections)]
    gap = min(GAP_SECONDS, RAMP_SECONDS / connections)
    assert waited == pytest.approx([gap * number for number in range(1, connections)])
    assert max(waited) <= RAMP_SECONDS
    monkeypatch.undo()
    await connector.close()


@pytest.mark.parametrize("way", ["TLS", "proxy", "name"])
async def test_a_connection_that_never_comes_about_is_given_up_in_time(way: str, monkeypatch: Any) -> None:
    """Whatever of it hangs: TLS, a proxy that says nothing, a name that nobody looks up."""
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        if way == "proxy":
            monkeypatch.setattr(http, "proxy_for", lambda _: f"http://{place}")
        if way == "name":
            monkeypatch.setattr(aiohttp.TCPConnector, "_resolve_host", hanging)
        address = {"TLS": f"https://{place}", "proxy": "https://models.invalid"}.get(
            way, "http://models.invalid"
        )
        transport = http.HttpTransport(f"{address}/v1", {}, 1)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(ConnectionFault, match=r"no connection within 0.3 s"):
                    await transport.send(Call("chat/completions", {}), 60.0)
        finally:
            await transport.close()


async def hanging(*_: Any, **__: Any) -> None:
    """A look-up that never ends."""
    await asyncio.Event().wait()
