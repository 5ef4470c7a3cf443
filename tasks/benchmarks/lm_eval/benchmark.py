"""A definition of lm-evaluation-harness as a benchmark: items, and requests as the harness makes them.

``HarnessBenchmark`` holds to the protocol of ``datasets.item``; ``Prompter`` makes of each document
what is asked of a model and what is right. ``benchmarks.open`` makes it of a translated config.

The prompt is examples drawn and turns put together as lm-evaluation-harness does it, byte for byte. Its
default sampler draws examples for one document after the other from one generator: the draw for a
document depends on how many came before, and where documents repeat, on what they were. A part of the
dataset therefore replays the draws of all documents before it. ``per_item`` draws from a generator of the
document's own instead. ``example_turns`` makes turns of a question and its answer; ``as_text`` joins
turns with delimiters for a completion, ``as_messages`` makes chat messages of them without.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any, Final, Literal

from metrics.errors import ConfigError
from tasks.benchmarks.config import DEFAULT_PROMPT
from tasks.benchmarks.lettered import Lettering
from tasks.benchmarks.lm_eval.documents import (
    Document,
    Fields,
    asks_unconditional,
    document_items,
    gold_indices,
    references_of,
)
from tasks.benchmarks.lm_eval.splits import Splits, fewshot_settings
from tasks.benchmarks.lm_eval.yaml import decoded, functions_in, runs_programs_itself
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item, Rendered
from tasks.datasets.items import Cluster
from tasks.messages.chat import chat_text
from tasks.messages.media import MediaError, MediaReader
from tasks.store.keys import digest
from tasks.usercode.sources import Sources, sources_named

Sampler = Literal["default", "first_n", "per_item"]


@dataclass(frozen=True)
class FewshotPool:
    """What examples are drawn from, and how.

    ``excludes``: examples equal to the document that is asked about are left out, because both come from the
    same split.
    """

    docs: Sequence[Document]
    number: int
    sampler: Sampler = "default"
    excludes: bool = False
    seed: int = 1234

    def draws(self) -> "FewshotDraws":
        """A sequence of draws from the beginning."""
        return FewshotDraws(self)


class FewshotDraws:
    """The examples of one document after the other; ``skip`` draws for documents whose prompt is not asked
    for."""

    def __init__(self, pool: FewshotPool) -> None:
        self._pool = pool
        self._random = Random(pool.seed)

    def examples(self, doc: Document) -> list[Document]:
        """The next document's examples; raises DataError where there are fewer than asked for."""
        pool = self._pool
        if pool.number <= 0:
            return []
        if pool.sampler == "first_n":
            return self._first(doc)
        if pool.sampler == "per_item":
            others = [example for example in pool.docs if not pool.excludes or example != doc]
            return _sample(Random(digest([pool.seed, doc])), others, pool.number)
        if not (pool.excludes and doc):
            return _sample(self._random, pool.docs, pool.number)
        drawn = _sample(self._random, pool.docs, pool.number + 1)
        examples = [example for example in drawn if example != doc][: pool.number]
        if len(examples) == pool.number:
            return examples
        # The document stands in the pool several times, and more than one copy was drawn.
        return _sample(self._random, [example for example in pool.docs if example != doc], pool.number)

    def skip(self, doc: Document) -> None:
        """Leaves the generator as drawing this document's examples would."""
        if self._pool.sampler == "default":
            self.examples(doc)

    def _first(self, doc: Document) -> list[Document]:
        pool = self._pool
        examples: list[Document] = []
        for example in pool.docs:
            if len(examples) == pool.number:
                break
            if not pool.excludes or example != doc:
                examples.append(example)
        if len(examples) < pool.number:
            raise DatasetError(
                f"num_fewshot is {pool.number}, and there are {len(examples)} examples to show"
            )
        return examples


def _sample(random: Random, docs: Sequence[Document], number: int) -> list[Document]:
    if number > len(docs):
        raise DatasetError(
            f"num_fewshot needs {number} different examples to draw, and there are {len(docs)}"
        )
    # Positions rather than documents: the same draw, without a copy of the pool.
    return [docs[index] for index in random.sample(range(len(docs)), number)]


@dataclass(frozen=True)
class PromptPart:
    """One message; ``delimiter`` follows it in a text and is not there in a chat."""

    role: str
    content: str
    delimiter: str = ""


@dataclass(frozen=True)
class Question:
    """A question with what stands around it: its choices, its answer (None: the one to evaluate), its
    prefix."""

    question: Any
    choices: Sequence[Any] | None = None
    answer: Any = None
    prefix: str | None = None


@dataclass(frozen=True)
class Delimiters:
    """Between question and answer, and after an answer."""

    target: str = " "
    example: str = "\n\n"


def join_texts(before: str | None, after: str | None, delimiter: str = " ") -> str:
    """Both texts, the delimiter between them unless one has white space there already.

    >>> join_texts("Answer:", "42"), join_texts("Answer: ", "42"), join_texts(None, "42")
    ('Answer: 42', 'Answer: 42', '42')
    """
    if not before or not after:
        return before or after or ""
    return before + (delimiter if not _spaced(before, after) else "") + after


def example_turns(example: Question, delimiters: Delimiters) -> list[PromptPart]:
    """The user's turn and, where there is an answer or a prefix, the assistant's."""
    if not isinstance(example.question, str):
        raise DatasetError(
            f"the question is {type(example.question).__name__} {example.question!r:.80}, not text"
        )
    answered = example.answer is not None and example.answer != ""
    prefix = example.prefix
    apart = answered if not prefix else bool(example.question) and not _spaced(example.question, prefix)
    turns = [PromptPart("user", example.question, delimiters.target if apart else "")]
    if answered:
        turns.append(PromptPart("assistant", join_texts(prefix, _answer_text(example)), delimiters.example))
    elif prefix:
        turns.append(PromptPart("assistant", prefix))
    return turns


def as_text(turns: Sequence[PromptPart]) -> str:
    """The turns one after the other with their delimiters: what a completion is asked with."""
    return "".join(turn.content + turn.delimiter for turn in turns)


def as_messages(turns: Sequence[PromptPart], multiturn: bool) -> list[dict[str, str]]:
    """The turns as chat messages; not ``multiturn``: all but the system's and a prefix in one message of the
    user's."""
    if multiturn:
        return [{"role": turn.role, "content": turn.content} for turn in turns]
    system = [turn for turn in turns[:1] if turn.role == "system"]
    rest = list(turns[len(system) :])
    last = [rest.pop()] if rest and rest[-1].role == "assistant" else []
    if rest:
        rest[-1] = replace(rest[-1], delimiter="")
    return as_messages([*system, PromptPart("user", as_text(rest)), *last], multiturn=True)


def _answer_text(example: Question) -> str:
    answer = example.answer
    if example.choices and isinstance(answer, int):
        if not -len(example.choices) <= answer < len(example.choices):
            raise DatasetError(f"a few-shot answer is choice {answer}, and there are {len(example.choices)}")
        answer = example.choices[answer]
    elif isinstance(answer, list):
        answer = answer[0] if answer else ""
    if not isinstance(answer, str):
        raise DatasetError(
            f"the answer of a few-shot example is {type(answer).__name__} {answer!r:.80}, not text"
        )
    return answer


def _spaced(before: str, after: str) -> bool:
    return before[-1].isspace() or after[0].isspace()


TOGETHER: Final = 32
"""Documents rendered before others may draw from the global generators: giving them back takes a moment."""

# Keys that decide which documents there are; all others besides those below decide how they are asked.
OF_DATASET: Final = (
    "custom_dataset", "dataset_path", "dataset_name", "dataset_kwargs", "test_split", "validation_split",
    "process_docs",
)  # fmt: skip
OF_SCORING: Final = (
    "task_alias", "process_results", "metric_list", "filter_list", "generation_kwargs", "repeats",
    "should_decontaminate", "doc_to_decontamination_query", "unsafe_code",
)  # fmt: skip


class HarnessBenchmark:
    """Items and prompts of one definition; ``harness`` is what ``translate`` put under that key.

    ``apply_chat_template`` there asks chat models with messages, few-shot examples as turns
    (``fewshot_as_multiturn``) or in the user's message; ``system_instruction`` stands before the description.
    ``documents`` are the only ones that examples are drawn for; ``seeds`` those of the global generators.
    """

    def __init__(
        self, harness: Mapping[str, Any], base_dir: str | Path, name: str, cluster: Cluster = None
    ) -> None:
        self.name = name
        self._harness = harness
        self._config: dict[str, Any] = decoded(harness["config"])
        self._base_dir = Path(base_dir)
        self._cluster = cluster
        self._where = f"benchmark {harness.get('task', name)}"
        if runs_programs_itself(self._config, self._base_dir) and not harness.get("allow_unsafe_code"):
            raise ConfigError(
                f"{self._where} runs code that the model writes in files of its own (unsafe_code), not by "
                "evaluate.load('code_eval'), which has a sandbox here; allow it with "
                "--set harness.allow_unsafe_code=true on a machine that it can't harm"
            )
        if (
            harness.get("apply_chat_template")
            and not harness.get("choices_by")
            and self._config.get("output_type", "generate_until") != "generate_until"
        ):
            raise ConfigError(
                f"{self._where}: output_type {self._config['output_type']} asks for log-likelihoods, which "
                "chat endpoints don't give; use api: completions, or choices_by: letter"
            )
        self._splits = Splits(
            self._config, self._base_dir, self._where, tokenizer=harness.get("tokenizer"),
            seeds=harness.get("seeds"),
        )  # fmt: skip

    def items(self) -> Iterator[Item]:
        """The evaluated documents in order. An id is derived from the content; equal documents are
        numbered."""
        return document_items(self._splits.evaluated(), self._cluster, self._where)

    def prompt_names(self) -> tuple[str, ...]:
        """The harness has one prompt a definition."""
        return (DEFAULT_PROMPT,)

    def render(self, prompt: str, items: Iterable[Item]) -> Iterator[Rendered]:
        """The items' requests. Few-shot examples are those of the whole dataset's sequence, whatever part
        this is."""
        if prompt != DEFAULT_PROMPT:
            raise ConfigError(f"{self._where} has one prompt, named {DEFAULT_PROMPT}; got '{prompt}'")
        prompter = Prompter(self._harness, self._config, self._splits, self._base_dir)
        return prompter.rendered(items)

    def dataset_digest(self) -> str:
        """Digest of the files (or the hub's rows), the splits and the code of ``process_docs``."""
        keys = {key: self._config.get(key) for key in OF_DATASET if key not in ("dataset_kwargs",)}
        return digest(
            {
                "keys": keys,
                "source": self._splits.source.digest(),
                "code": self._code(keys),
                "cluster": self._cluster,
                **self._said("seeds"),
            }
        )

    def render_identity(self, prompt: str) -> dict[str, Any]:
        """Templates, few-shot examples and their split, delimiters, seeds and user functions."""
        kept = {key: value for key, value in self._config.items() if key not in OF_SCORING}
        knobs = ("apply_chat_template", "fewshot_as_multiturn", "system_instruction", "fewshot_seed")
        return {
            "prompt": prompt,
            **kept,
            "harness": {key: self._harness.get(key) for key in knobs},
            "source": self._splits.source.digest(),
            "functions": {"code": self._code(kept)},
            "unconditional": asks_unconditional(self._config),
            **self._said("choices_by", "documents", "seeds"),
        }

    def _said(self, *knobs: str) -> dict[str, Any]:
        """Those of the knobs that are used, which few runs do: others have the keys that they had before."""
        return {knob: said for knob in knobs if (said := self._harness.get(knob)) is not None}

    def _code(self, value: Any) -> Sources:
        return sources_named(sorted(set(functions_in(value))), self._base_dir)


class Prompter:
    """Renders the documents of one definition.

    Whether a benchmark has several inputs (a prompt per choice) or several targets shows in its first
    document, and holds for all.
    """

    def __init__(
        self, harness: Mapping[str, Any], config: Mapping[str, Any], splits: Splits, base_dir: Path
    ) -> None:
        self._harness = harness
        self._config = config
        self._docs = splits.evaluated()
        self._where = f"benchmark {harness.get('task')}"
        self._fields = Fields(config, splits.columns(), base_dir, self._where, splits.modules)
        self._pictured = splits.pictured
        self._media = MediaReader([base_dir, Path.cwd()], base_dir)
        self._output_type: str = config.get("output_type", "generate_until")
        self._fewshot = fewshot_settings(config)
        self._pool = self._fewshot_pool(splits)
        self._generators = splits.generators
        self._delimiters = Delimiters(config.get("target_delimiter", " "), "")
        letters = harness.get("choices_by")
        self._lettering = None if letters is None else Lettering(**letters)
        drawing = harness.get("documents")
        self._drawing = None if drawing is None else frozenset(drawing)
        first = self._docs[0]
        chosen = config.get("doc_to_choice") is not None
        with self._generators.drawn_from():
            self._many_inputs = chosen and isinstance(self._question(first), int)
            self._many_targets = isinstance(self._fields.target(first), list)

    def rendered(self, items: Iterable[Item]) -> Iterator[Rendered]:
        """The requests of consecutive items, the first of which may stand anywhere in the dataset."""
        draws, position, coming = self._pool.draws(), 0, iter(items)
        while together := list(islice(coming, TOGETHER)):
            done: list[Rendered] = []
            failure: Exception | None = None
            with self._generators.drawn_from():
                try:
                    for item in together:
                        for place in range(position, item.doc_id):
                            if self._drawing is None or place in self._drawing:
                                draws.skip(self._docs[place])
                        position = item.doc_id + 1
                        done.append(self._numbered(item, draws))
                except Exception as error:
                    failure = error
            yield from done
            if failure is not None:
                raise failure

    def _numbered(self, item: Item, draws: FewshotDraws) -> Rendered:
        try:
            return self._rendered(item, draws)
        except DatasetError as error:
            said = str(error).removeprefix(f"{self._where}: ")
            raise DatasetError(f"{self._where}: document {item.doc_id}: {said}") from error

    def _rendered(self, item: Item, draws: FewshotDraws) -> Rendered:
        doc = item.data
        examples = draws.examples(doc)
        if self._output_type == "loglikelihood_rolling":
            return self._rolling(item)
        turns = self._leading(doc, examples)
        if self._output_type == "multiple_choice" and self._lettering is not None:
            return self._lettered(item, turns, self._lettering)
        if self._output_type == "multiple_choice":
            return self._multiple_choice(item, turns)
        turns = [*turns, *self._question_turns(doc)]
        target = self._fields.target(doc)
        if self._output_type == "loglikelihood":
            text = self._text_target(target)
            return Rendered(
                item,
                "loglikelihood",
                [as_text(turns)],
                [text],
                references=[text],
                doc=doc,
                gold=(0,),
                choices=(text,),
            )
        shows = self._config.get("doc_to_image") is not None
        chat = bool(self._harness.get("apply_chat_template")) or shows
        prompt = self._chat_prompt(turns, self._images(item) if shows else ()) if chat else as_text(turns)
        choices = self._fields.choices(doc) if self._config.get("doc_to_choice") is not None else None
        processed = self._config.get("process_results") is not None
        references = references_of(target, choices, self._many_targets, processed)
        media = self._media.of([prompt]) if shows else ()
        return Rendered(
            item, "generate", [prompt], [""], references=references, doc=doc, chat=chat, media=media
        )

    def _images(self, item: Item) -> list[dict[str, Any]]:
        """The images of a document as parts of a message."""
        try:
            shown = self._fields.images(self._pictured(item.doc_id))
            return [self._media.part("image", image, "auto") for image in shown]
        except MediaError as error:
            raise DatasetError(f"{self._where}: {error}") from error

    def _rolling(self, item: Item) -> Rendered:
        text = self._text_target(self._fields.target(item.data))
        return Rendered(item, "rolling", [""], [text], references=[text], doc=item.data, choices=(text,))

    def _multiple_choice(self, item: Item, leading: list[PromptPart]) -> Rendered:
        doc = item.data
        choices = self._texts(self._fields.choices(doc))
        delimiter, target = self._delimiters.target, self._fields.target(doc)
        if self._many_inputs:
            prefix = self._fields.prefix(doc)
            contexts = [Question(choice, prefix=prefix) for choice in choices]
            prompts = [
                as_text([*leading, *example_turns(context, Delimiters("", ""))]) for context in contexts
            ]
            continuations = [f"{delimiter}{target}"] * len(choices)
            gold: Any = self._question(doc)
        else:
            prompts = [as_text([*leading, *self._question_turns(doc, choices)])] * len(choices)
            continuations = [delimiter + choice for choice in choices]
            gold = target
        unconditional = asks_unconditional(self._config)
        return Rendered(
            item, "loglikelihood", prompts, continuations, references=[target], doc=doc,
            gold=gold_indices(gold, choices), choices=choices,
            unconditional=[delimiter + choice for choice in choices] if unconditional else (),
        )  # fmt: skip

    def _lettered(self, item: Item, leading: list[PromptPart], lettering: Lettering) -> Rendered:
        """The choices with letters, one prompt for each order that they are shown in."""
        doc = item.data
        question, choices, gold = self._asked(doc)
        orders = lettering.orders(item.item_id, choices)
        chat = bool(self._harness.get("apply_chat_template"))
        prompts = []
        for order in orders:
            asked = Question(lettering.shown(question, choices, order), prefix=self._fields.prefix(doc))
            turns = [*leading, *example_turns(asked, self._delimiters)]
            prompts.append(self._chat_prompt(turns) if chat else as_text(turns))
        right = [choices[index] for index in gold if 0 <= index < len(choices)]
        return Rendered(
            item, "generate", prompts, [""], references=right, doc=doc, chat=chat, gold=gold,
            choices=choices, orders=orders,
        )  # fmt: skip

    def _asked(self, doc: Document) -> tuple[str, list[str], list[int]]:
        """Question, choices and right ones. Where the choices are contexts of one text, they are what can be
        chosen, each with that text."""
        choices = self._texts(self._fields.choices(doc))
        if not self._many_inputs:
            return str(self._question(doc)), choices, gold_indices(self._fields.target(doc), choices)
        target = self._fields.target(doc)
        whole = [join_texts(choice, str(target), self._delimiters.target) for choice in choices]
        return "", whole, gold_indices(self._question(doc), choices)

    def _leading(self, doc: Document, examples: list[Document]) -> list[PromptPart]:
        """System turn and few-shot turns: all that stands before the question."""
        description = self._fields.named(doc, self._config.get("description")) or ""
        system = join_texts(
            self._harness.get("system_instruction"),
            description,
            self._config.get("fewshot_delimiter", "\n\n"),
        )
        turns = [PromptPart("system", system)] if system else []
        for example in examples:
            turns += self._example(example)
        return turns

    def _example(self, doc: Document) -> list[PromptPart]:
        settings = self._fewshot
        question: Any = self._fields.text(doc, settings["doc_to_text"])
        has_choices = settings["doc_to_choice"] is not None
        choices = self._fields.choices(doc, settings["doc_to_choice"]) if has_choices else None
        if self._lettering is not None and choices is not None:
            return self._lettered_example(doc, self._lettering)
        if self._many_inputs and choices is not None:
            question, choices = choices[question], None
        example = Question(
            question, choices, self._fields.target(doc, settings["doc_to_target"]),
            self._fields.named(doc, settings["gen_prefix"]),
        )  # fmt: skip
        return example_turns(example, Delimiters(settings["target_delimiter"], settings["fewshot_delimiter"]))

    def _lettered_example(self, doc: Document, lettering: Lettering) -> list[PromptPart]:
        """An example with its choices in the document's order; its answer is the right one's letter."""
        settings = self._fewshot
        choices = self._texts(self._fields.choices(doc, settings["doc_to_choice"]))
        question: Any = self._fields.text(doc, settings["doc_to_text"])
        target = self._fields.target(doc, settings["doc_to_target"])
        gold = gold_indices(question if self._many_inputs else target, choices)
        if self._many_inputs:
            choices = [join_texts(choice, str(target), settings["target_delimiter"]) for choice in choices]
            question = ""
        right = next((index for index in gold if 0 <= index < len(choices)), None)
        if right is None:
            raise DatasetError(f"{self._where}: the few-shot example's target {target!r:.80} is no choice")
        answered = Question(
            lettering.solved(str(question), choices), answer=ascii_uppercase[right],
            prefix=self._fields.named(doc, settings["gen_prefix"]),
        )  # fmt: skip
        return example_turns(
            answered, Delimiters(settings["target_delimiter"], settings["fewshot_delimiter"])
        )

    def _question_turns(self, doc: Document, choices: list[str] | None = None) -> list[PromptPart]:
        return example_turns(
            Question(self._question(doc), choices, prefix=self._fields.prefix(doc)), self._delimiters
        )

    def _question(self, doc: Document) -> Any:
        return self._fields.text(doc)

    def _chat_prompt(self, turns: list[PromptPart], images: Sequence[dict[str, Any]] = ()) -> str:
        """The messages; images stand before the text of the last one, whose ``<image>`` marks stay, as in the
        harness's chat form."""
        multiturn = bool(self._harness.get("fewshot_as_multiturn", True))
        messages: list[dict[str, Any]] = [*as_messages(turns, multiturn)]
        if images:
            text = {"type": "text", "text": messages[-1]["content"]}
            messages[-1] = {**messages[-1], "content": [*images, text]}
        return chat_text(messages)

    def _text_target(self, target: Any) -> str:
        if not isinstance(target, str):
            raise DatasetError(
                f"{self._where}: doc_to_target gave {type(target).__name__} {target!r:.80}; expected text"
            )
        return target

    def _texts(self, choices: list[Any]) -> list[str]:
        for choice in choices:
            if not isinstance(choice, str):
                raise DatasetError(
                    f"{self._where}: a choice is {type(choice).__name__} {choice!r:.80}; expected text"
                )
        return choices

    def _fewshot_pool(self, splits: Splits) -> FewshotPool:
        number = self._config.get("num_fewshot") or 0
        # The harness compares the names of the splits: without either, both are None and equal.
        excludes = self._fewshot["split"] == self._config.get("test_split")
        docs = splits.fewshot() if number > 0 else []
        return FewshotPool(
            docs,
            number,
            self._fewshot.get("sampler") or "default",
            excludes,
            int(self._harness.get("fewshot_seed", 1234)),
        )
