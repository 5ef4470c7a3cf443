"""What an endpoint gets to know and what of it is shown: keys, passwords of other programs, proxies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.models import http
from tests.tasks.models.batch_servers import OpenAIServer, provider_server, said, serving
from tests.tasks.models.test_batches import by_batch, model, rows

KINDS = ("openai", "anthropic", "gemini")
HEADERS = {"openai": "authorization", "anthropic": "x-api-key", "gemini": "x-goog-api-key"}
CLIENTS = [("openai", "http"), ("openai", "openai"), ("anthropic", None), ("gemini", None)]


def asked(kind: str, url: str, client: str | None = None, **config: Any) -> Any:
    named = {} if client is None else {"client": client}
    return model(kind, url, api_key_env="NIGHTJAR_TEST_KEY", **named, **config)


@pytest.mark.parametrize(("kind", "client"), CLIENTS)
@pytest.mark.parametrize("key", ["none", "EMPTY", "a-key-of-the-answer"])
def test_an_answer_that_holds_the_key_is_kept_as_it_came(
    bench: Any, monkeypatch: pytest.MonkeyPatch, kind: str, client: str | None, key: str
) -> None:
    monkeypatch.setenv("NIGHTJAR_TEST_KEY", key)
    with serving(provider_server(kind, reply=lambda body: said(kind, f"There are {key} left"))) as url:
        outcome = bench.ask(asked(kind, url, client), rows(1))
    assert outcome.column("response") == [f"There are {key} left"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_in_a_batch_that_holds_the_key_is_kept_as_it_came(
    bench: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("NIGHTJAR_TEST_KEY", "EMPTY-of-the-answer")
    server = provider_server(kind, reply=lambda body: said(kind, "EMPTY-of-the-answer"))
    with serving(server) as url:
        outcome = by_batch(bench, asked(kind, url, batch={"wait": "24h"}), rows(2))
    assert (outcome.tally.batched, outcome.column("response")) == (2, ["EMPTY-of-the-answer"] * 2)


EVENTS = {
    False: ({}, b'{"error": {"message": "the key %s is unknown"}}'),
    True: (
        {"Content-Type": "text/event-stream"},
        b'data: {"error": {"message": "the key %s is unknown"}}\n\n',
    ),
}


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 400])
def test_an_error_that_repeats_the_key_is_shown_without_it(
    bench: Any, script: Any, monkeypatch: pytest.MonkeyPatch, client: str, stream: bool, status: int
) -> None:
    key = "sk-of-a-real-account"
    monkeypatch.setenv("NIGHTJAR_TEST_KEY", key)
    headers, body = EVENTS[stream and status == 200]
    url = script(lambda _: (status, headers, body % key.encode()))
    outcome = bench.ask(asked("openai", url, client, stream=stream, max_retries=0), rows(1))
    (error,) = outcome.column("error")
    assert "the key *** is unknown" in error


def test_a_word_that_stands_for_no_key_stays_in_error_texts(
    bench: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_TEST_KEY", "none")
    url = script(lambda _: (400, {}, {"error": {"message": "none of the tools is known"}}))
    (error,) = bench.ask(asked("openai", url, max_retries=0), rows(1)).column("error")
    assert "none of the tools is known" in error


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The endpoints of a test are as those of other machines, and a ``.netrc`` says this."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(http, "LOOPBACK", ())

    def write(text: str) -> None:
        file = Path.home() / ".netrc"
        file.write_text(text)
        file.chmod(0o600)

    return write


NETRC = ["machine 127.0.0.1 login bob password hunter2\n", "default login bob password hunter2\n"]


@pytest.mark.parametrize("netrc", NETRC, ids=["machine", "default"])
@pytest.mark.parametrize(("kind", "client"), CLIENTS)
@pytest.mark.parametrize("key", ["sk-of-the-endpoint", None])
def test_no_endpoint_gets_a_password_of_netrc(
    bench: Any,
    elsewhere: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    client: str | None,
    key: str | None,
    netrc: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere(netrc)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    server = provider_server(kind)
    got: list[dict[str, str]] = []
    answer = server.answer
    server.answer = lambda one: got.append(one.headers) or answer(one)
    named = {} if client is None else {"client": client}
    if key is not None:
        monkeypatch.setenv("NIGHTJAR_TEST_KEY", key)
        named["api_key_env"] = "NIGHTJAR_TEST_KEY"
    with serving(server) as url:
        outcome = bench.ask(model(kind, url, **named), rows(1))
    assert outcome.column("status") == ["ok"]
    assert not any("Basic" in value for headers in got for value in headers.values())
    if key is not None:
        assert all(key in headers[HEADERS[kind]] for headers in got)


class Proxy(OpenAIServer):
    """Answers for every host, as a proxy of plain HTTP does."""

    got: list[tuple[str, str | None]]

    def answer(self, asked: Any) -> Any:
        self.got = [*getattr(self, "got", []), (asked.path, asked.headers.get("proxy-authorization"))]
        asked.path = "/v1/" + asked.path.partition("/v1/")[2]
        return super().answer(asked)


@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("passes", [False, True])
def test_a_proxy_of_the_environment_is_asked_unless_it_says_otherwise(
    bench: Any,
    elsewhere: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    client: str,
    passes: bool,
) -> None:
    proxy, endpoint = Proxy(reply=lambda _: said("openai", "by proxy")), provider_server("openai")
    endpoint.reply = lambda _: said("openai", "itself")
    with serving(proxy), serving(endpoint) as url:
        named = "//user:word@" if client == "http" else "//"  # openai's way of a password is a warning
        monkeypatch.setenv("http_proxy", proxy.address.replace("//", named))
        if passes:
            monkeypatch.setenv("no_proxy", "127.0.0.1")
        outcome = bench.ask(model("openai", url, client=client), rows(1))
    assert outcome.column("error") == [None]
    if passes:
        assert outcome.column("response") == ["itself"]
    else:
        assert outcome.column("response") == ["by proxy"]
        assert {said for _, said in proxy.got} == {"Basic dXNlcjp3b3Jk" if client == "http" else None}
