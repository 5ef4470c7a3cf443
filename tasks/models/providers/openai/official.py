"""The transport over the official ``openai`` client, for endpoints that need what it does.

Its own retries are off, because the engine counts attempts, and its transport is aiohttp's, which is
faster. Bodies are read here and not by the client, which would take one of any size into memory first.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import aiohttp

from tasks.models.errors import ConnectionFault, Redaction, RequestError, RequestTimeout
from tasks.models.http import body_within_limit, largest_body
from tasks.models.limits.allowances import allowances
from tasks.models.records import Call, Reply
from tasks.models.wire import (
    EventLines,
    StreamedAnswer,
    answer_body,
    holds_events,
    holds_object,
    kept_headers,
    status_error,
    unreadable,
)

NO_KEY = "none"
"""The client refuses to start without a key; endpoints without one ignore it."""


class OfficialTransport:
    """An OpenAI-compatible endpoint through ``openai.AsyncOpenAI``."""

    def __init__(self, base_url: str, headers: Mapping[str, str], key: str | None) -> None:
        import openai

        self._openai = openai
        self._redaction = Redaction(key)
        self._largest = largest_body()
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=key or NO_KEY,
            default_headers=dict(headers),
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(
                follow_redirects=False, event_hooks={"response": [self._refuse_status]}
            ),
        )

    async def send(self, call: Call, timeout: float) -> Reply:
        """Makes the call; see ``Transport.send``."""
        start = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):  # the client's own time-out begins again with every piece
                content, headers = await self._content(call, timeout)
        except RequestError:
            raise
        except (TimeoutError, self._openai.APITimeoutError) as error:
            raise RequestTimeout(f"no answer within {timeout:g} s") from error
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, RequestError):  # the hook's, which the client takes for a fault of its own
                raise cause from None
            if isinstance(error, (self._openai.APIConnectionError, OSError)) or isinstance(
                cause, (aiohttp.ClientError, OSError)
            ):
                raise ConnectionFault(f"connection failed: {cause or error}") from error
            raise unreadable(error) from error
        body = self._redaction.read(partial(_body, headers=headers), content)
        return Reply(body, time.perf_counter() - start, kept_headers(headers), allowances(headers))

    async def close(self) -> None:
        """Closes the client and its pool."""
        await self._client.close()

    async def _content(self, call: Call, timeout: float) -> tuple[bytes, Mapping[str, str]]:
        """The body as it came, and the headers; all but the required fields go along as ``extra_body``."""
        rest = dict(call.body)
        model = rest.pop("model")
        create: Any
        if call.path == "completions":
            create, required = self._client.completions, {"prompt": rest.pop("prompt")}
        else:
            create, required = self._client.chat.completions, {"messages": rest.pop("messages")}
        asked = create.with_streaming_response.create(
            model=model, **required, extra_body=rest, timeout=timeout
        )
        async with asked as response:
            return await body_within_limit(response.iter_bytes(), self._largest), response.headers

    async def _refuse_status(self, response: Any) -> None:
        """Raises what a status other than 200 stands for, before the client reads its body."""
        if response.status_code != 200:
            pieces: AsyncIterator[bytes] = response.aiter_bytes()
            content = self._redaction.hide(await body_within_limit(pieces, self._largest))
            raise status_error(response.status_code, content, response.headers)


def _body(content: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """The body of an answer, of a stream of events put together."""
    is_typed = "text/event-stream" in headers.get("content-type", "")
    if holds_object(content) or not (is_typed or holds_events(content)):
        return answer_body(content)
    answer, lines = StreamedAnswer(), EventLines()
    for data in (*lines.add(content), *lines.rest()):
        answer.add(data)
    return answer.body()
