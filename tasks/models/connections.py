"""A pool whose connections are opened one after the other.

Python's own ``http.server`` keeps five connections waiting and drops what comes beyond them; who is dropped
is not told and waits for minutes. Dozens at once are more than it accepts, the same dozens a few milliseconds
apart are not.
"""

import asyncio
from typing import Any

import aiohttp

GAP_SECONDS = 0.005
RAMP_SECONDS = 0.5
"""A pool is never longer than this in opening all its connections."""


class PacedConnector(aiohttp.TCPConnector):
    """At most ``connections`` at a time, opened ``GAP_SECONDS`` apart; a large pool's closer together."""

    def __init__(self, connections: int) -> None:
        super().__init__(limit=connections, keepalive_timeout=60, ttl_dns_cache=300)
        self._gap = min(GAP_SECONDS, RAMP_SECONDS / max(1, connections))
        self._free_at = 0.0

    async def _create_connection(self, *arguments: Any, **options: Any) -> Any:
        now = asyncio.get_running_loop().time()
        turn = max(now, self._free_at)
        self._free_at = turn + self._gap
        if turn > now:
            await asyncio.sleep(turn - now)
        return await super()._create_connection(*arguments, **options)
