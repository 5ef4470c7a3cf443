"""Connects to a model: from its config to an endpoint that the engine can drive, and to the codec of its
API.

It finds the address (the embedded server is started where it is the model) and the key, and gives the
provider and the limiters that the process shares. ``probe`` asks an endpoint what it serves before a run
starts, so that a wrong address or key costs seconds and not hours.

A model that is served here is at the address of the server that a step started. The server may die and be
started again by its supervisor; requests that it could not answer meanwhile wait for it, and are told why
when it does not come back.

What an endpoint says of itself when it is asked for its models is kept beside the answers that are asked
for after it, as ``answers/<identity>/says/<time>-<digest>.json``, and compared with what the endpoint
says before they are reused. Only facts that stay as long as the model does are taken: servers list
clocks, prices and permissions beside them.
"""

import asyncio
import itertools
import json
import logging
import os
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from metrics.errors import NightjarError
from tasks.messages.media import ReadMedia
from tasks.models.config import DemoConfig, EndpointConfig, ModelConfig, SampleParams
from tasks.models.demo.options import DemoOptions
from tasks.models.echo import EchoMode, Likelihood, find_mode, takes_ids, takes_stops
from tasks.models.engine import Endpoint, RequestGroup, RetryPolicy
from tasks.models.errors import AccessDenied, ConnectionFault, EndpointDead, ModelError, RequestError
from tasks.models.generation import FEWEST_STOPS, Generation, TokenPrompts
from tasks.models.limits import concurrency_limiter_of, rate_limiter_of
from tasks.models.records import Call, InferenceOptions, Provider, Reply, Request
from tasks.models.tokenizers import BYTES, load_tokenizer
from tasks.serving.config import DEFAULT_PRESET, local_path
from tasks.serving.servers import RunningServer, failure_of, is_ready
from tasks.store.errors import FileDamaged, StoreError
from tasks.store.keys import digest
from tasks.store.storage import Store

if TYPE_CHECKING:
    from tasks.models.http import ModelListing


FACTS: Final = (
    "root", "parent", "owned_by", "version", "revision", "sha", "model_sha", "model_dtype", "dtype",
    "quantization", "arch", "architecture", "max_model_len", "max_context_length", "context_length",
    "context_window", "max_total_tokens", "max_input_length", "meta",
)  # fmt: skip
"""Keys of an entry of /v1/models that describe the model, of vLLM, SGLang, llama.cpp, TGI, LM Studio and
hosted ones; an object's keys count one by one."""
HEADERS: Final = (
    "server", "x-powered-by", "openai-version", "x-model-id", "x-model-version", "x-model-revision",
    "x-compute-type",
)  # fmt: skip
Statement = Mapping[str, str]
"""Fact → what is said of it."""


def statement(model: str, listing: "ModelListing") -> Statement:
    """What the endpoint says of itself and of the model.

    >>> from tasks.models.http import ModelListing
    >>> statement("m", ModelListing({"m": {"created": 9, "max_model_len": 4096}}, {"Server": "vllm"}))
    {'listed': 'yes', 'max_model_len': '4096', 'header server': 'vllm'}
    """
    said = {"listed": "yes" if model in listing.entries else "no"} if listing.entries else {}
    entry = listing.entries.get(model, {})
    for fact in FACTS:
        value = entry.get(fact)
        parts = (
            {f"{fact}.{name}": part for name, part in value.items()}
            if isinstance(value, dict)
            else {fact: value}
        )
        said |= {name: _text(part) for name, part in parts.items() if part is not None}
    given = {name.lower(): text for name, text in listing.headers.items()}
    return said | {f"header {name}": given[name] for name in HEADERS if name in given}


def contradictions(before: Statement, now: Statement) -> Iterator[str]:
    """What is said otherwise now than before, a sentence each.

    >>> list(contradictions({"max_model_len": "4096"}, {"max_model_len": "8192"}))
    ['max_model_len was 4096 and is 8192']
    """
    for fact in (*before, *(name for name in now if name not in before)):
        if before.get(fact) != now.get(fact):
            yield f"{fact} was {before.get(fact, 'not said')} and is {now.get(fact, 'not said')}"


def keep_statement(store: Store, folder: str, said: Statement, now: float | None = None) -> None:
    """Keeps what the endpoint says from now on (seconds since 1970), if that is not what it said last.

    Serves doubts alone: where the store can't be written, the run goes on without.
    """
    kept = kept_statements(store, folder)
    if said and (not kept or kept[-1][1] != said):
        since = time.time() if now is None else now
        name = f"{folder}/says/{int(since * 1000):013d}-{digest(said)[:12]}.json"
        with suppress(StoreError):
            store.put_document(name, json.dumps({"since": since, "says": dict(said)}).encode())


def kept_statements(store: Store, folder: str) -> list[tuple[float, Statement]]:
    """Since when (seconds since 1970) the endpoint said what, oldest first; without what can't be
    read."""
    found: list[tuple[float, Statement]] = []
    with suppress(StoreError):
        for entry in store.entries(f"{folder}/says"):
            with suppress(FileDamaged, ValueError, KeyError, TypeError, AttributeError):
                document = json.loads(store.document(entry.name))
                found.append((float(document["since"]), dict(document["says"].items())))
    return found


def said_at(kept: list[tuple[float, Statement]], times: Iterable[float]) -> list[Statement]:
    """What the endpoint said at some moments, each statement once; nothing for a moment before the first."""
    since = [moment for moment, _ in kept]
    places = {bisect_right(since, moment) - 1 for moment in times}
    return [kept[place][1] for place in sorted(places) if place >= 0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


LOOK_SECONDS = 0.25
LONGEST_TEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What configs of models call the number of tokens that they take in."""


def at_server(model: ModelConfig, server: RunningServer | None, base_dir: Path) -> ModelConfig:
    """The model at its server's address, with the tokenizer and the length that its folder tells; as it is
    where it is not served here. Raises ModelError where it has no server."""
    if model.server is None or not isinstance(model.config, EndpointConfig):
        return model
    if server is None:
        raise ModelError(f"model {model.name!r}: its weights are served by a step of the flow, and none ran")
    place = local_path(str(model.path), base_dir)
    folder = place if place is not None and place.is_dir() else None
    found: dict[str, Any] = {
        "config": model.config.model_copy(update={"base_url": server.base_url}),
        "tokenizer": model.tokenizer or _tokenizer(folder),
        "max_length": model.max_length or _length(folder),
    }
    return model.model_copy(update=found)


def likelihood_mode(model: ModelConfig) -> EchoMode | None:
    """How log-likelihoods are asked of a server that is known to give them exactly, where the tokenizer is at
    hand; None: it takes a probe to know."""
    return EchoMode(0, "echo", ids=True) if scores_exactly(model) and model.tokenizer is not None else None


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


@dataclass(frozen=True)
class ServedProvider:
    """A provider whose server is watched: a call that finds no connection waits until the server is back."""

    inner: Provider
    server: RunningServer

    async def send(self, call: Call, timeout: float) -> Reply:
        """As the provider's; raises EndpointDead, with the end of the server's log, once it is given up."""
        try:
            return await self.inner.send(call, timeout)
        except ConnectionFault:
            await self._back()
            raise

    async def _back(self) -> None:
        """Returns when the server answers again; at once if it does."""
        folder = Path(self.server.folder)
        await asyncio.sleep(LOOK_SECONDS)  # its supervisor notices within a tenth of a second
        while not is_ready(folder):
            failure = failure_of(folder)
            if failure is not None:
                raise EndpointDead(f"model {self.server.model!r}: its server is gone: {failure}")
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Closes the provider."""
        await self.inner.close()


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
