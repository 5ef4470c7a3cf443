"""Models that are served on this machine, at the address of the server that a step of the flow started.

The server may die and be started again by its supervisor; requests that it could not answer meanwhile wait
for it, and are told why when it does not come back.
"""

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from tasks.models.config import ModelConfig, SampleParams
from tasks.models.errors import ConnectionFault, EndpointDead, ModelError
from tasks.models.extra import with_extra
from tasks.models.records import Call, Reply, Transport
from tasks.serving.config import DEFAULT_PRESET, PRESETS
from tasks.serving.servers import RunningServer, failure_of, is_ready, version_of_state
from tasks.serving.weights import local_path, weights_of

LOOK_SECONDS = 0.25
LONGEST_TEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What configs of models call the number of tokens that they take in."""


def at_server(model: ModelConfig, server: RunningServer | None, base_dir: Path) -> ModelConfig:
    """The model at its server's address, with the tokenizer and the length that its folder tells; as it is
    where it is not served here. Raises ModelError where it has no server."""
    if model.server is None:
        return model
    if server is None:
        raise ModelError(f"model {model.name!r}: its weights are served by a step of the flow, and none ran")
    told = _told(server.folder, str(model.path), model.peft, base_dir)
    endpoint: dict[str, Any] = {"base_url": server.base_url}
    if told.adapts and model.server.by_name:
        way = PRESETS[model.server.preset_name].adapter
        body = getattr(model.config, "extra_body", {})
        endpoint |= {"extra_body": with_extra(way.body, body)} if way is not None and way.body else {}
    found: dict[str, Any] = {
        "config": model.config.model_copy(update=endpoint),
        "tokenizer": model.tokenizer or told.tokenizer,
        "max_length": model.max_length or told.length,
    }
    return model.model_copy(update=found)


@dataclass(frozen=True)
class _Told:
    """What a folder of weights says of the model: whether an adapter lies over it, the place of its
    tokenizer, and the tokens that it takes in."""

    adapts: bool
    tokenizer: str | None
    length: int | None


@lru_cache(maxsize=256)
def _told(_server: str, path: str, peft: str | None, base_dir: Path) -> _Told:
    """Read once for a server: the folder may be removed while it answers."""
    weights = weights_of(path, peft, base_dir)
    place = local_path(weights.path, base_dir)
    folder = place if place is not None and place.is_dir() else None
    return _Told(weights.adapter is not None, _tokenizer(weights.tokenizer or folder), _length(folder))


def scores_exactly(model: ModelConfig) -> bool:
    """Whether the model's server is our own, which scores a text's last token without generating another."""
    return model.server is not None and model.server.by_name and model.server.preset_name == DEFAULT_PRESET


def scored_length(model: ModelConfig) -> int | None:
    """The length for log-likelihoods. Two more than the model takes in are cut to what lm-evaluation-harness
    scores by a local model: the last token needs no place, and none is generated after it."""
    return (
        model.max_length + 2 if scores_exactly(model) and model.max_length is not None else model.max_length
    )


def _tokenizer(folder: Path | None) -> str | None:
    return str(folder) if folder is not None and (folder / "tokenizer.json").is_file() else None


def _length(folder: Path | None) -> int | None:
    if folder is None or not (folder / "config.json").is_file():
        return None
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
    except orjson.JSONDecodeError:
        return None
    told = [config.get(name) for name in LONGEST_TEXTS] if isinstance(config, dict) else []
    return next((length for length in told if isinstance(length, int) and length > 1), None)


@dataclass
class WatchedTransport:
    """A transport whose server is watched: a call that finds no connection waits until the server is back,
    and a reply counts once the supervisor has found that the server is ready, with the weights that it was
    started for: one that was started again may answer before that."""

    inner: Transport
    server: RunningServer
    _ready: tuple[int, int] | None = field(default=None, init=False)
    """The state's file when it said last that the server is ready: it is written again before any start."""

    async def send(self, call: Call, timeout: float) -> Reply:
        """As the inner one's; raises EndpointDead, with the end of the server's log, once it is given up."""
        try:
            reply = await self.inner.send(call, timeout)
        except ConnectionFault:
            await asyncio.sleep(LOOK_SECONDS)  # its supervisor notices within a tenth of a second
            await self._back()
            raise
        if self._ready is None or self._ready != version_of_state(Path(self.server.folder)):
            await self._back()
        return reply

    async def _back(self) -> None:
        """Returns when the server answers again; at once if it does."""
        folder = Path(self.server.folder)
        while True:
            version = version_of_state(folder)  # before the look: what is written after it is seen later
            if is_ready(folder):
                self._ready = version
                return
            failure = failure_of(folder)
            if failure is not None:
                raise EndpointDead(f"model {self.server.model!r}: its server is gone: {failure}")
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Closes the inner one."""
        await self.inner.close()


def room_of(model: ModelConfig, params: SampleParams) -> int | None:
    """Tokens that a prompt has room for where the model's window is told: one less than what is left beside
    the answer, as in lm-evaluation-harness.
    """
    if model.max_length is None or params.max_tokens is None:
        return None
    # A server of ours needs no place beside the answer, as a model that the harness itself runs.
    tokens = model.max_length - (not scores_exactly(model)) - params.max_tokens
    if tokens < 1:
        raise ModelError(
            f"model {model.name!r}: max_length {model.max_length} leaves no room for a prompt before "
            f"max_tokens {params.max_tokens}; lower max_tokens or raise max_length"
        )
    return tokens
