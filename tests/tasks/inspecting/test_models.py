"""How Inspect is told of our models."""

from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError, NightjarError
from tasks.inspecting.models import WAYS, check_model, inspect_model
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers.provider import AskedProvider
from tasks.models.registry import PROVIDERS

URL = "http://127.0.0.1:9/v1"


def told(model: dict[str, Any], sampling: dict[str, Any] | None = None) -> Any:
    with inspect_model(
        ModelConfig.model_validate(model), SampleParams(**(sampling or {})), Path(), 3, None
    ) as found:
        return found


@pytest.mark.parametrize(
    ("kind", "config", "name", "address", "variable"),
    [
        ("openai", {"base_url": URL}, "openai-api/nightjar/m", URL, "NIGHTJAR_API_KEY"),
        ("openai_responses", {"base_url": URL}, "openai/m", URL, "OPENAI_API_KEY"),
        ("anthropic", {}, "anthropic/m", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        ("gemini", {}, "google/m", "https://generativelanguage.googleapis.com", "GOOGLE_API_KEY"),
    ],
)
def test_a_model_has_inspects_provider_its_address_and_its_key(
    kind: str, config: dict[str, Any], name: str, address: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "a-key-of-ours")
    found = told({"name": "m", "type": kind, "config": {**config, "api_key_env": "OWN_KEY"}})
    assert (found.name, found.base_url, found.secrets) == (name, address, {variable: "a-key-of-ours"})
    assert "a-key-of-ours" not in str(found.as_dict()) + repr(found)


def test_sampling_and_patience_have_inspects_names() -> None:
    model = {
        "name": "m", "reasoning": {"effort": "low", "budget_tokens": 64},
        "config": {"base_url": URL, "timeout": 5, "max_retries": 2, "extra_body": {"mine": 1}},
    }  # fmt: skip
    found = told(model, {"temperature": 0, "max_completion_tokens": 9, "stop": ["x"], "seed": 4})
    assert found.generate == {
        "temperature": 0, "max_tokens": 9, "stop_seqs": ["x"], "seed": 4, "reasoning_effort": "low",
        "reasoning_tokens": 64, "extra_body": {"mine": 1}, "max_retries": 2, "timeout": 50,
        "max_connections": 3,
    }  # fmt: skip
    assert found.secrets == {"NIGHTJAR_API_KEY": "none"}


@pytest.mark.parametrize(
    ("model", "sampling", "said"),
    [
        ({"type": "replay", "config": {"field": "a"}}, {}, "type replay has no provider in Inspect"),
        ({"path": "weights"}, {}, "starts no server of weights"),
        ({"config": {"base_url": URL, "api": "completions"}}, {}, "Inspect asks chats"),
        ({"config": {"base_url": URL, "batch": {"wait": "1h"}}}, {}, "asks single requests"),
        ({"reasoning": {"template_kwargs": {"a": 1}}}, {}, "reasoning.template_kwargs"),
        ({}, {"min_p": 0.1}, "sample_params.min_p"),
        ({}, {"n": 2}, "sample_params.n"),
    ],
)
def test_what_inspect_cant_ask_is_refused(model: dict[str, Any], sampling: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_model(ModelConfig.model_validate({"name": "m", **model}), SampleParams(**sampling))


def test_a_key_that_is_not_set_is_named() -> None:
    with pytest.raises(NightjarError, match="NO_SUCH_KEY"):
        told({"name": "m", "config": {"base_url": URL, "api_key_env": "NO_SUCH_KEY"}})


def test_each_type_with_a_way_is_one_that_is_asked() -> None:
    assert all(issubclass(PROVIDERS[kind], AskedProvider) for kind in WAYS)
