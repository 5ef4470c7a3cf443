"""Which requests the own server lets through to Prefect's application, and what it answers itself."""

import asyncio
import json
from typing import Any

import pytest

from flows.server.boundary import CODE_SECONDS, CODES_AT_ONCE, Address, Boundary, Codes, authorization, proof

SECRET, PORT = "nightjar:what only its user knows", 4210
PASSED = b"prefect answered"


async def prefect(scope: Any, receive: Any, send: Any) -> None:
    """In Prefect's place: answers whatever comes, and lets every site read it."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"access-control-allow-origin", b"*")]}
    )
    await send({"type": "http.response.body", "body": PASSED})


class Client:
    """Sends requests to the application, one after the other."""

    def __init__(self, ui_url: str | None = None) -> None:
        self.application = Boundary(prefect, SECRET, PORT, ui_url)

    def connect(self, kind: str, method: str, path: str, body: bytes, **headers: str) -> list[Any]:
        sent: list[Any] = []
        named = {"host": f"127.0.0.1:{PORT}", **headers}
        path, _, query = path.partition("?")
        scope = {
            "type": kind,
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in named.items() if value],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.application(scope, receive, send))
        return sent

    def __call__(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes, Any]:
        start, end = self.connect("http", method, path, body, **headers)
        return start["status"], end["body"], dict(start["headers"])


@pytest.mark.parametrize("host", ["127.0.0.1:4210", "LOCALHOST:4210", "[::1]:4210", "localhost"])
def test_its_own_names_are_answered(host: str) -> None:
    assert Client()("GET", "/api/flows", host=host)[:2] == (200, PASSED)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:4210",
        "127.0.0.1.evil.example.com",
        "localhost.evil.example.com:4210",
        "127.0.0.1@evil.example.com",
        "[::2]:4210",
        "0.0.0.0:4210",
        "127.0.0.2:4210",
        "",
    ],
)
def test_a_name_that_only_resolves_to_this_machine_is_refused(host: str) -> None:
    status, body, _ = Client()("GET", "/api/flows", host=host)
    assert (status, PASSED in body) == (403, False)


def test_two_host_headers_are_refused() -> None:
    hosts = [(b"host", b"127.0.0.1:4210"), (b"host", b"evil.example.com")]
    assert Address.of(PORT).refusal(hosts) is not None
    assert Address.of(PORT).refusal(hosts[:1]) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example.com",
        "null",
        "http://127.0.0.1:4211",  # another server of this machine, somebody's notebook
        "http://localhost",
        "https://127.0.0.1:4210",
        "http://127.0.0.1:4210.evil.example.com",
        "file://",
    ],
)
@pytest.mark.parametrize("path", ["/api/block_documents/filter", "/nightjar/exchange", "/nightjar/open", "/"])
def test_a_page_of_another_site_is_refused_whatever_it_asks(path: str, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert Client()(method, path, origin=origin)[0] == 403


def test_its_own_page_may_ask() -> None:
    for origin in ("http://127.0.0.1:4210", "http://localhost:4210", "http://[::1]:4210"):
        assert Client()("POST", "/api/flows", origin=origin)[0] == 200


def test_the_address_behind_a_proxy_is_its_own_too() -> None:
    client = Client("https://Prefect.example.com")
    outside = {"host": "prefect.example.com", "origin": "https://prefect.example.com"}
    assert client("POST", "/api/flows", **outside)[0] == 200
    assert client("POST", "/api/flows", **{**outside, "origin": "http://prefect.example.com"})[0] == 403
    assert Client()("POST", "/api/flows", **outside)[0] == 403


def test_no_answer_may_be_read_by_every_site_or_framed() -> None:
    _, _, headers = Client()("GET", "/api/flows")
    assert b"access-control-allow-origin" not in headers
    assert headers[b"x-frame-options"] == b"DENY"


def test_a_websocket_of_another_site_is_closed_before_it_opens() -> None:
    sent = Client().connect("websocket", "GET", "/api/events/out", b"", origin="http://evil.example.com")
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_code_is_given_to_who_has_the_credential_and_is_good_once() -> None:
    client = Client()
    for wrong in ("", "Basic bmlnaHRqYXI6", authorization(SECRET + "x"), authorization(SECRET)[:-1]):
        assert client("POST", "/nightjar/codes", authorization=wrong)[0] == 401
    status, body, _ = client("POST", "/nightjar/codes", authorization=authorization(SECRET))
    code = json.loads(body)["code"].encode()
    assert status == 200
    first, password, _ = client("POST", "/nightjar/exchange", code)
    assert (first, "Basic " + json.loads(password)["password"]) == (200, authorization(SECRET))
    assert client("POST", "/nightjar/exchange", code)[0] == 403


@pytest.mark.parametrize("guess", [b"", b"x" * 32, b"\xff\xfe", b"y" * 100_000])
def test_a_guessed_code_is_good_for_nothing(guess: bytes) -> None:
    client = Client()
    client("POST", "/nightjar/codes", authorization=authorization(SECRET))
    status, body, _ = client("POST", "/nightjar/exchange", guess)
    assert status == 403
    assert SECRET.encode() not in body


def test_codes_end_with_time_and_are_never_without_number() -> None:
    clock = [0.0]
    codes = Codes(now=lambda: clock[0])
    first = codes.new()
    clock[0] = CODE_SECONDS + 1
    assert not codes.use(first)
    given = [codes.new() for _ in range(CODES_AT_ONCE + 5)]
    assert not codes.use(given[0])
    assert codes.use(given[-1])


def test_a_proof_is_for_one_port_and_one_question_and_tells_nothing() -> None:
    _, body, _ = Client()("GET", "/nightjar/proof?nonce=abc")
    assert json.loads(body)["proof"] == proof(SECRET, PORT, "abc")
    assert len({proof(SECRET, PORT, "abc"), proof(SECRET, PORT, "abd"), proof(SECRET, PORT + 1, "abc")}) == 3


def test_the_page_that_opens_the_ui_holds_no_credential_and_loads_nothing_foreign() -> None:
    status, body, headers = Client()("GET", "/nightjar/open")
    assert status == 200
    assert b"http://" not in body
    assert b"https://" not in body
    assert SECRET.encode() not in body
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]
    assert headers[b"cache-control"] == b"no-store"
