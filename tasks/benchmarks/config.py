"""The benchmark's part of a config: items, prompts, and what is right, with the rules that its keys keep.

``BenchmarkFields`` is the schema; the rules say which keys need and which exclude each other. A
``PlacedError`` names the key that it is about, so that the config's reader can name its line.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Field, JsonValue, field_validator, model_validator

from metrics.config import AsWritten, BelongsTo, NamesFile, PlacedError, Strict, TakesFunction
from metrics.names import check_name
from metrics.types import OutputType
from scorers.config import GradingModel
from tasks.datasets.config import DatasetConfig
from tasks.messages.chat import Role, checked_tools

DEFAULT_PROMPT = "default"

Location = tuple[str | int, ...]
FloatAsText = Annotated[float, AfterValidator(str)]
"""A number that is a right answer's text: an index is an integer."""


class ContentPart(Strict):
    """A part of a message: a text, an image or a sound. OpenAI's form (``type: …``) is read, too."""

    text: str | None = Field(default=None, description="Template of a text")
    image: str | None = Field(
        default=None,
        description="Template of an image: a file, relative to the dataset or the config, an address, data:…",
    )
    audio: str | None = Field(default=None, description="Template of a sound: a WAV or MP3 file, data:…")
    detail: Annotated[Literal["auto", "low", "high"] | None, BelongsTo("image")] = Field(
        default=None, description="How closely the endpoint looks at the image"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_openai(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "type" not in value:
            return value
        inner = value.get(str(value["type"]))
        if value["type"] == "text":
            return {"text": inner}
        if value["type"] == "image_url" and isinstance(inner, dict):
            return {"image": inner.get("url")} | {key: inner[key] for key in inner if key != "url"}
        if value["type"] == "input_audio" and isinstance(inner, dict):
            return {"audio": inner.get("data")}
        raise ValueError("expected a part {text: …}, {image: …} or {audio: …}")

    @model_validator(mode="after")
    def _is_one_thing(self) -> "ContentPart":
        exactly_one(self, ("text", "image", "audio"), "a part of a message")
        return self

    def source(self) -> tuple[str, str]:
        """What it is, and its template."""
        return next((name, text) for name in ("text", "image", "audio") if (text := getattr(self, name)))


class MessageTemplate(Strict):
    """One message of a chat prompt; the content is a template, or a list of parts."""

    role: Role = Field(description="Whose turn it is")
    content: str | tuple[ContentPart, ...] = Field(
        default="", description="Template of the turn's text, or a list of its parts"
    )
    tool_calls: tuple[dict[str, JsonValue], ...] | None = Field(
        default=None, description="assistant: the calls it made, in OpenAI's form"
    )
    tool_call_id: str | None = Field(default=None, description="tool: which call this is the result of")

    @model_validator(mode="after")
    def _fits_its_role(self) -> "MessageTemplate":
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id belongs to role tool, which needs it")
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls belong to role assistant")
        return self

    def beside(self) -> dict[str, Any]:
        """What the message holds beside role and content."""
        return self.model_dump(include={"tool_calls", "tool_call_id"}, exclude_none=True)

    def has_media(self) -> bool:
        """Whether it shows an image or plays a sound."""
        return not isinstance(self.content, str) and any(part.text is None for part in self.content)


class TurnTemplate(Strict):
    """What is said after an answer: by the user, or as the result of each call of a tool."""

    role: Literal["user", "tool"] = Field(default="user", description="tool: one message for each call made")
    content: str = Field(
        description="Template over the item's fields, answer, answers, transcript, turn; of a tool also call"
    )


class SimulatedUser(Strict):
    """A model that speaks for the user: it reads the conversation and says what comes next."""

    model: str | dict[str, Any] = Field(description="An entry of models by its name, or one of its own")
    prompt: str = Field(description="Template of what it is asked, over the same names as a turn's")
    max_turns: int = Field(default=5, ge=2, description="Turns of a conversation, the first among them")
    stop: str = Field(default=r"\[END\]", description="Pattern of a reply that ends the conversation")
    sample_params: dict[str, Any] = Field(default_factory=dict, description="How it answers")

    @field_validator("stop")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return value

    @property
    def asked(self) -> GradingModel:
        """The model, as scorers name those that they ask; ``user`` where its entry has no name."""
        entry = {"name": self.model} if isinstance(self.model, str) else {"name": "user", **self.model}
        return GradingModel(str(entry.pop("name")), entry, dict(self.sample_params))


class PromptTemplate(Strict):
    """One of several prompts: a template, a file that holds one, or chat messages. Its name is a facet."""

    ONE_OF: ClassVar[tuple[str, ...]] = ("template", "path", "messages")

    name: str = Field(min_length=1, description="Name of the prompt in results and facets")
    template: str | None = Field(default=None, description="Jinja2 template of the prompt")
    path: Annotated[str | None, NamesFile()] = Field(
        default=None, description="File with the template, relative to the config"
    )
    messages: str | tuple[MessageTemplate, ...] | None = Field(
        default=None,
        description="Chat turns, or a template of a list of messages",
        json_schema_extra={"minItems": 1},
    )

    @field_validator("name")
    @classmethod
    def _name_can_be_shown(cls, value: str) -> str:
        return check_name(value)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "PromptTemplate":
        exactly_one(self, self.ONE_OF, f"prompt template '{self.name}'")
        return self


class FewshotConfig(Strict):
    """Solved examples that stand before the question.

    Drawn from ``examples`` or ``path`` or, without either, from the benchmark's own dataset; never the item
    itself.
    """

    ALONE = "num"
    ALONE_TYPE = int

    num: int = Field(default=-1, ge=-1, description="How many examples; -1: all of 'examples'")
    path: Annotated[str | None, NamesFile()] = Field(
        default=None, description="File of examples: .jsonl, .json, .csv or .parquet"
    )
    examples: tuple[dict[str, JsonValue], ...] | None = Field(
        default=None, description="A fixed list of examples"
    )
    sampler: Literal["random", "first_n"] = Field(
        default="random",
        description="random: drawn for each item from seed and item id; first_n: the first ones",
    )
    seed: Annotated[int, BelongsTo("sampler", ("random",))] = Field(
        default=1234, description="Seed of the random draw"
    )
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


_BY_LETTERS = BelongsTo("ask", ("letter", "first_token"))


class ChoicesBy(Strict):
    """How a model is asked for one of several choices. A bare word is ``ask``.

    Asked by letters, the metric is ``acc_letter``: another number than ``acc``, which compares likelihoods.
    """

    ALONE = "ask"

    ask: Literal["likelihood", "letter", "first_token"] = Field(
        description="likelihood: of each choice; letter: choices with letters, and an answer in text; "
        "first_token: the letters' probabilities at the first token of the answer"
    )
    permutations: Annotated[int | None, _BY_LETTERS] = Field(
        default=None,
        ge=1,
        description="Orders of the choices that the samples of an item are asked in, the item's own first; "
        "default: as many as there are samples",
    )
    seed: Annotated[int, _BY_LETTERS] = Field(default=1234, description="Seed of the orders")
    template: Annotated[str | None, _BY_LETTERS] = Field(
        default=None,
        description="Template of what is asked, from question, choices, letters, cue and listed; default: "
        "the question, the choices with letters, and how to reply",
    )
    coverage: Annotated[float, BelongsTo("ask", ("first_token",))] = Field(
        default=0.5,
        ge=0,
        le=1,
        description="first_token: a sample is unscored where the letters have less probability than this "
        "together",
    )


class BenchmarkFields(Strict):
    """A benchmark: which items, how a model is asked, and what is right.

    ``base_dir`` is the folder that paths and user functions are relative to; it travels with the config, so
    that a worker elsewhere finds them.
    """

    PROMPTS: ClassVar[tuple[str, ...]] = ("prompt_template", "prompt_templates", "messages")
    ASKED: ClassVar[tuple[str, ...]] = (
        "dataset", *PROMPTS, "tools", "turns", "system_prompt", "target", "choices", "fewshot"
    )  # fmt: skip
    """Keys that say which items there are, what is asked and what is right."""

    name: str = Field(
        min_length=1, pattern=r"^[^/\\\x00-\x1f]+$", description="Name of the benchmark in results"
    )
    output_type: OutputType = Field(default="generate_until", description="What is asked of the model")
    dataset: Annotated[DatasetConfig | None, TakesFunction()] = Field(
        default=None, description="Where the items come from"
    )
    prompt_template: str | None = Field(default=None, description="Jinja2 template of the prompt")
    prompt_templates: tuple[PromptTemplate, ...] | None = Field(
        default=None, description="Several named prompts", json_schema_extra={"minItems": 1}
    )
    messages: str | tuple[MessageTemplate, ...] | None = Field(
        default=None,
        description="Chat turns, each content a template or a list of parts; or a template that gives a list "
        "of messages in OpenAI's form",
        json_schema_extra={"minItems": 1},
    )
    tools: str | tuple[dict[str, JsonValue], ...] | None = Field(
        default=None,
        description="Functions that the model may call, in OpenAI's form: a list, or a template of one",
    )
    turns: tuple[str | TurnTemplate, ...] | SimulatedUser | None = Field(
        default=None,
        description="What the user says after each answer: a list of templates, or a model that speaks for "
        "the user",
        json_schema_extra={"minItems": 1},
    )
    system_prompt: str | None = Field(default=None, description="Template of the system message")
    gen_prefix: str | None = Field(
        default=None, description="Template of the text that the answer begins with"
    )
    target: Annotated[
        str | int | FloatAsText | tuple[str | int | FloatAsText, ...] | None, AsWritten(indices=True)
    ] = Field(
        default=None,
        description="Template of the right answer; a list: any of them; default: the ground truth",
    )
    choices: Annotated[str | tuple[str | int | float, ...] | None, AsWritten()] = Field(
        default=None,
        description="multiple_choice: the choices, a list of templates (a number is a text, as written) or a "
        "template that gives a list",
    )
    choices_by: ChoicesBy | None = Field(
        default=None, description="multiple_choice: how choices are asked for; default: likelihood"
    )
    target_delimiter: str = Field(default=" ", description="Text between prompt and answer")
    keep_trailing_space: bool = Field(
        default=False,
        description="Likelihoods: leave white space at a prompt's end in the prompt; default: it is scored "
        "with the answer, as in lm-evaluation-harness",
    )
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

    @field_validator("cluster")
    @classmethod
    def _kinds_differ(cls, value: str | tuple[str, str] | None) -> str | tuple[str, str] | None:
        if isinstance(value, tuple) and value[0] == value[1]:
            raise ValueError(f"names '{value[0]}' twice; give one field, or two that cross")
        return value

    @property
    def scores_continuations(self) -> bool:
        """Whether the likelihoods of answers behind prompts are asked for."""
        return self.output_type in ("multiple_choice", "loglikelihood") and not self.asks_letters

    @property
    def asks_letters(self) -> bool:
        """Whether choices are asked for by their letters."""
        return self.letters is not None

    @property
    def letters(self) -> Literal["letter", "first_token"] | None:
        """How choices are asked for by their letters; None where they are not."""
        ask = self.choices_by.ask if self.choices_by is not None else "likelihood"
        return None if ask == "likelihood" else ask

    @model_validator(mode="after")
    def _hangs_together(self) -> "BenchmarkFields":
        if self.choices_by is not None and self.output_type != "multiple_choice":
            raise PlacedError(
                f"belongs to output_type multiple_choice, and this one is {self.output_type}", "choices_by"
            )
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
    for key in ("prompt_template", "system_prompt", "gen_prefix", "target", "choices", "tools"):
        value = getattr(fields, key)
        if isinstance(value, str):
            yield (key,), value
        elif isinstance(value, tuple):
            yield from (((key, index), text) for index, text in enumerate(value) if isinstance(text, str))
    yield from _message_texts(("messages",), fields.messages)
    if isinstance(fields.turns, SimulatedUser):
        yield ("turns", "prompt"), fields.turns.prompt
    for index, turn in enumerate(fields.turns if isinstance(fields.turns, tuple) else ()):
        yield (
            (("turns", index), turn) if isinstance(turn, str) else (("turns", index, "content"), turn.content)
        )
    for index, prompt in enumerate(fields.prompt_templates or ()):
        if prompt.template is not None:
            yield ("prompt_templates", index, "template"), prompt.template
        yield from _message_texts(("prompt_templates", index, "messages"), prompt.messages)


def _message_texts(
    at: Location, messages: str | tuple[MessageTemplate, ...] | None
) -> Iterator[tuple[Location, str]]:
    if isinstance(messages, str):
        yield at, messages
        return
    for index, message in enumerate(messages or ()):
        if isinstance(message.content, str):
            yield (*at, index, "content"), message.content
            continue
        for place, part in enumerate(message.content):
            yield (*at, index, "content", place, part.source()[0]), part.source()[1]


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
    if rolling and fields.target is not None and fields.prompt_template:
        raise PlacedError(
            "a rolling log-likelihood has one document: in prompt_template or in target", "target"
        )
    if not (
        rolling and fields.target is not None and fields.prompt_templates is None and fields.messages is None
    ):
        exactly_one(fields, fields.PROMPTS, "a benchmark")
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
    if fields.keep_trailing_space and not fields.scores_continuations:
        raise PlacedError(
            "belongs to likelihoods: output_type multiple_choice or loglikelihood, and no letters",
            "keep_trailing_space",
        )
    _check_chat(fields)
    for key in ("fewshot", "gen_prefix"):
        if rolling and getattr(fields, key) is not None:
            raise PlacedError(
                "a rolling log-likelihood is of the whole document, with nothing beside it", key
            )


def check_harness(fields: "BenchmarkFields") -> None:
    """Raises PlacedError where a benchmark of the harness is given keys that only native ones have."""
    for key in (*fields.ASKED, "keep_trailing_space"):
        if getattr(fields, key) not in (None, False):
            raise PlacedError(
                "belongs to native benchmarks; a benchmark of lm-evaluation-harness is changed by its own "
                "keys (doc_to_text, num_fewshot …)",
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
    chats: dict[Location, str | tuple[MessageTemplate, ...]] = {}
    if fields.messages is not None:
        chats["messages",] = fields.messages
    for index, prompt in enumerate(fields.prompt_templates or ()):
        if prompt.messages is not None:
            chats["prompt_templates", index, "messages"] = prompt.messages
    for at, messages in chats.items():
        if not messages:
            raise PlacedError("is empty: expected at least one turn", *at)
        if fields.output_type != "generate_until":
            own_list = ", or list the choices in messages under output_type generate_until"
            raise PlacedError(
                f"{_asked(fields)}; use prompt_template{own_list if fields.asks_letters else ''}", *at
            )
        own = () if isinstance(messages, str) else messages
        if fields.system_prompt is not None and any(message.role == "system" for message in own):
            raise PlacedError(
                "there is a system message in messages already; give one of them", "system_prompt"
            )
    _check_tools(fields)
    if fields.turns is not None and fields.output_type != "generate_until":
        raise PlacedError(f"{_asked(fields)}, and has no turns", "turns")
    if fields.turns == ():
        raise PlacedError("is empty: expected what the user says after the first answer", "turns")
    _check_said(fields.turns)
    shown = any(message.has_media() for own in chats.values() if not isinstance(own, str) for message in own)
    if shown and fields.fewshot is not None and fields.fewshot.format == "message":
        raise PlacedError("message puts examples as text before a text; use turns", "fewshot", "format")
    shape = fields.fewshot.format if fields.fewshot is not None else None
    if shape == "text" and chats:
        raise PlacedError(
            "text stands before a text prompt; messages take turns or message", "fewshot", "format"
        )
    if shape in ("turns", "message") and fields.output_type != "generate_until":
        raise PlacedError(f"{_asked(fields)}; use format text", "fewshot", "format")


def _asked(fields: "BenchmarkFields") -> str:
    """What an output type that is no chat asks for, in words."""
    if fields.asks_letters:
        return f"choices_by: {fields.letters} shows the choices below a prompt of text"
    return f"{fields.output_type} asks for log-likelihoods of text"


def _check_said(turns: "tuple[str | TurnTemplate, ...] | SimulatedUser | None") -> None:
    """Raises PlacedError for a template of a turn that says nothing."""
    if isinstance(turns, SimulatedUser):
        if not turns.prompt.strip():
            raise PlacedError("is empty: expected what the simulated user is asked", "turns", "prompt")
        return
    for index, turn in enumerate(turns or ()):
        content, tool = (turn, False) if isinstance(turn, str) else (turn.content, turn.role == "tool")
        if not content.strip() and not tool:
            raise PlacedError("is empty: expected what is said in this turn", "turns", index)


def _check_tools(fields: "BenchmarkFields") -> None:
    if fields.tools is None:
        return
    if fields.output_type != "generate_until":
        raise PlacedError(f"{_asked(fields)}, and calls nothing", "tools")
    if isinstance(fields.tools, tuple):
        try:
            checked_tools(fields.tools)
        except ValueError as error:
            raise PlacedError(str(error), "tools") from error
