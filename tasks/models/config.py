"""What a config says about a model: how it is asked, how it samples, what it may cost.

``config`` of a model is of the schema that the provider of its ``type`` brings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from metrics.config import BelongsTo, FunctionRef, NamesFile, OneOrMany, Strict
from metrics.names import check_name
from tasks.models.addresses import answer_to
from tasks.models.errors import ModelError
from tasks.models.registry import DEFAULT, PROVIDERS, is_reference
from tasks.serving.config import CheckpointsConfig, ServeConfig
from tasks.serving.launch import surroundings_of
from tasks.serving.weights import KnownWeights
from tasks.store.durations import Seconds

BudgetKind = Literal[
    "vllm", "llama.cpp", "sglang", "nim", "openrouter", "anthropic", "gemini", "dashscope"
]  # fmt: skip


@dataclass(frozen=True)
class ThoughtBudget:
    """Where in a request a kind of server takes how many tokens a thought may have, what has to be said
    beside it, and the domain that the kind is known by."""

    path: tuple[str, ...]
    beside: Mapping[str, Any] = field(default_factory=dict)
    domain: str | None = None


THOUGHT_BUDGETS: Final[Mapping[BudgetKind, ThoughtBudget]] = {
    "vllm": ThoughtBudget(("thinking_token_budget",)),
    "llama.cpp": ThoughtBudget(("thinking_budget_tokens",)),
    "sglang": ThoughtBudget(("chat_template_kwargs", "thinking_budget")),
    "nim": ThoughtBudget(("nvext", "max_thinking_tokens"), domain="nvidia.com"),
    "openrouter": ThoughtBudget(("reasoning", "max_tokens"), domain="openrouter.ai"),
    "anthropic": ThoughtBudget(
        ("thinking", "budget_tokens"), {"thinking": {"type": "enabled"}}, "anthropic.com"
    ),
    "gemini": ThoughtBudget(
        ("extra_body", "google", "thinking_config", "thinking_budget"), domain="googleapis.com"
    ),
    "dashscope": ThoughtBudget(("thinking_budget",), {"enable_thinking": True}, "aliyuncs.com"),
}


def thought_budget(tokens: int, kind: BudgetKind | None, base_url: str) -> dict[str, Any]:
    """The part of a request that limits a thought to so many tokens, as ``kind`` of server takes it; None:
    the kind that the address is known for, else vLLM's.

    >>> thought_budget(512, "openrouter", ""), thought_budget(512, None, "http://localhost:8000/v1")
    ({'reasoning': {'max_tokens': 512}}, {'thinking_token_budget': 512})
    """
    host = urlsplit(base_url).hostname or ""
    known = (one for one in THOUGHT_BUDGETS.values() if one.domain and f".{host}".endswith(f".{one.domain}"))
    budget = THOUGHT_BUDGETS[kind] if kind else next(known, THOUGHT_BUDGETS["vllm"])
    said: Any = tokens
    for name in reversed(budget.path):
        said = {name: said}
    return merged_bodies(budget.beside, said)


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


class SampleParams(Strict):
    """How answers are drawn. A field left out is not sent, so the server's own default holds."""

    num_samples: int = Field(1, ge=1, description="answers per prompt")
    n: int | None = Field(
        None,
        ge=1,
        description="answers asked for in one request, which is sent the seed of the first one",
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
    stop: Annotated[tuple[str, ...], OneOrMany] | None = Field(None, description="texts that end an answer")
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


class ReasoningConfig(Strict):
    """How a model thinks before it answers: what it is told of that, and how its thought is known."""

    effort: str | None = Field(
        None, min_length=1, description="sent as reasoning_effort: none, low, medium, high …"
    )
    budget_tokens: int | None = Field(None, ge=0, description="tokens of a thought, at most")
    budget_as: Annotated[BudgetKind | None, BelongsTo("budget_tokens")] = Field(
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
        """What of it can change an answer as it comes; empty where nothing is said."""
        told, opened = self.sent(base_url), {} if self.opened == "auto" else {"opened": self.opened}
        return opened | ({"sent": told} if told else {})

    def reading(self) -> dict[str, Any]:
        """What of it decides alone how an answer that came is read; empty where nothing is said."""
        if self.marks == "auto":
            return {}
        return {"marks": list(self.marks) if isinstance(self.marks, tuple) else self.marks}


class ModelConfig(Strict):
    """One model of the evaluation. A bare string is the name of a model at ``http://localhost:1234/v1``."""

    name: str = Field(min_length=1, description="its name in results")
    type: FunctionRef = Field(
        DEFAULT,
        description="how it is asked: each type has a config of its own; file.py:Class is yours",
    )
    config: SerializeAsAny[Strict] = Field(
        default_factory=lambda: _validated(PROVIDERS[DEFAULT].schema, {}),
        description="what a model of its type needs",
    )
    sample_params: SampleParams = Field(
        default_factory=SampleParams, description="over the global sample_params"
    )
    tokenizer: str | None = Field(
        None,
        description="folder of a tokenizer, relative to the config's, or a hub's name; bytes for byte-level "
        "models",
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
    peft: str | None = Field(
        None,
        min_length=1,
        description="folder of an adapter (LoRA) over path; without it a path may be an adapter over the "
        "base that its adapter_config.json names",
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

    _weights: KnownWeights | None = PrivateAttr(None)
    _surroundings: dict[str, str] | None = PrivateAttr(None)

    @field_validator("name")
    @classmethod
    def _name_can_be_shown(cls, value: str) -> str:
        return check_name(value)

    @field_validator("type", mode="before")
    @classmethod
    def _is_known(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str) or value in PROVIDERS or is_reference(value):
            return value
        told = answer_to(value, str(info.data.get("name", "NAME")))
        raise ValueError(told or PROVIDERS.unknown(value))

    @model_validator(mode="before")
    @classmethod
    def _is_written_out(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "config": {}}
        if not isinstance(value, Mapping):
            return value
        kind, config = value.get("type", DEFAULT), value.get("config")
        config = {} if config is None else config
        if isinstance(config, Mapping) and "batch" in config and _has_no_batches(kind):
            raise ValueError(no_batches(kind))
        return {**value, "config": config}

    @field_validator("config", mode="before")
    @classmethod
    def _config_of_type(cls, value: Any, info: ValidationInfo) -> Any:
        """Reads ``config`` with the schema of ``type``, so that an error names the key."""
        schema = schema_of(info.data["type"]) if "type" in info.data else None
        if schema is None or not isinstance(value, Mapping):
            return value
        return _validated(schema, value)

    @model_validator(mode="after")
    def _suits_its_provider(self) -> Self:
        schema = schema_of(self.type)
        if schema is None or not isinstance(self.config, schema):
            raise ValueError(f"config of model {self.name!r} is not one of type {self.type}")
        if len([name for name in ("path", "checkpoints") if getattr(self, name) is not None]) == 2:
            raise ValueError("names path and checkpoints; give one of them")
        if self.peft is not None and self.path is None:
            raise ValueError(
                "peft needs its base: name its folder in path; checkpoints may be adapters themselves"
            )
        if self.serve is not None and self.path is None and self.checkpoints is None:
            raise ValueError("serve needs the weights: name a folder in path, or several in checkpoints")
        if not is_reference(self.type):
            PROVIDERS[self.type].check(self)
        return self

    @property
    def weights(self) -> KnownWeights | None:
        """The weights on this machine that it answers from, as they were when the run began; None where it
        has none, or no run has settled them."""
        return self._weights

    def with_weights(self, known: KnownWeights | None) -> Self:
        """The model of these weights, whatever is in their place later, and of the server that would be
        started now."""
        settled = self.model_copy()
        settled._weights = known
        settled._surroundings = None if self.server is None else surroundings_of(self.server)
        return settled

    @property
    def surroundings(self) -> dict[str, str] | None:
        """What of its server stands outside the config, as it was when the run began; None as for
        ``weights``."""
        return self._surroundings

    def check_weights(self) -> None:
        """Raises ModelError where other weights are in the place of those that answer, which may be gone, or
        their server may have been started as another one."""
        if self.server is not None and self._surroundings not in (None, surroundings_of(self.server)):
            raise ModelError(
                f"model {self.name!r}: files or variables of its server differ from those that the run "
                "began with; run it again if they were changed, or give this worker the same ones"
            )
        if self.weights is not None and (said := self.weights.overwritten()) is not None:
            raise ModelError(f"model {self.name!r}: {said}")

    @property
    def server(self) -> ServeConfig | None:
        """How its weights are served; None for a model that is not served here."""
        if self.path is None and self.checkpoints is None:
            return None
        return self.serve if self.serve is not None else ServeConfig.model_validate({})

    @property
    def by_batch(self) -> bool:
        """Whether it is asked by its provider's batches."""
        return getattr(self.config, "batch", None) is not None

    @property
    def served_name(self) -> str:
        """The name the endpoint knows the model by."""
        return getattr(self.config, "model", None) or self.name


def leaves_thought_open(model: ModelConfig) -> bool:
    """Whether the config says how the model thinks, and leaves it open who opens the thought."""
    return "reasoning" in model.model_fields_set and model.reasoning.opened == "auto"


def schema_of(kind: str) -> type[Strict] | None:
    """What ``config`` of a model of this type holds; anything for a provider in a file of the user's own,
    which reads it with its own schema when the file is loaded. None: no such type."""
    if is_reference(kind):
        return OpenConfig
    found = PROVIDERS.get(kind)
    schema: type[Strict] | None = None if found is None else found.schema
    return schema


def _has_no_batches(kind: Any) -> bool:
    known = isinstance(kind, str) and not is_reference(kind) and kind in PROVIDERS
    return known and getattr(PROVIDERS[kind], "batches", None) is None


def no_batches(kind: str) -> str:
    """Why a type of model can't be asked by batches, and which can."""
    able = sorted(name for name in PROVIDERS if not _has_no_batches(name))
    return f"config.batch: type {kind} has no batches; leave it out, or ask one of {', '.join(able)}"


class OpenConfig(Strict):
    """What a model of a user's own type is given."""

    model_config = ConfigDict(extra="allow")


def _validated(schema: type[Strict], config: Mapping[str, Any]) -> Strict:
    return schema.model_validate(dict(config))


class BatchConfig(Strict):
    """Requests go as a batch, which the provider answers within hours."""

    wait: Seconds = Field(
        86_400,
        description="for so long answers are waited for; what is missing then is asked by single requests",
    )


READ_ONCE = 1.0
"""Seconds for which a run waits for the results of ``vllm run-batch`` where its config does not say."""


class FileBatchConfig(BatchConfig):
    """Requests go as a batch, which the endpoint or a command answers."""

    files: Annotated[str | None, NamesFile()] = Field(
        None,
        description="folder for files of vllm run-batch, for a server without batches: a run writes the "
        "requests and says the command, and the next run reads the results",
    )

    @model_validator(mode="before")
    @classmethod
    def _waits_for_nobody(cls, value: Any) -> Any:
        by_hand = isinstance(value, Mapping) and value.get("files") is not None
        return {"wait": READ_ONCE, **value} if by_hand else value


class MaxAge(Strict):
    """Kept answers serve as long as they are not older than this."""

    max_age: Seconds = Field(description="such as 20h")


Answers = Literal["reuse", "fresh"] | MaxAge
"""Which kept answers of the models evaluated serve: the newest, only those of this night, or those that are
young enough."""


class ErrorBudget(Strict):
    """How many requests may fail before the run counts as failed."""

    max_rate: float = Field(0.0, ge=0, le=1, description="share of requests")


class RunLimits(Strict):
    """Where a run stops asking, with what it has."""

    max_tokens: int | None = Field(None, ge=1, description="tokens sent and received")
    max_cost: float | None = Field(
        None, gt=0, description="in the currency of prices; each model that is asked needs one"
    )
    max_seconds: float | None = Field(
        None, gt=0, description="seconds since the run began; waiting for batches is not counted"
    )


class Price(Strict):
    """Price of a million tokens of one model."""

    prompt: float = Field(0.0, ge=0, description="a million tokens of prompts")
    completion: float = Field(0.0, ge=0, description="a million tokens of answers")
    cached: float | None = Field(
        None, ge=0, description="prompt tokens that the server had cached; default: prompt"
    )
    batch: float = Field(
        1.0, ge=0, le=1, description="share of these prices that a batch costs, such as 0.5 for half"
    )

    @model_validator(mode="before")
    @classmethod
    def _has_two_sides(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise ValueError(
                f"expected {{prompt: …, completion: …}}, prices of a million tokens, got {value}"
            )
        return value

    def of_batches(self) -> "Price":
        """What a batch costs."""
        cached = None if self.cached is None else self.cached * self.batch
        return Price(prompt=self.prompt * self.batch, completion=self.completion * self.batch, cached=cached)


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
