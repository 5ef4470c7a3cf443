"""What goes to a server for a request, byte for byte.

A body that comes to mean something else under the same version would let answers to one question serve for
another; a version alone would ask everything again for nothing. After a change of both,
``python tests/tasks/models/test_golden_bodies.py`` writes the file anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.datasets.item import RequestKind
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers.anthropic import Messages
from tasks.models.providers.bedrock import Converse
from tasks.models.providers.gemini import Contents
from tasks.models.providers.openai.echo import EchoMode, Likelihood
from tasks.models.providers.openai.generation import Chat, Completions, TokenPrompts
from tasks.models.providers.provider import AskedProvider, provider_of
from tasks.models.providers.responses import Items
from tasks.models.records import Codec, Request
from tasks.models.registry import PROVIDERS
from tasks.models.tokenizers import ByteTokenizer

GOLDEN = Path(__file__).with_name("bodies.json")
BASE: dict[str, Any] = {"model": "m", "base_url": "http://localhost:1/v1"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CHAT = json.dumps(
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "tools": TOOLS}
)
SAMPLED = SampleParams(
    temperature=0.5, max_tokens=7, top_p=0.9, stop=("x", "y"), logprobs=True, top_logprobs=3, num_samples=2
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"config": BASE},
    "stream": {"config": {**BASE, "stream": True, "extra_body": {"top_a": 0.5}}},
    "thinking": {
        "config": BASE,
        "reasoning": {"effort": "low", "budget_tokens": 64, "template_kwargs": {"t": 1}},
    },
    "budget": {
        "config": {**BASE, "base_url": "https://openrouter.ai/api/v1"},
        "reasoning": {"budget_tokens": 9},
    },
}
NATIVE: dict[str, type[Codec]] = {
    "anthropic": Messages,
    "gemini": Contents,
    "openai_responses": Items,
    "bedrock": Converse,
}
REGION = {"region": "us-east-1"}
STREAMED = {"stream": True, "extra_body": {"x": 1}}
NATIVE_MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "anthropic": {
        "plain": {},
        "thinking": {"config": STREAMED, "reasoning": {"effort": "low", "budget_tokens": 2048}},
        "caching": {"config": {"prompt_caching": True}},
    },
    "gemini": {"plain": {}, "thinking": {"config": STREAMED, "reasoning": {"budget_tokens": 64}}},
    "openai_responses": {"plain": {}, "thinking": {"config": STREAMED, "reasoning": {"effort": "low"}}},
    "bedrock": {
        "plain": {"config": REGION},
        "thinking": {"config": {**STREAMED, **REGION}, "reasoning": {"effort": "low"}},
        "caching": {"config": {"prompt_caching": True, **REGION}},
    },
}
TEXTS = {
    "text": Request(b"k", "generate", "p"),
    "seed": Request(b"k", "generate", "p", seed=4),
    "chat": Request(b"k", "generate", CHAT, chat=True),
}
PAIRS = {
    "pair": Request(b"k", "loglikelihood", "The sky is ", "blue"),
    "alone": Request(b"k", "loglikelihood", "", "blue"),
    "document": Request(b"k", "rolling", "", "a document that is longer than the window"),
}
MODES = {
    "echo": EchoMode(1, "echo"),
    "nothing generated": EchoMode(0, "echo"),
    "prompt_logprobs": EchoMode(1, "prompt_logprobs"),
    "ids": EchoMode(1, "echo", ids=True),
}


def bodies() -> dict[str, dict[str, Any]]:
    """Each codec's version, and the bodies that it makes of the cases."""
    found: dict[str, dict[str, Any]] = {
        codec.__name__: {"version": codec.version, "bodies": {}}
        for codec in (Chat, Completions, Likelihood, *NATIVE.values())
    }
    for kind, native in NATIVE.items():
        for name, said in NATIVE_MODELS[kind].items():
            model = ModelConfig.model_validate({"name": "a", "type": kind, **said})
            sampled = SampleParams(temperature=0.5, max_tokens=7, top_p=0.9)
            for case in ("text", "chat"):
                codec = _codec(model, "generate", sampled)
                found[native.__name__]["bodies"][f"{name} {case}"] = _calls(codec, [TEXTS[case]])
    for name, said in MODELS.items():
        model = ModelConfig.model_validate({"name": "a", **said})
        for sampled, params in {"defaults": SampleParams(), "sampled": SAMPLED}.items():
            for case, request in TEXTS.items():
                codec = _codec(model, "generate", params)
                together = [request, request] if sampled == "sampled" and case == "text" else [request]
                found["Chat"]["bodies"][f"{name} {sampled} {case}"] = _calls(codec, together)
    config = ModelConfig.model_validate({"name": "a", "config": {**BASE, "api": "completions"}})
    for sampled, params in {"defaults": SampleParams(), "sampled": SAMPLED}.items():
        for case in ("text", "seed"):
            codec = _codec(config, "generate", params)
            found["Completions"]["bodies"][f"{sampled} {case}"] = _calls(codec, [TEXTS[case]])
            assert isinstance(codec, Completions)
            tokens = codec.with_prompts(TokenPrompts(ByteTokenizer(), room=8))
            found["Completions"]["bodies"][f"{sampled} {case} as tokens"] = _calls(tokens, [TEXTS[case]])
    for mode, asked in MODES.items():
        tokenizer = ByteTokenizer() if asked.ids else None
        for case, request in PAIRS.items():
            codec = Likelihood("m", asked, {"top_a": 0.5}, tokenizer, 24, 2)
            found["Likelihood"]["bodies"][f"{mode} {case}"] = _calls(codec, [request])
    return found


def _codec(model: ModelConfig, kind: RequestKind, params: SampleParams) -> Codec:
    provider = provider_of(model)
    assert isinstance(provider, AskedProvider)
    return provider.codec(kind, params)


def _calls(codec: Codec, requests: list[Request]) -> list[list[Any]]:
    return [[call.path, json.loads(call.content)] for call in codec.calls(requests)]


def trouble(golden: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What does not go together; None: nothing has changed."""
    same, raised = golden["bodies"] == now["bodies"], now["version"] != golden["version"]
    if same and raised:
        return "the version is another one and the bodies are the same: leave it, or all is asked again"
    if not same and not raised:
        return "the bodies are other ones under the same version: raise it, if they mean something else"
    return None if same else "both have moved: write the golden file anew"


@pytest.mark.parametrize(
    "codec", ["Chat", "Completions", "Likelihood", *(native.__name__ for native in NATIVE.values())]
)
def test_bodies_and_their_versions_move_together(codec: str) -> None:
    assert trouble(json.loads(GOLDEN.read_text())[codec], bodies()[codec]) is None


def test_a_body_that_moves_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = json.loads(GOLDEN.read_text())["Chat"]
    monkeypatch.setattr(Chat, "version", 2)
    assert "the version is another one and the bodies are the same" in str(trouble(golden, bodies()["Chat"]))
    own = Chat.sampled
    monkeypatch.setattr(Chat, "sampled", lambda self, params: {**own(self, params), "top_k": 0})
    assert "both have moved" in str(trouble(golden, bodies()["Chat"]))
    monkeypatch.setattr(Chat, "version", 1)
    assert "the bodies are other ones under the same version" in str(trouble(golden, bodies()["Chat"]))


def test_every_codec_of_a_provider_has_golden_bodies() -> None:
    """One that a registered provider brings and that is not here has none to be held against."""
    known = set(json.loads(GOLDEN.read_text()))
    for name in PROVIDERS:
        if not PROVIDERS[name].asks:
            continue
        own = "api" in PROVIDERS[name].schema.model_fields
        needed = REGION if "region" in PROVIDERS[name].schema.model_fields else {}
        for api in ({}, {"api": "completions"}) if own else ({},):
            model = ModelConfig.model_validate({"name": "a", "type": name, "config": {**needed, **api}})
            for kind in PROVIDERS[name].kinds:
                assert type(_codec(model, kind, SampleParams())).__name__ in known


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(bodies(), indent=1) + "\n")
    sys.exit(0)
