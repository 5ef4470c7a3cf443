"""Endpoints that lead elsewhere, answer without end, or are asked over a network with a key."""

import asyncio
import gzip
import http.server
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import orjson
import pytest

from metrics.errors import ConfigError
from tasks.models.config import ModelConfig
from tasks.models.connection import probe
from tasks.models.errors import (
    AccessDenied,
    BadRequest,
    ContentFiltered,
    MalformedBody,
    ModelError,
    NotServed,
    ServerFault,
)
from tasks.models.providers.openai.choices import ordered_choices
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.provider import ServedModel, provider_of, unencrypted_key_warning
from tasks.models.records import Call
from tasks.models.wire import body_error, status_error
from tests.loopback import answering

ANSWER = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}


@pytest.fixture
def endpoint() -> Iterator[Callable[[Callable[[Any], None]], tuple[str, list[str]]]]:
    """Starts servers that answer every request by a function; gives the address and the paths asked for."""
    with ExitStack() as stack:

        def start(answer: Callable[[Any], None]) -> tuple[str, list[str]]:
            asked: list[str] = []

            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.rfile.read(int(self.headers.get("Content-Length") or 0))
                    asked.append(f"{self.path} {self.headers.get('Authorization')}")
                    try:
                        answer(self)
                    except ConnectionError:
                        self.close_connection = True

                do_POST = do_GET  # noqa: N815

                def log_message(self, *_: Any) -> None:
                    """Silent."""

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            stack.enter_context(answering(server))
            return f"http://127.0.0.1:{server.server_address[1]}/v1", asked

        yield start


def send(base_url: str, client: str = "http", stream: bool = False) -> Any:
    config = EndpointConfig(base_url=base_url, client=client, stream=stream)  # type: ignore[arg-type]
    body = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}

    async def call() -> Any:
        provider = provider_of(ModelConfig(name="m", config=config)).transport(
            ServedModel(base_url, "m", config, "sk-secret"), 1
        )
        try:
            return (await provider.send(Call("chat/completions", body), 60)).body
        finally:
            await provider.close()

    return asyncio.run(call())


def reply(handler: Any, body: bytes, **headers: str) -> None:
    handler.send_response(200)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_followed_by_nobody(endpoint: Any, client: str, status: int) -> None:
    elsewhere, heard = endpoint(lambda handler: reply(handler, json.dumps(ANSWER).encode()))

    def lead_away(handler: Any) -> None:
        handler.send_response(status)
        handler.send_header("Location", elsewhere)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    base_url, asked = endpoint(lead_away)
    with pytest.raises(NotServed, match="redirected"):
        send(base_url, client)
    config = EndpointConfig(base_url=base_url, client=client, api_key_env=None)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="redirected"):
        probe(ModelConfig(name="m", config=config))
    assert len(asked) == 2
    assert heard == [], "nothing was told to the other one, for GET either"


def bomb(megabytes: int) -> bytes:
    """A valid answer of so many megabytes, compressed to a thousandth."""
    head, tail = json.dumps(ANSWER).encode().replace(b'"4"', b'"|"').split(b"|")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(head)
    for _ in range(megabytes):
        packed += packer.compress(b"4" * 1_000_000)
    return packed + packer.compress(tail) + packer.flush()


@pytest.mark.parametrize("client", ["http", "openai"])
def test_a_body_that_unpacks_to_more_than_the_limit_is_malformed(
    endpoint: Any, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = bomb(70)
    assert len(packed) < 100_000
    base_url, _ = endpoint(lambda handler: reply(handler, packed, Content_Encoding="gzip"))
    with pytest.raises(MalformedBody, match="larger than 64 MB"):
        send(base_url, client)
    monkeypatch.setenv("NIGHTJAR_MAX_BODY_MB", "80")
    assert len(send(base_url, client)["choices"][0]["message"]["content"]) == 70_000_000


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("beyond", [0, 1])
def test_a_body_that_says_its_length_may_be_as_long_as_the_limit(
    endpoint: Any, client: str, beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_MAX_BODY_MB", "1")
    body = json.dumps(ANSWER).encode()
    body += b" " * (1_000_000 + beyond - len(body))
    base_url, _ = endpoint(lambda handler: reply(handler, body))
    if not beyond:
        assert send(base_url, client)["choices"] == ANSWER["choices"]
        return
    with pytest.raises(MalformedBody, match="larger than 1 MB"):
        send(base_url, client)


@pytest.mark.parametrize("text", ["64MB", "nan", "inf", "0", "-1"])
def test_a_limit_of_bodies_that_is_no_number_is_refused_by_its_name(
    endpoint: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_MAX_BODY_MB", text)
    base_url, _ = endpoint(lambda handler: reply(handler, json.dumps({"data": []}).encode()))
    said = rf"^NIGHTJAR_MAX_BODY_MB: expected a finite number above 0, got '{text}'"
    for ask in (partial(send, base_url, "http"), partial(send, base_url, "openai")):
        with pytest.raises(ConfigError, match=said):
            ask()
    with pytest.raises(ConfigError, match=said):
        probe(ModelConfig(name="m", config=EndpointConfig(base_url=base_url)))


def test_a_list_of_models_has_the_limit_too(endpoint: Any) -> None:
    packed = gzip.compress(json.dumps({"data": []}).encode() + b" " * 70_000_000)
    base_url, _ = endpoint(lambda handler: reply(handler, packed, Content_Encoding="gzip"))
    with pytest.raises(ModelError, match="larger than 64 MB"):
        probe(ModelConfig(name="m", config=EndpointConfig(base_url=base_url)))


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize(
    ("status", "kind", "stream"),
    [
        (200, "text/event-stream", True),
        (200, "application/json", False),
        (400, "application/json", False),
        (500, "text/html", True),
    ],
)
def test_a_body_without_end_is_cut_while_it_comes(
    endpoint: Any, client: str, status: int, kind: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_MAX_BODY_MB", "2")
    event = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "4" * 1000}}]}).encode()
    pieces, taken = 100_000, []

    def endless(handler: Any) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.end_headers()
        handler.close_connection = True
        for _ in range(pieces):
            handler.wfile.write(event + b"\n\n")
            taken.append(1)

    base_url, _ = endpoint(endless)
    with pytest.raises(MalformedBody, match=r"^the answer's body is larger than 2 MB"):
        send(base_url, client, stream)
    assert len(taken) < pieces / 2, "it was not read to its end first"


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("http://models.example.com/v1", True),
        ("http://10.0.0.7:8000/v1", True),
        ("https://models.example.com/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.1:8000/v1", False),
        ("http://[::1]:8000/v1", False),
    ],
)
def test_a_key_that_goes_over_a_network_unencrypted_is_warned_about(address: str, warned: bool) -> None:
    said = unencrypted_key_warning(ModelConfig(name="m"), address)
    assert (said is not None and "unencrypted" in said and "https" in said) is warned


def test_the_warning_is_among_what_an_endpoint_is_doubted_for(
    endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "sk-secret")
    base_url, _ = endpoint(lambda handler: reply(handler, json.dumps({"data": [{"id": "m"}]}).encode()))
    model = ModelConfig(name="m", config=EndpointConfig(base_url=base_url, api_key_env="A_KEY"))
    assert probe(model).warning is None, "it stays on this machine"
    monkeypatch.setattr("tasks.models.providers.provider.LOOPBACK", ())
    assert "unencrypted" in str(probe(model).warning)


PAGE = b"""<html><head><meta http-equiv='Content-Security-Policy' content="default-src 'none'"></head>
<body><h1>Sorry, you have been blocked</h1> by the content filter of your company</body></html>"""
ECHO = {"type": "string_type", "msg": "Input should be a string", "input": "Does it violate content policy?"}
MODERATED = "Your chosen model requires moderation and your input was flagged"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (403, PAGE, AccessDenied),
        (400, PAGE, BadRequest),
        (422, {"detail": [ECHO]}, BadRequest),
        (400, {"detail": ECHO["input"]}, BadRequest),
        (
            400,
            {"object": "error", "message": {"detail": [ECHO]}, "type": "invalid_request_error"},
            BadRequest,
        ),
        (422, {"error": {"message": "Invalid content: got 'Should moderation flag this?'"}}, BadRequest),
        (400, {"error": {"message": 'value "violates the content policy" is no list'}}, BadRequest),
        (400, {"error": {"message": "Triggered Azure's content policy for 'x'"}}, ContentFiltered),
        (403, {"error": {"message": "Blocked by content policy", "code": "permission_denied"}}, AccessDenied),
        (403, {"error": {"message": "no", "code": "content_policy_violation"}}, ContentFiltered),
        (403, {"error": {"message": MODERATED, "code": 403}}, AccessDenied),
        (403, {"error": {"message": MODERATED, "metadata": {"flagged_input": "x"}}}, ContentFiltered),
        (400, {"error": {"message": "no", "type": "content_filter", "code": 400}}, ContentFiltered),
        (400, {"error": {"message": "The response was filtered: content policy"}}, ContentFiltered),
        (400, {"error": "Output blocked by content filtering policy"}, ContentFiltered),
        (400, {"object": "error", "message": "flagged by moderation", "code": 400}, ContentFiltered),
    ],
)
def test_a_refusal_is_what_the_provider_says_and_no_word_on_a_page(
    status: int, body: Any, error: Any
) -> None:
    """A firewall, a proxy and an echoed prompt use such words, too, and a refusal is never asked again."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    assert type(status_error(status, content, {})) is error


def test_an_error_with_status_200_is_a_refusal_by_the_same_words() -> None:
    assert isinstance(body_error({"error": {"message": "flagged by moderation"}}), ContentFiltered)
    assert isinstance(body_error({"error": {"detail": [ECHO]}}), ServerFault)


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "the queue is full"},
        {"detail": "the queue is full"},
        {"code": 50, "message": "the queue is full"},
        {"error_code": 50, "text": "the queue is full"},
    ],
)
def test_a_bare_error_with_status_200_says_the_servers_own_words(body: Any) -> None:
    with pytest.raises(ServerFault, match=r"an error with status 200: .*the queue is full"):
        ordered_choices(body, 1)
    choices = [{"text": "4"}]
    assert ordered_choices({**body, "choices": choices}, 1) == choices


def test_a_request_that_a_proxy_gave_up_is_asked_again() -> None:
    assert type(status_error(499, b"client closed request", {})) is ServerFault
