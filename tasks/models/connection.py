"""Connects to a model: from its config to an endpoint that the engine can drive, and to the codec of its API.

It finds the address (the embedded server is started where it is the model) and the key, and gives the
provider and the limiters that the process shares. ``probe`` asks an endpoint what it serves before a run
starts, so that a wrong address or key costs seconds and not hours.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from metrics.errors import NightjarError
from tasks.messages.media import ReadMedia
from tasks.models.config import DemoConfig, EndpointConfig, ModelConfig, SampleParams
from tasks.models.demo.options import DemoOptions
from tasks.models.engine import Endpoint, RequestGroup, RetryPolicy
from tasks.models.errors import AccessDenied, ModelError, RequestError
from tasks.models.generation import FEWEST_STOPS, Generation, TokenPrompts
from tasks.models.likelihood.echo import EchoMode, Likelihood
from tasks.models.likelihood.probe import find_mode, takes_ids, takes_stops
from tasks.models.likelihood.tokenizers import BYTES, load_tokenizer
from tasks.models.limits import concurrency_limiter_of, rate_limiter_of
from tasks.models.options import InferenceOptions
from tasks.models.records import Call, Provider, Request
from tasks.models.served import ServedProvider, at_server, likelihood_mode, scored_length, scores_exactly
from tasks.models.statement import Statement, statement

logger = logging.getLogger(__name__)
LENGTHS = frozenset({"max_tokens", "max_completion_tokens"})
SPARE_CONNECTIONS = 8
UNKNOWN_COMPLETION = 256
"""Completion tokens reserved a request where max_tokens doesn't say."""


@dataclass(frozen=True)
class ServedModel:
    """Where a model is served, under which name, with which key, and the rest of its config."""

    base_url: str
    model: str
    config: EndpointConfig
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Connection:
    """A model that is ready to be asked."""

    model: ModelConfig
    served: ServedModel
    endpoint: Endpoint
    sampling: SampleParams
    media: ReadMedia

    async def prepare(self, groups: Iterator[Sequence[Request]]) -> Iterator[RequestGroup]:
        """Gives each group its codec; what the server can do is found out first. Raises ModelError."""
        first = next(groups)
        groups = itertools.chain([first], groups)
        if first[0].kind == "generate":
            generation = await self._generation()
            return ((generation, group) for group in groups)
        likelihood = await likelihood_at(self.endpoint.provider, self.served, self.model)
        return ((likelihood, group) for group in _batched(groups, self.served.config.batch_size))

    async def _generation(self) -> Generation:
        generation = Generation(
            self.served.model,
            self.served.config,
            self.sampling,
            await self._prompts(),
            self.model.reasoning,
            self.media,
        )
        await self._limit_stops(generation)
        return generation

    async def _prompts(self) -> TokenPrompts | None:
        served = self.served
        room = room_of(self.model, self.sampling)
        if self.model.tokenizer is None or served.config.api == "chat":
            return None
        tokenizer = load_tokenizer(self.model.tokenizer)
        ids = await takes_ids(self.endpoint.provider, served.base_url, served.model, tokenizer)
        return TokenPrompts(tokenizer, room, ids)

    async def _limit_stops(self, generation: Generation) -> None:
        """Lets an endpoint that holds to OpenAI's limit have its four stop sequences."""
        (call,) = generation.calls([Request(b"", "generate", "1 + 1 =")])
        stops = call.body.get("stop") or ()
        if len(stops) <= FEWEST_STOPS:
            return
        body = {name: value for name, value in call.body.items() if not name.startswith("stream")}
        asked = Call(call.path, {**body, **dict.fromkeys(LENGTHS & body.keys(), 1)})
        if await takes_stops(self.endpoint.provider, self.served.base_url, asked):
            return
        cut = generation.keep_stops(FEWEST_STOPS)
        logger.warning(
            "model %r: %s takes %d of the %d stop sequences; answers are cut here at the others: %s",
            self.model.name, self.served.base_url, FEWEST_STOPS, len(stops), ", ".join(map(repr, cut)),
        )  # fmt: skip


async def likelihood_at(provider: Provider, served: ServedModel, model: ModelConfig) -> Likelihood:
    """The codec of log-likelihoods at this endpoint; raises ModelError where they can't be had."""
    name = BYTES if model.type == "demo" else model.tokenizer
    tokenizer = None if name is None else load_tokenizer(name)
    config = served.config

    def codec(mode: EchoMode) -> Likelihood:
        return Likelihood(
            served.model, mode, config.extra_body, tokenizer, scored_length(model), config.batch_size
        )

    known = likelihood_mode(model)
    if known is not None:
        return codec(known)
    return codec(await find_mode(provider, served.base_url, codec))


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


@asynccontextmanager
async def open_connection(model: ModelConfig, options: InferenceOptions) -> AsyncIterator[Connection]:
    """Opens a model for the time of a run: takes its share of limits, starts the embedded server where it
    is the model.

    Raises ModelError when the key is missing.
    """
    model = at_server(model, options.server, options.base_dir)
    async with AsyncExitStack() as stack:
        served = stack.enter_context(served_model(model, options.secret))
        config = served.config
        ceiling = config.max_concurrency
        if config.concurrency_limit is not None and options.lease is not None:
            ceiling = min(ceiling, stack.enter_context(options.lease(config.concurrency_limit, ceiling)))
        provider = open_provider(served, ceiling)
        if options.server is not None:
            provider = ServedProvider(provider, options.server)
        stack.push_async_callback(provider.close)
        endpoint = Endpoint(
            provider=provider,
            concurrency=concurrency_limiter_of(served.base_url),
            ceiling=ceiling,
            timeout=config.timeout,
            retry=RetryPolicy(config.max_retries, config.seconds_per_request),
            request_rate=rate_limiter_of(
                served.base_url, f"{served.model}/requests", config.requests_per_minute
            ),
            token_rate=rate_limiter_of(served.base_url, f"{served.model}/tokens", config.tokens_per_minute),
            completion_estimate=options.sampling.max_tokens or UNKNOWN_COMPLETION,
        )
        yield Connection(model, served, endpoint, options.sampling, options.media)


@contextmanager
def served_model(model: ModelConfig, secret: Callable[[str], str] | None) -> Iterator[ServedModel]:
    """Where the model is served, for the time of the context: the embedded server runs that long. Raises
    ModelError.
    """
    name = model.served_name
    match model.config:
        case EndpointConfig() as config:
            yield ServedModel(config.base_url, name, config, api_key(model.name, config, secret))
        case DemoConfig() as config:
            from tasks.models.demo.server import shared_server

            with shared_server(
                DemoOptions(model=name, error_rate=config.error_rate, latency=config.latency)
            ) as base_url:
                same = config.model_dump(include={"api", "max_concurrency", "timeout", "max_retries"})
                yield ServedModel(base_url, name, EndpointConfig(base_url=base_url, **same))
        case _:
            raise ModelError(f"model {model.name!r}: recorded responses have no endpoint")


def api_key(name: str, config: EndpointConfig, secret: Callable[[str], str] | None) -> str | None:
    """The key of a model's endpoint, from the environment or a Secret block; None: it takes none.

    Raises ModelError naming the variable or block, never the key.
    """
    if config.api_key_env is not None:
        origin = f"the environment variable {config.api_key_env} (api_key_env)"
        key = os.environ.get(config.api_key_env, "").strip()
        if not key:
            raise ModelError(f"model {name!r}: {origin} is not set")
    elif config.api_key_secret is not None:
        origin = f"the Secret block {config.api_key_secret!r} (api_key_secret)"
        key = _secret_key(name, config.api_key_secret, origin, secret).strip()
    else:
        return None
    if not (key.isascii() and key.isprintable()):
        raise ModelError(
            f"model {name!r}: {origin} holds characters that no key has; set it to the key alone"
        )
    return key


def _secret_key(name: str, block: str, origin: str, secret: Callable[[str], str] | None) -> str:
    if secret is None:
        raise ModelError(f"model {name!r}: api_key_secret needs a Prefect server; use api_key_env here")
    try:
        return secret(block)
    except NightjarError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    except Exception as error:
        raise ModelError(f"model {name!r}: {origin} can't be loaded: {type(error).__name__}") from error


def open_provider(served: ServedModel, connections: int) -> Provider:
    """The provider that the config names, on the running loop."""
    if served.config.client == "openai":
        from tasks.models.openai import OpenAIProvider

        return OpenAIProvider(served.base_url, served.key)
    from tasks.models.http import HttpProvider

    return HttpProvider(served.base_url, served.key, connections + SPARE_CONNECTIONS)


def _batched(groups: Iterator[Sequence[Request]], size: int) -> Iterator[Sequence[Request]]:
    """Log-likelihood requests, ``size`` of them together; documents stay alone."""
    batch: list[Request] = []
    for group in groups:
        if group[0].kind == "rolling":
            yield group
            continue
        batch.extend(group)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


PROBE_SECONDS = 15.0
NAMES_SHOWN = 5


@dataclass(frozen=True)
class ServedIdentity:
    """What answered: the address, the name asked for, the names it serves (empty: it does not say), what it
    says of itself, and a warning if the name is not among those it serves.
    """

    base_url: str | None
    model: str
    served: tuple[str, ...] = ()
    says: Statement = field(default_factory=dict)
    warning: str | None = None


def probe(
    model: ModelConfig, kind: str = "generate", secret: Callable[[str], str] | None = None
) -> ServedIdentity:
    """Asks the model's endpoint what it serves; for log-likelihoods also whether it gives those of a
    prompt.

    Recorded responses have no endpoint and nothing is asked. Raises ModelError with the remedy when nothing
    answers, the key is missing or refused, or log-likelihoods are not to be had.
    """
    if model.type == "replay":
        return ServedIdentity(None, model.name)
    return asyncio.run(_probe(model, kind, secret))


def statement_of(model: ModelConfig, secret: Callable[[str], str] | None = None) -> Statement:
    """What the model's endpoint says of itself now; nothing where it can't be asked for its models. Raises
    ModelError where its key is missing."""
    return asyncio.run(_statement(model, secret))


async def _statement(model: ModelConfig, secret: Callable[[str], str] | None) -> Statement:
    from tasks.models.http import HttpProvider

    with served_model(model, secret) as served:
        provider = HttpProvider(served.base_url, served.key, 1)
        try:
            return statement(served.model, await provider.list_models(PROBE_SECONDS))
        except RequestError:
            return {}
        finally:
            await provider.close()


async def _probe(model: ModelConfig, kind: str, secret: Callable[[str], str] | None) -> ServedIdentity:
    from tasks.models.http import HttpProvider

    served: ServedModel
    with served_model(model, secret) as served:
        provider = HttpProvider(served.base_url, served.key, 4)
        try:
            listing = await provider.list_models(PROBE_SECONDS)
            if kind != "generate":
                await likelihood_at(provider, served, model)
        except AccessDenied as error:
            raise ModelError(
                f"model {model.name!r}: {served.base_url} refused access ({error}); {_key_remedy(model)}"
            ) from error
        except RequestError as error:
            raise ModelError(
                f"model {model.name!r}: nothing usable answers at {served.base_url} ({error}); start the "
                "server or set config.base_url to where it is"
            ) from error
        finally:
            await provider.close()
    names = tuple(listing.entries)
    doubts = [
        _warning(model, served.model, served.base_url, names),
        _overheard(model, served.base_url) if served.key else None,
    ]
    told = [doubt for doubt in doubts if doubt is not None]
    says = statement(served.model, listing)
    return ServedIdentity(served.base_url, served.model, names, says, "; ".join(told) or None)


def _overheard(model: ModelConfig, base_url: str) -> str | None:
    """A warning where the key goes over a network as it is."""
    from tasks.models.http import LOOPBACK

    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.hostname in LOOPBACK:
        return None
    return f"model {model.name!r}: its key is sent to {base_url} unencrypted; use https:// if there is one"


def _key_remedy(model: ModelConfig) -> str:
    named = getattr(model.config, "api_key_env", None), getattr(model.config, "api_key_secret", None)
    if named[0]:
        return f"check the key in the environment variable {named[0]}"
    if named[1]:
        return f"check the key in the Secret block {named[1]!r}"
    return "name the environment variable that holds the key in config.api_key_env"


def _warning(model: ModelConfig, name: str, base_url: str, names: tuple[str, ...]) -> str | None:
    if not names or name in names:
        return None
    shown = ", ".join(names[:NAMES_SHOWN]) + (" …" if len(names) > NAMES_SHOWN else "")
    return f"model {model.name!r}: {base_url} does not list {name!r}; it serves {shown}"
