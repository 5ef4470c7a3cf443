"""The native benchmark: items of a dataset, asked with Jinja2 templates.

``NativeBenchmark`` holds to the protocol of ``datasets.item``; ``Targets`` finds an item's
references, its choices and which of them are right. ``benchmarks.open`` makes it of a config.
"""

import hashlib
import string
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from metrics.types import IGNORED_TARGET
from tasks.benchmarks.config import BenchmarkFields, PromptTemplate
from tasks.benchmarks.lettered import Lettering
from tasks.benchmarks.prompts import (
    CompiledChat,
    CompiledPrompt,
    Fewshot,
    FewshotCandidate,
    PromptLayout,
    Template,
    continuation,
    ends_in_space,
    render_prompt,
    row,
    template_source,
)
from tasks.datasets.config import DatasetConfig, DatasetError, UnfitItem
from tasks.datasets.item import Item, Rendered
from tasks.datasets.items import dataset_digest, open_dataset, row_places
from tasks.messages.chat import chat_text, checked_tools
from tasks.messages.media import MediaReader
from tasks.store.home import named_path

SHOWN: Final = 20
"""Characters of a prompt's end that a warning shows."""
ALIKE: Final = 20
"""Items that are looked at for prompts which are all the same."""


class NativeBenchmark:
    """A benchmark of the native config: see ``item.Benchmark`` for what its methods promise.

    Raises ConfigError for a template that is none, DataError for a template file that can't be read.
    """

    def __init__(self, fields: BenchmarkFields) -> None:
        self.name = fields.name
        self._fields = fields
        self._media = MediaReader(_folders(fields), Path(fields.base_dir))
        self._prompts = {prompt.name: _compiled(prompt, fields, self._media) for prompt in fields.prompts()}
        self._targets = Targets(fields)
        self._tools = Tools(fields.tools)
        self._lettering = Lettering.of(fields.choices_by)
        self._fewshot = Fewshot(fields, fields.fewshot) if fields.fewshot is not None else None
        self._layouts = {name: self._layout(prompt) for name, prompt in self._prompts.items()}

    def items(self) -> Iterator[Item]:
        """The dataset's rows in order."""
        return open_dataset(self._dataset(), self._fields.base_dir, self._fields.cluster)

    def prompt_names(self) -> tuple[str, ...]:
        """Names of the prompt templates, in the config's order."""
        return tuple(self._prompts)

    def render(self, prompt: str, items: Iterable[Item]) -> Iterator[Rendered]:
        """What is asked about each item; raises DataError naming the item that a template does not fit, by
        file and line where it has one."""
        return (self._rendered(self._prompts[prompt], item) for item in items)

    def dataset_digest(self) -> str:
        """Digest of everything that decides the items."""
        return dataset_digest(self._dataset(), self._fields.base_dir, self._fields.cluster)

    def render_identity(self, prompt: str) -> dict[str, Any]:
        """Templates, examples and delimiters: what decides the prompts besides the items."""
        compiled = self._prompts[prompt]
        fields = self._fields.model_dump(
            mode="json",
            include={
                "output_type", "target", "choices", "target_delimiter", "mutual_information", "system_prompt",
                "gen_prefix",
            },
        )  # fmt: skip
        if self._lettering is not None:
            fields["choices_by"] = asdict(self._lettering)
        media = self._media_digest(compiled.chat) if compiled.chat is not None else None
        return (
            fields
            | self._tools.identity()
            | ({} if media is None else {"media": media})
            | ({} if self._fields.turns is None else {"turns": True})
            | ({"keep_trailing_space": True} if self._fields.keep_trailing_space else {})
            | {
                "prompt_template": compiled.template.source if compiled.template is not None else None,
                "messages": compiled.chat.identity() if compiled.chat is not None else [],
                "fewshot": self._fewshot.digest() if self._fewshot is not None else None,
            }
        )

    def _media_digest(self, chat: CompiledChat) -> str | None:
        """Digest of the images and sounds of all items, each of them checked; None where there can be none.

        Raises DataError naming the item, by file and line where it has one.
        """
        if not chat.may_hold_media:
            return None
        total, found = hashlib.sha256(), False
        for item in self.items():
            try:
                named = self._media.of([chat_text(chat.messages(item))])
            except DatasetError as error:
                raise self._placed(error, item) from error
            found = found or bool(named)
            total.update("\0".join([item.item_id, *(media.digest for media in named)]).encode() + b"\n")
        return total.hexdigest() if found else None

    def _placed(self, error: DatasetError, item: Item) -> DatasetError:
        """The error with the place of the item that it is about."""
        template = error.template if isinstance(error, UnfitItem) else None
        return UnfitItem(f"{self._place(item, self._dataset())}{error}", template=template)

    def place(self, item: Item) -> str:
        """Where the dataset's file holds an item, as "questions.jsonl:7"; empty where it comes from none."""
        return self._place(item, self._dataset()).removesuffix(": ")

    def _place(self, item: Item, dataset: DatasetConfig | None) -> str:
        if dataset is None or dataset.path is None:
            return ""
        places = row_places(named_path(self._fields.base_dir, dataset.path), [item.doc_id], dataset.form)
        return f"{places[item.doc_id]}: " if item.doc_id in places else ""

    def references(self, item: Item) -> tuple[Any, ...]:
        """The acceptable answers of an item; none where it has no ground truth."""
        try:
            return self._targets.references(item)
        except UnfitItem as error:
            raise self._placed(error, item) from error

    def prompt_warnings(self, items: Iterable[Item], seconds: float) -> list[str]:
        """A sentence for each prompt template that says the same of items that differ, and for each whose
        texts end in white space before an answer whose likelihood is asked for; as many items are looked at
        as the time allows, one at least."""
        items = iter(items)
        first = list(islice(items, ALIKE))
        same = [self._same(name, first) for name in self._prompts]
        return [*filter(None, same), *self._space_warnings(chain(first, items), seconds)]

    def _same(self, name: str, items: Sequence[Item]) -> str | None:
        if self._fields.turns is not None or all(item.data == items[0].data for item in items):
            return None
        asked = [self._rendered(self._prompts[name], item) for item in items]
        parts = [(one.prompts, one.continuations, one.media) for one in asked]
        if any(part != parts[0] for part in parts):
            return None
        return (
            f"prompt '{name}': the first {len(items)} items are asked the same,"
            f" {asked[0].prompts[0][-SHOWN:]!r}; a template names a field of the item in double braces, such"
            " as {{question}}"
        )

    def _space_warnings(self, items: Iterable[Item], seconds: float) -> list[str]:
        if not self._fields.scores_continuations:
            return []
        until = time.monotonic() + seconds
        found: dict[str, list[str]] = {name: [] for name in self._prompts}
        seen = 0
        for item in items:
            for name, texts in found.items():
                text = self._rendered(self._prompts[name], item).prompts[0]
                texts += [text] if ends_in_space(text) else []
            seen += 1
            if time.monotonic() > until:
                break
        return [self._spaced(name, texts[0], len(texts), seen) for name, texts in found.items() if texts]

    def _spaced(self, name: str, text: str, count: int, seen: int) -> str:
        bare, delimiter = text.rstrip(), self._fields.target_delimiter if self._always_delimited else ""
        space, end = text[len(bare) :], bare[-SHOWN:]
        said = f"prompt '{name}': {count} of {seen} prompts end in white space"
        if self._fields.keep_trailing_space:
            return (
                f"{said}, and keep_trailing_space leaves it there: an answer is scored behind {end + space!r}"
            )
        return (
            f"{said}: as in lm-evaluation-harness the white space is scored with the answer, as "
            f"{space + delimiter + '…'!r} behind {end!r}; end the prompt without it, or set "
            "keep_trailing_space: true to leave it in the prompt"
        )

    def _dataset(self) -> DatasetConfig:
        if self._fields.dataset is None:
            raise ConfigError(f"benchmark '{self.name}' has no dataset")
        return self._fields.dataset

    def _layout(self, prompt: CompiledPrompt) -> PromptLayout:
        fields = self._fields
        shape = fields.fewshot.format if fields.fewshot is not None else None
        generates = fields.output_type == "generate_until"
        return PromptLayout(
            answer=self._answer,
            chat=generates
            and (
                prompt.chat is not None
                or fields.system_prompt is not None
                or fields.tools is not None
                or fields.turns is not None
                or shape in ("turns", "message")
            ),
            tools=self._tools.of,
            as_turns=shape == "turns" or (shape is None and prompt.chat is not None),
            system=_template(fields.system_prompt, "system_prompt"),
            gen_prefix=_template(fields.gen_prefix, "gen_prefix"),
            target_delimiter=fields.target_delimiter,
            example_delimiter=fields.fewshot.delimiter if fields.fewshot is not None else "\n\n",
            solved_question=self._solved_question,
        )

    def _solved_question(self, question: str, item: Item) -> str:
        """A few-shot example up to its answer: with its choices where they are asked for by letters."""
        return (
            question
            if self._lettering is None
            else self._lettering.solved(question, self._targets.choices(item))
        )

    def _answer(self, item: Item) -> str:
        """The answer of a few-shot example: its first reference, or the text of its first right choice."""
        if self._fields.output_type == "multiple_choice":
            choices = self._targets.choices(item)
            texts = string.ascii_uppercase if self._lettering is not None else choices
            right = [texts[index] for index in self._targets.gold(item, choices) if index >= 0]
        else:
            right = [str(reference) for reference in self._targets.references(item)]
        if not right:
            raise UnfitItem(f"item '{item.item_id}' has no answer; set target or ground_truth", item)
        return right[0]

    def _rendered(self, prompt: CompiledPrompt, item: Item) -> Rendered:
        try:
            return self._filled(prompt, item)
        except UnfitItem as error:
            if isinstance(error.item, Item) and error.item is not item and self._fewshot is not None:
                place = self._place(error.item, self._fewshot.source())
                raise UnfitItem(f"{place}few-shot example: {error}", template=error.template) from error
            raise self._placed(error, item) from error

    def _filled(self, prompt: CompiledPrompt, item: Item) -> Rendered:
        doc = row(item)
        if self._fields.output_type == "loglikelihood_rolling":
            text = self._document(prompt, item)
            return Rendered(item, "rolling", ("",), (text,), references=(text,), doc=doc)
        layout = self._layouts[prompt.name]
        examples = self._fewshot.draw(item) if self._fewshot is not None else ()
        if self._lettering is not None:
            return self._lettered(prompt, item, examples, self._lettering)
        text = render_prompt(prompt, layout, item, examples)
        if self._fields.output_type == "multiple_choice":
            return self._choice(text, item, doc)
        references = self._targets.references(item)
        if self._fields.output_type == "generate_until":
            media = self._media.of((text,)) if prompt.chat is not None else ()
            return Rendered(
                item,
                "generate",
                (text,),
                ("",),
                references=references,
                doc=doc,
                chat=layout.chat,
                media=media,
            )
        if len(references) != 1:
            raise UnfitItem(
                f"item '{item.item_id}' has {len(references)} targets; loglikelihood scores exactly one "
                "continuation",
                item,
            )
        target = str(references[0])
        # The one choice there is: what is said per byte is said per byte of it, without the delimiter.
        return Rendered(
            item,
            "loglikelihood",
            (text,),
            self._continuations(text, (target,)),
            references=references,
            doc=doc,
            choices=(target,),
            keeps_space=self._keeps_space(text),
        )

    def _continuations(self, text: str, answers: Iterable[str]) -> tuple[str, ...]:
        delimiter, always = self._fields.target_delimiter, self._always_delimited
        return tuple(continuation(text, answer, delimiter, always) for answer in answers)

    @property
    def _always_delimited(self) -> bool:
        """As lm-evaluation-harness asks for choices; for a target alone it has no delimiter."""
        return self._fields.output_type == "multiple_choice" and not self._fields.keep_trailing_space

    def _keeps_space(self, text: str) -> bool:
        return self._fields.keep_trailing_space and ends_in_space(text)

    def _lettered(
        self, prompt: CompiledPrompt, item: Item, examples: Sequence[FewshotCandidate], lettering: Lettering
    ) -> Rendered:
        """The choices with letters, one prompt for each order that they are shown in."""
        choices, layout = self._targets.choices(item), self._layouts[prompt.name]
        gold, orders = self._targets.gold(item, choices), lettering.orders(item.item_id, choices)

        def asked(order: Sequence[int]) -> str:
            return render_prompt(
                prompt, layout, item, examples, lambda question: lettering.shown(question, choices, order)
            )

        prompts = [asked(order) for order in orders]
        return Rendered(
            item,
            "generate",
            prompts=prompts,
            continuations=("",),
            references=tuple(choices[index] for index in gold if index >= 0),
            doc=row(item),
            gold=gold,
            choices=choices,
            orders=orders,
        )

    def _choice(self, text: str, item: Item, doc: dict[str, object]) -> Rendered:
        choices = self._targets.choices(item)
        gold = self._targets.gold(item, choices)
        continuations = self._continuations(text, choices)
        return Rendered(
            item,
            "loglikelihood",
            prompts=(text,) * len(choices),
            continuations=continuations,
            references=tuple(choices[index] for index in gold if index >= 0),
            doc=doc,
            gold=gold,
            choices=choices,
            unconditional=continuations if self._fields.mutual_information else (),
            keeps_space=self._keeps_space(text),
        )

    def _document(self, prompt: CompiledPrompt, item: Item) -> str:
        if self._fields.target is None and prompt.template is not None:
            return prompt.template.text(item)
        references = self._targets.references(item)
        if len(references) != 1 or not isinstance(references[0], str):
            raise UnfitItem(
                f"item '{item.item_id}': a rolling log-likelihood needs one text as its document", item
            )
        return references[0]


def _template(source: str | None, label: str) -> Template | None:
    return Template(source, label) if source is not None else None


def _folders(fields: BenchmarkFields) -> list[Path]:
    """Where files that items name are looked for: beside the dataset, then beside the config."""
    base = Path(fields.base_dir)
    path = fields.dataset.path if fields.dataset is not None else None
    return list(dict.fromkeys([*([named_path(base, path).parent] if path else []), base]))


def _compiled(prompt: PromptTemplate, fields: BenchmarkFields, media: MediaReader) -> CompiledPrompt:
    label = f"prompt_template '{prompt.name}'" if fields.prompt_templates is not None else "prompt_template"
    if prompt.messages is not None:
        return CompiledPrompt(prompt.name, None, CompiledChat(prompt.messages, label, media))
    return CompiledPrompt(prompt.name, Template(template_source(prompt, fields.base_dir), label))


class Tools:
    """The functions that a model may call: the same about every item, or what a template gives."""

    def __init__(self, source: str | Sequence[Any] | None) -> None:
        self._source = source
        self._template = Template(source, "tools") if isinstance(source, str) else None
        fixed = () if source is None or self._template is not None else source
        self._fixed = checked_tools(fixed)

    def of(self, item: Item) -> list[dict[str, Any]]:
        """The tools of an item, in OpenAI's form; raises DataError naming an item that has none."""
        if self._template is None:
            return self._fixed
        try:
            return checked_tools(self._template.value(item))
        except ValueError as error:
            raise UnfitItem(
                f"tools of item '{item.item_id}': {error}", item, self._template.source
            ) from error

    def identity(self) -> dict[str, Any]:
        """What of them decides prompts besides the items; nothing where there are none."""
        return {} if self._source is None else {"tools": self._source}


class Targets:
    """The target and choices of a benchmark, compiled."""

    def __init__(self, fields: BenchmarkFields) -> None:
        self._target = _templates(fields.target, "target")
        self._choices = _templates(fields.choices, "choices")

    def references(self, item: Item) -> tuple[Any, ...]:
        """The acceptable answers: none without a ground truth, several where the target is a list.

        Numbers become text; mappings (a JSON answer) stay what they are.
        """
        return tuple(_as_text(value) for value in self._values(item))

    def choices(self, item: Item) -> tuple[str, ...]:
        """The texts of an item's choices, in order; raises DataError if a template gives no list of them."""
        if isinstance(self._choices, Template):
            found = self._choices.value(item)
            if not isinstance(found, list | tuple):
                raise UnfitItem(
                    f"choices of item '{item.item_id}' must be a list, got {found!r}",
                    item,
                    self._choices.source,
                )
        else:
            found = [_filled(choice, item) for choice in self._choices or ()]
        if not found:
            raise UnfitItem(
                f"item '{item.item_id}' has no choices; a multiple_choice item needs at least one", item
            )
        return tuple(str(choice) for choice in found)

    def gold(self, item: Item, choices: Sequence[str]) -> tuple[int, ...]:
        """Indices of the right choices; −100 stays; the code that counts leaves it out.

        A number is an index from 0; a text is the choice of that text, else its letter, else an index in
        digits.
        """
        values = self._values(item)
        if not values:
            raise UnfitItem(
                f"item '{item.item_id}' has no target; multiple_choice needs the index or text of a choice",
                item,
            )
        return tuple(_index(value, choices, item) for value in values)

    def _values(self, item: Item) -> list[Any]:
        if self._target is None:
            found = item.ground_truth
        elif isinstance(self._target, Template):
            found = self._target.value(item)
        else:
            found = [value for target in self._target for value in _as_list(_filled(target, item))]
        return _as_list(found)


def _templates(value: Any, label: str) -> "Template | list[Template | int | float] | None":
    if value is None:
        return None
    if isinstance(value, str):
        return Template(value, label)
    entries = value if isinstance(value, tuple) else (value,)
    return [Template(entry, label) if isinstance(entry, str) else entry for entry in entries]


def _filled(entry: "Template | int | float", item: Item) -> Any:
    return entry.value(item) if isinstance(entry, Template) else entry


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_text(value: Any) -> Any:
    return value if isinstance(value, str | dict | list) or value is None else str(value)


def _index(value: Any, choices: Sequence[str], item: Item) -> int:
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (0 <= value < len(choices) or value == IGNORED_TARGET)
    ):
        return value
    if isinstance(value, str):
        text = value.strip()
        stripped = [choice.strip() for choice in choices]
        if text in stripped:
            return stripped.index(text)
        if len(text) == 1 and text.upper() in string.ascii_uppercase[: len(choices)]:
            return string.ascii_uppercase.index(text.upper())
        if text.isascii() and text.isdigit() and int(text) < len(choices):
            return int(text)
    raise UnfitItem(
        f"target {value!r} of item '{item.item_id}' is none of its choices: expected an index from 0 to "
        f"{len(choices) - 1}, a letter, or one of {', '.join(map(repr, choices))}",
        item,
    )
