"""From a model's config to something the engine can drive: address, key, provider, gate."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from metrics.errors import NightjarError
from tasks.models.config import DemoConfig, EndpointConfig, ModelConfig, SampleParams
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.serving import shared_server
from tasks.models.errors import ModelError
from tasks.models.generation import Generation, TokenPrompts
from tasks.models.http import HttpProvider
from tasks.models.likelihood.asking import EchoMode, Likelihood
from tasks.models.likelihood.probe import find_mode, takes_ids
from tasks.models.likelihood.tokenizers import BYTES, load_tokenizer
from tasks.models.limits import gate_of, pace_of
from tasks.models.options import InferenceOptions
from tasks.models.records import Provider, Request
from tasks.models.work import Asking, Endpoint, RetryPolicy

SPARE_CONNECTIONS = 8
UNKNOWN_COMPLETION = 256
"""Completion tokens reserved a request where max_tokens doesn't say."""
RequestGroup = tuple[Asking, Sequence[Request]]


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
    place: ServedModel
    endpoint: Endpoint
    sampling: SampleParams

    async def prepared(self, units: Iterator[Sequence[Request]]) -> Iterator[RequestGroup]:
        """Says of each unit how it is asked; what the server can do is found out first. Raises ModelError."""
        first = next(units)
        units = itertools.chain([first], units)
        if first[0].kind == "generate":
            generation = await self._generation()
            return ((generation, unit) for unit in units)
        asking = await likelihood_at(self.endpoint.provider, self.place, self.model)
        return ((asking, unit) for unit in _batched(units, self.place.config.batch_size))

    async def _generation(self) -> Generation:
        place, sampling = self.place, self.sampling
        if self.model.tokenizer is None or place.config.api == "chat":
            return Generation(place.model, place.config, sampling)
        tokenizer = load_tokenizer(self.model.tokenizer)
        room = _room(self.model, sampling)
        ids = await takes_ids(self.endpoint.provider, place.base_url, place.model, tokenizer)
        return Generation(place.model, place.config, sampling, TokenPrompts(tokenizer, room, ids))


async def likelihood_at(provider: Provider, place: ServedModel, model: ModelConfig) -> Likelihood:
    """How log-likelihoods are asked for at this place; raises ModelError where they can't be had."""
    name = BYTES if model.type == "demo" else model.tokenizer
    tokenizer = None if name is None else load_tokenizer(name)
    config = place.config

    def asking(mode: EchoMode) -> Likelihood:
        return Likelihood(
            place.model, mode, config.extra_body, tokenizer, model.max_length, config.batch_size
        )

    return asking(await find_mode(provider, place.base_url, asking))


def _room(model: ModelConfig, params: SampleParams) -> int | None:
    """Tokens that a prompt has room for where the model's window is told: one less than what is left beside
    the answer, as in lm-evaluation-harness.
    """
    if model.max_length is None or params.max_tokens is None:
        return None
    tokens = model.max_length - 1 - params.max_tokens
    if tokens < 1:
        raise ModelError(
            f"model {model.name!r}: max_length {model.max_length} leaves no room for a prompt before "
            f"max_tokens {params.max_tokens}; lower max_tokens or raise max_length"
        )
    return tokens


@asynccontextmanager
async def connected(model: ModelConfig, options: InferenceOptions) -> AsyncIterator[Connection]:
    """Opens a model for the time of a run: takes its share of limits, starts the embedded server where it
    is the model.

    Raises ModelError when the key is missing.
    """
    async with AsyncExitStack() as stack:
        place = stack.enter_context(placed(model, options.secret))
        config = place.config
        ceiling = config.max_concurrency
        if config.concurrency_limit is not None and options.lease is not None:
            ceiling = min(ceiling, stack.enter_context(options.lease(config.concurrency_limit, ceiling)))
        provider = open_provider(place, ceiling)
        stack.push_async_callback(provider.close)
        endpoint = Endpoint(
            provider=provider,
            gate=gate_of(place.base_url),
            ceiling=ceiling,
            timeout=config.timeout,
            retry=RetryPolicy(config.max_retries, config.seconds_per_request),
            requests_pace=pace_of(place.base_url, f"{place.model}/requests", config.requests_per_minute),
            tokens_pace=pace_of(place.base_url, f"{place.model}/tokens", config.tokens_per_minute),
            completion_estimate=options.sampling.max_tokens or UNKNOWN_COMPLETION,
        )
        yield Connection(model, place, endpoint, options.sampling)


@contextmanager
def placed(model: ModelConfig, secret: Callable[[str], str] | None) -> Iterator[ServedModel]:
    """Where the model is served, for the time of the context: the embedded server runs that long. Raises
    ModelError.
    """
    name = model.served_name
    match model.config:
        case EndpointConfig() as config:
            yield ServedModel(config.base_url, name, config, api_key(model.name, config, secret))
        case DemoConfig() as config:
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
        place = f"the environment variable {config.api_key_env} (api_key_env)"
        key = os.environ.get(config.api_key_env, "").strip()
        if not key:
            raise ModelError(f"model {name!r}: {place} is not set")
    elif config.api_key_secret is not None:
        place = f"the Secret block {config.api_key_secret!r} (api_key_secret)"
        key = _from_block(name, config.api_key_secret, place, secret).strip()
    else:
        return None
    if not (key.isascii() and key.isprintable()):
        raise ModelError(f"model {name!r}: {place} holds characters that no key has; set it to the key alone")
    return key


def _from_block(name: str, block: str, place: str, secret: Callable[[str], str] | None) -> str:
    if secret is None:
        raise ModelError(f"model {name!r}: api_key_secret needs a Prefect server; use api_key_env here")
    try:
        return secret(block)
    except NightjarError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    except Exception as error:
        raise ModelError(f"model {name!r}: {place} can't be loaded: {type(error).__name__}") from error


def open_provider(place: ServedModel, connections: int) -> Provider:
    """The provider that the config names, on the running loop."""
    if place.config.client == "openai":
        from tasks.models.openai import OfficialProvider

        return OfficialProvider(place.base_url, place.key)
    return HttpProvider(place.base_url, place.key, connections + SPARE_CONNECTIONS)


def _batched(units: Iterator[Sequence[Request]], size: int) -> Iterator[Sequence[Request]]:
    """Log-likelihood requests, ``size`` of them together; documents stay alone."""
    group: list[Request] = []
    for unit in units:
        if unit[0].kind == "rolling":
            yield unit
            continue
        group.extend(unit)
        if len(group) >= size:
            yield group
            group = []
    if group:
        yield group


PROBE_SECONDS = 15.0
NAMES_SHOWN = 5


@dataclass(frozen=True)
class ServedIdentity:
    """What answered: the address, the name asked for, the names it serves (empty: it does not say), and a
    warning if the name is not among them.
    """

    base_url: str | None
    model: str
    served: tuple[str, ...] = ()
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


async def _probe(model: ModelConfig, kind: str, secret: Callable[[str], str] | None) -> ServedIdentity:
    from tasks.models.errors import AccessDenied, RequestError
    from tasks.models.http import HttpProvider

    place: ServedModel
    with placed(model, secret) as place:
        provider = HttpProvider(place.base_url, place.key, 4)
        try:
            served = await provider.served(PROBE_SECONDS)
            if kind != "generate":
                await likelihood_at(provider, place, model)
        except AccessDenied as error:
            raise ModelError(
                f"model {model.name!r}: {place.base_url} refused access ({error}); {_key_remedy(model)}"
            ) from error
        except RequestError as error:
            raise ModelError(
                f"model {model.name!r}: nothing usable answers at {place.base_url} ({error}); start the "
                "server or set config.base_url to where it is"
            ) from error
        finally:
            await provider.close()
    return ServedIdentity(
        place.base_url, place.model, served, _warning(model, place.model, place.base_url, served)
    )


def _key_remedy(model: ModelConfig) -> str:
    named = getattr(model.config, "api_key_env", None), getattr(model.config, "api_key_secret", None)
    if named[0]:
        return f"check the key in the environment variable {named[0]}"
    if named[1]:
        return f"check the key in the Secret block {named[1]!r}"
    return "name the environment variable that holds the key in config.api_key_env"


def _warning(model: ModelConfig, name: str, base_url: str, served: tuple[str, ...]) -> str | None:
    if not served or name in served:
        return None
    shown = ", ".join(served[:NAMES_SHOWN]) + (" …" if len(served) > NAMES_SHOWN else "")
    return f"model {model.name!r}: {base_url} does not list {name!r}; it serves {shown}"
