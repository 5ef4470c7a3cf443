"""Models that Inspect asks by other clients than openai's: one request each to a stand-in on loopback, and
what is said where a client is not installed."""

import json
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_inspect_tasks import config
from tests.loopback import answering

pytestmark = pytest.mark.inspect
Evaluate = Callable[..., Any]
Asked = list[tuple[str, str | None, dict[str, Any]]]
"""Path, key and body of each request."""
KEY = "a-key-of-ours"


def message(text: str) -> dict[str, Any]:
    """A reply of Anthropic's Messages."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 2},
    }  # fmt: skip


def candidate(text: str) -> dict[str, Any]:
    """A reply of Gemini's generateContent."""
    content = {"role": "model", "parts": [{"text": text}]}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "modelVersion": "m",
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 2, "totalTokenCount": 13},
    }  # fmt: skip


def response(text: str) -> dict[str, Any]:
    """A reply of OpenAI's Responses."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    usage = {
        "input_tokens": 11, "output_tokens": 2, "total_tokens": 13,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 1_760_000_000, "status": "completed",
        "model": "m", "output": [said], "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
    }  # fmt: skip


REPLIES = {"/v1/messages": message, "/v1beta/models/m:generateContent": candidate, "/v1/responses": response}
KEYS = ("X-Api-Key", "X-Goog-Api-Key", "Authorization")


@pytest.fixture
def asked() -> Iterator[tuple[str, Asked]]:
    """The address of all three, and what was asked there."""
    found: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            key = next((self.headers[name] for name in KEYS if self.headers[name]), None)
            path = self.path.partition("?")[0]
            (number,) = re.findall(r"What is (\d+)", body.decode()) or ("0",)
            if number != "0":  # the preflight asks, too
                found.append((path, key, json.loads(body)))
            said = json.dumps(REPLIES[path](str(2 * int(number)))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def do_GET(self) -> None:
            said = b'{"data": [{"id": "m"}], "models": [{"name": "models/m"}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_port}", found


def models(address: str) -> list[dict[str, Any]]:
    places = {"anthropic": "/v1", "gemini": "/v1beta", "openai_responses": "/v1"}
    return [
        {
            "name": kind,
            "type": kind,
            "config": {"base_url": address + place, "model": "m", "api_key_env": "OWN_KEY", "max_retries": 0},
        }
        for kind, place in places.items()
    ]


def test_each_provider_is_asked_where_the_config_says_and_with_its_key(
    asked: tuple[str, Asked], evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, requests = asked
    monkeypatch.setenv("OWN_KEY", KEY)
    given = {"inspect": {"args": {"count": 1}}, "sample_params": {"temperature": 0, "max_tokens": 16}}
    ran = evaluate(config(tmp_path / "ours", address, models=models(address), **given), "--json")
    assert ran.code == 0, ran.err
    by_path = {path: (key, body) for path, key, body in requests}
    assert set(by_path) == set(REPLIES)
    assert len(requests) == len(REPLIES)
    assert {str(key).removeprefix("Bearer ") for key, _ in by_path.values()} == {KEY}
    limits = [
        by_path["/v1/messages"][1]["max_tokens"],
        by_path["/v1beta/models/m:generateContent"][1]["generationConfig"]["maxOutputTokens"],
        by_path["/v1/responses"][1]["max_output_tokens"],
    ]
    assert limits == [16] * 3
    for kind in ("anthropic", "gemini", "openai_responses"):
        assert ran.value("match,none", kind) == 1.0
    assert ran.document["requests"]["sent"] == 3
    assert ran.document["tokens"]["prompt"] == 33


HIDES = """
from importlib.machinery import PathFinder
real, hidden = PathFinder.find_spec, {"anthropic", "google.genai", "openai"}
PathFinder.find_spec = lambda name, *more: None if name in hidden else real(name, *more)
"""


def test_a_client_that_is_not_installed_is_told_before_anything_is_asked(
    asked: tuple[str, Asked], evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, requests = asked
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    monkeypatch.setenv("OWN_KEY", KEY)
    ran = evaluate(config(tmp_path / "ours", address, models=models(address)))
    assert ran.code == 2
    for kind, package in [
        ("anthropic", "anthropic"),
        ("gemini", "google-genai"),
        ("openai_responses", "openai"),
    ]:
        assert f"Inspect asks type {kind} with the package '{package}'" in ran.err
        assert f"-m pip install {package}" in ran.err
    assert requests == []
