"""What a provider is: one way of asking a model, with all that is its own in one class.

A class says what ``config`` of its models may hold, what of it decides answers, and how answers come: a
``RecordedProvider`` looks them up, an ``AskedProvider`` asks for them. Of the latter the rest of the program
uses five things: its address and headers, a ``Transport`` that sends calls, a ``Codec`` that makes calls of
requests and answers of replies, what an endpoint says that it serves, and nothing else. Who asks which class
it is has found something that belongs here.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import Field, ValidationError, field_validator, model_validator

from metrics.config import Strict
from metrics.errors import ConfigError, NightjarError
from tasks.datasets.item import RequestKind
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.config import BatchConfig, ModelConfig, SampleParams, no_batches
from tasks.models.errors import AccessDenied, ModelError, RequestError
from tasks.models.records import Codec, InferenceOptions, Transport
from tasks.models.registry import PROVIDERS, is_reference
from tasks.models.statements import Statement, statement
from tasks.models.tally import PartitionResponses
from tasks.serving.weights import KnownWeights
from tasks.usercode.load import load_function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tasks.models.batches.form import BatchForm
    from tasks.models.http import HttpTransport
    from tasks.models.wire import ModelListing, Wire

Secret = Callable[[str], str]
"""Reads a Secret block by its name."""
PROBE_SECONDS = 15.0
NAMES_SHOWN = 5
FOR_TEMPLATES: Final = {"reasoning_effort": "effort", "chat_template_kwargs": "template_kwargs"}
"""Fields that only a chat template reads, and the key of ``reasoning`` that says them."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AskedConfig(Strict):
    """How hard an endpoint may be driven."""

    max_concurrency: int = Field(
        64, ge=1, description="requests in flight, at most; fewer when the endpoint objects"
    )
    concurrency_limit: str | None = Field(
        None, description="Prefect global concurrency limit, shared by processes"
    )
    requests_per_minute: float | None = Field(None, gt=0, description="the endpoint's rate limit")
    tokens_per_minute: float | None = Field(None, gt=0, description="the endpoint's limit of tokens")
    timeout: float = Field(120, gt=0, description="seconds for one attempt")
    max_retries: int = Field(6, ge=0, description="attempts after the first that failed")
    deadline: float | None = Field(
        None, gt=0, description="seconds for a request with all its retries; default 10 × timeout"
    )

    @property
    def seconds_per_request(self) -> float:
        """Seconds after which a request is given up, all its retries included."""
        return self.deadline if self.deadline is not None else 10 * self.timeout


class AddressedConfig(AskedConfig):
    """An endpoint at an address, with a key, and how hard it may be driven."""

    model: str | None = Field(None, description="the served model's name; default: the entry's own name")
    base_url: str = Field(description="address of the endpoint")
    api_key_env: str | None = Field(None, description="environment variable that holds the key")
    api_key_secret: str | None = Field(None, description="Prefect Secret block that holds the key")
    batch: BatchConfig | None = Field(
        None, description="ask by the provider's batches, such as {wait: 24h}; default: by single requests"
    )

    @field_validator("base_url")
    @classmethod
    def _no_credentials(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an http:// or https:// address such as http://localhost:8000/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "holds credentials; name the environment variable with the key in api_key_env instead"
            )
        if parts.query:
            raise ValueError("holds a query; put parameters into extra_body, keys into api_key_env")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _does_not_stream_batches(self) -> Self:
        if self.batch is not None and getattr(self, "stream", False):
            raise ValueError("config.stream: answers of a batch come all at once; leave stream or batch out")
        return self


C = TypeVar("C", bound=Strict)
A = TypeVar("A", bound=AskedConfig)


@dataclass(frozen=True)
class ServedModel(Generic[A]):
    """Where a model is served, under which name, with which key, and the rest of its config."""

    base_url: str
    model: str
    config: A
    key: str | None = field(default=None, repr=False)


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


class Provider(ABC, Generic[C]):
    """One way of asking a model, for one entry of ``models:``; files that it names lie below ``base_dir``."""

    schema: ClassVar[type[Strict]]
    """What ``config`` of its models holds."""
    asks: ClassVar[bool]
    """Whether its answers are asked for and kept; else they were recorded."""

    def __init__(self, model: ModelConfig, base_dir: Path = Path()) -> None:
        self.model = model
        self.base_dir = base_dir
        self.config: C = cast(C, self._read(model.config))
        if getattr(self.config, "batch", None) is not None and getattr(self, "batches", None) is None:
            raise ConfigError(f"model {model.name!r}: {no_batches(model.type)}")

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Raises ValueError where what an entry says besides its ``config`` does not go together."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What of ``config`` can change an answer, as JSON: it is in the keys of all answers."""

    def identity(self) -> dict[str, Any]:
        """What of the model can change its answers, as a JSON object for keys; raises ConfigError.

        Display names, prices, limits and concurrency are not in it.
        """
        model = self.model
        thinking = model.reasoning.identity(getattr(self.config, "base_url", ""))
        common = {"tokenizer": model.tokenizer, "max_length": model.max_length, "reasoning": thinking or None}
        said = {name: value for name, value in common.items() if value is not None}
        return {"type": model.type, **said, **self.facts()}

    def known_weights(self) -> KnownWeights | None:
        """The weights on this machine that it answers from, as they are now; None where there are none, or
        the config says what stands for them in keys. Raises ConfigError."""
        return None

    def version(self, _kind: RequestKind) -> int:
        """Of what encodes requests of a kind: from 2 on it is in their keys."""
        return 1

    def encoding(self, kind: RequestKind) -> dict[str, Any]:
        """What decides how requests of a kind are written beside the config, as a JSON object for their
        keys."""
        version = self.version(kind)
        return {"encoder": version} if version > 1 else {}

    def longest_answer(self, sampling: SampleParams) -> int | None:
        """Tokens that an answer has at most; None where nothing says it."""
        return sampling.max_tokens or sampling.max_completion_tokens

    @property
    def takes_chats(self) -> bool:
        """Whether it is asked by messages; else by one text, which holds neither tools nor turns."""
        return True

    @property
    def recording(self) -> Path | None:
        """The file that its answers are looked up in, where they are."""
        return None

    def settled(self, _secret: Secret | None, _ask: bool) -> ModelConfig:
        """The model with what has to be known of it before its answers have keys. Not ``ask``: as far as this
        machine knows. Raises ModelError."""
        return self.model

    def _read(self, config: Strict) -> Strict:
        if isinstance(config, self.schema):
            return config
        try:
            return self.schema.model_validate(config.model_dump())
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, ("config", *problem["loc"])))
            said = problem["msg"].removeprefix("Value error, ")
            raise ConfigError(f"model {self.model.name!r}: {place}: {said}") from error


class RecordedProvider(Provider[C]):
    """Answers that are there already: nothing is asked and nothing is kept."""

    asks = False

    @abstractmethod
    def responses(
        self, requests: "Iterable[pa.RecordBatch]", options: InferenceOptions
    ) -> PartitionResponses:
        """Rows of RESPONSES for rows of REQUESTS; raises DataError."""

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses what is said to a model that is asked."""
        if sent := model.reasoning.sent(""):
            key = FOR_TEMPLATES.get(next(iter(sent)), "budget_tokens")
            raise ValueError(f"reasoning.{key}: recorded responses are asked nothing")
        _refuse_weights(model)


class AskedProvider(Provider[C]):
    """An endpoint that is asked, and whose answers are kept.

    A new one says its ``schema``, an ``AddressedConfig`` with more; ``facts``; and ``codec``. What differs
    from OpenAI's protocol beside that, it overrides: ``headers``, ``wire``, ``transport``, ``listing``.
    """

    asks = True
    kinds: ClassVar[frozenset[RequestKind]] = frozenset({"generate"})
    """What it can be asked for."""
    batches: ClassVar["BatchForm | None"] = None
    """Its interface for batches, where it has one."""
    serves_weights: ClassVar[bool] = False
    """Whether weights on this machine can be served to be asked so."""
    stays: ClassVar[bool] = False
    """Whether the model that answers is part of its identity, and so no other can come to answer."""
    unreachable: ClassVar[str] = "start the server or set config.base_url to where it is"
    """What to do where nothing answers."""

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses a thought's effort that is said twice, and weights that it can't be asked for."""
        if model.sample_params.reasoning_effort is not None and model.reasoning.effort is not None:
            raise ValueError("reasoning.effort: sample_params.reasoning_effort says it already; give one")
        if not cls.serves_weights:
            _refuse_weights(model)
        served_here = model.path is not None or model.checkpoints is not None
        if served_here and getattr(model.config, "batch", None) is not None:
            raise ValueError(
                "config.batch: weights that are served here answer single requests; leave it out"
            )

    @abstractmethod
    def codec(self, kind: RequestKind, sampling: SampleParams, media: ReadMedia = refuse_media) -> Codec:
        """What encodes requests of one of ``kinds`` and reads their replies, kept ones too, as the config
        alone says it: nothing is asked."""

    @property
    def batch_form(self) -> "BatchForm | None":
        """The interface that its batches go by, as its config says it."""
        return self.batches

    async def adapted(self, codec: Codec, _transport: Transport, _served: ServedModel[Any]) -> Codec:
        """The codec as this endpoint takes it, which may be asked what it can do; raises ModelError."""
        return codec

    def version(self, kind: RequestKind) -> int:
        """That of the codec; raises ModelError for a kind that it can't be asked for."""
        if kind not in self.kinds:
            others = [name for name in PROVIDERS if kind in getattr(PROVIDERS[name], "kinds", ())]
            what = "no text" if kind == "generate" else "no log-likelihoods of a text"
            raise ModelError(
                f"model {self.model.name!r}: type {self.model.type} gives {what}; ask one of type "
                f"{' or '.join(others)}"
            )
        return self.codec(kind, self.model.sample_params).version

    def served(self, secret: Secret | None) -> AbstractContextManager[ServedModel[Any]]:
        """Where the model is served, for the time of the context; raises ModelError."""
        return self._addressed(secret)

    @contextmanager
    def _addressed(self, secret: Secret | None) -> Iterator[ServedModel[Any]]:
        config = self.config
        assert isinstance(config, AddressedConfig), "a provider without addresses says where it is served"
        key = api_key(self.model.name, config, secret)
        yield ServedModel(config.base_url, self.model.served_name, config, key)

    def headers(self, key: str | None) -> dict[str, str]:
        """What goes with every request: the key."""
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def wire(self) -> "Wire | None":
        """How statuses, bodies and streams are read where not as OpenAI's."""
        return None

    def http(self, served: ServedModel[Any], connections: int) -> "HttpTransport":
        """Plain HTTP to the endpoint, on the running loop."""
        from tasks.models.http import HttpTransport

        return HttpTransport(served.base_url, self.headers(served.key), connections, served.key, self.wire())

    def transport(self, served: ServedModel[Any], connections: int) -> Transport:
        """What sends calls to the endpoint, on the running loop."""
        return self.http(served, connections)

    async def listing(self, served: ServedModel[Any]) -> "ModelListing":
        """The models that the endpoint lists; raises RequestError."""
        transport = self.http(served, 1)
        try:
            return await transport.list_models(PROBE_SECONDS)
        finally:
            await transport.close()

    def lists_all(self, _base_url: str) -> bool:
        """Whether an endpoint lists every model that it serves; proxies answer to other names, too."""
        return False

    def at_server(self, server: Any) -> Self:
        """The provider at the server of its weights, where they are served on this machine."""
        return self

    def probe(self, kind: RequestKind, secret: Secret | None) -> ServedIdentity:
        """Asks the endpoint what it serves, and whether it can be asked for this kind.

        Raises ModelError with the remedy when nothing answers, the key is missing or refused, or the kind is
        not available.
        """
        self.version(kind)
        return asyncio.run(self._probe(kind, secret))

    async def _probe(self, kind: RequestKind, secret: Secret | None) -> ServedIdentity:
        model = self.model
        with self.served(secret) as served:
            try:
                listing = await self.listing(served)
                if kind != "generate":
                    await self._try(kind, served)
                refused = await self.doubts(kind, served)
            except AccessDenied as error:
                raise ModelError(
                    f"model {model.name!r}: {served.base_url} refused access ({error}); {self.key_remedy()}"
                ) from error
            except RequestError as error:
                raise ModelError(
                    f"model {model.name!r}: nothing usable answers at {served.base_url} ({error}); "
                    f"{self.unreachable}"
                ) from error
        names = tuple(listing.entries)
        absent = _not_listed(model, served.model, served.base_url, names)
        if absent is not None and self.lists_all(served.base_url):
            raise ModelError(f"{absent}; set config.model to one of its models")
        doubts = [
            absent,
            unencrypted_key_warning(model, served.base_url) if served.key else None,
            *refused,
        ]
        told = [doubt for doubt in doubts if doubt is not None]
        says = statement(served.model, listing)
        return ServedIdentity(served.base_url, served.model, names, says, "; ".join(told) or None)

    def key_remedy(self) -> str:
        """What to do where access was refused."""
        named = getattr(self.config, "api_key_env", None), getattr(self.config, "api_key_secret", None)
        if named[0]:
            return f"check the key in the environment variable {named[0]}"
        if named[1]:
            return f"check the key in the Secret block {named[1]!r}"
        return "name the environment variable that holds the key in config.api_key_env"

    async def doubts(self, _kind: RequestKind, _served: ServedModel[Any]) -> list[str]:
        """Warnings about how the endpoint takes requests of a kind."""
        return []

    async def _try(self, kind: RequestKind, served: ServedModel[Any]) -> None:
        transport = self.transport(served, 1)
        try:
            await self.adapted(self.codec(kind, self.model.sample_params), transport, served)
        finally:
            await transport.close()

    def statement(self, secret: Secret | None) -> Statement:
        """What the endpoint says of itself now; nothing where it can't be asked for its models. Raises
        ModelError where its key is missing."""
        with self.served(secret) as served:
            try:
                return statement(served.model, asyncio.run(self.listing(served)))
            except RequestError:
                return {}


AnyProvider = AskedProvider[Any] | RecordedProvider[Any]


def provider_of(model: ModelConfig, base_dir: Path = Path()) -> AnyProvider:
    """The provider of a model; one in a user's file is loaded from the config's folder. Raises
    ConfigError."""
    return provider_class(model.type, base_dir)(model, base_dir)


def provider_class(kind: str, base_dir: Path = Path()) -> type[AnyProvider]:
    """The class that a model's ``type`` names; raises ConfigError."""
    if not is_reference(kind):
        found: type[AnyProvider] = PROVIDERS[kind]
        return found
    loaded = load_function(kind, base_dir)
    if not (isinstance(loaded, type) and issubclass(loaded, AskedProvider | RecordedProvider)):
        raise ConfigError(
            f"model type {kind!r}: expected a class derived from AskedProvider or RecordedProvider of "
            "tasks.models.providers"
        )
    return loaded


def api_key(name: str, config: AddressedConfig, secret: Secret | None) -> str | None:
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


def _secret_key(name: str, block: str, origin: str, secret: Secret | None) -> str:
    if secret is None:
        raise ModelError(f"model {name!r}: api_key_secret needs a Prefect server; use api_key_env here")
    try:
        return secret(block)
    except NightjarError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    except Exception as error:
        raise ModelError(f"model {name!r}: {origin} can't be loaded: {type(error).__name__}") from error


def unencrypted_key_warning(model: ModelConfig, base_url: str) -> str | None:
    """A warning where the key goes over a network as it is."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.hostname in LOOPBACK:
        return None
    return f"model {model.name!r}: its key is sent to {base_url} unencrypted; use https:// if there is one"


def _not_listed(model: ModelConfig, name: str, base_url: str, names: tuple[str, ...]) -> str | None:
    if not names or name in names:
        return None
    shown = ", ".join(names[:NAMES_SHOWN]) + (" …" if len(names) > NAMES_SHOWN else "")
    return f"model {model.name!r}: {base_url} does not list {name!r}; it serves {shown}"


def _refuse_weights(model: ModelConfig) -> None:
    for name in ("path", "checkpoints"):
        if getattr(model, name) is not None:
            raise ValueError(f"{name}: a model of type {model.type} has no weights that are served")
