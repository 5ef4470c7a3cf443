"""The transport over plain HTTP: one aiohttp pool with keep-alive, bytes in and bytes out.

It posts a call's body, has its reply read as the provider's ``Wire`` says, and makes one error of the tree in
``errors.py`` of every fault. The official client, in ``official.py`` for endpoints that need it, costs about
four times the CPU of a request here.
"""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from tasks.models.errors import (
    ConnectionFault,
    MalformedBody,
    NotServed,
    Redaction,
    RequestError,
    RequestTimeout,
)
from tasks.models.limits.allowances import allowances
from tasks.models.records import Call, Reply
from tasks.models.signing import Sign
from tasks.models.wire import (
    EventLines,
    ModelListing,
    Wire,
    holds_events,
    holds_object,
    json_object,
    kept_headers,
    unreadable,
)
from tasks.store.home import number_set

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
CONNECT_SECONDS = 15.0
LONGEST_BEGINNING = 1_000
"""So many bytes of white space are looked at for what a body is."""
LARGEST_BODY_MB = 64
LOOPBACK = ("localhost", "127.0.0.1", "::1")
T = TypeVar("T")


def proxy_for(address: str) -> str | None:
    """The proxy that the environment names for an address; never one for this machine itself."""
    parts = urlsplit(address)
    place = parts.netloc.rpartition("@")[2]
    if parts.hostname in LOOPBACK or urllib.request.proxy_bypass(place):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


class HttpTransport:
    """An endpoint over plain HTTP. ``headers`` go with every request; ``key`` is the part of them that is
    never shown. ``sign`` says the headers that each call has of its own."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        connections: int,
        key: str | None = None,
        wire: Wire | None = None,
        sign: Sign | None = None,
    ) -> None:
        self.base_url = base_url
        self._sign = sign
        self.redaction = Redaction(key)
        self._proxy = proxy_for(base_url)
        self._wire = wire or Wire()
        self._largest = largest_body()
        self._session = aiohttp.ClientSession(
            # The concurrency limiter decides how many are in flight; the pool only must never be smaller.
            connector=StaggeredConnector(connections),
            headers={**HEADERS, **headers},
            trust_env=False,  # with it, aiohttp sends a password of ~/.netrc, too
            auto_decompress=True,
        )

    async def send(self, call: Call, timeout: float) -> Reply:
        """Posts the call; see ``Transport.send``."""
        start, content = time.perf_counter(), call.content
        signed = self._signed("POST", call.path, content)
        async with self._asked("POST", timeout, **signed, data=content) as response:
            if response.content_type == self._wire.events.media_type and response.status == 200:
                body = await self._streamed_body(response.content.iter_any())
            else:
                body = await self._json_body(response)
            headers, left = kept_headers(response.headers), allowances(response.headers)
        return Reply(body, time.perf_counter() - start, headers, left)

    async def list_models(self, timeout: float) -> ModelListing:
        """The models that the endpoint lists; none where it has no such list.

        Raises AccessDenied for a wrong key and TransientError where nothing usable answers.
        """
        body, headers = await self.get("models", timeout, absent=(404, 405, 501))
        listed = body.get("data")
        entries = listed if isinstance(listed, list) else []
        named = {str(entry["id"]): entry for entry in entries if isinstance(entry, dict) and "id" in entry}
        return ModelListing(named, headers)

    async def get(
        self, path: str, timeout: float, absent: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """What the endpoint says at a path, and the headers; an empty object for a status in ``absent``.
        Raises RequestError."""
        async with self._asked("GET", timeout, **self._signed("GET", path)) as response:
            headers = dict(response.headers)
            return ({} if response.status in absent else await self._json_body(response)), headers

    async def exchange(
        self,
        method: str,
        path: str,
        timeout: float,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """The JSON object that comes of a request that is no call, an empty one where nothing comes, and the
        headers; ``path`` may be a whole address of the same server. Raises RequestError."""
        place = self._place(path)
        async with self._asked(method, timeout, url=place, data=data, headers=headers) as response:
            content = await body_within_limit(response.content.iter_any(), self._largest)
            if not 200 <= response.status < 300:
                raise self._failure(response, content)
            return (json_object(content) if content.strip() else {}), response.headers

    async def lines(
        self, path: str, timeout: float, read: Callable[[bytes], T]
    ) -> AsyncIterator[T | MalformedBody]:
        """What ``read`` makes of each line of a file of any length, or why it can't; empty lines are none.
        Raises RequestError for the file as a whole."""
        async with self._asked("GET", timeout, url=self._place(path)) as response:
            if response.status != 200:
                raise self._failure(
                    response, await body_within_limit(response.content.iter_any(), self._largest)
                )
            rest, left_out = b"", False
            async for piece in response.content.iter_any():
                *whole, rest = (rest + piece).split(b"\n")
                if left_out and whole:  # here the line ends that was too long
                    del whole[0]
                    left_out = False
                for line in filter(bytes.strip, whole):
                    yield _read_or_why_not(read, line)
                if left_out:
                    rest = b""
                elif len(rest) > self._largest:
                    yield _too_large(self._largest)
                    rest, left_out = b"", True
            if rest.strip():
                yield _read_or_why_not(read, rest)

    @asynccontextmanager
    async def _asked(self, method: str, timeout: float, **own: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request; what goes wrong until the block ends is an error of the tree."""
        settings: dict[str, Any] = {"timeout": _timeouts(timeout), "allow_redirects": False}
        try:
            async with self._session.request(method, proxy=self._proxy, **settings, **own) as response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error, timeout) from error
        except RequestError:
            raise
        except Exception as error:  # a line or a number that a library gives up on: one request, not the run
            raise unreadable(error) from error

    def _signed(self, method: str, path: str, content: bytes = b"") -> dict[str, Any]:
        """Where a request goes, and the headers of its own. What is signed is sent as it was written."""
        address = f"{self.base_url}/{path}"
        if self._sign is None:
            return {"url": address}
        try:
            return {"url": URL(address, encoded=True), "headers": self._sign(method, address, content)}
        except RequestError:
            raise
        except Exception as error:  # what signs gives up: one request, not the run
            raise unreadable(error) from error

    def _place(self, path: str) -> str:
        """The address of a path; raises NotServed for one of another server, which would get the key."""
        if not path.startswith(("http://", "https://")):
            return f"{self.base_url}/{path}"
        if urlsplit(path)[:2] != urlsplit(self.base_url)[:2]:
            raise NotServed(f"the endpoint names an address of another server: {urlsplit(path).netloc}")
        return path

    async def close(self) -> None:
        """Closes the pool."""
        await self._session.close()

    async def _json_body(self, response: aiohttp.ClientResponse) -> Mapping[str, Any]:
        told, packed = response.content_length, "Content-Encoding" in response.headers
        if told is not None and told <= self._largest and not packed:
            content = await response.read()
        else:
            content = await body_within_limit(response.content.iter_any(), self._largest)
        if response.status != 200:
            raise self._failure(response, content)
        if self._wire.events is EventLines and holds_events(content):
            return await self._of_events(_pieces_of(content))
        return self.redaction.read(self._wire.body, content)

    def _failure(self, response: aiohttp.ClientResponse, content: bytes) -> RequestError:
        return self._wire.failure(response.status, self.redaction.hide(content), response.headers)

    async def _streamed_body(self, pieces: AsyncIterator[bytes]) -> Mapping[str, Any]:
        begin = b""
        async for piece in pieces:
            begin += piece
            if begin.strip() or len(begin) > LONGEST_BEGINNING:
                break
        whole = _pieces_of(begin, pieces)
        if self._wire.events is EventLines and holds_object(begin):
            return self.redaction.read(self._wire.body, await body_within_limit(whole, self._largest))
        return await self._of_events(whole)

    async def _of_events(self, pieces: AsyncIterator[bytes]) -> Mapping[str, Any]:
        answer, lines = self._wire.stream(), self._wire.events()
        size, limit = 0, self._largest
        async for piece in pieces:
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            for data in lines.add(piece):
                self.redaction.read(answer.add, data)
        for data in lines.rest():
            self.redaction.read(answer.add, data)
        return answer.body()


async def _pieces_of(first: bytes, rest: AsyncIterator[bytes] | None = None) -> AsyncIterator[bytes]:
    yield first
    if rest is not None:
        async for piece in rest:
            yield piece


def _read_or_why_not(read: Callable[[bytes], T], line: bytes) -> T | MalformedBody:
    try:
        return read(line)
    except MalformedBody as error:
        return error


async def body_within_limit(pieces: AsyncIterator[bytes], limit: int) -> bytes:
    """The body that comes in these decoded pieces; raises MalformedBody where it is larger than ``limit``: a
    few compressed kilobytes can stand for gigabytes."""
    parts, size = [], 0
    async for part in pieces:
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def largest_body() -> int:
    """Bytes of an answer's body, decoded, at most: ``NIGHTJAR_MAX_BODY_MB``, else 64 MB."""
    return int(number_set("NIGHTJAR_MAX_BODY_MB", LARGEST_BODY_MB) * 1_000_000)


def _too_large(limit: int) -> MalformedBody:
    return MalformedBody(
        f"the answer's body is larger than {limit / 1_000_000:g} MB (NIGHTJAR_MAX_BODY_MB raises the limit)"
    )


def _connection_error(error: aiohttp.ClientError | OSError, timeout: float) -> RequestError:
    """aiohttp's error as one of the tree's."""
    if isinstance(error, TimeoutError):
        return RequestTimeout(f"no answer within {timeout:g} s")
    if isinstance(error, aiohttp.InvalidURL):
        return NotServed("the address can't be used")
    return ConnectionFault(f"connection failed: {_reason(error)}")


@lru_cache(maxsize=64)
def _timeouts(timeout: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout)  # a new connection has ``CONNECT_SECONDS`` of its own


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


GAP_SECONDS = 0.005
RAMP_SECONDS = 0.5
"""A pool is never longer than this in opening all its connections."""


class StaggeredConnector(aiohttp.TCPConnector):
    """A pool of at most ``connections``, opened ``GAP_SECONDS`` apart; a large pool's closer together. Each
    has ``CONNECT_SECONDS``, names, proxy and TLS included.

    Python's own ``http.server`` keeps five connections waiting and drops what comes beyond them; who is
    dropped is not told and waits for minutes. It does not accept dozens at once, but accepts the same dozens
    a few milliseconds apart.
    """

    def __init__(self, connections: int) -> None:
        super().__init__(limit=connections, keepalive_timeout=60, ttl_dns_cache=300)
        self._gap = min(GAP_SECONDS, RAMP_SECONDS / max(1, connections))
        self._free_at = 0.0

    async def _create_connection(self, *arguments: Any, **options: Any) -> Any:
        now = asyncio.get_running_loop().time()
        opens_at = max(now, self._free_at)
        self._free_at = opens_at + self._gap
        if opens_at > now:
            await asyncio.sleep(opens_at - now)
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit:
                return await super()._create_connection(*arguments, **options)
        except TimeoutError as error:
            if limit.expired():
                raise ConnectionFault(f"no connection within {CONNECT_SECONDS:g} s") from error
            raise
