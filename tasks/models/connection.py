"""Connects to a model: from its provider to an endpoint that the engine can drive, with the limiters that the
process shares, and to the codec of what is asked.

``probe`` asks an endpoint what it serves before a run starts, so that a wrong address or key costs seconds
and not hours.
"""

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.datasets.item import RequestKind
from tasks.models.config import ModelConfig
from tasks.models.engine import Endpoint, RequestGroup, RetryPolicy
from tasks.models.limits.allowances import pace_of
from tasks.models.limits.limiters import concurrency_limiter_of, rate_limiter_of
from tasks.models.providers.provider import AskedProvider, Secret, ServedIdentity, ServedModel, provider_of
from tasks.models.records import InferenceOptions, Request
from tasks.models.served import WatchedTransport

SPARE_CONNECTIONS = 8
UNKNOWN_COMPLETION = 256
"""Completion tokens reserved a request where max_tokens doesn't say."""


@dataclass(frozen=True)
class Connection:
    """A model that is ready to be asked."""

    provider: AskedProvider[Any]
    served: ServedModel[Any]
    endpoint: Endpoint
    options: InferenceOptions

    async def prepare(self, groups: Iterator[Sequence[Request]]) -> Iterator[RequestGroup]:
        """Gives each group its codec; what the server can do is found out first. Raises ModelError."""
        first = next(groups)
        codec = self.provider.codec(first[0].kind, self.options.sampling, self.options.media)
        codec = await self.provider.adapted(codec, self.endpoint.transport, self.served)
        return ((codec, group) for group in codec.grouped(itertools.chain([first], groups)))


@asynccontextmanager
async def open_connection(
    provider: AskedProvider[Any], options: InferenceOptions
) -> AsyncIterator[Connection]:
    """Opens a model for the time of a run: takes its share of limits, starts the embedded server where it
    is the model.

    Raises ModelError when the key is missing.
    """
    provider = provider.at_server(options.server)
    async with AsyncExitStack() as stack:
        served = stack.enter_context(provider.served(options.secret))
        config = served.config
        ceiling = config.max_concurrency
        if config.concurrency_limit is not None and options.lease is not None:
            ceiling = min(ceiling, stack.enter_context(options.lease(config.concurrency_limit, ceiling)))
        transport = provider.transport(served, ceiling + SPARE_CONNECTIONS)
        if options.server is not None:
            transport = WatchedTransport(transport, options.server)
        stack.push_async_callback(transport.close)
        endpoint = Endpoint(
            transport=transport,
            concurrency=concurrency_limiter_of(served.base_url),
            ceiling=ceiling,
            timeout=config.timeout,
            retry=RetryPolicy(config.max_retries, config.seconds_per_request),
            request_rate=rate_limiter_of(
                served.base_url, f"{served.model}/requests", config.requests_per_minute
            ),
            token_rate=rate_limiter_of(served.base_url, f"{served.model}/tokens", config.tokens_per_minute),
            pace=pace_of(served.base_url, served.model),
            completion_estimate=options.sampling.max_tokens or UNKNOWN_COMPLETION,
        )
        yield Connection(provider, served, endpoint, options)


def probe(
    model: ModelConfig,
    kind: RequestKind = "generate",
    secret: Secret | None = None,
    base_dir: Path = Path(),
) -> ServedIdentity:
    """Asks the model's endpoint what it serves; for log-likelihoods also whether it gives those of a
    prompt.

    Recorded responses have no endpoint and nothing is asked. Raises ModelError with the remedy when nothing
    answers, the key is missing or refused, or log-likelihoods are not available.
    """
    provider = provider_of(model, base_dir)
    if not isinstance(provider, AskedProvider):
        return ServedIdentity(None, model.name)
    return provider.probe(kind, secret)
