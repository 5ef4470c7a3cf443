"""Replies that no protocol knows: each costs its own request, whatever it holds, and the run goes on.

A server sends a scripted reply to each prompt: bodies with something else in some place, damaged bytes, other
statuses and headers, streams that break. What is drawn is fixed (Hypothesis, derandomised).
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.models.config import ModelConfig
from tests.loopback import answering

STATUSES = {"ok", "cut_off", "refused", "infra_error"}
AT_ONCE = 50
CHAT = {
    "id": "x",
    "model": "m",
    "system_fingerprint": "f",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "4", "reasoning_content": "2 + 2", "refusal": None},
            "logprobs": {"content": [{"token": "4", "logprob": -0.1, "top_logprobs": []}]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}},
}
EVENTS = [
    {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "4"}}]},
    {"id": "x", "choices": [{"index": 0, "delta": {"content": "2"}, "finish_reason": "stop"}]},
    {"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
]
HEADERS = [
    {},
    {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"},
    {"Retry-After": "Mon, 01 Jan 0001 00:00:00 +2359"},
    {"Retry-After": "1e400"},
    {"Retry-After": "-1"},
    {"retry-after-ms": "NaN"},
    {"Location": "http://elsewhere.example/v1"},
    {"Content-Encoding": "gzip"},
    {"Content-Type": "text/event-stream"},
    {"Content-Type": "text/html; charset=nonsense"},
]


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


ODD: list[Any] = [
    None, True, -1, 0, 2**63, 10**40, 1.5, float("nan"), float("inf"), "", " ", "x", "length", "\ud83d",
    "<think>", [], {}, [None], {"message": "no"}, nested(70), nested(300), ["a"] * 50,
    [None], {"message": "no"}, nested(70), nested(300), ["a"] * 50,
]  # fmt: skip


@dataclass
class Reply:
    body: bytes
    whole: bool = False
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


def mutated(value: Any, draw: Any) -> Any:
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(value))
        if not every:
            break
        *path, last = draw(st.sampled_from(every))
        holder = value
        for step in path:
            holder = holder[step]
        if draw(st.booleans()):
            holder[last] = copy.deepcopy(draw(st.sampled_from(ODD)))
        else:
            del holder[last]
    return value


def damaged(body: bytes, draw: Any) -> bytes:
    data = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        piece = draw(
            st.binary(max_size=6) | st.sampled_from([b"\n", b"\n\ndata:", b'"', b"{", b"[DONE]", b"\xff"])
        )
        data[at : at + draw(st.integers(0, 8))] = piece
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def stream(events: list[Any], done: bool = True) -> bytes:
    lines = [b"data: " + text(event) for event in events] + ([b"data: [DONE]"] if done else [])
    return b"\n\n".join(lines) + b"\n\n"


@st.composite
def replies(draw: Any, streamed: bool) -> Reply:
    """A whole reply now and then, as a control; all others have something wrong with them."""
    kind = draw(
        st.sampled_from(["whole", "structure", "structure", "structure", "bytes", "status", "headers"])
    )
    headers = {"Content-Type": "text/event-stream"} if streamed else {}
    good = stream(EVENTS) if streamed else text(CHAT)
    if kind == "whole":
        return Reply(good, True, headers=headers)
    if kind == "structure":
        if streamed:
            return Reply(stream(mutated(EVENTS, draw), draw(st.booleans())), headers=headers)
        return Reply(text(mutated(CHAT, draw)))
    if kind == "bytes":
        return Reply(damaged(good, draw), headers=headers)
    status = draw(
        st.sampled_from([200, 201, 204, 206, 299, 302, 400, 404, 409, 413, 422, 429, 500, 503, 529, 599])
    )
    body = draw(
        st.sampled_from([b"", text({"error": mutated({"message": "m", "code": "c"}, draw)}), good, b"<html>"])
    )
    more = draw(st.sampled_from(HEADERS))
    return Reply(
        body if kind == "status" else good, status=status if kind == "status" else 200, headers=headers | more
    )


class Server(ThreadingHTTPServer):
    """Answers prompt number i with the i-th reply."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = outer.replies[int(asked["messages"][-1]["content"])]
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    with answering(running):
        yield running


def model_at(server: Server, client: str, streamed: bool) -> ModelConfig:
    address = f"http://127.0.0.1:{server.server_port}/v1"
    config = {"base_url": address, "max_retries": 0, "timeout": 5, "stream": streamed, "client": client}
    return ModelConfig.model_validate({"name": "m", "config": config})


@pytest.mark.slow
@pytest.mark.parametrize("client", ["http", "openai"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@settings(
    derandomize=True, deadline=None, database=None, max_examples=6, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_a_malformed_reply_costs_one_request(bench, batch_of, server, client, streamed, data):
    server.replies = data.draw(st.lists(replies(streamed), min_size=AT_ONCE, max_size=AT_ONCE))
    rows = batch_of([{"prompts": [str(number)]} for number in range(AT_ONCE)])
    # One at a time would take long, and an address that sends 404 to one request is not asked for the others.
    server.replies = [
        reply if reply.status not in (302, 404) else Reply(reply.body, status=422) for reply in server.replies
    ]
    outcome = bench.ask(model_at(server, client, streamed), rows, refresh=True)
    assert len(outcome.rows) == AT_ONCE
    for reply, row in zip(server.replies, outcome.rows, strict=True):
        assert row["status"] in STATUSES
        assert (row["response"] is None) == (row["status"] != "ok")
        assert row["status"] == "ok" or row["error"]
        if reply.whole:
            assert (row["status"], row["response"]) == ("ok", "42" if streamed else "4"), row["error"]


BEYOND = [
    ("an event of 40 MB", {"stream": True}, b"data: " + b"x" * (40 << 20) + b"\n\n"),
    ("nested 254-fold", {}, text({**CHAT, "choices": [{**CHAT["choices"][0], "logprobs": nested(130)}]})),
    (
        "half a character",
        {},
        text({**CHAT, "choices": [{**CHAT["choices"][0], "logprobs": ["\ud83d", 10**40]}]}),
    ),
    ("10,000 digits", {}, text(CHAT).replace(b"-0.1", b"9" * 10_000)),
]


@pytest.mark.parametrize(("config", "body"), [case[1:] for case in BEYOND], ids=[case[0] for case in BEYOND])
def test_what_a_library_gives_up_on_is_one_malformed_answer_with_its_name(
    bench, batch_of, server, config, body
):
    whole = Reply(stream(EVENTS) if config else text(CHAT), True)
    broken = Reply(body)
    if config:
        whole.headers = broken.headers = {"Content-Type": "text/event-stream"}
    server.replies = [whole, broken, whole]
    rows = batch_of([{"prompts": [str(number)]} for number in range(3)])
    outcome = bench.ask(model_at(server, "http", bool(config)), rows)
    assert outcome.column("status") == ["ok", "infra_error", "ok"]
    assert "can't be read (" in outcome.rows[1]["error"] or "is not JSON" in outcome.rows[1]["error"]


@pytest.mark.parametrize("headers", HEADERS[1:6], ids=lambda headers: next(iter(headers.values())))
def test_any_retry_after_is_lived_with(bench, batch_of, server, headers):
    server.replies = [Reply(b"{}", status=429, headers=headers), Reply(text(CHAT), True)]
    outcome = bench.ask(model_at(server, "http", False), batch_of([{"prompts": ["0"]}, {"prompts": ["1"]}]))
    assert outcome.rows[0]["status"] == "infra_error"
    assert "429" in outcome.rows[0]["error"] or "pause" in outcome.rows[0]["error"]
