"""Connections are opened one after the other, none is waited for for long, and what comes over one is a reply
or an error of the tree."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tasks.models import http
from tasks.models.errors import ConnectionFault, MalformedBody
from tasks.models.http import GAP_SECONDS, RAMP_SECONDS, HttpTransport, StaggeredConnector
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


ASKED: dict[str, Callable[[HttpTransport], Awaitable[Any]]] = {
    "a call": lambda transport: transport.send(Call("chat/completions", {}), 60.0),
    "the models": lambda transport: transport.list_models(60.0),
    "a batch": lambda transport: transport.exchange("GET", "batches/1", 60.0),
    "a file": lambda transport: anext(transport.lines("files/1", 60.0, bytes)),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_what_a_library_gives_up_on_is_a_malformed_body_whatever_was_asked(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives_up(_: aiohttp.StreamReader) -> None:
        raise ValueError("the line is too long")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    monkeypatch.setattr(aiohttp.StreamReader, "iter_any", gives_up)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = HttpTransport(f"http://127.0.0.1:{port}", {}, 1)
        try:
            with pytest.raises(MalformedBody, match=r"can't be read \(ValueError: the line is too long\)"):
                await ASKED[asked](transport)
        finally:
            await transport.close()
