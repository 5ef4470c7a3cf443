"""The type ``openai``: endpoints that speak OpenAI's protocol, chats or completions, and give log-likelihoods
by echo where they are completions.

Weights that are served on this machine are asked the same way, at the address of their server.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from tasks.datasets.item import RequestKind
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.batches.files import FileBatches
from tasks.models.batches.form import BatchForm
from tasks.models.batches.openai import OpenAIBatches
from tasks.models.config import ModelConfig, SampleParams, leaves_thought_open
from tasks.models.errors import RequestError
from tasks.models.providers.openai.config import EndpointConfig, is_openai
from tasks.models.providers.openai.fields import FittingTransport, refused_by
from tasks.models.providers.provider import (
    FOR_TEMPLATES,
    PROBE_SECONDS,
    AskedProvider,
    Secret,
    ServedIdentity,
    ServedModel,
)
from tasks.models.records import Call, Codec, Request, Transport
from tasks.models.registry import provider
from tasks.serving.launch import server_identity
from tasks.serving.servers import RunningServer
from tasks.serving.weights import KnownWeights, known_weights
from tasks.store.home import named_path

if TYPE_CHECKING:
    from tasks.models.providers.openai.echo import Likelihood
    from tasks.models.providers.openai.generation import Completions, Generation

logger = logging.getLogger(__name__)
FEWEST_STOPS: Final = 4
"""Stop sequences that every endpoint takes: OpenAI's limit."""
LENGTHS: Final = frozenset({"max_tokens", "max_completion_tokens"})


@provider("openai")
class OpenAI(AskedProvider[EndpointConfig]):
    """An OpenAI-compatible endpoint."""

    schema = EndpointConfig
    kinds = frozenset({"generate", "loglikelihood", "rolling"})
    batches: ClassVar[BatchForm | None] = OpenAIBatches()
    serves_weights = True
    tokenizer_name: str | None = None
    """The tokenizer of log-likelihoods where it is known whatever the config says."""

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses what is said twice, or to a template that is not there."""
        super().check(model)
        told, config = model.reasoning.sent(""), model.config
        for_templates = [key for key in told if key in FOR_TEMPLATES]
        if getattr(config, "api", None) == "completions" and for_templates:
            raise ValueError(
                f"reasoning.{FOR_TEMPLATES[for_templates[0]]} is for a chat template, which api: completions "
                "does without"
            )
        for name in sorted(told.keys() & getattr(config, "extra_body", {}).keys()):
            raise ValueError(f"config.extra_body.{name}: reasoning says it already; give one of them")
        for weights in ("path", "checkpoints"):
            if getattr(model, weights) is not None and "base_url" in config.model_fields_set:
                raise ValueError(
                    f"{weights}: the server of these weights is started on this machine, at an address of "
                    "its own; leave config.base_url out"
                )

    def facts(self) -> dict[str, Any]:
        """Name, protocol and ``extra_body``, and the address or, if given, ``identity``; of weights that are
        served here these and their server, in place of name and address."""
        model, config = self.model, self.config
        extra = {"extra_body": config.extra_body} if config.extra_body else {}
        named = {} if model.identity is None else {"identity": model.identity}
        if model.server is not None:
            known = model.weights or self.known_weights()
            weights = named if known is None else known.told
            adapted = model.peft is not None or "adapter" in weights
            server = server_identity(model.server, adapter=adapted, surroundings=model.surroundings)
            return {"api": config.api, **weights, "server": server, **extra}
        address = named or {"base_url": config.base_url}
        return {"model": model.served_name, "api": config.api, **address, **extra}

    def known_weights(self) -> KnownWeights | None:
        """Those that are served here."""
        model = self.model
        if model.server is None or model.identity:
            return None
        return known_weights(str(model.path), self.base_dir, model.peft)

    @property
    def takes_chats(self) -> bool:
        """Not by completions, which continue one text."""
        return self.config.api == "chat"

    def tokenizer_for(self, kind: RequestKind) -> str | None:
        """The tokenizer that decides what is sent for a kind of request; None where there is none."""
        if self.endpoint.files is not None or (kind == "generate" and self.takes_chats):
            return None
        own = None if kind == "generate" else self.tokenizer_name
        return own or self.model.tokenizer

    def encoding(self, kind: RequestKind) -> dict[str, Any]:
        """With the tokenizer's content, where it decides what is sent."""
        from tasks.models.tokenizers import tokenizer_content

        name = self.tokenizer_for(kind)
        content = None if name is None else tokenizer_content(name, self.base_dir)
        return super().encoding(kind) | ({} if content is None else {"tokenizer": content})

    @property
    def endpoint(self) -> EndpointConfig:
        """The config of the endpoint that is asked."""
        return self.config

    def codec(self, kind: RequestKind, sampling: SampleParams, media: ReadMedia = refuse_media) -> Codec:
        """Chats, completions, or log-likelihoods by echo."""
        name, config, reasoning = self.model.served_name, self.endpoint, self.model.reasoning
        if kind != "generate":
            from tasks.models.providers.openai.echo import MODES, Likelihood
            from tasks.models.served import scored_length

            length = scored_length(self.model)
            return Likelihood(name, MODES[0], config.extra_body, None, length, config.batch_size)
        from tasks.models.providers.openai.generation import Chat, Completions

        if self.takes_chats:
            return Chat(name, config, sampling, reasoning, media)
        return Completions(name, config, sampling, reasoning)

    async def adapted(self, codec: Codec, transport: Transport, served: ServedModel[EndpointConfig]) -> Codec:
        """Prompts as tokens, the way that log-likelihoods are asked for, as many stop sequences as it takes:
        what an endpoint does is asked once a process."""
        from tasks.models.providers.openai.echo import Likelihood
        from tasks.models.providers.openai.generation import Completions, Generation

        if self.endpoint.files is not None:
            return codec  # nothing answers there
        if isinstance(codec, Likelihood):
            return await self._with_mode(codec, transport, served)
        name = self.tokenizer_for("generate")
        if isinstance(codec, Completions) and name is not None:
            codec = await self._with_tokens(codec, name, transport, served)
        assert isinstance(codec, Generation)
        codec.refused = refused_by(served.base_url, served.model).names
        await self._limit_stops(codec, transport, served)
        return codec

    async def doubts(self, kind: RequestKind, served: ServedModel[EndpointConfig]) -> list[str]:
        """What a text is asked without since the endpoint refuses it. One with a key, which may be anybody's,
        is asked for a token."""
        if kind != "generate":
            return []
        if served.key is not None:
            await self._ask_for_a_token(served)
        said = refused_by(served.base_url, served.model).sentence()
        return [] if said is None else [said]

    async def _ask_for_a_token(self, served: ServedModel[EndpointConfig]) -> None:
        codec = self.codec("generate", self.model.sample_params)
        (call,) = codec.calls([Request(b"", "generate", "1 + 1 =", seed=self.model.sample_params.seed)])
        body = {name: value for name, value in call.body.items() if not name.startswith("stream")}
        transport = self.transport(served, 1)
        try:
            await transport.send(
                Call(call.path, {**body, **dict.fromkeys(LENGTHS & body.keys(), 1)}), PROBE_SECONDS
            )
        except RequestError:
            pass  # the run's own requests say what is wrong
        finally:
            await transport.close()

    async def _with_tokens(
        self, codec: "Completions", name: str, transport: Transport, served: ServedModel[EndpointConfig]
    ) -> "Completions":
        from tasks.models.providers.openai.echo import takes_ids
        from tasks.models.providers.openai.generation import TokenPrompts
        from tasks.models.served import room_of
        from tasks.models.tokenizers import load_tokenizer

        room, tokenizer = room_of(self.model, codec.params), load_tokenizer(name, self.base_dir)
        ids = await takes_ids(transport, served.base_url, served.model, tokenizer)
        return codec.with_prompts(TokenPrompts(tokenizer, room, ids))

    async def _limit_stops(
        self, generation: "Generation", transport: Transport, served: ServedModel[EndpointConfig]
    ) -> None:
        """Lets an endpoint that holds to OpenAI's limit have its four stop sequences."""
        from tasks.models.providers.openai.echo import takes_stops

        (call,) = generation.calls([Request(b"", "generate", "1 + 1 =")])
        stops = call.body.get("stop") or ()
        if len(stops) <= FEWEST_STOPS:
            return
        body = {name: value for name, value in call.body.items() if not name.startswith("stream")}
        asked = Call(call.path, {**body, **dict.fromkeys(LENGTHS & body.keys(), 1)})
        if await takes_stops(transport, served.base_url, asked):
            return
        cut = generation.keep_stops(FEWEST_STOPS)
        logger.warning(
            "model %r: %s takes %d of the %d stop sequences; answers are cut here at the others: %s",
            self.model.name, served.base_url, FEWEST_STOPS, len(stops), ", ".join(map(repr, cut)),
        )  # fmt: skip

    async def _with_mode(
        self, codec: "Likelihood", transport: Transport, served: ServedModel[EndpointConfig]
    ) -> "Likelihood":
        from tasks.models.providers.openai.echo import EchoMode, find_mode
        from tasks.models.served import scores_exactly
        from tasks.models.tokenizers import load_tokenizer

        name = self.tokenizer_for("loglikelihood")
        tokenizer = None if name is None else load_tokenizer(name, self.base_dir)
        codec = replace(codec, tokenizer=tokenizer)
        if scores_exactly(self.model) and self.model.tokenizer is not None:  # then a probe would say the same
            return replace(codec, mode=EchoMode(0, "echo", ids=True))
        mode = await find_mode(transport, served.base_url, lambda mode: replace(codec, mode=mode))
        return replace(codec, mode=mode)

    def transport(self, served: ServedModel[EndpointConfig], connections: int) -> Transport:
        """Plain HTTP, or the official client: by the config, or by the address."""
        refused = refused_by(served.base_url, served.model)
        if served.config.through == "http":
            return FittingTransport(self.http(served, connections), refused)
        from tasks.models.providers.openai.official import OfficialTransport

        official = OfficialTransport(served.base_url, self.headers(served.key), served.key)
        return FittingTransport(official, refused)

    @property
    def batch_form(self) -> BatchForm | None:
        """The endpoint's own, or files."""
        folder, model = self.endpoint.files, self.model.served_name
        return self.batches if folder is None else FileBatches(named_path(self.base_dir, folder), model)

    def probe(self, kind: RequestKind, secret: Secret | None) -> ServedIdentity:
        """Nothing is asked where a person runs the batch, nor where there is no such tokenizer."""
        if (name := self.tokenizer_for(kind)) is not None:
            from tasks.models.tokenizers import load_tokenizer

            load_tokenizer(name, self.base_dir)
        if self.endpoint.files is None:
            return super().probe(kind, secret)
        self.version(kind)
        return ServedIdentity(None, self.model.served_name)

    def lists_all(self, base_url: str) -> bool:
        """OpenAI's own address does."""
        return is_openai(base_url)

    def at_server(self, server: RunningServer | None) -> Self:
        """The provider at the server that a step has started; raises ModelError where it needs one and there
        is none."""
        if self.model.server is None:
            return self
        from tasks.models.served import at_server

        return type(self)(at_server(self.model, server, self.base_dir), self.base_dir)

    def settled(self, secret: Secret | None, ask: bool) -> ModelConfig:
        """Whether the chat template opens the thought, where the config leaves it open."""
        if self.stays or not self.takes_chats or not leaves_thought_open(self.model):
            return self.model
        from tasks.models.providers.openai.templates import settled

        return settled(self, secret, ask and self.endpoint.files is None)
