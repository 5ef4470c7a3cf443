"""Anthropic's Messages API against a scripted endpoint that follows its documented wire form."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.connection import probe
from tasks.models.errors import MalformedBody, ModelError
from tasks.models.providers.anthropic import MAX_TOKENS, StreamedMessage
from tasks.models.providers.provider import provider_of
from tasks.models.records import Codec, Reply, Request

REPLIES = json.loads((Path(__file__).parents[2] / "fixtures/providers/anthropic.json").read_text())
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
]
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "q"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "one"},
    {"role": "tool", "tool_call_id": "call_1", "content": "two"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "and this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ],
    },
]


def model(config: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    settings = {"model": "claude-x", "base_url": "http://127.0.0.1:9/v1", **(config or {})}
    return ModelConfig.model_validate({"name": "a", "type": "anthropic", "config": settings, **fields})


def codec(config: dict[str, Any] | None = None, params: Any = None, **fields: Any) -> Codec:
    made = provider_of(model(config, **fields))
    return made.codec("generate", SampleParams.model_validate(params or {}))  # type: ignore[union-attr]


def body(prompt: Any, **options: Any) -> dict[str, Any]:
    chat = not isinstance(prompt, str)
    text = json.dumps(prompt) if chat else prompt
    (call,) = codec(**options).calls([Request(b"k", "generate", text, chat=chat)])
    assert call.path == "messages"
    return json.loads(call.content)


def read(name: str) -> Any:
    (answer,) = codec().answers([Request(bytes(32), "generate", "q")], [Reply(REPLIES[name], 0.1)], 1)
    return answer


def test_a_text_goes_as_one_turn_with_a_limit():
    assert body("q") == {
        "model": "claude-x",
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}],
    }


@pytest.mark.parametrize("params", [{}, {"max_tokens": 9}, {"max_completion_tokens": 7}])
def test_the_longest_answer_that_is_reckoned_with_is_the_limit_that_is_sent(params: dict[str, int]):
    reckoned = provider_of(model()).longest_answer(SampleParams.model_validate(params))
    assert reckoned == body("q", params=params)["max_tokens"]


def test_a_chat_becomes_a_system_prompt_and_turns_of_blocks():
    asked = body({"messages": SAID, "tools": TOOLS})
    assert asked["system"] == [{"type": "text", "text": "be brief"}]
    assert asked["tools"] == [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    assert [turn["role"] for turn in asked["messages"]] == ["user", "assistant", "user"]
    assert asked["messages"][1]["content"] == [
        {"type": "tool_use", "id": "call_0", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": {}},
    ]
    assert asked["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_0", "content": "one"},
        {"type": "tool_result", "tool_use_id": "call_1", "content": "two"},
        {"type": "text", "text": "and this?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ]


def test_sampling_thoughts_and_schemas_have_the_apis_own_fields():
    schema = {"type": "object", "properties": {}}
    params = {
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "top_p": 0.9,
        "top_k": 3,
        "stop": ["x"],
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    asked = body("q", params=params, reasoning={"effort": "low", "budget_tokens": 2048})
    del asked["model"], asked["messages"]
    assert asked == {
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "top_k": 3,
        "stop_sequences": ["x"],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
    }
    one = {"type": "function", "function": {"name": "f"}}
    assert body("q", params={"tool_choice": one})["tool_choice"] == {"type": "tool", "name": "f"}


def test_the_prefix_before_the_last_message_is_marked_where_it_is_asked_for():
    marked = {"cache_control": {"type": "ephemeral"}}
    shots = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "2"},
    ]
    asked = body(shots, config={"prompt_caching": True})
    assert asked["messages"][1]["content"] == [{"type": "text", "text": "one", **marked}]
    assert json.dumps(asked).count("ephemeral") == 1
    assert body([shots[0], shots[1]], config={"prompt_caching": True})["system"][0] == {
        "type": "text",
        "text": "s",
        **marked,
    }
    assert "cache_control" not in json.dumps(body(shots))
    keys = [provider_of(model({"prompt_caching": flag})).identity() for flag in (True, False)]
    assert keys[0] == keys[1], "no answer hangs on it"


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_a_system_prompt_of_extra_body_is_marked_once_for_each_request(system: Any):
    asked = codec({"prompt_caching": True, "extra_body": {"system": system}})
    said = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    for key in (b"k", b"l"):
        (made,) = asked.calls([Request(key, "generate", "q")])
        assert json.loads(made.content)["system"] == [said]


def test_a_template_is_not_there():
    with pytest.raises((ConfigError, ValueError), match="chat template"):
        model(reasoning={"template_kwargs": {"x": 1}})


def test_blocks_become_an_answer():
    answer = read("text")
    assert (answer.status, answer.response, answer.finish_reason) == ("ok", "Four.", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.total_tokens) == (23, 3, 26)
    assert (answer.cached_tokens, answer.served_model, answer.response_id) == (11, "claude-x-1", "msg_01")
    assert (read("empty").status, read("empty").response) == ("ok", "")


def test_thoughts_stand_apart_and_their_signed_blocks_are_kept():
    answer = read("thought")
    assert (answer.response, answer.reasoning, answer.finish_reason) == ("4", "2 + 2", "stop")
    assert '"signature":"EqoB"' in answer.reply_json
    assert '"data":"Emwk"' in answer.reply_json


def test_tokens_used_up_before_an_answer_cut_it_off():
    assert (read("cut_off").status, read("cut_off").finish_reason) == ("cut_off", "length")


def test_calls_of_tools_stand_beside_the_text():
    answer = read("calls")
    assert (answer.response, answer.finish_reason) == ("Let me look.", "tool_calls")
    assert json.loads(answer.tool_calls_json) == [{"name": "f", "arguments": '{"x":1}'}]


def test_the_refusal_stop_is_a_refusal():
    answer = read("refusal")
    assert (answer.status, answer.response) == ("refused", None)
    assert answer.error.startswith("the model refused")


def events(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that the API streams in place of a reply, by its documentation."""
    start = {**reply, "content": [], "stop_reason": None, "usage": {**reply["usage"], "output_tokens": 1}}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(reply["content"]):
        empty = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }.get(block["type"], {})
        found.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        deltas: list[dict[str, Any]] = []
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in block["text"]]
        if block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in block["thinking"]]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        if block["type"] == "tool_use":
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", text[:3], text[3:])]
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    ended = {name: reply[name] for name in ("stop_reason", "stop_sequence")}
    usage = {"output_tokens": reply["usage"]["output_tokens"]}
    return [*found, {"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]


@pytest.mark.parametrize("name", REPLIES)
def test_a_stream_is_put_together_to_the_same_reply(name: str):
    stream = StreamedMessage()
    for event in events(REPLIES[name]):
        stream.add(json.dumps(event).encode())
    assert stream.body() == REPLIES[name]


def test_a_stream_that_ends_early_is_malformed():
    stream = StreamedMessage()
    for event in events(REPLIES["text"])[:-1]:
        stream.add(json.dumps(event).encode())
    with pytest.raises(MalformedBody, match="ended before"):
        stream.body()


def failure(status: int, kind: str, message: str) -> tuple[int, dict[str, str], Any]:
    return status, {}, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "r"}


@pytest.mark.parametrize("stream", [False, True])
def test_answers_come_from_an_endpoint_of_its_form(
    bench: Any, problems: Any, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, stream: bool
):
    monkeypatch.setenv("CLAUDE_KEY", "sk-ant")
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked)
        if len(seen) == 1:
            return 429, {"retry-after": "0"}, failure(429, "rate_limit_error", "slow down")[2]
        if len(seen) == 2:
            return failure(529, "overloaded_error", "Overloaded")
        if not stream:
            return 200, {"request-id": "req_1"}, REPLIES["text"]
        lines = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events(REPLIES["text"]))
        return 200, {"Content-Type": "text/event-stream", "request-id": "req_1"}, lines.encode()

    config = {"base_url": script(answer), "api_key_env": "CLAUDE_KEY", "stream": stream, "max_concurrency": 1}
    outcome = bench.ask(model(config), problems(2))
    assert outcome.column("response") == ["Four."] * 2
    assert outcome.column("status") == ["ok"] * 2
    assert (outcome.tally.attempts, outcome.tally.cached_tokens) == (4, 22)
    assert {(a.path, a.headers["x-api-key"], a.headers["anthropic-version"]) for a in seen} == {
        ("/v1/messages", "sk-ant", "2023-06-01")
    }
    assert bench.ask(model(config), problems(2)).tally.sent == 0


def test_wrong_keys_and_models_are_one_sentence_before_anything_is_asked(script: Callable[..., str]):
    known = script(lambda asked: (200, {}, {"type": "model", "id": "claude-x-1", "display_name": "X"}))
    assert probe(model({"base_url": known})).warning is None
    wrong = script(lambda asked: failure(401, "authentication_error", "invalid x-api-key"))
    with pytest.raises(ModelError, match=r"refused access .*invalid x-api-key.*api_key_env"):
        probe(model({"base_url": wrong}))
    unknown = script(lambda asked: failure(404, "not_found_error", "model: claude-x"))
    with pytest.raises(ModelError, match=r"knows no model 'claude-x'.*set config.model"):
        probe(model({"base_url": unknown}))


def test_a_balance_that_is_used_up_stops_the_run(bench: Any, problems: Any, script: Callable[..., str]):
    empty = script(lambda asked: failure(400, "invalid_request_error", "Your credit balance is too low"))
    outcome = bench.ask(model({"base_url": empty, "max_concurrency": 1}), problems(3))
    assert outcome.column("status") == ["infra_error"] * 3
    assert outcome.tally.attempts == 1


def test_thoughts_that_the_api_counts_are_taken_as_counted_even_where_they_are_not_shown():
    reply = {
        **REPLIES["thought"],
        "content": [{"type": "thinking", "thinking": "", "signature": "EqoB"}, {"type": "text", "text": "4"}],
        "usage": {"input_tokens": 5, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 7}},
    }
    (answer,) = codec().answers([Request(bytes(32), "generate", "q")], [Reply(reply, 0.1)], 1)
    assert (answer.response, answer.reasoning, answer.reasoning_tokens) == ("4", None, 7)


def test_a_refusal_says_what_the_api_explains():
    explained = {"stop_details": {"type": "refusal", "category": "cyber", "explanation": "It could harm."}}
    reply = {**REPLIES["refusal"], **explained}
    (answer,) = codec().answers([Request(bytes(32), "generate", "q")], [Reply(reply, 0.1)], 1)
    assert answer.status == "refused"
    assert "It could harm." in str(answer.error)


def test_a_model_that_takes_no_temperature_is_asked_without_it_from_the_first_refusal_on(
    bench: Any, problems: Any, script: Callable[..., str]
):
    sent: list[dict[str, Any]] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        sent.append(asked.body)
        for name in ("temperature", "top_p"):
            if name in asked.body:
                said = f"`{name}` is deprecated for this model."
                return 400, {}, {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
        return 200, {}, REPLIES["text"]

    asked_model = model({"base_url": script(answer), "max_concurrency": 1})
    outcome = bench.ask(asked_model, problems(3), sampling={"temperature": 0.0, "top_p": 0.9})
    assert outcome.column("status") == ["ok"] * 3
    assert [[name in body for name in ("temperature", "top_p")] for body in sent] == [
        [True, True], [False, True], *[[False, False]] * 3,
    ]  # fmt: skip


def test_thoughts_are_kept_as_the_api_wants_them_back():
    assert json.loads(read("thought").thoughts_json) == REPLIES["thought"]["content"][:2]
    assert read("text").thoughts_json is None
