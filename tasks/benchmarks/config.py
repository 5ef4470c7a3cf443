"""The benchmark's part of a config: items, prompts, and what is right, with the rules that its keys keep.

``BenchmarkFields`` is the schema; the rules say which keys need and which exclude each other. A
``PlacedError`` names the key that it is about, so that the config's reader can name its line.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from metrics.printable import check_name
from metrics.types import OutputType
from tasks.datasets.config import DatasetConfig

DEFAULT_PROMPT = "default"

Location = tuple[str | int, ...]


class MessageTemplate(BaseModel):
    """One turn of a chat prompt; the content is a template."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant"] = Field(description="Whose turn it is")
    content: str = Field(description="Template of the turn's text")


class PromptTemplate(BaseModel):
    """One of several prompts: a template, a file that holds one, or chat messages. Its name is a facet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="Name of the prompt in results and facets")
    template: str | None = Field(default=None, description="Jinja2 template of the prompt")
    path: str | None = Field(default=None, description="File with the template, relative to the config")
    messages: tuple[MessageTemplate, ...] | None = Field(default=None, description="Chat turns")

    @field_validator("name")
    @classmethod
    def _name_can_be_shown(cls, value: str) -> str:
        return check_name(value)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "PromptTemplate":
        exactly_one(self, ("template", "path", "messages"), f"prompt template '{self.name}'")
        return self


class FewshotConfig(BaseModel):
    """Solved examples that stand before the question.

    Drawn from ``examples`` or ``path`` or, without either, from the benchmark's own dataset; never the item
    itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num: int = Field(default=-1, ge=-1, description="How many examples; -1: all of 'examples'")
    path: str | None = Field(default=None, description="File of examples: .jsonl, .json, .csv or .parquet")
    examples: tuple[dict[str, JsonValue], ...] | None = Field(
        default=None, description="A fixed list of examples"
    )
    sampler: Literal["random", "first_n"] = Field(
        default="random",
        description="random: drawn for each item from seed and item id; first_n: the first ones",
    )
    seed: int = Field(default=1234, description="Seed of the random draw")
    delimiter: str = Field(default="\n\n", description="Text between examples")
    format: Literal["text", "turns", "message"] | None = Field(
        default=None,
        description="text: before a text prompt; turns: chat, one user and one assistant turn an example; "
        "message: chat, all examples in the user's message. Without it: turns for chat prompts, else text",
    )

    @model_validator(mode="after")
    def _fits(self) -> "FewshotConfig":
        if self.path is not None and self.examples is not None:
            raise ValueError("few-shot examples come from 'path' or from 'examples', not from both")
        if self.examples is None and self.num < 0:
            raise ValueError("fewshot needs num: how many examples to show")
        if self.examples is not None and self.num > len(self.examples):
            raise ValueError(f"fewshot.num is {self.num}, but 'examples' holds {len(self.examples)}")
        return self

    def count(self) -> int:
        """How many examples stand before a question."""
        return len(self.examples or ()) if self.num < 0 else self.num


class BenchmarkFields(BaseModel):
    """A benchmark: which items, how a model is asked, and what is right.

    ``base_dir`` is the folder that paths and user functions are relative to; it travels with the config, so
    that a worker elsewhere finds them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        min_length=1, pattern=r"^[^/\\\x00-\x1f]+$", description="Name of the benchmark in results"
    )
    output_type: OutputType = Field(default="generate_until", description="What is asked of the model")
    dataset: DatasetConfig | None = Field(default=None, description="Where the items come from")
    prompt_template: str | None = Field(default=None, description="Jinja2 template of the prompt")
    prompt_templates: tuple[PromptTemplate, ...] | None = Field(
        default=None, description="Several named prompts"
    )
    messages: tuple[MessageTemplate, ...] | None = Field(
        default=None, description="Chat turns, each content a template"
    )
    system_prompt: str | None = Field(default=None, description="Template of the system message")
    gen_prefix: str | None = Field(
        default=None, description="Template of the text that the answer begins with"
    )
    target: str | int | tuple[str | int, ...] | None = Field(
        default=None,
        description="Template of the right answer; a list: any of them; default: the ground truth",
    )
    choices: str | tuple[str | int | float, ...] | None = Field(
        default=None,
        description="multiple_choice: the choices, a list of templates or a template that gives a list",
    )
    target_delimiter: str = Field(default=" ", description="Text between prompt and answer")
    fewshot: FewshotConfig | None = Field(default=None, description="Solved examples before the question")
    cut_off: Literal["wrong", "unscored"] | None = Field(
        default=None,
        description="How an answer is scored whose tokens were used up before it began; default: wrong, in "
        "benchmarks of lm-evaluation-harness the empty text, as there",
    )
    cluster: str | tuple[str, str] | None = Field(
        default=None, description="Field whose equal values belong together; [a, b]: two that cross"
    )
    mutual_information: bool = Field(
        default=False, description="Ask for the choices without context too; set where a metric needs it"
    )
    harness: dict[str, Any] | None = Field(
        default=None, description="A lm-evaluation-harness benchmark, resolved; replaces dataset and prompts"
    )
    base_dir: str = Field(default=".", description="Folder that paths and user functions are relative to")

    @field_validator("name")
    @classmethod
    def _name_can_be_shown(cls, value: str) -> str:
        return check_name(value)

    @model_validator(mode="before")
    @classmethod
    def _fewshot_number(cls, value: Any) -> Any:
        if isinstance(value, dict) and type(value.get("fewshot")) is int:
            return {**value, "fewshot": {"num": value["fewshot"]}}
        return value

    @model_validator(mode="after")
    def _hangs_together(self) -> "BenchmarkFields":
        if self.harness is None:
            check_native(self)
        else:
            check_harness(self)
        return self

    def prompts(self) -> tuple[PromptTemplate, ...]:
        """The prompts by name; a single one is called "default". A rolling document may have none."""
        if self.prompt_templates is not None:
            return self.prompt_templates
        template = (
            self.prompt_template if self.prompt_template is not None or self.messages is not None else ""
        )
        return (PromptTemplate(name=DEFAULT_PROMPT, template=template, messages=self.messages),)


def template_texts(fields: BenchmarkFields) -> Iterator[tuple[Location, str]]:
    """Every template written in the config itself, with its place there."""
    for key in ("prompt_template", "system_prompt", "gen_prefix", "target", "choices"):
        value = getattr(fields, key)
        if isinstance(value, str):
            yield (key,), value
        elif isinstance(value, tuple):
            yield from (((key, index), text) for index, text in enumerate(value) if isinstance(text, str))
    yield from _message_texts(("messages",), fields.messages)
    for index, prompt in enumerate(fields.prompt_templates or ()):
        if prompt.template is not None:
            yield ("prompt_templates", index, "template"), prompt.template
        yield from _message_texts(("prompt_templates", index, "messages"), prompt.messages)


def _message_texts(
    at: Location, messages: tuple[MessageTemplate, ...] | None
) -> Iterator[tuple[Location, str]]:
    for index, message in enumerate(messages or ()):
        yield (*at, index, "content"), message.content


def exactly_one(config: BaseModel, keys: tuple[str, ...], owner: str) -> None:
    """Raises ValueError unless just one of ``keys`` is given."""
    found = [key for key in keys if getattr(config, key) is not None]
    if not found:
        raise ValueError(f"{owner} needs one of {', '.join(keys)}")
    if len(found) > 1:
        raise PlacedError(f"{owner} takes one of {', '.join(keys)}, not {' and '.join(found)}", found[-1])


def check_native(fields: "BenchmarkFields") -> None:
    """Raises PlacedError where the keys of a native benchmark do not go together."""
    if fields.dataset is None:
        raise PlacedError(
            "'dataset' is missing: a file of items, or a mapping with path, function or hub", "dataset"
        )
    rolling = fields.output_type == "loglikelihood_rolling"
    prompts = ("prompt_template", "prompt_templates", "messages")
    if rolling and fields.target is not None and fields.prompt_template:
        raise PlacedError(
            "a rolling log-likelihood has one document: in prompt_template or in target", "target"
        )
    if not (
        rolling and fields.target is not None and fields.prompt_templates is None and fields.messages is None
    ):
        exactly_one(fields, prompts, "a benchmark")
    if fields.prompt_templates is not None:
        _check_names(fields.prompt_templates)
    if fields.choices is None and fields.output_type == "multiple_choice":
        raise PlacedError(
            "output_type multiple_choice needs 'choices': a list, or a template of one", "output_type"
        )
    if fields.choices is not None and fields.output_type != "multiple_choice":
        raise PlacedError(
            f"belong to output_type multiple_choice, and this one is {fields.output_type}", "choices"
        )
    _check_chat(fields)
    for key in ("fewshot", "gen_prefix"):
        if rolling and getattr(fields, key) is not None:
            raise PlacedError(
                "a rolling log-likelihood is of the whole document, with nothing beside it", key
            )


def check_harness(fields: "BenchmarkFields") -> None:
    """Raises PlacedError where a benchmark of the harness is given keys that only native ones have."""
    native = (
        "dataset",
        "prompt_template",
        "prompt_templates",
        "messages",
        "system_prompt",
        "target",
        "choices",
        "fewshot",
    )
    for key in native:
        if getattr(fields, key) is not None:
            raise PlacedError(
                "is of native benchmarks; a benchmark of lm-evaluation-harness is changed by its own keys "
                "(doc_to_text, num_fewshot …)",
                key,
            )


def _check_names(prompts: "tuple[PromptTemplate, ...]") -> None:
    if not prompts:
        raise PlacedError("is empty: expected at least one prompt", "prompt_templates")
    names = [prompt.name for prompt in prompts]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise PlacedError(
                f"'{name}' is there twice; give each prompt a name of its own", "prompt_templates", index
            )


def _check_chat(fields: "BenchmarkFields") -> None:
    chats: dict[Location, tuple[MessageTemplate, ...]] = {}
    if fields.messages is not None:
        chats["messages",] = fields.messages
    for index, prompt in enumerate(fields.prompt_templates or ()):
        if prompt.messages is not None:
            chats["prompt_templates", index, "messages"] = prompt.messages
    for at, messages in chats.items():
        if not messages:
            raise PlacedError("is empty: expected at least one turn", *at)
        if fields.output_type != "generate_until":
            raise PlacedError(
                f"{fields.output_type} asks for log-likelihoods of text; use prompt_template", *at
            )
        if fields.system_prompt is not None and any(message.role == "system" for message in messages):
            raise PlacedError(
                "there is a system message in messages already; give one of them", "system_prompt"
            )
    shape = fields.fewshot.format if fields.fewshot is not None else None
    if shape == "text" and chats:
        raise PlacedError(
            "text stands before a text prompt; messages take turns or message", "fewshot", "format"
        )
    if shape in ("turns", "message") and fields.output_type != "generate_until":
        raise PlacedError(
            f"{fields.output_type} asks for log-likelihoods of text; use format text", "fewshot", "format"
        )


class PlacedError(ValueError):
    """What is wrong, and where below the value that was looked at: ``("models", 1)``."""

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(": ".join(part for part in (".".join(map(str, location)), message) if part))
        self.message = message
        self.location = location
