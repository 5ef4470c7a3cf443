"""Tool calls over the wire: streamed and not, several at once, arguments that are no JSON."""

import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import orjson
import pytest

from tasks.messages.calls import calls_of, distinct_ids, merged_pieces, parsed_calls, said_calls
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.errors import MalformedBody
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.generation import Chat, Completions, Generation
from tasks.models.records import Reply, Request
from tasks.models.wire import StreamedAnswer
from tests.loopback import answering

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CHAT = orjson.dumps({"messages": [{"role": "user", "content": "Rain?"}], "tools": [WEATHER]}).decode()


def call(name: str, arguments: Any, identity: str | None = "call_x") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": identity} if identity else {})


def piece(index: int | None, name: str | None = None, arguments: str | None = None, **more: Any) -> Any:
    said = {"name": name, "arguments": arguments}
    place = {} if index is None else {"index": index}
    return {**place, "function": {key: value for key, value in said.items() if value is not None}, **more}


PARIS, ROME = '{"city":"Paris"}', '{"city": "Rome"}'
KEPT_PARIS, KEPT_ROME = {"name": "weather", "arguments": PARIS}, {"name": "weather", "arguments": ROME}
# The pieces of a stream, the calls of a reply in one, and what is kept of either.
SCRIPTS: dict[str, tuple[list[list[Any]], list[Any], list[Any]]] = {
    "one call": (
        [[piece(0, "weather", "", id="a", type="function")], [piece(0, arguments='{"city"')], [
            piece(0, arguments=':"Paris"}')]],
        [call("weather", PARIS)],
        [KEPT_PARIS],
    ),
    "parallel, pieces in turn": (
        [[piece(0, "weather", id="a"), piece(1, "weather", id="b")], [piece(1, arguments='{"city": ')],
         [piece(0, arguments='{"city":')], [piece(0, arguments='"Paris"}')], [piece(1, arguments='"Rome"}')]],
        [call("weather", PARIS), call("weather", ROME, "call_y")],
        [KEPT_PARIS, KEPT_ROME],
    ),
    "parallel, the second first": (
        [[piece(1, "weather", '{"city": ', id="b")], [piece(0, "weather", PARIS, id="a")],
         [piece(1, arguments='"Rome"}')]],
        [call("weather", PARIS), call("weather", ROME, "call_y")],
        [KEPT_PARIS, KEPT_ROME],
    ),
    "all numbered 0, whole": (
        [[piece(0, "weather", PARIS, id="a")], [piece(0, "weather", ROME, id="b")]],
        [call("weather", PARIS), call("weather", ROME)],
        [KEPT_PARIS, KEPT_ROME],
    ),
    "no numbers": (
        [[piece(None, "weather", '{"city":', id="a")], [piece(None, arguments='"Paris"}')],
         [piece(None, "weather", ROME, id="b")]],
        [call("weather", PARIS), call("weather", ROME)],
        [KEPT_PARIS, KEPT_ROME],
    ),
    "malformed arguments": (
        [[piece(0, "weather", '{"city": "Par', id="a")]],
        [call("weather", '{"city": "Par')],
        [{"name": "weather", "arguments": '{"city": "Par'}],
    ),
    "no arguments": (
        [[piece(0, "now", id="a")]],
        [call("now", None)],
        [{"name": "now", "arguments": ""}],
    ),
}  # fmt: skip


@pytest.fixture
def scripted() -> Iterator[Callable[[list[bytes]], Any]]:
    """A server that gives these bodies in turn (events where they begin so); keeps the requests' bodies."""
    with ExitStack() as stack:

        def start(bodies: list[bytes]) -> Any:
            waiting = list(bodies)

            class Handler(http.server.BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    length = int(self.headers.get("Content-Length") or 0)
                    server.asked.append(json.loads(self.rfile.read(length)))  # type: ignore[attr-defined]
                    body = waiting.pop(0)
                    self.send_response(200)
                    kind = "text/event-stream" if body.startswith(b"data:") else "application/json"
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def log_message(self, *_: Any) -> None:
                    """Silent."""

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.asked = []  # type: ignore[attr-defined]
            stack.enter_context(answering(server))
            return server

        yield start


def streamed(deltas: list[list[Any]]) -> bytes:
    events: list[Any] = [{"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
    events += [{"choices": [{"index": 0, "delta": {"tool_calls": pieces}}]} for pieces in deltas]
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
    lines = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events]
    return b"".join([*lines, b"data: [DONE]\n\n"])


def whole(calls: list[Any], finish: str = "tool_calls") -> bytes:
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return orjson.dumps({"id": "x", "choices": [{"message": message, "finish_reason": finish}]})


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("client", ["http", "openai"])
def test_a_stream_gives_the_calls_that_one_reply_gives(
    bench: Any, scripted: Any, batch_of: Any, script: str, client: str
) -> None:
    deltas, calls, kept = SCRIPTS[script]
    server = scripted([streamed(deltas), whole(calls)])
    base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    found = []
    for name, stream in (("streamed", True), ("whole", False)):
        config = {"model": name, "base_url": base_url, "stream": stream, "client": client, "max_retries": 0}
        model = ModelConfig(name=name, config=config)
        rows = bench.ask(model, batch_of([{"chat": True, "prompts": [CHAT]}])).rows
        found.append((rows[0]["status"], rows[0]["response"], orjson.loads(rows[0]["tool_calls_json"])))
        again = bench.ask(model, batch_of([{"chat": True, "prompts": [CHAT]}]))
        assert (again.tally.sent, again.rows) == (0, rows)
    assert found == [("ok", "", kept)] * 2
    assert [body["tools"] for body in server.asked] == [[WEATHER]] * 2


def test_arguments_are_values_where_they_are_an_object_and_the_model_s_text_where_not() -> None:
    kept = orjson.dumps([{"name": "f", "arguments": text} for text in ("", '{"a": 1}', "[1]", '{"a": ')])
    found = [entry["arguments"] for entry in parsed_calls(kept.decode())]
    assert found == [{}, {"a": 1}, "[1]", '{"a": ']
    assert [entry["id"] for entry in said_calls(kept.decode())] == [f"call_{place}" for place in range(4)]
    assert parsed_calls(None) == []


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": "f"},
        {"tool_calls": ["f"]},
        {"tool_calls": [{"function": {"arguments": "{}"}}]},
        {"tool_calls": [call("", "{}")]},
        {"tool_calls": [call("f", 5)]},
    ],
)
def test_what_is_no_call_is_malformed_and_asked_again(message: Any) -> None:
    reply = {"choices": [{"message": {"content": None, **message}, "finish_reason": "tool_calls"}]}
    with pytest.raises(MalformedBody, match="call"):
        generation().answers([Request(b"k", "generate", "p")], [Reply(reply, 0.1)], 1)


@pytest.mark.parametrize("pieces", [["f"], [{"index": 0, "function": "f"}]])
def test_a_stream_with_something_else_for_calls_is_malformed(pieces: Any) -> None:
    answer = StreamedAnswer()
    answer.add(orjson.dumps({"choices": [{"delta": {"tool_calls": pieces}, "finish_reason": "stop"}]}))
    with pytest.raises(MalformedBody, match="call"):
        answer.body()


def test_a_call_in_the_older_form_and_one_with_an_object_for_arguments_are_calls() -> None:
    older = {"content": None, "function_call": {"name": "f", "arguments": "{}"}}
    object_ = {"content": "Let me see.", "tool_calls": [call("f", {"a": 1})]}
    bodies = [{"choices": [{"message": message, "finish_reason": "stop"}]} for message in (older, object_)]
    replies = [Reply(body, 0.1) for body in bodies]
    found = [generation().answers([Request(b"k", "generate", "p")], [reply], 1)[0] for reply in replies]
    assert [answer.tool_calls_json for answer in found] == [
        '[{"name":"f","arguments":"{}"}]',
        '[{"name":"f","arguments":"{\\"a\\":1}"}]',
    ]
    assert [answer.response for answer in found] == ["", "Let me see."]


def test_a_call_in_the_older_form_is_put_together_of_a_stream() -> None:
    assembly = StreamedAnswer()
    for delta in ({"name": "f", "arguments": ""}, {"arguments": '{"x":'}, {"arguments": "1}"}):
        assembly.add(orjson.dumps({"choices": [{"index": 0, "delta": {"function_call": delta}}]}))
    assembly.add(orjson.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]}))
    (choice,) = assembly.body()["choices"]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"x":1}'}
    assert calls_of(choice["message"]) == [{"name": "f", "arguments": '{"x":1}'}]


def test_a_name_that_is_said_in_every_piece_is_one_name() -> None:
    found = merged_pieces([piece(0, "f", "{"), piece(0, "f", "}")])
    assert found[0]["function"] == {"name": "f", "arguments": "{}"}


def test_a_completion_of_a_chat_with_parts_is_asked_with_its_texts() -> None:
    parts = [{"type": "text", "text": "How"}, {"type": "text", "text": " many?"}]
    chat = orjson.dumps([{"role": "user", "content": parts}]).decode()
    codec = Completions("m", EndpointConfig(api="completions"), SampleParams())
    (asked,) = codec.calls([Request(b"k", "generate", chat, chat=True)])
    assert asked.body["prompt"] == "How many?"


def generation() -> Generation:
    return Chat("m", EndpointConfig(), SampleParams())


def turn(*ids: str) -> list[dict[str, Any]]:
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    results = [{"role": "tool", "tool_call_id": one, "content": f"of {one}"} for one in ids]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


def sent_ids(chat: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The ids of calls and those of results, as they are sent."""
    (sent,) = generation().calls([Request(b"k", "generate", orjson.dumps(chat).decode(), chat=True)])
    messages = sent.body["messages"]
    made = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    return made, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


def test_calls_of_several_turns_are_sent_with_ids_of_their_own_that_every_server_takes() -> None:
    """Ours count from 0 in each turn; Mistral takes nine letters and digits alone."""
    made, results = sent_ids([{"role": "user", "content": "q"}, *turn("call_0", "call_1"), *turn("call_0")])
    assert made == results == ["call00000", "call00001", "call00002"]


def test_an_id_that_a_config_names_is_sent_as_it_is_the_first_time() -> None:
    made, results = sent_ids([*turn("call00000", "mine"), *turn("call_0"), *turn("mine")])
    assert made == results == ["call00000", "mine", "call00001", "call00002"]


@pytest.mark.parametrize("calls", ["f", ["f"], [call("f", "{}", None)], None])
def test_what_a_config_has_for_calls_without_ids_is_sent_as_it_is(calls: Any) -> None:
    chat = [{"role": "assistant", "content": "a", "tool_calls": calls}]
    (sent,) = generation().calls([Request(b"k", "generate", orjson.dumps(chat).decode(), chat=True)])
    assert sent.body["messages"] == chat


def test_two_calls_of_one_message_with_one_id_are_told_apart() -> None:
    (message, *_) = distinct_ids(turn("a", "a"))
    assert [call["id"] for call in message["tool_calls"]] == ["a", "a_2"]


def test_an_id_that_is_drawn_anew_for_each_piece_makes_one_call() -> None:
    texts = {"y": ": 1", "z": "}"}
    pieces = [piece(0, arguments=text, id=one) for one, text in texts.items()]
    (found,) = merged_pieces([piece(0, "f", '{"a"', id="x"), *pieces])
    assert found["function"] == {"name": "f", "arguments": '{"a": 1}'}
    both = merged_pieces([piece(0, "f", "{}", id="x"), piece(0, "f", "{}", id="y")])
    assert len(both) == 2, "some servers number all calls 0"
