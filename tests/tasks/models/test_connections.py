"""Connections are opened one after the other."""

import asyncio

import aiohttp
import pytest

from tasks.models.http import GAP_SECONDS, RAMP_SECONDS, StaggeredConnector


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
