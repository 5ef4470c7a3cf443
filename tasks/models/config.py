"""What a config says about a model: where it is, how it samples, what it may cost."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

LOCAL_URL = "http://localhost:1234/v1"
"""Where a model given by name alone is looked for."""
NOT_SAMPLING = frozenset({"num_samples", "n", "seed"})
"""Sampling fields that choose which samples are drawn and not how; they enter request keys as seed and
sample index.
"""


class Frozen(BaseModel):
    """A part of the config: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Stop = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class SampleParams(Frozen):
    """How answers are drawn. A field left out is not sent, so the server's own default holds."""

    num_samples: int = Field(1, ge=1, description="answers per prompt")
    n: int | None = Field(
        None,
        ge=1,
        description="answers asked for in one request; they share one seed, so keep it for cheap repeats",
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="sample i is drawn with seed + i")
    temperature: float | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(
        None, ge=1, description="what newer chat models take for max_tokens"
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    stop: Stop | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = Field(None, description="keep the log-probabilities of the answer's tokens")
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    def merged(self, over: Self) -> Self:
        """These parameters with every field that ``over`` sets taking its value."""
        return self.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})

    def sent(self) -> dict[str, Any]:
        """The fields a request carries, seed, n and the number of samples apart."""
        fields = self.model_dump(exclude=set(NOT_SAMPLING), exclude_none=True)
        if "stop" in fields:
            fields["stop"] = list(fields["stop"])
        return fields


class EndpointConfig(Frozen):
    """An OpenAI-compatible endpoint and how hard it may be driven."""

    model: str | None = Field(None, description="the served model's name; default: the entry's own name")
    base_url: str = LOCAL_URL
    api: Literal["chat", "completions"] = "chat"
    api_key_env: str | None = Field(None, description="environment variable that holds the key")
    api_key_secret: str | None = Field(None, description="Prefect Secret block that holds the key")
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="sent along with every request as it is"
    )
    stream: bool = False
    client: Literal["http", "openai"] = Field(
        "http",
        description="http: the thin path that reaches the endpoint's speed; openai: the official client",
    )
    max_concurrency: int = Field(
        64, ge=1, description="requests in flight, at most; fewer when the endpoint objects"
    )
    concurrency_limit: str | None = Field(
        None, description="Prefect global concurrency limit, shared by processes"
    )
    requests_per_minute: float | None = Field(None, gt=0)
    tokens_per_minute: float | None = Field(None, gt=0)
    timeout: float = Field(120, gt=0, description="seconds for one attempt")
    max_retries: int = Field(6, ge=0)
    deadline: float | None = Field(
        None, gt=0, description="seconds for a request with all its retries; default 10 × timeout"
    )
    batch_size: int = Field(1, ge=1, description="log-likelihood prompts per request")

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

    @property
    def seconds_per_request(self) -> float:
        """Seconds after which a request is given up, all its retries included."""
        return self.deadline if self.deadline is not None else 10 * self.timeout


class DemoConfig(Frozen):
    """The embedded server's behaviour; the same fields as its command line."""

    error_rate: float = Field(0.2, ge=0, le=1, description="share of prompts that are worked out wrongly")
    latency: float = Field(0.0, ge=0, description="seconds before each answer")
    api: Literal["chat", "completions"] = "chat"
    max_concurrency: int = Field(64, ge=1)
    timeout: float = Field(60, gt=0)
    max_retries: int = Field(6, ge=0)


class ReplayConfig(Frozen):
    """Recorded responses: a file of rows, or a dotted field of the item itself."""

    path: str | None = Field(
        None, description=".jsonl or .parquet with item_id, response, and optionally more"
    )
    field: str | None = Field(None, description="dotted path into the item, e.g. gpt.solution")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.field is None):
            raise ValueError(
                "replay takes either config.path (a file of responses) or config.field (a field of the item)"
            )
        return self


class ModelConfig(Frozen):
    """One model of the evaluation. A bare string is the name of a model at ``http://localhost:1234/v1``."""

    name: str = Field(min_length=1)
    type: Literal["openai", "replay", "demo"] = "openai"
    config: EndpointConfig | ReplayConfig | DemoConfig = Field(default_factory=EndpointConfig)
    sample_params: SampleParams = Field(
        default_factory=SampleParams, description="over the global sample_params"
    )
    tokenizer: str | None = Field(
        None, description="folder or name of a tokenizer; bytes for byte-level models"
    )
    max_length: int | None = Field(None, ge=2, description="tokens the model takes in")
    identity: str | None = Field(
        None, description="stands for base_url in cache keys, for endpoints that move"
    )

    @model_validator(mode="before")
    @classmethod
    def _kind_of_config(cls, value: Any) -> Any:
        """Reads ``config`` with the schema of ``type``, so that an error names the key and not three
        alternatives.
        """
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, Mapping):
            return value
        schema = CONFIGS.get(value.get("type", "openai"))
        config = value.get("config") or {}
        if schema is None or isinstance(config, BaseModel) or not isinstance(config, Mapping):
            return value
        return {**value, "config": _validated(schema, config)}

    @model_validator(mode="after")
    def _config_fits_type(self) -> Self:
        if not isinstance(self.config, CONFIGS[self.type]):
            raise ValueError(f"config of model {self.name!r} is not one of type {self.type}")
        return self

    @property
    def served_name(self) -> str:
        """The name the endpoint knows the model by."""
        return getattr(self.config, "model", None) or self.name


CONFIGS: dict[str, type[Frozen]] = {"openai": EndpointConfig, "replay": ReplayConfig, "demo": DemoConfig}


def _validated(schema: type[Frozen], config: Mapping[str, Any]) -> Frozen:
    return schema.model_validate(dict(config))


class ErrorBudget(Frozen):
    """How many requests may fail before the run counts as failed."""

    max_rate: float = Field(0.0, ge=0, le=1, description="share of requests")


class RunLimits(Frozen):
    """Where a run stops asking, with what it has."""

    max_tokens: int | None = Field(None, ge=1)
    max_cost: float | None = Field(None, gt=0, description="in the currency of prices")
    max_seconds: float | None = Field(None, gt=0)


class Price(Frozen):
    """Price of a million tokens, in any one currency."""

    prompt: float = Field(0.0, ge=0)
    completion: float = Field(0.0, ge=0)
    cached: float | None = Field(
        None, ge=0, description="prompt tokens that the server had cached; default: prompt"
    )
