"""The embedded server: its handlers for models, chats, completions and ``/stats``, and the thread of this
process that runs them on a free loopback port.

The handlers answer by the model of ``protocol.py``, show the faults that are drawn, and count what comes
in. ``serve`` starts a server of its own, ``shared_server`` the process's one server for equal options,
however many partitions use it at once.
"""

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from tasks.models.demo.options import DemoOptions, FaultDraw
from tasks.models.demo.protocol import DemoModel, Unacceptable


class DemoServer:
    """The request handlers over one model, one set of faults and one count of what came in."""

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self.stats = Stats()
        self._draw = FaultDraw(options.faults)
        self._model = DemoModel(options)

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.ask)
        app.router.add_post("/v1/completions", self.ask)
        app.router.add_get("/stats", self.show_stats)
        app.router.add_post("/stats/reset", self.reset_stats)
        app.router.add_get("/health", self.health)
        return app

    async def models(self, request: web.Request) -> web.Response:
        """Lists the one model served."""
        if not self._admits(request):
            return _error(401, "Incorrect API key provided", "invalid_api_key")
        return _json(
            {
                "object": "list",
                "data": [{"id": self.options.model, "object": "model", "owned_by": "nightjar"}],
            }
        )

    async def show_stats(self, request: web.Request) -> web.Response:
        """Shows the counts."""
        return _json(self.stats.snapshot())

    async def reset_stats(self, request: web.Request) -> web.Response:
        """Starts counting from zero."""
        self.stats = Stats()
        return _json({})

    async def health(self, request: web.Request) -> web.Response:
        """Says that the server is there."""
        return _json({"status": "ok"})

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Answers a chat or completion request, or shows the fault drawn for it."""
        content = await request.read()
        mark = self.stats.arrive(request.path, content)
        try:
            if not self._admits(request):
                return _error(401, "Incorrect API key provided", "invalid_api_key")
            fault = self._fault()
            if fault is not None:
                self.stats.faults[fault] += 1
            if self.options.latency:
                await asyncio.sleep(self.options.latency)
            if fault is not None and (shown := await self._show(fault, request)) is not None:
                return shown
            return await self._answer(request, content, mark)
        except Unacceptable as error:
            return _error(400, str(error), error.code)
        finally:
            self.stats.in_flight -= 1

    def _admits(self, request: web.Request) -> bool:
        key = self.options.api_key
        return key is None or request.headers.get("Authorization") == f"Bearer {key}"

    def _fault(self) -> str | None:
        faults = self.options.faults
        if faults.capacity is not None and self.stats.in_flight > faults.capacity:
            return "error_429"
        after, until = faults.down_after, faults.up_after
        if (
            after is not None
            and after < self.stats.received
            and (until is None or self.stats.received <= until)
        ):
            return "error_503"
        return self._draw.next()

    async def _show(self, fault: str, request: web.Request) -> web.StreamResponse | None:
        """The answer that shows a fault; None: the answer comes after all, late."""
        faults = self.options.faults
        if fault == "error_429":
            wait = {} if faults.retry_after is None else {"Retry-After": f"{faults.retry_after:g}"}
            return _error(429, "Rate limit reached", "rate_limit_exceeded", wait)
        if fault in ("error_500", "error_503"):
            return _error(int(fault[-3:]), "The server had an error", "server_error")
        if fault == "malformed":
            return web.Response(body=b'{"id": "x", "choices": [{"mess', content_type="application/json")
        if fault == "empty":
            return web.Response(body=b"", content_type="application/json")
        if fault == "cut":
            response = web.StreamResponse(
                headers={"Content-Type": "application/json", "Content-Length": "1000"}
            )
            await response.prepare(request)
            await response.write(b'{"id": "cut", "choices": [')
            if request.transport is not None:
                request.transport.abort()
            return response
        await asyncio.sleep(faults.stall_seconds)
        return None

    async def _answer(self, request: web.Request, content: bytes, mark: bytes) -> web.StreamResponse:
        body = _parsed(content)
        self._check(body, content)
        chat = request.path.endswith("/chat/completions")
        answer = self._model.chat(body) if chat else self._model.completion(body)
        self.stats.tokens += answer["usage"]["total_tokens"]
        if body.get("stream"):
            response = await _stream(request, answer, chat)
        else:
            response = _json(answer)
        self.stats.answer(mark)
        return response

    def _check(self, body: Mapping[str, Any], content: bytes) -> None:
        faults = self.options.faults
        text = content.decode("utf-8", "replace")
        if faults.fail_prompts is not None and faults.fail_prompts in text:
            raise Unacceptable("this prompt is never taken", "invalid_prompt")
        if faults.filter_prompts is not None and faults.filter_prompts in text:
            raise Unacceptable("The response was filtered due to the content policy", "content_filter")
        if faults.refuse_max_tokens_0 and body.get("max_tokens") == 0:
            raise Unacceptable("max_tokens must be at least 1")
        if faults.refuse_ids and not isinstance(body.get("prompt", ""), str):
            raise Unacceptable("prompt must be a text")
        if faults.refuse_echo and body.get("echo"):
            raise Unacceptable("echo is not supported")


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Unacceptable(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Unacceptable("the body must be a JSON object")
    return body


async def _stream(request: web.Request, answer: dict[str, Any], chat: bool) -> web.StreamResponse:
    """The same answer as server-sent events, some words an event."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    head = {**answer, "object": "chat.completion.chunk" if chat else "text_completion", "usage": None}
    for choice in answer["choices"]:
        calls = choice["message"].get("tool_calls") if chat else None
        if calls:
            begun = [{"index": place, **call} for place, call in enumerate(calls)]
            delta = {"delta": {"tool_calls": begun}, "finish_reason": None}
            await _event(response, {**head, "choices": [{"index": choice["index"], **delta}]})
        text = choice["message"]["content"] if chat else choice["text"]
        pieces = [text[start : start + 40] for start in range(0, len(text or ""), 40)]
        for piece in [*pieces, None]:
            end = choice["finish_reason"] if piece is None else None
            said = {"delta": {} if piece is None else {"content": piece}} if chat else {"text": piece or ""}
            await _event(
                response, {**head, "choices": [{"index": choice["index"], **said, "finish_reason": end}]}
            )
    await _event(response, {**head, "choices": [], "usage": answer["usage"]})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _event(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(b"data: " + orjson.dumps(body) + b"\n\n")


def _json(body: Any) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _error(
    status: int, message: str, code: str | None, headers: Mapping[str, str] | None = None
) -> web.Response:
    body = {
        "error": {
            "message": message,
            "type": "invalid_request_error" if status == 400 else code,
            "code": code,
        }
    }
    return web.Response(
        status=status, body=orjson.dumps(body), content_type="application/json", headers=headers
    )


class Stats:
    """What came in: requests by path, the most in flight at once, faults shown, and what was answered
    again.
    """

    def __init__(self) -> None:
        self.received = 0
        self.answered = 0
        self.in_flight = 0
        self.peak = 0
        self.tokens = 0
        self.paths: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.first: float | None = None
        self.last = 0.0
        self._asked: Counter[bytes] = Counter()
        self._answers: Counter[bytes] = Counter()

    def arrive(self, path: str, body: bytes) -> bytes:
        """Counts a request; returns the mark under which its answer is counted."""
        self.received += 1
        self.first = self.first or time.monotonic()
        self.paths[path] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        mark = hashlib.blake2b(body, digest_size=12).digest()
        self._asked[mark] += 1
        return mark

    def answer(self, mark: bytes) -> None:
        """Counts an answer that was given in full."""
        self.answered += 1
        self.last = time.monotonic()
        self._answers[mark] += 1

    def snapshot(self) -> dict[str, Any]:
        """The counts as ``/stats`` shows them; ``seconds`` go from the first request to the last answer,
        ``asked_again`` counts requests beyond the first of equal ones, ``answered_again`` those of them
        that had been answered before.
        """
        answers = list(self._answers.values())  # copied at once: the server's thread counts on
        return {
            "received": self.received,
            "answered": self.answered,
            "distinct": len(self._asked),
            "asked_again": self.received - len(self._asked),
            "answered_again": sum(count - 1 for count in answers if count > 1),
            "most_often_asked": max(self._asked.values(), default=0),
            "seconds": self.last - self.first if self.first is not None and self.answered else 0.0,
            "in_flight": self.in_flight,
            "peak": self.peak,
            "tokens": self.tokens,
            "paths": dict(self.paths),
            "faults": dict(self.faults),
        }


BACKLOG = 1024


@dataclass(frozen=True)
class Serving:
    """A running server: where it is, and what it has counted."""

    base_url: str
    server: DemoServer

    def stats(self) -> dict[str, Any]:
        """The counts as ``/stats`` shows them."""
        return self.server.stats.snapshot()


@contextmanager
def serve(options: DemoOptions | None = None, port: int = 0) -> Iterator[Serving]:
    """Starts the server (port 0: a free one), yields where it is, and stops it in the end."""
    server = DemoServer(options or DemoOptions())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="nightjar-demo", daemon=True)
    thread.start()

    def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    runner: web.AppRunner | None = None
    try:
        runner, bound = on_loop(start(server, port))
        yield Serving(f"http://127.0.0.1:{bound}/v1", server)
    finally:
        if runner is not None:
            on_loop(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def start(server: DemoServer, port: int, host: str = "127.0.0.1") -> tuple[web.AppRunner, int]:
    """Binds the server on the running loop; returns its runner and the port it has."""
    # A client that hangs up frees its place at once, as a real server's scheduler would.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=BACKLOG)
    await site.start()
    return runner, int(runner.addresses[0][1])


class _Shared:
    def __init__(self) -> None:
        self.users = 0
        self.base_url = ""
        self.stack = ExitStack()


_lock = threading.Lock()
_running: dict[DemoOptions, _Shared] = {}


@contextmanager
def shared_server(options: DemoOptions) -> Iterator[str]:
    """The address of the process's server with these options; it stops when its last user leaves."""
    with _lock:
        shared = _running.setdefault(options, _Shared())
        if not shared.users:
            try:
                shared.base_url = shared.stack.enter_context(serve(options)).base_url
            except BaseException:
                del _running[options]
                raise
        shared.users += 1
    try:
        yield shared.base_url
    finally:
        with _lock:
            shared.users -= 1
            if not shared.users:
                del _running[options]
                shared.stack.close()
