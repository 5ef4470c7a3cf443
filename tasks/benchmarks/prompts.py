"""Native prompts: a template, solved examples and system text as one text or as chat messages.

``Fewshot`` draws the examples of an item, by a draw that no limit, shard or order of the dataset can
change; ``render_prompt`` puts the parts together as the layout says. ``CompiledChat`` renders the
messages of an item, from templates of their parts or from a list that the item holds; images and sounds
among them are read and checked, and named by their digests.

Templates are Jinja2 over an item's fields, where a name that the item has not is an error. ``Template``
renders; the config's checks ask which names a template needs before anything starts.
"""

import hashlib
import heapq
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from metrics.errors import ConfigError
from tasks.benchmarks.config import (
    BenchmarkFields,
    ContentPart,
    FewshotConfig,
    MessageTemplate,
    PromptTemplate,
)
from tasks.datasets.config import DatasetConfig, DatasetError, UnfitItem
from tasks.datasets.item import Item
from tasks.datasets.items import dataset_digest, open_dataset
from tasks.messages.chat import SYSTEM_ROLES, Message, chat_text, checked_messages, content_text
from tasks.messages.media import MediaError, MediaReader
from tasks.store.home import named_path
from tasks.store.keys import digest

# A config is data: its templates reach an item's fields, and nothing of Python's behind them.
ENVIRONMENT = SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)
_ONE_EXPRESSION = re.compile(r"\s*\{\{-?((?:(?!\{\{|\}\}|\{%|%\}).)*?)-?\}\}\s*", re.DOTALL)
_OPTIONAL_TESTS = frozenset({"defined", "undefined"})
_OPTIONAL_FILTERS = frozenset({"default", "d"})


def row(item: Item) -> dict[str, Any]:
    """The item as filters, metrics and user functions see it: its data, beside ``id`` and ``ground_truth``.

    A data field of the same name wins.
    """
    return {"id": item.item_id, "ground_truth": item.ground_truth, **item.data}


def scope(item: Item) -> dict[str, Any]:
    """The names a template may use: those of ``row``, and ``item``, the whole row."""
    names = row(item)
    return {**names, "item": {"data": item.data, **names}}


class Template:
    """A compiled template. ``label`` is what messages call it, such as "prompt_template"."""

    def __init__(self, source: str, label: str) -> None:
        self.source = source
        self._label = label
        self._template = _compiled(source, label)
        self._expression = _expression(source)
        self._pieces = _pieces(source)
        self._field = next(iter(self._pieces)).field if _is_one_field(self._pieces) else None

    def text(self, item: Item, names: Mapping[str, Any] | None = None) -> str:
        """The template filled with an item's fields, and ``names`` before them; raises DataError naming the
        item and what it lacks."""
        if self._pieces is not None and names is None:
            fields = row(item)
            with suppress(KeyError):  # Jinja then says what is missing
                return "".join(
                    [
                        piece.text if piece.field is None else str(fields[piece.field])
                        for piece in self._pieces
                    ]
                )
        try:
            return self._template.render({**scope(item), **(names or {})})
        except Exception as error:
            raise self._failure(item, error) from error

    def value(self, item: Item) -> Any:
        """What a single ``{{ expression }}`` stands for (a list stays a list, a number a number), else the
        text.
        """
        if self._expression is None:
            return self.text(item)
        if self._field is not None:
            with suppress(KeyError):
                return row(item)[self._field]
        try:
            found = self._expression(scope(item))
            if isinstance(found, jinja2.Undefined):
                str(found)  # StrictUndefined raises here, naming what is not there
        except Exception as error:
            raise self._failure(item, error) from error
        return found

    def _failure(self, item: Item, error: Exception) -> DatasetError:
        if isinstance(error, jinja2.UndefinedError):
            has = ", ".join(item.data)
            said = f"{self._label}: {error.message} in item '{item.item_id}'; its fields are {has}"
        elif isinstance(error, SecurityError):
            said = f"{self._label}: {error}: a template is no program; write a function instead"
        else:
            said = f"{self._label} fails on item '{item.item_id}': {type(error).__name__}: {error}"
        return UnfitItem(said, item, self.source)


def required_names(source: str) -> set[str]:
    """Names that a template uses without asking first (``is defined``, ``| default(…)``) whether they are
    there.
    """
    tree = ENVIRONMENT.parse(source)
    optional = {
        node.node.name
        for node in tree.find_all((nodes.Test, nodes.Filter))
        if isinstance(node.node, nodes.Name) and node.name in (_OPTIONAL_TESTS | _OPTIONAL_FILTERS)
    }
    return meta.find_undeclared_variables(tree) - optional - set(ENVIRONMENT.globals)


def check_syntax(source: str) -> None:
    """Raises ConfigError saying what is wrong in a template, and in which of its lines."""
    _compiled(source, "template")


def missing_names(source: str, names: Collection[str]) -> list[str]:
    """Names that the template needs and ``names`` has not, sorted."""
    return sorted(required_names(source) - set(names))


def template_source(prompt: PromptTemplate, base_dir: str | Path) -> str:
    """The text of a prompt's template: its own, or its file's without the line break at the end of every
    file.
    """
    if prompt.path is None:
        return prompt.template or ""
    path = named_path(base_dir, prompt.path)
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except FileNotFoundError:
        raise DatasetError(
            f"prompt template file '{prompt.path}' is not there: expected it at {path}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"prompt template file '{prompt.path}' can't be read: {error}") from error


@lru_cache(maxsize=256)
def _compiled(source: str, label: str) -> jinja2.Template:
    try:
        return ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{label} is not a Jinja2 template: line {error.lineno}: {error.message}"
        ) from error


class Piece(NamedTuple):
    """A part of a template that asks for nothing but fields: a text as it stands, or a field's name."""

    text: str = ""
    field: str | None = None


def _pieces(source: str) -> tuple[Piece, ...] | None:
    """The pieces of a template of texts and ``{{ field }}`` alone, which are joined many times faster than
    Jinja renders; None for any other.
    """
    pieces = []
    for output in ENVIRONMENT.parse(source).body:
        if not isinstance(output, nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                pieces.append(Piece(text=node.data))
            elif isinstance(node, nodes.Name) and node.name != "item":
                pieces.append(Piece(field=node.name))
            else:
                return None
    return tuple(pieces)


def _is_one_field(pieces: tuple[Piece, ...] | None) -> TypeGuard[tuple[Piece, ...]]:
    return pieces is not None and len(pieces) == 1 and pieces[0].field is not None


def _expression(source: str) -> Any:
    match = _ONE_EXPRESSION.fullmatch(source)
    return ENVIRONMENT.compile_expression(match[1].strip(), undefined_to_none=False) if match else None


@dataclass(frozen=True)
class _Part:
    """A part of a message: what it is, its template, and how closely an image is looked at."""

    kind: str
    template: Template
    detail: str | None


@dataclass(frozen=True)
class _Message:
    role: str
    content: Template | tuple[_Part, ...]
    beside: Mapping[str, Any]


class CompiledChat:
    """The messages of a prompt, compiled; ``label`` is what messages about them call it."""

    def __init__(
        self, messages: str | Sequence[MessageTemplate], label: str, reader: MediaReader | None = None
    ) -> None:
        self._reader = reader or MediaReader()
        self._label = label
        self._list = Template(messages, f"{label} (messages)") if isinstance(messages, str) else None
        self._messages = () if isinstance(messages, str) else tuple(self._compiled(one) for one in messages)

    def messages(self, item: Item) -> list[Message]:
        """The messages about an item in OpenAI's form; raises DataError naming the item."""
        try:
            if self._list is not None:
                return [self._read(one) for one in checked_messages(self._list.value(item))]
            return [
                {"role": one.role, "content": self._content(one.content, item), **one.beside}
                for one in self._messages
            ]
        except MediaError as error:
            raise UnfitItem(f"item '{item.item_id}': {error}", item) from error
        except ValueError as error:
            if isinstance(error, DatasetError):
                raise
            raise UnfitItem(f"{self._label} of item '{item.item_id}': {error}", item) from error

    @property
    def may_hold_media(self) -> bool:
        """Whether an item's messages may hold images or sounds: they are in files that may change."""
        return self._list is not None or any(
            part.kind != "text"
            for one in self._messages
            if isinstance(one.content, tuple)
            for part in one.content
        )

    def identity(self) -> list[Any]:
        """What of them decides prompts besides the items."""
        if self._list is not None:
            return [self._list.source]
        return [self._identity(one) for one in self._messages]

    def _identity(self, one: _Message) -> list[Any]:
        if isinstance(one.content, Template):
            return [one.role, one.content.source, *([dict(one.beside)] if one.beside else [])]
        parts = [[part.kind, part.template.source, part.detail] for part in one.content]
        return [one.role, parts, dict(one.beside)]

    def _compiled(self, message: MessageTemplate) -> _Message:
        label = f"{self._label} ({message.role})"
        if isinstance(message.content, str):
            return _Message(message.role, Template(message.content, label), message.beside())
        return _Message(message.role, tuple(_part(part, label) for part in message.content), message.beside())

    def _content(self, content: Template | tuple[_Part, ...], item: Item) -> Any:
        if isinstance(content, Template):
            return content.text(item)
        return [
            {"type": "text", "text": part.template.text(item)}
            if part.kind == "text"
            else self._reader.part(part.kind, part.template.value(item), part.detail)
            for part in content
        ]

    def _read(self, message: Message) -> Message:
        """A message of an item's own list, its media by their digests."""
        if not isinstance(message.get("content"), list):
            return message
        return {**message, "content": [self._read_part(part) for part in message["content"]]}

    def _read_part(self, part: Any) -> Any:
        if part["type"] == "image_url":
            image = part["image_url"]
            return self._reader.part("image", image["url"], image.get("detail"))
        return (
            self._reader.part("audio", part["input_audio"]["data"]) if part["type"] == "input_audio" else part
        )


def _part(part: ContentPart, label: str) -> _Part:
    kind, source = part.source()
    return _Part(kind, Template(source, f"{label}, {kind}"), part.detail)


POOL_LIMIT = 10_000  # examples kept in memory; of more, those with the smallest digests, whatever their order


@dataclass(frozen=True)
class FewshotCandidate:
    """A candidate: the item and the digest of its content, by which an item recognises itself."""

    item: Item
    digest: str


class Fewshot:
    """The examples of a benchmark. The pool is the whole file, however few of the items are evaluated."""

    def __init__(self, fields: BenchmarkFields, config: FewshotConfig) -> None:
        self._fields = fields
        self._config = config
        self._pool: tuple[FewshotCandidate, ...] | None = None

    def draw(self, item: Item) -> Sequence[FewshotCandidate]:
        """The examples of one item, never itself; raises ConfigError if there are too few.

        The random draw depends on the seed, the item's id and the pool's content only.
        """
        if self._config.count() == 0:
            return ()
        if self._pool is None:
            self._pool = self._load()
        own = self._content(item)
        if self._config.sampler == "first_n" or self._config.examples is not None:
            found = [example for example in self._pool if example.digest != own][: self._config.count()]
        else:
            found = self._sample(self._pool, item.item_id, own)
        if len(found) < self._config.count() and self._config.examples is None:
            raise ConfigError(
                f"fewshot.num is {self._config.count()}, but {self._source().describe()} has only "
                f"{len(found)} examples besides item '{item.item_id}'"
            )
        return found

    def digest(self) -> str:
        """Digest of everything that decides a draw."""
        if self._config.examples is not None:
            return digest(self._config)
        source = dataset_digest(self._source(), self._fields.base_dir)
        return digest({"config": self._config.model_copy(update={"path": None}), "source": source})

    def _sample(self, pool: Sequence[FewshotCandidate], item_id: str, own: str) -> list[FewshotCandidate]:
        """Draws without replacement by hashing a counter: the same on every Python version and machine."""
        found: dict[int, FewshotCandidate] = {}
        number = min(
            self._config.count(), sum(example.digest != own for example in pool[: self._config.count() + 1])
        )
        counter = 0
        while len(found) < number:
            text = f"{self._config.seed}\0{item_id}\0{counter}".encode()
            index = int.from_bytes(hashlib.sha256(text).digest()[:8]) % len(pool)
            counter += 1
            if pool[index].digest != own:
                found.setdefault(index, pool[index])
        return list(found.values())

    def source(self) -> DatasetConfig | None:
        """Where the candidates come from; None where the config lists them."""
        return self._source() if self._config.examples is None else None

    def _source(self) -> DatasetConfig:
        assert self._fields.dataset is not None
        if self._config.path is None:
            return self._fields.dataset
        return DatasetConfig(path=self._config.path, ground_truth=self._fields.dataset.ground_truth)

    def _load(self) -> tuple[FewshotCandidate, ...]:
        if self._config.examples is not None:
            return tuple(self._fixed(self._config))
        examples = (self._example(item) for item in open_dataset(self._source(), self._fields.base_dir))
        if self._config.sampler == "first_n":
            # One more than asked for: an item that is among them leaves itself out.
            return tuple(example for example, _ in zip(examples, range(self._config.num + 1), strict=False))
        # Sorted by content and free of doubles, so that the draw does not depend on the file's order.
        smallest = heapq.nsmallest(POOL_LIMIT, examples, key=lambda example: example.digest)
        return tuple({example.digest: example for example in smallest}.values())

    def _fixed(self, config: FewshotConfig) -> Iterator[FewshotCandidate]:
        named = self._fields.dataset.ground_truth if self._fields.dataset is not None else None
        for index, row in enumerate(config.examples or ()):
            yield self._example(
                Item(f"fewshot.examples.{index}", index, row, row.get(named or "ground_truth"))
            )

    def _example(self, item: Item) -> FewshotCandidate:
        return FewshotCandidate(item, self._content(item))

    def _content(self, item: Item) -> str:
        """Digest of an item without its id: two files may hold the same question under two ids."""
        own = self._fields.dataset.id if self._fields.dataset is not None else None
        data = {name: value for name, value in item.data.items() if name not in ("id", own)}
        return digest({"data": data, "ground_truth": item.ground_truth})


@dataclass(frozen=True)
class CompiledPrompt:
    """A compiled prompt: a text template, or the messages of a chat."""

    name: str
    template: Template | None
    chat: CompiledChat | None = None


@dataclass(frozen=True)
class PromptLayout:
    """How the parts of a prompt are put together.

    ``chat``: messages instead of a text. ``as_turns``: an example is a user's and an assistant's turn.
    ``answer`` is an example's answer as text, ``solved_question`` makes of its question what stands before
    that. ``tools`` are the functions that may be called about an item.
    """

    answer: Callable[[Item], str]
    tools: Callable[[Item], Sequence[Mapping[str, Any]]] = lambda item: ()
    chat: bool = False
    as_turns: bool = False
    system: Template | None = None
    gen_prefix: Template | None = None
    target_delimiter: str = " "
    example_delimiter: str = "\n\n"
    solved_question: Callable[[str, Item], str] = lambda question, _: question
    solved: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # examples rendered before, by prompt and digest


def render_prompt(
    prompt: CompiledPrompt,
    layout: PromptLayout,
    item: Item,
    examples: Sequence[FewshotCandidate],
    asked: Callable[[str], str] = str,
) -> str:
    """The text of the prompt, or the JSON text of its messages; ``asked`` makes of a text's question what is
    asked, with the choices under it."""
    if layout.chat:
        return chat_text(list(_turns(prompt, layout, item, examples)), layout.tools(item))
    text = _with_examples(prompt, layout, item, examples, asked)
    if layout.system is not None:
        text = layout.system.text(item) + layout.example_delimiter + text
    return _join(text, _prefix(layout, item), layout.target_delimiter)


def continuation(text: str, answer: str, delimiter: str, always: bool) -> str:
    """What is scored behind a prompt: ``answer`` with the delimiter before it, ``always`` also where the
    prompt ends in white space.
    """
    parted = not text or not answer or answer[0].isspace()
    return answer if parted or (not always and ends_in_space(text)) else delimiter + answer


def ends_in_space(text: str) -> bool:
    """Whether a text's last character is white space."""
    return text[-1:].isspace()


def _join(text: str, answer: str, delimiter: str) -> str:
    """Both texts, the delimiter between them unless there is white space already."""
    parted = not text or not answer or ends_in_space(text) or answer[0].isspace()
    return text + answer if parted else text + delimiter + answer


def _prefix(layout: PromptLayout, item: Item) -> str:
    return layout.gen_prefix.text(item) if layout.gen_prefix is not None else ""


def _with_examples(
    prompt: CompiledPrompt,
    layout: PromptLayout,
    item: Item,
    examples: Sequence[FewshotCandidate],
    asked: Callable[[str], str],
) -> str:
    parts = [*(_solved(prompt, layout, example) for example in examples), asked(_question(prompt, item))]
    return layout.example_delimiter.join(parts)


def _question(prompt: CompiledPrompt, item: Item) -> str:
    if prompt.template is not None:
        return prompt.template.text(item)
    return "\n".join(
        content_text(message.get("content"))
        for message in _template_turns(prompt, item)
        if message["role"] not in SYSTEM_ROLES
    )


def _solved(prompt: CompiledPrompt, layout: PromptLayout, example: FewshotCandidate) -> str:
    key = (prompt.name, example.digest)
    if key not in layout.solved:
        question = layout.solved_question(_question(prompt, example.item), example.item)
        layout.solved[key] = _join(question, _answer(layout, example.item), layout.target_delimiter)
    return layout.solved[key]


def _answer(layout: PromptLayout, item: Item) -> str:
    return _join(_prefix(layout, item), layout.answer(item), layout.target_delimiter)


def _turns(
    prompt: CompiledPrompt, layout: PromptLayout, item: Item, examples: Sequence[FewshotCandidate]
) -> Iterator[Message]:
    if layout.system is not None:
        yield {"role": "system", "content": layout.system.text(item)}
    own = list(_template_turns(prompt, item))
    first_user = next(
        (index for index, message in enumerate(own) if message["role"] not in SYSTEM_ROLES), len(own)
    )
    yield from own[:first_user]
    if layout.as_turns:
        for example in examples:
            turns = _template_turns(prompt, example.item)
            yield from (message for message in turns if message["role"] not in SYSTEM_ROLES)
            yield {"role": "assistant", "content": _answer(layout, example.item)}
    elif examples and own[first_user:]:
        message = own[first_user]
        solved = [_solved(prompt, layout, example) for example in examples]
        text = layout.example_delimiter.join([*solved, content_text(message["content"])])
        own[first_user] = {**message, "content": text}
    yield from own[first_user:]
    if prefix := _prefix(layout, item):
        yield {"role": "assistant", "content": prefix}


def _template_turns(prompt: CompiledPrompt, item: Item) -> Iterator[Message]:
    if prompt.template is not None:
        yield {"role": "user", "content": prompt.template.text(item)}
    if prompt.chat is not None:
        yield from prompt.chat.messages(item)
