"""``config.extra_body`` adds to what is sent, and takes no parameter away."""

import json
from typing import Any

import pytest

from tasks.models.config import ModelConfig, SampleParams
from tasks.models.errors import ModelError
from tasks.models.providers.provider import AskedProvider, provider_of
from tasks.models.records import Codec, Request

KINDS = ("openai", "anthropic", "gemini", "openai_responses", "bedrock")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def codec(kind: str, extra: Any, params: Any = None, asked: Any = "generate", **fields: Any) -> Codec:
    config = {
        "model": "m",
        "base_url": "http://127.0.0.1:9/v1",
        "extra_body": extra,
        **fields.pop("config", {}),
    }
    config |= {"region": "us-east-1"} if kind == "bedrock" else {}
    found = ModelConfig.model_validate({"name": "a", "type": kind, "config": config, **fields})
    provider = provider_of(found)
    assert isinstance(provider, AskedProvider)
    return provider.codec(asked, SampleParams.model_validate(params or {}))


def body(made: Codec, prompt: Any = "q", seed: int | None = None, **fields: Any) -> dict[str, Any]:
    chat = not isinstance(prompt, str)
    request = Request(b"k", "generate", json.dumps(prompt) if chat else prompt, chat=chat, seed=seed)
    (call,) = made.calls([request])
    return dict(json.loads(call.content))


MERGED: dict[str, tuple[str, Any, Any, Any, str, Any]] = {
    "modalities beside the temperature": (
        "gemini", {"generationConfig": {"responseModalities": ["TEXT"]}},
        {"temperature": 0, "max_tokens": 64}, {}, "generationConfig",
        {"responseModalities": ["TEXT"], "temperature": 0, "maxOutputTokens": 64},
    ),
    "thoughts two levels down": (
        "gemini", {"generationConfig": {"thinkingConfig": {"x": 1}}}, {},
        {"reasoning": {"budget_tokens": 9}}, "generationConfig",
        {"thinkingConfig": {"x": 1, "thinkingBudget": 9, "includeThoughts": True}},
    ),
    "tokens beside the temperature": (
        "bedrock", {"inferenceConfig": {"maxTokens": 5}}, {"temperature": 0}, {}, "inferenceConfig",
        {"maxTokens": 5, "temperature": 0},
    ),
    "beside the effort": (
        "anthropic", {"output_config": {"x": 1}}, {}, {"reasoning": {"effort": "high"}}, "output_config",
        {"x": 1, "effort": "high"},
    ),
    "beside the format": (
        "openai_responses", {"text": {"verbosity": "low"}}, {"response_format": SCHEMA}, {}, "text",
        {"verbosity": "low", "format": {"type": "json_schema", **SCHEMA["json_schema"]}},  # type: ignore[dict-item]
    ),
    "beside what streams": (
        "openai", {"stream_options": {"x": 1}}, {}, {"config": {"stream": True}}, "stream_options",
        {"x": 1, "include_usage": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MERGED)
def test_what_is_sent_anyway_stays_beside_a_part_of_the_same_mapping(case: str) -> None:
    kind, extra, params, fields, name, expected = MERGED[case]
    assert body(codec(kind, extra, params, **fields))[name] == expected


REFUSED: list[tuple[str, Any, Any, Any, str]] = [
    ("gemini", {"generationConfig": {"topK": 1}}, {"top_k": 2}, {}, "generationConfig.topK"),
    ("anthropic", {"max_tokens": 5}, {}, {}, "max_tokens"),
    ("bedrock", {"inferenceConfig": {"topP": 1}}, {"top_p": 0.5}, {}, r"inferenceConfig\.topP"),
    ("anthropic", {"thinking": {"type": "x"}}, {}, {"reasoning": {"budget_tokens": 9}}, r"thinking\.type"),
    ("openai_responses", {"temperature": 1}, {"temperature": 0}, {}, "temperature"),
    ("openai", {"max_tokens": 5}, {"max_tokens": 4}, {}, "max_tokens"),
    ("openai", {"model": "another"}, {}, {}, "model"),
    ("openai", {"temperature": None}, {"temperature": 0}, {}, "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "extra", "params", "fields", "key"), REFUSED)
def test_an_entry_that_would_replace_what_is_sent_is_refused(
    kind: str, extra: Any, params: Any, fields: Any, key: str
) -> None:
    with pytest.raises(
        ModelError, match=rf"config\.extra_body\.{key}: .* is sent there already; leave it out"
    ):
        codec(kind, extra, params, **fields)


def test_an_entry_that_says_the_same_is_taken() -> None:
    assert body(codec("openai", {"temperature": 0}, {"temperature": 0.0}))["temperature"] == 0


def test_log_likelihoods_are_asked_for_as_they_are_read() -> None:
    extra = {"logprobs": 5}
    made = codec("openai", extra, asked="loglikelihood", config={"api": "completions"})
    with pytest.raises(ModelError, match=r"config\.extra_body\.logprobs: 1 is sent there already"):
        made.calls([Request(b"k", "loglikelihood", "q", " a")])


OWN: dict[str, tuple[str, str]] = {
    "openai": ("messages", "tools"),
    "anthropic": ("messages", "system"),
    "gemini": ("contents", "systemInstruction"),
    "openai_responses": ("input", "instructions"),
    "bedrock": ("messages", "system"),
}
TOOLS = {"bedrock": "toolConfig"}
CHAT = {
    "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "q"}],
    "tools": [TOOL],
}


@pytest.mark.parametrize("name", ["first", "second", "tools"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_each_request_says_itself_is_refused(kind: str, name: str) -> None:
    key = {"first": OWN[kind][0], "second": OWN[kind][1], "tools": TOOLS.get(kind, "tools")}[name]
    made = codec(kind, {key: []} if key != "toolConfig" else {key: {"tools": []}})
    place = key if key != "toolConfig" else r"toolConfig\.tools"
    with pytest.raises(ModelError, match=rf"config\.extra_body\.{place}: each request says its own there"):
        body(made, CHAT)


def test_tools_of_the_provider_go_along_where_a_benchmark_has_none() -> None:
    for kind in KINDS:
        extra = {TOOLS[kind]: {"tools": [{"x": 1}]}} if kind in TOOLS else {"tools": [{"x": 1}]}
        assert body(codec(kind, extra)).items() >= extra.items()


@pytest.mark.parametrize(
    ("kind", "extra", "key"),
    [
        ("openai", {"seed": 1}, "seed"),
        ("gemini", {"generationConfig": {"seed": 1}}, r"generationConfig\.seed"),
    ],
)
def test_a_seed_is_said_by_the_request(kind: str, extra: Any, key: str) -> None:
    made = codec(kind, extra, {"seed": 7})
    with pytest.raises(ModelError, match=rf"config\.extra_body\.{key}: each request says its own"):
        body(made, seed=7)


def test_an_answer_of_responses_is_stored_only_where_extra_body_says_so() -> None:
    assert body(codec("openai_responses", {}))["store"] is False
    assert body(codec("openai_responses", {"store": True}))["store"] is True
