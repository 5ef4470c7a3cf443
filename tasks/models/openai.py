"""The provider over the official ``openai`` client, for endpoints that need what it does.

Its own retries are off, because the engine counts attempts; its aiohttp transport and raw responses keep it
as fast as it gets.
"""

import time
from typing import Any

from tasks.models.errors import ConnectionFault, RequestTimeout
from tasks.models.http import StreamedAnswer, answer_body, status_error, unreadable, within_limit
from tasks.models.records import Call, Reply

NO_KEY = "none"
"""The client refuses to start without a key; endpoints without one ignore it."""


class OpenAIProvider:
    """An OpenAI-compatible endpoint through ``openai.AsyncOpenAI``."""

    def __init__(self, base_url: str, key: str | None) -> None:
        import openai

        self._openai = openai
        self._secret = key.encode() if key else None
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=key or NO_KEY,
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(follow_redirects=False),
        )

    async def send(self, call: Call, timeout: float) -> Reply:
        """Makes the call; see ``Provider.send``."""
        start = time.perf_counter()
        try:
            content = self._redacted(await self._content(call, timeout))
        except self._openai.APIStatusError as error:
            body = self._redacted(error.response.content)
            raise status_error(error.status_code, body, error.response.headers) from None
        except self._openai.APITimeoutError as error:
            raise RequestTimeout(f"no answer within {timeout:g} s") from error
        except (self._openai.APIConnectionError, OSError) as error:
            raise ConnectionFault(f"connection failed: {error.__cause__ or error}") from error
        except Exception as error:
            raise unreadable(error) from error
        return Reply(_body(content), time.perf_counter() - start)

    async def close(self) -> None:
        """Closes the client and its pool."""
        await self._client.close()

    async def _content(self, call: Call, timeout: float) -> bytes:
        """The body as it came; all but the required fields go along as ``extra_body``."""
        rest = dict(call.body)
        model = rest.pop("model")
        create: Any
        if call.path == "completions":
            create, required = (
                self._client.completions.with_raw_response.create,
                {"prompt": rest.pop("prompt")},
            )
        else:
            create = self._client.chat.completions.with_raw_response.create
            required = {"messages": rest.pop("messages")}
        response = await create(model=model, **required, extra_body=rest, timeout=timeout)
        content: bytes = response.http_response.content
        return within_limit(content)

    def _redacted(self, content: bytes) -> bytes:
        return content.replace(self._secret, b"***") if self._secret else content


def _body(content: bytes) -> dict[str, Any]:
    """The body of an answer, of a stream of events put together."""
    if not content.startswith(b"data:"):
        return answer_body(content)
    answer = StreamedAnswer()
    for line in content.splitlines():
        if line.startswith(b"data:"):
            answer.add(line[5:].strip())
    return answer.body()
