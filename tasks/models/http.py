"""The thin path: one aiohttp pool, keep-alive, bytes in and bytes out.

The official client costs about four times the CPU of a request here; it is in ``official.py`` for endpoints
that need it.
"""

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tasks.models.bodies import json_object
from tasks.models.connections import PacedConnector
from tasks.models.errors import ConnectionFault, NotServed, RequestError, RequestTimeout
from tasks.models.records import Call, Reply
from tasks.models.statuses import fault_of
from tasks.models.streaming import Assembly

CONNECT_TIMEOUT = 15.0
LARGEST_LINE = 1 << 24
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpProvider:
    """An OpenAI-compatible endpoint over plain HTTP. ``key`` is sent as bearer token and never shown."""

    def __init__(self, base_url: str, key: str | None, connections: int) -> None:
        self._base_url = base_url
        self._secret = key.encode() if key else None
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            # The gate decides how many are in flight; the pool only must never be smaller.
            connector=PacedConnector(connections),
            headers=self._headers,
            trust_env=urlsplit(base_url).hostname
            not in LOOPBACK,  # a proxy never stands before this machine itself
            read_bufsize=LARGEST_LINE,
            auto_decompress=True,
        )

    async def send(self, call: Call, timeout: float) -> Reply:
        """Posts the call; see ``Provider.send``."""
        start = time.perf_counter()
        try:
            async with self._session.post(
                f"{self._base_url}/{call.path}",
                data=call.content,
                timeout=_limits(timeout),
                allow_redirects=False,
            ) as response:
                if response.content_type == "text/event-stream" and response.status == 200:
                    body = await self._assembled(response)
                else:
                    body = await self._whole(response)
        except (aiohttp.ClientError, OSError) as error:
            raise _fault(error, timeout) from error
        return Reply(body, time.perf_counter() - start)

    async def served(self, timeout: float) -> tuple[str, ...]:
        """The names of the models that the endpoint lists; empty where it has no such list.

        Raises AccessDenied for a wrong key and TransientError where nothing usable answers.
        """
        try:
            async with self._session.get(f"{self._base_url}/models", timeout=_limits(timeout)) as response:
                if response.status in (404, 405, 501):
                    return ()
                body = await self._whole(response)
        except (aiohttp.ClientError, OSError) as error:
            raise _fault(error, timeout) from error
        listed = body.get("data")
        entries = listed if isinstance(listed, list) else []
        return tuple(str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry)

    async def close(self) -> None:
        """Closes the pool."""
        await self._session.close()

    async def _whole(self, response: aiohttp.ClientResponse) -> Mapping[str, Any]:
        content = self._hidden(await response.read())
        if response.status != 200:
            raise fault_of(response.status, content, response.headers)
        return json_object(content)

    def _hidden(self, content: bytes) -> bytes:
        """The body without the key, which some servers repeat in their errors."""
        return content.replace(self._secret, b"***") if self._secret and self._secret in content else content

    async def _assembled(self, response: aiohttp.ClientResponse) -> Mapping[str, Any]:
        assembly = Assembly()
        async for line in response.content:
            if line.startswith(b"data:"):
                assembly.add(self._hidden(line[5:].strip()))
        return assembly.body()


def _fault(error: aiohttp.ClientError | OSError, timeout: float) -> RequestError:
    """aiohttp's error as one of the tree's."""
    if isinstance(error, TimeoutError):
        return RequestTimeout(f"no answer within {timeout:g} s")
    if isinstance(error, aiohttp.InvalidURL):
        return NotServed("the address can't be used")
    return ConnectionFault(f"connection failed: {_reason(error)}")


@lru_cache(maxsize=64)
def _limits(timeout: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout, connect=min(timeout, CONNECT_TIMEOUT))


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
