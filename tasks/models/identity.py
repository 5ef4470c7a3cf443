"""The identity of a model, and the keys under which answers are kept.

``model_identity`` holds what of a model can change its answers or how they are read, ``RequestExpansion``
makes requests of REQUESTS rows, with keys under which answers are kept as they came. Plans, ``respond`` and
the forecast use them; what stands here decides what is asked again.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from tasks.datasets.item import RequestKind
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers.provider import provider_of
from tasks.models.records import Request
from tasks.store.keys import digest


def model_identity(model: ModelConfig, base_dir: Path = Path()) -> dict[str, Any]:
    """What of a model can change its answers (see ``Provider.identity``) or how they are read."""
    asked, reading = provider_of(model, base_dir).identity(), model.reasoning.reading()
    return asked | {"reasoning": {**asked.get("reasoning", {}), **reading}} if reading else asked


def settled_weights(model: ModelConfig, base_dir: Path) -> ModelConfig:
    """The model with the weights that it is served from as they are now, which all its keys hold from here
    on; raises ConfigError where there are none."""
    return model.with_weights(provider_of(model, base_dir).known_weights())


EXPANDED = (
    *("kind", "chat", "prompts", "continuations", "unconditional", "first_sample", "keeps_space", "error"),
)
"""Columns of REQUESTS that requests are made of."""


@dataclass(frozen=True)
class RequestExpansion:
    """How rows of the REQUESTS schema become requests: one for each sample, or for each continuation."""

    identity: str
    params: SampleParams
    encoding: Callable[[RequestKind], dict[str, Any]] = lambda _: {}
    """What decides how requests of a kind are written (see ``Provider.encoding``)."""

    @classmethod
    def of(cls, model: ModelConfig, params: SampleParams, base_dir: Path = Path()) -> "RequestExpansion":
        """The expansion for a model and its merged sampling parameters."""
        provider = provider_of(model, base_dir)
        return cls(digest(provider.identity()), params, cache(provider.encoding))

    def rows(self, batch: pa.RecordBatch) -> Iterator[list[Request]]:
        """The requests of each row, in order: samples of a generation; continuations, then the
        unconditional ones.
        """
        kinds, chats, prompts, continuations, unconditional = (
            batch.column(name).to_pylist()
            for name in ("kind", "chat", "prompts", "continuations", "unconditional")
        )
        firsts, keeps, errors = (
            batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
            for name in ("first_sample", "keeps_space", "error")
        )
        said = {kind: self._said(kind) for kind in set(kinds)}
        for kind, chat, texts, following, alone, first, keep, error in zip(
            kinds, chats, prompts, continuations, unconditional, firsts, keeps, errors, strict=True
        ):
            if kind == "generate":
                numbers = range(first or 0, (first or 0) + self.params.num_samples)
                # Choices asked by letters have a prompt for each of their orders.
                about = said[kind] if error is None else {**said[kind], "error": error}
                yield [self._sample(about, texts[i % len(texts)], chat, i) for i in numbers]
            else:
                behind = {**said[kind], **({"keep_trailing_space": True} if keep else {})}
                pairs = [(behind, *pair) for pair in zip(texts, following, strict=True)]
                pairs += [(said[kind], "", text) for text in alone]
                yield [self._pair(kind, chat, *pair) for pair in pairs]

    def _said(self, kind: RequestKind) -> dict[str, Any]:
        """What all requests of a kind say alike."""
        encoding = self.encoding(kind)
        if kind != "generate":
            return encoding
        together = {"together": True} if (self.params.n or 1) > 1 else {}
        return {"sampling": {**self.params.sent(), **together}, **encoding}

    def _sample(self, said: dict[str, Any], prompt: str, chat: bool, index: int) -> Request:
        seed = None if self.params.seed is None else self.params.seed + index
        key = request_key(
            self.identity,
            "generate",
            {"prompt": prompt, "chat": chat, **said, "seed": seed, "sample_index": index},
        )
        error = said.get("error")
        return Request(key, "generate", prompt, chat=chat, sample_index=index, seed=seed, error=error)

    def _pair(self, kind: Any, chat: bool, said: dict[str, Any], prompt: str, continuation: str) -> Request:
        key = request_key(self.identity, kind, {"prompt": prompt, "continuation": continuation, **said})
        keeps_space = "keep_trailing_space" in said
        return Request(key, kind, prompt, continuation, chat=chat, keeps_space=keeps_space)


def request_key(identity: str, kind: str, fields: dict[str, Any]) -> bytes:
    """SHA-256 over the canonical JSON of everything that decides an answer, 32 bytes.

    ``identity`` is the digest of the model's identity. Names that are only displayed are no part of it.
    """
    text = orjson.dumps({"identity": identity, "kind": kind, **fields}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).digest()
