"""The identity of a model, and the keys under which answers are kept.

``model_identity`` holds what of a model can change its answers, ``RequestExpansion`` makes requests with keys
of REQUESTS rows. Plans, ``respond`` and the forecast use them; what stands here decides what is asked again.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from metrics.errors import ConfigError
from tasks.models.config import DemoConfig, EndpointConfig, ModelConfig, ReplayConfig, SampleParams
from tasks.models.demo.options import VERSION
from tasks.models.records import Request
from tasks.serving.config import weights_identity
from tasks.serving.launch import server_identity
from tasks.store.home import named_path
from tasks.store.keys import digest, file_digest


def model_identity(model: ModelConfig, base_dir: Path = Path()) -> dict[str, Any]:
    """What of a model can change its answers, as a JSON object for cache keys.

    An endpoint is its type, served name, protocol and ``extra_body``, and its address or, if given,
    ``identity``; recorded responses are their file's digest or the field's name; the embedded server its
    version and parameters; a model that is served here its weights and its server, in place of name and
    address. Display names, prices, limits and concurrency are not in it. Raises ConfigError
    when a file of responses can't be read.
    """
    identity: dict[str, Any] = {"type": model.type}
    if model.tokenizer is not None:
        identity["tokenizer"] = model.tokenizer
    if model.max_length is not None:
        identity["max_length"] = model.max_length
    if thinking := model.reasoning.identity(getattr(model.config, "base_url", "")):
        identity["reasoning"] = thinking
    match model.config:
        case EndpointConfig() as config if (server := model.server) is not None:
            extra = {"extra_body": config.extra_body} if config.extra_body else {}
            named = model.identity
            weights = {"identity": named} if named else weights_identity(str(model.path), base_dir)
            return {**identity, "api": config.api, **weights, "server": server_identity(server), **extra}
        case EndpointConfig() as config:
            address = (
                {"base_url": config.base_url} if model.identity is None else {"identity": model.identity}
            )
            extra = {"extra_body": config.extra_body} if config.extra_body else {}
            return {**identity, "model": model.served_name, "api": config.api, **address, **extra}
        case DemoConfig() as config:
            return {**identity, "version": VERSION, "error_rate": config.error_rate, "api": config.api}
        case ReplayConfig(path=None) as config:
            return {**identity, "field": config.field}
        case ReplayConfig() as config:
            # A file may hold several models' rows: the name is part of the join, so it decides answers.
            path = named_path(base_dir, str(config.path))
            try:
                return {**identity, "file": file_digest(path), "model_name": model.name}
            except (OSError, ValueError) as error:  # no such file, or no name that a file can have
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(
                    f"model {model.name!r}: can't read recorded responses {path}: {reason}"
                ) from error


EXPANDED = ("kind", "chat", "prompts", "continuations", "unconditional", "first_sample")
"""Columns of REQUESTS that requests are made of."""


@dataclass(frozen=True)
class RequestExpansion:
    """How rows of the REQUESTS schema become requests: one for each sample, or for each continuation."""

    identity: str
    params: SampleParams

    @classmethod
    def of(cls, model: ModelConfig, params: SampleParams, base_dir: Path = Path()) -> "RequestExpansion":
        """The expansion for a model and its merged sampling parameters."""
        return cls(digest(model_identity(model, base_dir)), params)

    @property
    def shares_seed(self) -> bool:
        """Whether several samples come from one request, and so from one seed."""
        return (self.params.n or 1) > 1

    def rows(self, batch: pa.RecordBatch) -> Iterator[list[Request]]:
        """The requests of each row, in order: samples of a generation; continuations, then the
        unconditional ones.
        """
        kinds, chats, prompts, continuations, unconditional = (
            batch.column(name).to_pylist()
            for name in ("kind", "chat", "prompts", "continuations", "unconditional")
        )
        named = "first_sample" in batch.schema.names
        firsts = batch.column("first_sample").to_pylist() if named else [0] * batch.num_rows
        sampling = self._sampling()
        for kind, chat, texts, following, alone, first in zip(
            kinds, chats, prompts, continuations, unconditional, firsts, strict=True
        ):
            if kind == "generate":
                numbers = range(first or 0, (first or 0) + self.params.num_samples)
                # Choices asked by letters have a prompt for each of their orders.
                yield [self._sample(sampling, texts[i % len(texts)], chat, i) for i in numbers]
            else:
                pairs = [*zip(texts, following, strict=True), *(("", text) for text in alone)]
                yield [self._pair(kind, chat, *pair) for pair in pairs]

    def _sampling(self) -> dict[str, Any]:
        together = {"together": True} if self.shares_seed else {}
        return {**self.params.sent(), **together}

    def _sample(self, sampling: dict[str, Any], prompt: str, chat: bool, index: int) -> Request:
        seed = self.params.seed
        if seed is not None and not self.shares_seed:
            seed += index
        key = request_key(
            self.identity,
            "generate",
            {"prompt": prompt, "chat": chat, "sampling": sampling, "seed": seed, "sample_index": index},
        )
        return Request(key, "generate", prompt, chat=chat, sample_index=index, seed=seed)

    def _pair(self, kind: Any, chat: bool, prompt: str, continuation: str) -> Request:
        key = request_key(self.identity, kind, {"prompt": prompt, "continuation": continuation})
        return Request(key, kind, prompt, continuation, chat=chat)


def request_key(identity: str, kind: str, fields: dict[str, Any]) -> bytes:
    """SHA-256 over the canonical JSON of everything that decides an answer, 32 bytes.

    ``identity`` is the digest of the model's identity. Names that are only displayed are no part of it.
    """
    text = orjson.dumps({"identity": identity, "kind": kind, **fields}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).digest()
