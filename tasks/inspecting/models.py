"""How Inspect asks a model of ours: by which of its providers, where, with which key and parameters."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.inspecting.interpreter import interpreter
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers.provider import AskedProvider, Secret, ServedModel, provider_of


@dataclass(frozen=True)
class InspectModel:
    """A model as Inspect is told of it; the key is in the environment of its process alone."""

    name: str
    base_url: str | None
    args: Mapping[str, Any]
    generate: Mapping[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As its process is told."""
        return {
            "name": self.name, "base_url": self.base_url, "args": dict(self.args),
            "generate": dict(self.generate),
        }  # fmt: skip


@dataclass(frozen=True)
class _Way:
    """One of Inspect's providers: its name, the variable that it reads the key from, its arguments, and what
    it adds to an address by itself."""

    name: str
    key: str
    client: str
    """The module of the client that it asks with, which Inspect does not bring."""
    args: Mapping[str, Any] = field(default_factory=dict)
    adds: str = ""
    unkeyed: str | None = None
    """What stands for a key where the endpoint takes none."""


WAYS: Final[Mapping[str, _Way]] = {
    "openai": _Way("openai-api/nightjar", "NIGHTJAR_API_KEY", "openai", unkeyed="none"),
    "demo": _Way("openai-api/nightjar", "NIGHTJAR_API_KEY", "openai", unkeyed="none"),
    "openai_responses": _Way("openai", "OPENAI_API_KEY", "openai", {"responses_api": True}),
    "anthropic": _Way("anthropic", "ANTHROPIC_API_KEY", "anthropic", adds="/v1"),
    "gemini": _Way(
        "google", "GOOGLE_API_KEY", "google.genai", {"api_version": "v1beta"}, adds="/v1beta"
    ),  # by itself its client asks v1
}
"""Inspect's provider for each type of model."""
CLIENTS: Final = tuple(sorted({way.client for way in WAYS.values()}))
"""Modules of clients that one of its providers needs."""
RENAMED: Final = {"stop": "stop_seqs", "max_completion_tokens": "max_tokens"}
"""Sampling parameters that Inspect knows by another name."""
TAKEN: Final = frozenset(
    {
        "temperature", "max_tokens", "top_p", "top_k", "stop_seqs", "presence_penalty", "frequency_penalty",
        "logit_bias", "logprobs", "top_logprobs", "reasoning_effort",
    }
)  # fmt: skip
"""Sampling parameters that Inspect takes."""


def check_client(model: ModelConfig, absent: Sequence[str]) -> None:
    """Raises ConfigError where the client of the model's provider is among the ``absent`` ones of the
    environment that has Inspect."""
    way = WAYS.get(model.type)
    if way is not None and way.client in absent:
        package = way.client.replace(".", "-")
        raise ConfigError(
            f"model {model.name!r}: Inspect asks type {model.type} with the package '{package}', which is "
            f"not installed: run {interpreter()} -m pip install {package}"
        )


def check_model(model: ModelConfig, sampling: SampleParams) -> None:
    """Raises ConfigError for a model that Inspect can't be told of."""
    where = f"model {model.name!r}"
    if model.type not in WAYS:
        known = ", ".join(WAYS)
        raise ConfigError(f"{where}: type {model.type} has no provider in Inspect; expected one of {known}")
    if model.server is not None:
        raise ConfigError(
            f"{where}: inspect starts no server of weights; start it yourself and name its base_url"
        )
    if model.by_batch:
        raise ConfigError(f"{where}: config.batch: Inspect asks single requests; leave it out")
    if getattr(model.config, "api", "chat") != "chat":
        raise ConfigError(f"{where}: config.api: Inspect asks chats; leave completions out")
    told = model.reasoning.model_dump(exclude_defaults=True).keys() - {"effort", "budget_tokens"}
    if told:
        raise ConfigError(f"{where}: reasoning.{min(told)}: Inspect takes effort and budget_tokens alone")
    _generate(model, sampling)


@contextmanager
def inspect_model(
    model: ModelConfig, sampling: SampleParams, base_dir: Path, connections: int, secret: Secret | None
) -> Iterator[InspectModel]:
    """The model as Inspect asks it, for the time of the block; raises NightjarError where it can't."""
    check_model(model, sampling)
    provider = provider_of(model, base_dir)
    assert isinstance(provider, AskedProvider), "its type has a way"
    with provider.served(secret) as served:
        way, config = WAYS[model.type], served.config
        generate = {
            **_generate(model, sampling),
            "max_retries": config.max_retries,
            "timeout": int(config.seconds_per_request),
            "max_connections": connections,
        }
        yield InspectModel(
            f"{way.name}/{served.model}", served.base_url.removesuffix(way.adds) or None, way.args, generate,
            _secrets(way, served),
        )  # fmt: skip


def _secrets(way: _Way, served: ServedModel[Any]) -> dict[str, str]:
    key = served.key or way.unkeyed or os.environ.get(way.key)
    return {} if key is None else {way.key: key}


def _generate(model: ModelConfig, sampling: SampleParams) -> dict[str, Any]:
    """The sampling parameters by Inspect's names."""
    sent = {RENAMED.get(name, name): value for name, value in sampling.sent().items()}
    for name in sampling.sent():
        if RENAMED.get(name, name) not in TAKEN:
            raise ConfigError(f"model {model.name!r}: sample_params.{name}: Inspect takes none; leave it out")
    if sampling.n is not None:
        raise ConfigError(f"model {model.name!r}: sample_params.n: Inspect asks for one answer at a time")
    extra: dict[str, Callable[[], Any]] = {
        "seed": lambda: sampling.seed,
        "reasoning_effort": lambda: model.reasoning.effort,
        "reasoning_tokens": lambda: model.reasoning.budget_tokens,
        "extra_body": lambda: getattr(model.config, "extra_body", None) or None,
    }
    return {**sent, **{name: value for name, read in extra.items() if (value := read()) is not None}}
