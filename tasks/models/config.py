"""What a config says about a model: where it is, how it samples, what it may cost.

Providers of other names are asked by an address that speaks OpenAI's protocol, theirs or a proxy's.
``answer_to`` is what a config of ``type: anthropic`` is told, the entry that works in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from metrics.config import NamesFile
from metrics.errors import check_name
from tasks.serving.config import CheckpointsConfig, ServeConfig
from tasks.store.durations import Seconds


@dataclass(frozen=True)
class Provider:
    """An address, the variable that usually holds its key (None: it needs none), and an example of a model.

    ``start`` is a command that has to run first, where the address is that of a server of one's own.
    """

    base_url: str
    key: str | None
    model: str
    start: str | None = None
    api: str = "chat"


def _proxied(model: str) -> Provider:
    """A provider with a protocol of its own: LiteLLM stands between."""
    start = f"litellm --model {model} --port 4000 (pip install 'litellm[proxy]')"
    return Provider("http://localhost:4000/v1", None, model, start)


_LOCAL: Final = Provider("http://localhost:8000/v1", None, "Qwen/Qwen3-8B")
PROVIDERS: Final = {
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "claude-sonnet-4-5"),
    "gemini": Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", "gemini-2.5-flash"
    ),
    "bedrock": _proxied("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0"),
    "vertex_ai": _proxied("vertex_ai/gemini-2.5-flash"),
    "sagemaker": _proxied("sagemaker/my-endpoint"),
    "cohere": _proxied("cohere/command-r-plus"),
    "litellm": _proxied("gpt-4o-mini"),
    "azure": Provider("https://RESOURCE.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY", "my-deployment"),
    "vllm": Provider(_LOCAL.base_url, None, _LOCAL.model, f"vllm serve {_LOCAL.model}"),
    "sglang": Provider(
        "http://localhost:30000/v1",
        None,
        _LOCAL.model,
        f"python -m sglang.launch_server --model {_LOCAL.model}",
    ),
    "hf": Provider(_LOCAL.base_url, None, _LOCAL.model, f"vllm serve {_LOCAL.model}"),
    "llama.cpp": Provider("http://localhost:8080/v1", None, "model", "llama-server -m model.gguf"),
    "ollama": Provider("http://localhost:11434/v1", None, "qwen3:8b", "ollama serve"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "qwen/qwen3-8b"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY", "Qwen/Qwen3-8B"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY", "llama-3.3-70b-versatile"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral-small-latest"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-chat"),
    "fireworks": Provider(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "accounts/fireworks/models/qwen3-8b"
    ),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY", "grok-4"),
    "local-completions": Provider(_LOCAL.base_url, None, _LOCAL.model, api="completions"),
    "local-chat-completions": _LOCAL,
    "openai-completions": Provider(
        "https://api.openai.com/v1", "OPENAI_API_KEY", "davinci-002", api="completions"
    ),
    "openai-chat-completions": Provider("https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-4o-mini"),
}
"""By the names that other programs give them."""
_SAME: Final = {
    "google": "gemini", "vertexai": "vertex_ai", "vertex": "vertex_ai", "aws": "bedrock",
    "aws-bedrock": "bedrock", "amazon": "bedrock", "azure-openai": "azure", "azure_openai": "azure",
    "huggingface": "hf", "transformers": "hf", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp",
    "claude": "anthropic", "grok": "xai", "togetherai": "together", "together_ai": "together",
}  # fmt: skip


def provider(name: str) -> Provider | None:
    """The provider that a name means, whatever its case; None for names of none."""
    known = name.lower()
    return PROVIDERS.get(_SAME.get(known, known))


def answer_to(kind: str, name: str) -> str | None:
    """What the model ``name`` of ``type: kind`` is told: two lines with the entry that works; None where the
    type is no provider's name."""
    found = provider(kind)
    if found is None:
        return None
    return f"'{kind}' is asked in OpenAI's protocol{_first(found)}; write\n  {entry(found, name)}"


def entry(found: Provider, name: str) -> str:
    """The entry of ``models:`` that asks the provider, in one line of YAML."""
    api = "" if found.api == "chat" else f", api: {found.api}"
    key = "" if found.key is None else f", api_key_env: {found.key}"
    return f'{{name: {name}, config: {{model: "{found.model}", base_url: "{found.base_url}"{api}{key}}}}}'


def flags_for(name: str) -> str | None:
    """The flags for a model named ``provider/model`` as other programs name it; None where it is not one."""
    kind, slash, model = name.partition("/")
    found = provider(kind) if slash and kind.lower() not in _PUBLISHERS else None
    if found is None:
        return None
    named = name if found.start and found.start.startswith("litellm") else model
    key = "" if found.key is None else f" --api-key-env {found.key}"
    api = "" if found.api == "chat" else f" --api {found.api}"
    return f"--model {named} --base-url {found.base_url}{api}{key}"


_PUBLISHERS: Final = frozenset(
    {"google", "cohere", "amazon", "together", "deepseek", "mistral", "huggingface"}
)
"""Names that also stand before the slash of open weights."""


def _first(found: Provider) -> str:
    return f", after {found.start}" if found.start else ""


THOUGHT_BUDGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("thinking_token_budget",),
    "llama.cpp": ("thinking_budget_tokens",),
    "sglang": ("chat_template_kwargs", "thinking_budget"),
    "nim": ("nvext", "max_thinking_tokens"),
    "openrouter": ("reasoning", "max_tokens"),
    "anthropic": ("thinking", "budget_tokens"),
    "gemini": ("extra_body", "google", "thinking_config", "thinking_budget"),
    "dashscope": ("thinking_budget",),
}
"""Where in a request each kind of server takes how many tokens a thought may have."""
_BESIDE_BUDGET: Final[Mapping[str, Mapping[str, Any]]] = {
    "anthropic": {"thinking": {"type": "enabled"}},
    "dashscope": {"enable_thinking": True},
}
"""What has to be said beside the budget."""
_BUDGET_HOSTS: Final = {
    "openrouter.ai": "openrouter",
    "anthropic.com": "anthropic",
    "googleapis.com": "gemini",
    "aliyuncs.com": "dashscope",
    "nvidia.com": "nim",
}


def thought_budget(tokens: int, kind: str | None, base_url: str) -> dict[str, Any]:
    """The part of a request that limits a thought to so many tokens, as ``kind`` of server takes it; None:
    the kind that the address is known for, else vLLM's.

    >>> thought_budget(512, "openrouter", ""), thought_budget(512, None, "http://localhost:8000/v1")
    ({'reasoning': {'max_tokens': 512}}, {'thinking_token_budget': 512})
    """
    host = urlsplit(base_url).hostname or ""
    known = (name for domain, name in _BUDGET_HOSTS.items() if host == domain or host.endswith(f".{domain}"))
    kind = kind or next(known, "vllm")
    field: Any = tokens
    for name in reversed(THOUGHT_BUDGETS[kind]):
        field = {name: field}
    return merged_bodies(_BESIDE_BUDGET.get(kind, {}), field)


def merged_bodies(body: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two parts of a request as one; where both hold a mapping, its entries lie over each other."""
    together = dict(body)
    for name, value in over.items():
        mine = together.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        together[name] = merged_bodies(mine, value) if both else value  # type: ignore[arg-type]  # both are
    return together


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
    temperature: float | None = Field(None, ge=0, description="0: the likeliest token each time")
    max_tokens: int | None = Field(None, ge=1, description="tokens of an answer, at most")
    max_completion_tokens: int | None = Field(
        None, ge=1, description="what newer chat models take for max_tokens"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="draw from the likeliest tokens that have this share together"
    )
    top_k: int | None = Field(None, description="draw from this many of the likeliest tokens")
    min_p: float | None = Field(
        None, ge=0, le=1, description="draw from tokens with this share of the likeliest one's probability"
    )
    stop: Stop | None = Field(None, description="texts that end an answer")
    presence_penalty: float | None = Field(None, description="against tokens that were said before")
    frequency_penalty: float | None = Field(None, description="against tokens by how often they were said")
    repetition_penalty: float | None = Field(None, description="divides the logits of tokens said before")
    logit_bias: dict[str, float] | None = Field(None, description="token id → what is added to its logit")
    logprobs: bool | None = Field(None, description="keep the log-probabilities of the answer's tokens")
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="alternatives kept at each token, with logprobs"
    )
    response_format: dict[str, Any] | None = Field(
        None, description="as the endpoint takes it, such as {type: json_object}"
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="as the endpoint takes it: auto, none, required, or one function"
    )
    reasoning_effort: str | None = Field(None, description="as the endpoint takes it: low, medium, high")

    def merged(self, over: Self) -> Self:
        """These parameters with every field that ``over`` sets taking its value."""
        return self.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})

    def sent(self) -> dict[str, Any]:
        """The fields a request carries, seed, n and the number of samples apart."""
        fields = self.model_dump(exclude=set(NOT_SAMPLING), exclude_none=True)
        if "stop" in fields:
            fields["stop"] = list(fields["stop"])
        return fields


ThoughtMarks = Literal[
    "auto", "think", "mistral", "seed", "harmony", "kimi", "cohere", "apertus", "thought", "reasoning",
    "granite", "hunyuan", "ernie",
]  # fmt: skip
"""Families whose marks of a thought are known: see ``generation.FAMILIES``."""
BudgetKind = Literal[
    "vllm", "llama.cpp", "sglang", "nim", "openrouter", "anthropic", "gemini", "dashscope"
]  # fmt: skip


class ReasoningConfig(Frozen):
    """How a model thinks before it answers: what it is told of that, and how its thought is known."""

    effort: str | None = Field(
        None, min_length=1, description="sent as reasoning_effort: none, low, medium, high …"
    )
    budget_tokens: int | None = Field(None, ge=0, description="tokens of a thought, at most")
    budget_as: BudgetKind | None = Field(
        None,
        description="whose field the budget is sent in; default: that of the address where it is known, "
        "else vllm's thinking_token_budget",
    )
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="sent as chat_template_kwargs, such as {enable_thinking: false}"
    )
    opened: bool | Literal["auto"] = Field(
        "auto",
        description="whether the chat template opens the thought, so that a text without its end is an "
        "unfinished thought; auto: found out before anything is asked, where reasoning is given at all",
    )
    marks: ThoughtMarks | tuple[str, str] = Field(
        "auto",
        description="the marks around a thought: a family's, or [OPENING, CLOSING]; auto: any that no answer "
        "begins with",
    )

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.budget_as is not None and self.budget_tokens is None:
            raise ValueError("budget_as says how budget_tokens is sent, and that is not given")
        if isinstance(self.marks, tuple) and not all(self.marks):
            raise ValueError("marks: expected two texts that are not empty, [OPENING, CLOSING]")
        return self

    def sent(self, base_url: str) -> dict[str, Any]:
        """The fields that a request to this address carries."""
        body: dict[str, Any] = {} if self.effort is None else {"reasoning_effort": self.effort}
        if self.template_kwargs:
            body["chat_template_kwargs"] = self.template_kwargs
        if self.budget_tokens is None:
            return body
        return merged_bodies(body, thought_budget(self.budget_tokens, self.budget_as, base_url))

    def identity(self, base_url: str) -> dict[str, Any]:
        """What of it can change an answer; empty where nothing is said."""
        marks = list(self.marks) if isinstance(self.marks, tuple) else self.marks
        read = {"opened": self.opened, "marks": marks}
        told = self.sent(base_url)
        said = {name: value for name, value in read.items() if value != "auto"}
        return said | ({"sent": told} if told else {})


class EndpointConfig(Frozen):
    """An OpenAI-compatible endpoint and how hard it may be driven."""

    model: str | None = Field(None, description="the served model's name; default: the entry's own name")
    base_url: str = Field(LOCAL_URL, description="address of the endpoint, up to /v1")
    api: Literal["chat", "completions"] = Field(
        "chat", description="chat: /chat/completions, messages; completions: /completions, one text"
    )
    api_key_env: str | None = Field(None, description="environment variable that holds the key")
    api_key_secret: str | None = Field(None, description="Prefect Secret block that holds the key")
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="sent along with every request as it is"
    )
    stream: bool = Field(
        False, description="receive answers piece by piece, through proxies that cut long silences"
    )
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
    requests_per_minute: float | None = Field(None, gt=0, description="the endpoint's rate limit")
    tokens_per_minute: float | None = Field(None, gt=0, description="the endpoint's limit of tokens")
    timeout: float = Field(120, gt=0, description="seconds for one attempt")
    max_retries: int = Field(6, ge=0, description="attempts after the first that failed")
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
    api: Literal["chat", "completions"] = Field("chat", description="which of its two interfaces is asked")
    max_concurrency: int = Field(64, ge=1, description="requests in flight, at most")
    timeout: float = Field(60, gt=0, description="seconds for one attempt")
    max_retries: int = Field(6, ge=0, description="attempts after the first that failed")


class ReplayConfig(Frozen):
    """Recorded responses: a file of rows, or a dotted field of the item itself."""

    path: Annotated[str | None, NamesFile()] = Field(
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

    name: str = Field(min_length=1, description="its name in results")
    type: Literal["openai", "replay", "demo"] = Field(
        "openai",
        description="openai: an OpenAI-compatible endpoint; replay: recorded responses; demo: embedded",
    )
    config: EndpointConfig | ReplayConfig | DemoConfig = Field(
        default_factory=EndpointConfig, description="what a model of its type needs"
    )
    sample_params: SampleParams = Field(
        default_factory=SampleParams, description="over the global sample_params"
    )
    tokenizer: str | None = Field(
        None, description="folder or name of a tokenizer; bytes for byte-level models"
    )
    max_length: int | None = Field(None, ge=2, description="tokens the model takes in")
    reasoning: ReasoningConfig = Field(
        default_factory=ReasoningConfig, description="how the model thinks before it answers"
    )
    identity: str | None = Field(
        None, description="stands for base_url in cache keys, for endpoints that move"
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="folder or file of weights that serve starts a server with, or a hub's NAME@REVISION",
    )
    checkpoints: CheckpointsConfig | None = Field(
        None, description="folders of weights, each a model of its own; a pattern alone is enough"
    )
    serve: ServeConfig | None = Field(
        None, description="how the weights are served on this machine: a preset's name is enough"
    )
    metadata: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="what else is known of it, such as step: facets by these names"
    )

    @field_validator("name")
    @classmethod
    def _name_can_be_shown(cls, value: str) -> str:
        return check_name(value)

    @field_validator("type", mode="before")
    @classmethod
    def _is_no_provider(cls, value: Any, info: ValidationInfo) -> Any:
        told = answer_to(value, str(info.data.get("name", "NAME"))) if isinstance(value, str) else None
        if told is not None:
            raise ValueError(told)
        return value

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

    @model_validator(mode="after")
    def _reasoning_is_sent_once(self) -> Self:
        told = self.reasoning.sent("")
        if self.type == "replay" and told:
            raise ValueError(f"reasoning.{_first_of(told)}: recorded responses are asked nothing")
        if not told or not isinstance(self.config, EndpointConfig | DemoConfig):
            return self
        if self.config.api == "completions" and ({"reasoning_effort", "chat_template_kwargs"} & told.keys()):
            raise ValueError(
                f"reasoning.{_first_of(told)} is for a chat template, which api: completions does without"
            )
        extra = self.config.extra_body if isinstance(self.config, EndpointConfig) else {}
        if self.sample_params.reasoning_effort is not None and self.reasoning.effort is not None:
            raise ValueError("reasoning.effort: sample_params.reasoning_effort says it already; give one")
        for name in sorted(told.keys() & extra.keys()):
            raise ValueError(f"config.extra_body.{name}: reasoning says it already; give one of them")
        return self

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        weights = [name for name in ("path", "checkpoints") if getattr(self, name) is not None]
        if len(weights) == 2:
            raise ValueError("names path and checkpoints; give one of them")
        if self.serve is not None and not weights:
            raise ValueError("serve needs the weights: name a folder in path, or several in checkpoints")
        if not weights:
            return self
        if not isinstance(self.config, EndpointConfig):
            raise ValueError(f"{weights[0]}: a model of type {self.type} has no weights that are served")
        if "base_url" in self.config.model_fields_set:
            raise ValueError(
                f"{weights[0]}: the server of these weights is started on this machine, at an address of its "
                "own; leave config.base_url out"
            )
        return self

    @property
    def server(self) -> ServeConfig | None:
        """How its weights are served; None for a model that is not served here."""
        if self.path is None and self.checkpoints is None:
            return None
        return self.serve if self.serve is not None else ServeConfig.model_validate({})

    @property
    def served_name(self) -> str:
        """The name the endpoint knows the model by."""
        return getattr(self.config, "model", None) or self.name


def said_to_think(model: ModelConfig) -> bool:
    """Whether the config says of an endpoint how it thinks, and leaves it open who opens the thought."""
    chat = isinstance(model.config, EndpointConfig) and model.config.api == "chat"
    return chat and "reasoning" in model.model_fields_set and model.reasoning.opened == "auto"


CONFIGS: dict[str, type[Frozen]] = {"openai": EndpointConfig, "replay": ReplayConfig, "demo": DemoConfig}


def _first_of(told: Mapping[str, Any]) -> str:
    """The key of ``reasoning`` that makes the first of these fields."""
    keys = {"reasoning_effort": "effort", "chat_template_kwargs": "template_kwargs"}
    return keys.get(next(iter(told)), "budget_tokens")


def _validated(schema: type[Frozen], config: Mapping[str, Any]) -> Frozen:
    return schema.model_validate(dict(config))


class MaxAge(Frozen):
    """Kept answers serve as long as they are not older than this."""

    max_age: Seconds = Field(description="such as 20h")


Answers = Literal["reuse", "fresh"] | MaxAge
"""Which kept answers of the models evaluated serve: the newest, only those of this night, or those that are
young enough."""


class ErrorBudget(Frozen):
    """How many requests may fail before the run counts as failed."""

    max_rate: float = Field(0.0, ge=0, le=1, description="share of requests")


class RunLimits(Frozen):
    """Where a run stops asking, with what it has."""

    max_tokens: int | None = Field(None, ge=1, description="tokens sent and received")
    max_cost: float | None = Field(None, gt=0, description="in the currency of prices")
    max_seconds: float | None = Field(None, gt=0, description="seconds since the run began")


class Price(Frozen):
    """Price of a million tokens of one model."""

    prompt: float = Field(0.0, ge=0, description="a million tokens of prompts")
    completion: float = Field(0.0, ge=0, description="a million tokens of answers")
    cached: float | None = Field(
        None, ge=0, description="prompt tokens that the server had cached; default: prompt"
    )

    @model_validator(mode="before")
    @classmethod
    def _has_two_sides(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise ValueError(
                f"expected {{prompt: …, completion: …}}, prices of a million tokens, got {value}"
            )
        return value


class Prices(BaseModel):
    """What models cost, by their names: ``{currency: USD, qwen: {prompt: 0.1, completion: 0.4}}``.

    All prices of a config are in one currency; without its name costs are bare numbers.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Price]

    currency: str | None = Field(None, min_length=1, description="what costs are shown in, such as USD")

    def of(self, model: str) -> Price | None:
        """The price of a model; None where the config names none."""
        return self.__pydantic_extra__.get(model)
