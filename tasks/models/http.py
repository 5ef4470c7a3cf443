"""The transport over plain HTTP: one aiohttp pool with keep-alive, bytes in and bytes out.

It posts a call's body, puts a stream of events together into the body that the same call gives without
streaming, and makes one error of the tree in ``errors.py`` of every status and fault. A provider whose
protocol is not OpenAI's says by a ``Wire`` how its statuses, bodies and streams are read. The official
client, in ``official.py`` for endpoints that need it, costs about four times the CPU of a request here.
"""

import asyncio
import codecs
import email.utils
import json
import math
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from tasks.messages.calls import merged_pieces
from tasks.messages.chat import content_text
from tasks.models.errors import (
    FILTERED,
    AccessDenied,
    BadRequest,
    ConnectionFault,
    ContentFiltered,
    ContextTooLong,
    MalformedBody,
    NotServed,
    Overloaded,
    RateLimited,
    Redaction,
    RequestError,
    RequestTimeout,
    ServerFault,
    shortened,
)
from tasks.models.limits.allowances import allowances, told_wait
from tasks.models.records import Call, Reply
from tasks.models.signing import Sign

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
CONNECT_TIMEOUT = 15.0
LARGEST_BODY_MB = 64
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ModelListing:
    """What an endpoint says when it is asked for its models: what it lists, by name, and the reply's
    headers."""

    entries: Mapping[str, Mapping[str, Any]]
    headers: Mapping[str, str]


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
        wire: "Wire | None" = None,
        sign: Sign | None = None,
    ) -> None:
        self.base_url = base_url
        self._sign = sign
        self.redaction = Redaction(key)
        self._proxy = proxy_for(base_url)
        self._wire = wire or Wire()
        self._session = aiohttp.ClientSession(
            # The concurrency limiter decides how many are in flight; the pool only must never be smaller.
            connector=StaggeredConnector(connections),
            headers={**HEADERS, **headers},
            trust_env=False,  # with it, aiohttp sends a password of ~/.netrc, too
            auto_decompress=True,
        )

    async def send(self, call: Call, timeout: float) -> Reply:
        """Posts the call; see ``Transport.send``."""
        start = time.perf_counter()
        try:
            async with self._session.post(
                **self._signed("POST", call.path, call.content),
                data=call.content,
                timeout=_timeouts(timeout),
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                if response.content_type == self._wire.events.media_type and response.status == 200:
                    body = await self._streamed_body(response)
                else:
                    body = await self._json_body(response)
                headers, left = kept_headers(response.headers), allowances(response.headers)
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error, timeout) from error
        except RequestError:
            raise
        except Exception as error:  # a line or a number that a library gives up on: one request, not the run
            raise unreadable(error) from error
        return Reply(body, time.perf_counter() - start, headers, left)

    async def list_models(self, timeout: float) -> "ModelListing":
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
        try:
            async with self._session.get(
                **self._signed("GET", path),
                timeout=_timeouts(timeout),
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                headers = dict(response.headers)
                return ({} if response.status in absent else await self._json_body(response)), headers
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error, timeout) from error

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
        try:
            async with self._session.request(
                method,
                self._place(path),
                data=data,
                headers=headers,
                timeout=_timeouts(timeout),
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                content = await body_within_limit(response.content.iter_any())
                if not 200 <= response.status < 300:
                    raise self._failure(response, content)
                return (json_object(content) if content.strip() else {}), response.headers
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error, timeout) from error

    async def lines(self, path: str, timeout: float) -> AsyncIterator[bytes]:
        """The lines of a file of any length, without those that are empty. Raises RequestError."""
        try:
            async with self._session.get(
                self._place(path), timeout=_timeouts(timeout), allow_redirects=False, proxy=self._proxy
            ) as response:
                if response.status != 200:
                    raise self._failure(response, await body_within_limit(response.content.iter_any()))
                rest = b""
                async for piece in response.content.iter_any():
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in filter(bytes.strip, whole):
                        yield line
                    if len(rest) > largest_body():
                        raise _too_large(largest_body())
                if rest.strip():
                    yield rest
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error, timeout) from error

    def _signed(self, method: str, path: str, content: bytes = b"") -> dict[str, Any]:
        """Where a request goes, and the headers of its own. What is signed is sent as it was written."""
        address = f"{self.base_url}/{path}"
        if self._sign is None:
            return {"url": address}
        return {"url": URL(address, encoded=True), "headers": self._sign(method, address, content)}

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
        content = await body_within_limit(response.content.iter_any())
        if response.status != 200:
            raise self._failure(response, content)
        return self.redaction.read(self._wire.body, content)

    def _failure(self, response: aiohttp.ClientResponse, content: bytes) -> RequestError:
        return self._wire.failure(response.status, self.redaction.hide(content), response.headers)

    async def _streamed_body(self, response: aiohttp.ClientResponse) -> Mapping[str, Any]:
        answer, lines = self._wire.stream(), self._wire.events()
        size, limit = 0, largest_body()
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            for data in lines.add(piece):
                self.redaction.read(answer.add, data)
        for data in lines.rest():
            self.redaction.read(answer.add, data)
        return answer.body()


async def body_within_limit(pieces: AsyncIterator[bytes]) -> bytes:
    """The body that comes in these decoded pieces; raises MalformedBody where it is larger than any answer: a
    few compressed kilobytes can stand for gigabytes."""
    parts, size, limit = [], 0, largest_body()
    async for part in pieces:
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def largest_body() -> int:
    """Bytes of an answer's body, decoded, at most: ``NIGHTJAR_MAX_BODY_MB``, else 64 MB."""
    return int(float(os.environ.get("NIGHTJAR_MAX_BODY_MB") or LARGEST_BODY_MB) * 1_000_000)


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
    return aiohttp.ClientTimeout(total=timeout, connect=min(timeout, CONNECT_TIMEOUT))


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


GAP_SECONDS = 0.005
RAMP_SECONDS = 0.5
"""A pool is never longer than this in opening all its connections."""


class StaggeredConnector(aiohttp.TCPConnector):
    """A pool of at most ``connections``, opened ``GAP_SECONDS`` apart; a large pool's closer together.

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
        return await super()._create_connection(*arguments, **options)


class EventLines:
    """The data of a stream's events, one a line; a line ends in LF, CR LF or CR, as server-sent events have
    it."""

    media_type: ClassVar[str] = "text/event-stream"

    def __init__(self) -> None:
        self._open: list[bytes] = []
        """What came of the line that has not ended."""

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The data of the lines that this piece of the stream ends."""
        *ended, rest = re.split(rb"[\r\n]", piece)  # between CR and LF stands a line without data
        for line in ended:
            yield from self._data(line)
        self._open.append(rest)

    def rest(self) -> Iterator[bytes]:
        """The data of a last line that does not end."""
        return self._data(b"")

    def _data(self, last: bytes) -> Iterator[bytes]:
        line = b"".join((*self._open, last)).removeprefix(codecs.BOM_UTF8)
        self._open = []
        if line.startswith(b"data:"):
            yield line[5:].strip()


TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class StreamedAnswer:
    """Collects the events of one streamed answer."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done = False

    def add(self, data: bytes) -> None:
        """Takes the data of one event; raises MalformedBody, or ServerFault for an error sent as an event."""
        if data == b"[DONE]":
            self._done = True
            return
        if not data:
            return
        event = json_object(data, "an event of the stream")
        if fault := body_error(event):
            raise fault
        self._head.update(
            (name, value) for name, value in event.items() if name != "choices" and value is not None
        )
        choices = event.get("choices") or []
        if not isinstance(choices, list):
            raise MalformedBody("an event of the stream has no list of choices")
        for choice in choices:
            self._extend(choice)

    def body(self) -> dict[str, Any]:
        """The whole answer; raises MalformedBody when the stream ended before it did."""
        finished = self._choices and all(choice.get("finish_reason") for choice in self._choices.values())
        if not (self._done or finished) or not self._choices:
            raise MalformedBody("the stream ended before the answer did")
        choices = [choice for _, choice in sorted(self._choices.items())]
        for choice in choices:
            for part in (choice, choice.get("message") or {}):
                part.update(
                    {name: "".join(value) for name, value in part.items() if isinstance(value, _Text)}
                )
            _merge_calls(choice.get("message") or {})
        return {**self._head, "choices": choices}

    def _extend(self, piece: Any) -> None:
        index = (piece.get("index") or 0) if isinstance(piece, dict) else None
        if not isinstance(index, int) or isinstance(index, bool):
            raise MalformedBody("a choice in an event of the stream is not a JSON object with a number")
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
        if isinstance(delta := piece.get("delta"), dict):
            message = choice.setdefault("message", {"content": None})
            for name in TEXTS:
                text = delta.get(name)
                if isinstance(text, str | list):
                    _append(message, name, text if isinstance(text, str) else content_text(text))
            if isinstance(delta.get("tool_calls"), list):
                message.setdefault("tool_calls", []).extend(delta["tool_calls"])
        elif isinstance(piece.get("text"), str):
            _append(choice, "text", piece["text"])
        if isinstance(logprobs := piece.get("logprobs"), dict):
            lists = choice.setdefault("logprobs", {})
            for name, values in logprobs.items():
                if isinstance(values, list):
                    lists.setdefault(name, []).extend(values)


def _merge_calls(message: dict[str, Any]) -> None:
    if "tool_calls" not in message:
        return
    try:
        message["tool_calls"] = merged_pieces(message["tool_calls"])
    except ValueError as error:
        raise MalformedBody(str(error)) from error


class _Text(list[str]):
    """Pieces of a text, joined once at the end."""


def _append(target: dict[str, Any], name: str, text: str) -> None:
    pieces = target.get(name)
    if not isinstance(pieces, _Text):
        pieces = target[name] = _Text()
    pieces.append(text)


def unreadable(error: Exception) -> MalformedBody:
    """A reply that something in its reading gave up on, as one malformed answer."""
    return MalformedBody(f"the answer can't be read ({type(error).__name__}: {shortened(str(error))})")


def answer_body(content: bytes) -> dict[str, Any]:
    """The body of an answer; raises MalformedBody, and what an error inside it stands for: some servers send
    one with status 200, choices or not.
    """
    body = json_object(content)
    if fault := body_error(body):
        raise fault
    return body


def body_error(body: Mapping[str, Any]) -> RequestError | None:
    """The error inside a body that came with status 200; None: there is none."""
    if not body.get("error"):
        return None
    message, code = _error_in(body)
    text = f"an error with status 200: {message}"
    return _content_filtered(text) if _is_refusal(message, code) else ServerFault(text)


def json_object(content: bytes, what: str = "the answer's body") -> dict[str, Any]:
    """The JSON object in ``content``; raises MalformedBody where there is none.

    Lone surrogates, left of an emoji that was cut in two, become question marks: UTF-8 can't hold them. NaN
    and infinities, which Python's servers write for an impossible token, are read.
    """
    if not content.strip():
        raise MalformedBody(f"{what} is empty")
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        value = _lenient_json(content)
        if value is None:
            raise MalformedBody(f"{what} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise MalformedBody(f"{what} is not a JSON object")
    return value


def _lenient_json(content: bytes) -> Any:
    try:
        text = json.dumps(json.loads(content), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


_too_long = re.compile(
    r"context.{0,20}(?:length|window)|too (?:long|many tokens)|maximum.{0,20}tokens|max_model_len",
    re.IGNORECASE,
)
_filter = re.compile(
    r"content.{0,12}(?:filter|policy|management)|responsible.?ai|moderation|data_inspection", re.IGNORECASE
)
_filtered = re.compile(r"filtered|flag|block|reject|refus|violat|trigger|inappropriate", re.IGNORECASE)


def _is_refusal(message: str, code: str) -> bool:
    """Whether an error is the provider's refusal: by its code, else by words that say both what and that."""
    return bool(_filter.search(code) or (_filter.search(message) and _filtered.search(message)))


_no_quota = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.IGNORECASE)


def status_error(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """The error of the tree that a reply with this HTTP status stands for."""
    message, code = _error_message(content)
    text = f"HTTP {status}: {message}"
    told = f"{code} {message}"
    if status == 429:
        return AccessDenied(text) if _no_quota.search(told) else RateLimited(text, _asked_wait(headers))
    if status in (401, 402, 403):
        return _content_filtered(text) if status == 403 and _is_refusal(message, code) else AccessDenied(text)
    if 200 <= status < 300:
        return MalformedBody(f"HTTP {status}: no answer comes with this status")
    if 300 <= status < 400:
        target = headers.get("Location", "nowhere")
        return NotServed(f"HTTP {status}: redirected to {target}; name that address as base_url")
    if status in (404, 405):
        return NotServed(text)
    if status == 408:
        return RequestTimeout(text, retry_after(headers))
    if status in (503, 529):
        return Overloaded(text, retry_after(headers))
    if status in (409, 425) or status >= 500:
        return ServerFault(text, retry_after(headers))
    if status == 413 or _too_long.search(told):
        return ContextTooLong(text)
    return _content_filtered(text) if _is_refusal(message, code) else BadRequest(text)


def _content_filtered(text: str) -> ContentFiltered:
    return ContentFiltered(f"{FILTERED}: {text}")


def _error_message(content: bytes) -> tuple[str, str]:
    """The message and the code in an error body; the body's own text where it is not of OpenAI's form."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict):
        return _error_in(body)
    return shortened(content.decode("utf-8", "replace")) or "no message", ""


def _error_in(body: Mapping[str, Any]) -> tuple[str, str]:
    error = body.get("error", body)
    if not isinstance(error, Mapping):
        return shortened(str(error)), ""
    message = error.get("message") or error.get("detail") or error
    return shortened(str(message)), str(error.get("code") or error.get("type") or "")


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a reply which refuses for the rate asks for."""
    seconds = retry_after(headers)
    return told_wait(headers) if seconds is None else seconds


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that ``Retry-After`` (seconds or an HTTP date) or ``retry-after-ms`` asks for; None: nothing
    readable.

    >>> retry_after({"Retry-After": "1.5"})
    1.5
    """
    milliseconds = headers.get("retry-after-ms")
    text = headers.get("Retry-After") or headers.get("retry-after")
    try:
        seconds = float(milliseconds) / 1000 if milliseconds is not None else float(text or "")
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    if text is None:
        return None
    try:
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):  # a date of year 1 or 9999 has no time stamp here
        return None
    return max(0.0, when - (time.time() if now is None else now))


KEPT_HEADERS = (
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "openai-version",
    "x-model-id",
    "x-model-version",
)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """What says which request a reply is to, for who asks the provider about it, and who answered."""
    return {name: headers[name] for name in KEPT_HEADERS if name in headers}


class Stream(Protocol):
    """Collects the events of one streamed answer."""

    def add(self, data: bytes) -> None:
        """Takes the data of one event; raises RequestError."""
        ...

    def body(self) -> dict[str, Any]:
        """The whole answer; raises MalformedBody when the stream ended before it did."""
        ...


class Events(Protocol):
    """Takes a stream of this media type apart into the data of its events."""

    media_type: ClassVar[str]

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that this piece ends."""
        ...

    def rest(self) -> Iterator[bytes]:
        """The data of a last event that does not end."""
        ...


@dataclass(frozen=True)
class Wire:
    """How a provider's replies are read: what a status other than 200 stands for, the JSON object in a body,
    what puts a stream of events together, and what takes the stream apart. By default as OpenAI's protocol
    has it."""

    failure: Callable[[int, bytes, Mapping[str, str]], RequestError] = status_error
    body: Callable[[bytes], dict[str, Any]] = answer_body
    stream: Callable[[], Stream] = StreamedAnswer
    events: type[Events] = EventLines
