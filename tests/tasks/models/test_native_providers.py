"""Gemini and OpenAI's Responses against scripted endpoints that follow their documented wire forms; and the
same benchmark on every provider."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.benchmarks.prompts import Template
from tasks.models.config import ModelConfig, Price, SampleParams
from tasks.models.connection import probe
from tasks.models.errors import BadRequest, EmptyAnswer, MalformedBody, ModelError, ServerFault
from tasks.models.providers.anthropic import Messages
from tasks.models.providers.gemini import StreamedParts
from tasks.models.providers.native import Chat
from tasks.models.providers.provider import provider_of
from tasks.models.providers.responses import StreamedResponse
from tasks.models.records import Codec, Reply, Request
from tasks.models.respond import respond
from tasks.rows.turns import Continuation, next_requests

FIXTURES = Path(__file__).parents[2] / "fixtures/providers"
REPLIES = {
    "gemini": json.loads((FIXTURES / "gemini.json").read_text()),
    "openai_responses": json.loads((FIXTURES / "openai_responses.json").read_text()),
    "anthropic": json.loads((FIXTURES / "anthropic.json").read_text()),
}
KINDS = tuple(REPLIES)
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
CALLED = [
    {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": CALLED},
    {"role": "tool", "tool_call_id": "call_0", "content": "one"},
    {"role": "tool", "tool_call_id": "call_1", "content": "two"},
    {"role": "user", "content": [{"type": "text", "text": "and this?"}, IMAGE]},
]
CHAT = {"messages": SAID, "tools": [{"type": "function", "function": FUNCTION}]}


def model(kind: str, config: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    settings = {"model": "x", "base_url": "http://127.0.0.1:9/v1", **(config or {})}
    return ModelConfig.model_validate({"name": "a", "type": kind, "config": settings, **fields})


def codec(kind: str, config: dict[str, Any] | None = None, params: Any = None, **fields: Any) -> Codec:
    made = provider_of(model(kind, config, **fields))
    return made.codec("generate", SampleParams.model_validate(params or {}))  # type: ignore[union-attr]


def call(kind: str, prompt: Any, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
    chat = not isinstance(prompt, str)
    text = json.dumps(prompt) if chat else prompt
    (made,) = codec(kind, **options).calls([Request(b"k", "generate", text, chat=chat, seed=seed)])
    return made.path, json.loads(made.content)


def read(kind: str, reply: Any) -> Any:
    given = REPLIES[kind][reply] if isinstance(reply, str) else reply
    (answer,) = codec(kind).answers([Request(bytes(32), "generate", "q")], [Reply(given, 0.1)], 1)
    return answer


def test_gemini_is_asked_by_contents():
    assert call("gemini", "q") == (
        "models/x:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "q"}]}]},
    )
    path, asked = call("gemini", CHAT, config={"stream": True})
    assert path == "models/x:streamGenerateContent?alt=sse"
    unsigned = {"thoughtSignature": "skip_thought_signature_validator"}
    assert asked == {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "f", "description": "d", "parametersJsonSchema": {"type": "object"}}
                ]
            }
        ],
        "contents": [
            {"role": "user", "parts": [{"text": "q"}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"name": "f", "args": {"x": 1}}, **unsigned},
                    {"functionCall": {"name": "f", "args": {}}, **unsigned},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "f", "response": {"result": "one"}}},
                    {"functionResponse": {"name": "f", "response": {"result": "two"}}},
                    {"text": "and this?"},
                    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                ],
            },
        ],
    }


def test_gemini_has_fields_of_its_own_for_sampling_thoughts_and_schemas():
    schema = {"type": "object"}
    params = {
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["x"],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    thinks = {"budget_tokens": 64}
    _, asked = call("gemini", "q", seed=4, params=params, reasoning=thinks)
    assert asked["generationConfig"] == {
        "temperature": 0.5,
        "maxOutputTokens": 9,
        "stopSequences": ["x"],
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
        "thinkingConfig": {"thinkingBudget": 64, "includeThoughts": True},
        "seed": 4,
    }
    assert asked["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}


def test_responses_are_asked_by_items_and_stored_nowhere():
    assert call("openai_responses", "q") == (
        "responses",
        {
            "model": "x",
            "store": False,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}],
        },
    )
    _, asked = call("openai_responses", CHAT)
    assert asked["instructions"] == "be brief"
    assert asked["tools"] == [{"type": "function", **FUNCTION}]
    assert asked["input"][1:] == [
        {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": ""},
        {"type": "function_call_output", "call_id": "call_0", "output": "one"},
        {"type": "function_call_output", "call_id": "call_1", "output": "two"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "and this?"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ],
        },
    ]


def test_responses_have_fields_of_their_own_for_sampling_thoughts_and_schemas():
    params = {
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    }
    _, asked = call("openai_responses", "q", params=params, reasoning={"effort": "low"})
    del asked["input"], asked["model"], asked["store"]
    assert asked == {
        "temperature": 0.5,
        "max_output_tokens": 9,
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }


@pytest.mark.parametrize(
    ("kind", "params", "said"),
    [
        ("gemini", {"n": 2}, "sample_params.n"),
        ("gemini", {"logprobs": True}, "sample_params.logprobs"),
        ("gemini", {"response_format": {"type": "text"}}, "json_schema"),
        ("openai_responses", {"seed": 1}, "sample_params.seed"),
        ("openai_responses", {"stop": ["x"]}, "sample_params.stop"),
        ("openai_responses", {"top_k": 3}, "sample_params.top_k"),
        ("anthropic", {"seed": 1}, "sample_params.seed"),
        ("anthropic", {"n": 2}, "sample_params.n"),
        ("anthropic", {"logprobs": True}, "sample_params.logprobs"),
        ("anthropic", {"presence_penalty": 1.0}, "sample_params.presence_penalty"),
        ("anthropic", {"response_format": {"type": "json_object"}}, "json_schema"),
    ],
)
def test_what_an_api_has_no_field_for_is_refused(kind: str, params: dict[str, Any], said: str):
    with pytest.raises(ModelError, match=said) as refused:
        codec(kind, params=params)
    assert f"type {kind}" in str(refused.value)


@pytest.mark.parametrize("tokens", [0, 64])
def test_a_budget_of_thoughts_is_refused_where_an_api_has_effort_alone(tokens: int):
    with pytest.raises(ValueError, match=r"takes reasoning\.effort alone"):
        model("openai_responses", reasoning={"budget_tokens": tokens})


@pytest.mark.parametrize("kind", KINDS)
def test_log_likelihoods_are_refused_naming_what_can(kind: str):
    with pytest.raises(ModelError, match=r"no log-likelihoods of a text; ask one of type .*openai"):
        probe(model(kind), "loglikelihood")


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_an_api_does_not_take_is_refused(kind: str):
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    far = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(BadRequest, match=f"type {kind} takes"):
        call(kind, [{"role": "user", "content": [far if kind == "gemini" else sound]}])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_answer_in_each_form_is_the_same_answer(kind: str):
    answer = read(kind, "text")
    assert (answer.status, answer.response, answer.finish_reason) == ("ok", "Four.", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.total_tokens) == (23, 3, 26)
    assert answer.cached_tokens == 11
    thought = read(kind, "thought")
    assert (thought.status, thought.response, thought.reasoning) == ("ok", "4", "2 + 2")
    calls = read(kind, "calls")
    assert (calls.response, calls.finish_reason) == ("Let me look.", "tool_calls")
    assert json.loads(calls.tool_calls_json) == [{"name": "f", "arguments": '{"x":1}'}]
    cut = read(kind, "cut_off")
    assert (cut.status, cut.response, cut.finish_reason) == ("cut_off", None, "length")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gemini", "blocked"),
        ("gemini", "blocked prompt"),
        ("openai_responses", "refusal"),
        ("openai_responses", "filtered"),
        ("anthropic", "refusal"),
    ],
)
def test_every_providers_own_sign_of_refusal_is_one(kind: str, name: str):
    answer = read(kind, name)
    assert (answer.status, answer.response) == ("refused", None)
    assert answer.error.startswith(("the model refused", "filtered by the provider"))


def test_thoughts_are_counted_as_the_apis_count_them():
    gemini, responses = read("gemini", "thought"), read("openai_responses", "thought")
    assert (gemini.completion_tokens, gemini.reasoning_tokens) == (9, 7)
    assert (responses.completion_tokens, responses.reasoning_tokens) == (9, 7)
    assert "EqoB" in gemini.reply_json
    assert "gAAA" in responses.reply_json


def test_an_empty_text_of_gemini_is_an_answer():
    assert (read("gemini", "empty").status, read("gemini", "empty").response) == ("ok", "")


@pytest.mark.parametrize(
    "content",
    [{}, *({"content": said} for said in ({"role": "model"}, {"parts": []}, {"parts": [{"text": None}]}))],
)
def test_an_answer_of_gemini_without_a_part_is_none_and_asked_again(content: dict[str, Any]):
    with pytest.raises(EmptyAnswer):
        read("gemini", {"candidates": [{"finishReason": "STOP", **content}]})
    stream = StreamedParts()
    stream.add(json.dumps({"candidates": [{"finishReason": "STOP", **content}]}).encode())
    with pytest.raises(EmptyAnswer):
        read("gemini", stream.body())
    malformed = read("gemini", {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", **content}]})
    assert (malformed.status, malformed.response) == ("ok", ""), "the model's own fault"


@pytest.mark.parametrize("feedback", [{"blockReason": "BLOCK_REASON_UNSPECIFIED"}, {"safetyRatings": []}])
def test_feedback_of_gemini_that_names_no_reason_blocks_nothing(feedback: dict[str, Any]):
    candidate = {"content": {"parts": [{"text": "4"}]}, "finishReason": "STOP"}
    answer = read("gemini", {"candidates": [candidate], "promptFeedback": feedback})
    assert (answer.status, answer.response) == ("ok", "4")
    stream = StreamedParts()
    begun = {"promptFeedback": feedback, "candidates": [candidate | {"finishReason": None}]}
    stream.add(json.dumps(begun).encode())
    with pytest.raises(MalformedBody, match="ended before"):
        stream.body()


def test_a_field_of_a_part_of_gemini_that_is_null_is_none():
    called = {"functionCall": {"name": "f", "args": {}}, "text": None}
    parts = [{"text": "Four.", "thought": None, "functionCall": None}, called]
    answer = read("gemini", {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    assert (answer.status, answer.response, answer.reasoning) == ("ok", "Four.", None)
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        ("gemini", {}),
        ("gemini", {"candidates": [{}, {}]}),
        ("gemini", {"candidates": [{"content": {"parts": "x"}, "finishReason": "STOP"}]}),
        ("gemini", {"candidates": [{"content": {"parts": [{"functionCall": {}}]}, "finishReason": "STOP"}]}),
        ("anthropic", {}),
        ("anthropic", {"content": "text"}),
        ("anthropic", {"content": [1]}),
        ("anthropic", {"content": [{"type": "text", "text": None}]}),
        ("anthropic", {"content": [{"type": "tool_use", "input": {}}]}),
        ("openai_responses", {}),
        ("openai_responses", {"output": [1]}),
        ("openai_responses", {"output": [{"type": "message", "content": "x"}]}),
        ("openai_responses", {"output": [{"type": "function_call"}]}),
        ("gemini", {"candidates": [{"content": {"parts": [{"text": 4}]}, "finishReason": "STOP"}]}),
        *[
            ("openai_responses", {"output": [{"type": "message", "content": [part]}]})
            for part in ({"type": "output_text", "text": None}, {"type": "output_text"})
        ],
    ],
)
def test_a_reply_of_another_shape_is_malformed(kind: str, odd: dict[str, Any]):
    with pytest.raises(MalformedBody):
        read(kind, odd)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("gemini", {"candidates": [{"content": {"parts": [{"text": "Fo"}]}, "finishReason": reason}]})
        for reason in ("OTHER", "MALFORMED_RESPONSE", "FINISH_REASON_UNSPECIFIED")
    ]
    + [
        ("openai_responses", {**REPLIES["openai_responses"]["text"], "status": status})
        for status in ("failed", "cancelled", "in_progress")
    ],
)
def test_an_answer_that_the_provider_broke_off_is_none_and_asked_again(kind: str, broken: dict[str, Any]):
    with pytest.raises(ServerFault):
        read(kind, broken)


def chunks(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """What Gemini streams in place of a reply: a chunk a part, the finish with the last."""
    candidates = reply.get("candidates")
    if not candidates:
        return [reply]
    (candidate,) = candidates
    rest = {name: value for name, value in reply.items() if name != "candidates"}
    parts = candidate.get("content", {}).get("parts") or []
    found = [
        {**rest, "candidates": [{"content": {"parts": [p], "role": "model"}, "index": 0}]} for p in parts
    ]
    ended = {name: value for name, value in candidate.items() if name != "content"}
    return [*found, {**rest, "candidates": [ended]}]


@pytest.mark.parametrize("name", REPLIES["gemini"])
def test_chunks_of_gemini_are_put_together(name: str):
    stream = StreamedParts()
    for chunk in chunks(REPLIES["gemini"][name]):
        stream.add(json.dumps(chunk).encode())
    whole, streamed = read("gemini", name), read("gemini", stream.body())
    for field in ("status", "response", "reasoning", "tool_calls_json", "finish_reason", "total_tokens"):
        assert getattr(whole, field) == getattr(streamed, field), field


def test_a_character_whose_halves_come_in_two_chunks_of_gemini_is_one():
    stream = StreamedParts()
    for text in (b"\\ud83d", b"\\ude00"):
        stream.add(b'{"candidates":[{"content":{"parts":[{"text":"%s"}]}}]}' % text)
    stream.add(b'{"candidates":[{"finishReason":"STOP"}]}')
    assert read("gemini", stream.body()).response == "\U0001f600"


def test_the_last_event_of_a_response_is_the_response():
    stream = StreamedResponse()
    for event in (
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "Fo"},
        {"type": "response.completed", "response": REPLIES["openai_responses"]["text"]},
    ):
        stream.add(json.dumps(event).encode())
    assert stream.body() == REPLIES["openai_responses"]["text"]
    for empty in (StreamedResponse(), StreamedParts()):
        with pytest.raises(MalformedBody, match="ended before"):
            empty.body()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_benchmark_gives_the_same_predictions(
    bench: Any, problems: Any, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setenv("A_KEY", "sk-secret")
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked)
        if len(seen) == 1:
            return 429, {"retry-after": "0"}, {"error": {"message": "slow down"}}
        return 200, {}, REPLIES[kind]["text"]

    config = {"base_url": script(answer), "api_key_env": "A_KEY", "max_concurrency": 1}
    price = Price(prompt=10.0, completion=20.0, cached=1.0)
    outcome = bench.ask(model(kind, config), problems(2), price=price)
    assert outcome.tally.cached_tokens == 22
    assert outcome.tally.cost == pytest.approx(2 * (12 * 10 + 11 * 1 + 3 * 20) / 1e6)
    assert outcome.tally.cache_saved == pytest.approx(2 * 11 * 9 / 1e6)
    assert outcome.column("status") == ["ok"] * 2
    assert outcome.column("response") == ["Four."] * 2
    assert outcome.column("served_model") == [f"{outcome.rows[0]['served_model']}"] * 2
    assert outcome.rows[0]["served_model"].endswith("-x-1")
    assert outcome.tally.attempts == 3
    assert all("sk-secret" in json.dumps(asked.headers) for asked in seen)
    assert bench.ask(model(kind, config), problems(2)).tally.sent == 0


def test_gemini_says_in_the_body_how_long_to_wait_and_what_is_wrong(
    bench: Any, problems: Any, script: Callable[..., str]
):
    def failing(status: int, message: str, **detail: Any) -> Callable[..., Any]:
        error = {"code": status, "message": message, "status": "X", "details": [detail]}
        return lambda asked: (status, {}, {"error": error})

    wrong = script(failing(400, "API key not valid.", reason="API_KEY_INVALID"))
    with pytest.raises(ModelError, match=r"refused access .*API key not valid"):
        probe(model("gemini", {"base_url": wrong}))
    region = script(failing(400, "User location is not supported for the API use."))
    with pytest.raises(ModelError, match=r"refused access .*location is not supported"):
        probe(model("gemini", {"base_url": region}))
    unknown = script(failing(404, "models/x is not found"))
    with pytest.raises(ModelError, match=r"knows no model 'x'.*set config.model"):
        probe(model("gemini", {"base_url": unknown}))
    quota = "You exceeded your current quota, please check your plan and billing details."
    slow = script(failing(429, quota, retryDelay="40s"))
    config = {"base_url": slow, "max_concurrency": 1, "max_retries": 1, "deadline": 5}
    outcome = bench.ask(model("gemini", config), problems(1))
    assert (outcome.column("status"), outcome.tally.attempts) == (["infra_error"], 1), "40 s are too long"


TWICE: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": CALLED[:1]},
    {"role": "tool", "tool_call_id": "call_0", "content": "one"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "g", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "two"},
]


def test_calls_of_several_turns_have_ids_of_their_own():
    """Ours count from 0 in each turn, and Anthropic takes no id twice."""
    _, asked = call("anthropic", TWICE)
    blocks = [block for turn in asked["messages"] for block in turn["content"]]
    made = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert made == results
    assert len(set(made)) == 2
    _, asked = call("openai_responses", TWICE)
    items = [item for item in asked["input"] if "call_id" in item]
    assert [item["call_id"] for item in items] == [items[0]["call_id"]] * 2 + [items[2]["call_id"]] * 2
    assert items[0]["call_id"] != items[2]["call_id"]
    _, asked = call("gemini", TWICE)
    parts = [part for content in asked["contents"] for part in content["parts"]]
    assert [part["functionResponse"]["name"] for part in parts if "functionResponse" in part] == ["f", "g"]


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", "not json"])
def test_arguments_that_are_no_object_are_sent_as_what_the_model_wrote(arguments: str):
    """A reply that was cut off ends in the middle of a call, and the conversation goes on."""
    made = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    chat = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_0", "content": "no such call"},
    ]
    _, asked = call("anthropic", chat)
    assert asked["messages"][1]["content"][0]["input"] == {"INVALID_JSON": arguments}
    _, asked = call("gemini", chat)
    assert asked["contents"][1]["parts"][0]["functionCall"]["args"] == {"INVALID_JSON": arguments}
    _, asked = call("openai_responses", chat)
    assert asked["input"][1]["arguments"] == arguments


def test_a_request_that_cannot_be_written_fails_alone(
    bench: Any, problems: Any, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    written = Messages.body

    def body(self: Messages, chat: Chat) -> dict[str, Any]:
        if "Tom has 1 apples" in str(chat.messages):
            raise KeyError("arguments")
        return written(self, chat)

    monkeypatch.setattr(Messages, "body", body)
    address = script(lambda _: (200, {}, REPLIES["anthropic"]["text"]))
    outcome = bench.ask(model("anthropic", {"base_url": address}), problems(3))
    assert outcome.column("status") == ["ok", "infra_error", "ok"]
    assert outcome.rows[1]["error"] == "the request can't be written (KeyError: 'arguments')"
    assert outcome.tally.failed == 1


def thinks_and_calls(kind: str, turn: int) -> dict[str, Any]:
    """A reply that calls ``f`` after a signed thought."""
    reply = copy.deepcopy(REPLIES[kind]["calls"])
    if kind == "anthropic":
        reply["content"].insert(0, {"type": "thinking", "thinking": "hm", "signature": f"s{turn}"})
    elif kind == "gemini":
        (part,) = [one for one in reply["candidates"][0]["content"]["parts"] if "functionCall" in one]
        part["thoughtSignature"] = f"s{turn}"
    else:
        thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": f"s{turn}"}
        reply["output"].insert(0, thought)
    return reply


def said_in(phase: str | None, *texts: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    told = {"id": f"msg_{texts[0]}", "role": "assistant", "phase": phase}
    return {"type": "message", **told, "content": content}


def test_what_a_response_says_before_its_final_answer_is_no_part_of_it():
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "2 and 2"}]}
    output = [thought, said_in("commentary", "I will ", "compute it."), said_in("final_answer", "4")]
    answer = read("openai_responses", {"status": "completed", "output": output})
    assert (answer.status, answer.response) == ("ok", "4")
    assert answer.reasoning == "2 and 2\n\nI will compute it."

    looks = [said_in("commentary", "Let me look."), {"type": "function_call", "name": "f", "arguments": "{}"}]
    assert read("openai_responses", {"output": looks}).response == "Let me look."
    unlabelled = [said_in(None, "One."), said_in(None, "Two", " and three.")]
    several = read("openai_responses", {"output": unlabelled})
    assert (several.response, several.thoughts_json) == ("One.\n\nTwo and three.", None)


def test_messages_of_a_response_go_back_with_their_phases():
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "s"}
    output = [said_in("commentary", "I will compute it."), thought, said_in("final_answer", "4")]
    answer = read("openai_responses", {"output": output})
    said = {"role": "assistant", "content": answer.response, "thoughts": json.loads(answer.thoughts_json)}
    _, asked = call("openai_responses", [{"role": "user", "content": "q"}, said, SAID[1]])
    assert asked["input"][1:-1] == output


@pytest.mark.parametrize("kind", KINDS)
def test_signed_thoughts_go_back_with_the_next_turns(
    bench: Any, batch_of: Any, script: Callable[..., str], kind: str
):
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked.body)
        return 200, {}, thinks_and_calls(kind, len(seen))

    thinking: dict[str, Any] = {"effort": "low"} if kind == "openai_responses" else {"budget_tokens": 2048}
    asked_model = model(kind, {"base_url": script(answer)}, reasoning=thinking)
    chat = json.dumps({"messages": SAID[:2], "tools": CHAT["tools"]})
    requests = batch_of([{"chat": True, "prompts": [chat]}])
    tool = Continuation("tool", Template("Rain", "turns"))
    for turn in (1, 2, 3):
        responded = respond(asked_model, requests, bench.answers, bench.options())
        batches = list(responded.batches)
        assert [row["status"] for batch in batches for row in batch.to_pylist()] == ["ok"]
        requests = list(next_requests(tool, turn, requests, batches))
    texts = [json.dumps(body) for body in seen]
    assert [[sign in text for sign in ('"s1"', '"s2"')] for text in texts] == [
        [False, False],
        [True, False],
        [True, True],
    ]
    if kind == "anthropic":  # its thought stands before what it said, as it was given
        assert [block["type"] for block in seen[1]["messages"][1]["content"]] == [
            "thinking",
            "text",
            "tool_use",
        ]
    if kind == "openai_responses":
        assert seen[0]["include"] == ["reasoning.encrypted_content"]
