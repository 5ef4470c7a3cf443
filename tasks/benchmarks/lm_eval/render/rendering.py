"""From a document to what is asked of a model, byte for byte as the harness asks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from metrics.types import IGNORED_TARGET
from tasks.benchmarks.lm_eval.data.splits import Splits, fewshot_settings
from tasks.benchmarks.lm_eval.render.fewshot import Draws, Pool
from tasks.benchmarks.lm_eval.render.fields import Fields
from tasks.benchmarks.records import Rendered
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item


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


def joined(before: str | None, after: str | None, delimiter: str = " ") -> str:
    """Both texts, the delimiter between them unless one has white space there already.

    >>> joined("Answer:", "42"), joined("Answer: ", "42"), joined(None, "42")
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
        turns.append(PromptPart("assistant", joined(prefix, _answer_text(example)), delimiters.example))
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


Doc = Mapping[str, Any]


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
        self._fields = Fields(config, splits.columns(), base_dir, self._where)
        self._output_type: str = config.get("output_type", "generate_until")
        self._fewshot = fewshot_settings(config)
        self._pool = self._make_pool(splits)
        self._delimiters = Delimiters(config.get("target_delimiter", " "), "")
        first = self._docs[0]
        chosen = config.get("doc_to_choice") is not None
        self._many_inputs = chosen and isinstance(self._question(first), int)
        self._many_targets = isinstance(self._fields.target(first), list)

    def rendered(self, items: Iterable[Item]) -> Iterator[Rendered]:
        """The requests of consecutive items, the first of which may stand anywhere in the dataset."""
        draws = self._pool.draws()
        position = 0
        for item in items:
            for doc in self._docs[position : item.doc_id]:
                draws.skip(doc)
            position = item.doc_id + 1
            try:
                yield self._rendered(item, draws)
            except DatasetError as error:
                raise DatasetError(f"document {item.doc_id}: {error}") from error

    def _rendered(self, item: Item, draws: Draws) -> Rendered:
        doc = item.data
        examples = draws.examples(doc)
        if self._output_type == "loglikelihood_rolling":
            return self._rolling(item)
        turns = self._leading(doc, examples)
        if self._output_type == "multiple_choice":
            return self._multiple_choice(item, turns)
        turns = [*turns, *self._asked(doc)]
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
        chat = bool(self._harness.get("apply_chat_template"))
        prompt = self._chat_prompt(turns) if chat else as_text(turns)
        choices = self._fields.choices(doc) if self._config.get("doc_to_choice") is not None else None
        processed = self._config.get("process_results") is not None
        references = references_of(target, choices, self._many_targets, processed)
        return Rendered(item, "generate", [prompt], [""], references=references, doc=doc, chat=chat)

    def _rolling(self, item: Item) -> Rendered:
        text = self._text_target(self._fields.target(item.data))
        return Rendered(item, "rolling", [""], [text], references=[text], doc=item.data, choices=(text,))

    def _multiple_choice(self, item: Item, leading: list[PromptPart]) -> Rendered:
        doc = item.data
        choices = self._texts(self._fields.choices(doc))
        delimiter = self._delimiters.target
        if self._many_inputs:
            prefix = self._fields.prefix(doc)
            contexts = [Question(choice, prefix=prefix) for choice in choices]
            prompts = [
                as_text([*leading, *example_turns(context, Delimiters("", ""))]) for context in contexts
            ]
            continuations = [f"{delimiter}{self._fields.target(doc)}"] * len(choices)
            gold: Any = self._question(doc)
        else:
            prompts = [as_text([*leading, *self._asked(doc, choices)])] * len(choices)
            continuations = [delimiter + choice for choice in choices]
            gold = self._fields.target(doc)
        asks = any(
            entry.get("metric") == "acc_mutual_info" for entry in self._config.get("metric_list") or ()
        )
        return Rendered(
            item, "loglikelihood", prompts, continuations, references=[gold], doc=doc,
            gold=gold_indices(gold, choices), choices=choices,
            unconditional=[delimiter + choice for choice in choices] if asks else (),
        )  # fmt: skip

    def _leading(self, doc: Doc, examples: list[Doc]) -> list[PromptPart]:
        """System turn and few-shot turns: all that stands before the question."""
        description = self._fields.named(doc, self._config.get("description")) or ""
        system = joined(
            self._harness.get("system_instruction"),
            description,
            self._config.get("fewshot_delimiter", "\n\n"),
        )
        turns = [PromptPart("system", system)] if system else []
        for example in examples:
            turns += self._example(example)
        return turns

    def _example(self, doc: Doc) -> list[PromptPart]:
        settings = self._fewshot
        question: Any = self._fields.text(doc, settings["doc_to_text"])
        has_choices = settings["doc_to_choice"] is not None
        choices = self._fields.choices(doc, settings["doc_to_choice"]) if has_choices else None
        if self._many_inputs and choices is not None:
            question, choices = choices[question], None
        example = Question(
            question, choices, self._fields.target(doc, settings["doc_to_target"]),
            self._fields.named(doc, settings["gen_prefix"]),
        )  # fmt: skip
        return example_turns(example, Delimiters(settings["target_delimiter"], settings["fewshot_delimiter"]))

    def _asked(self, doc: Doc, choices: list[str] | None = None) -> list[PromptPart]:
        return example_turns(
            Question(self._question(doc), choices, prefix=self._fields.prefix(doc)), self._delimiters
        )

    def _question(self, doc: Doc) -> Any:
        return self._fields.text(doc)

    def _chat_prompt(self, turns: list[PromptPart]) -> str:
        multiturn = bool(self._harness.get("fewshot_as_multiturn", True))
        return orjson.dumps(as_messages(turns, multiturn)).decode()

    def _text_target(self, target: Any) -> str:
        if not isinstance(target, str):
            raise DatasetError(
                f"{self._where}: doc_to_target gave {type(target).__name__} {target!r:.80}; text is due"
            )
        return target

    def _texts(self, choices: list[Any]) -> list[str]:
        for choice in choices:
            if not isinstance(choice, str):
                raise DatasetError(
                    f"{self._where}: a choice is {type(choice).__name__} {choice!r:.80}; text is due"
                )
        return choices

    def _make_pool(self, splits: Splits) -> Pool:
        number = self._config.get("num_fewshot") or 0
        # The harness compares the names of the splits: without either, both are None and equal.
        excludes = self._fewshot["split"] == self._config.get("test_split")
        docs = splits.fewshot() if number > 0 else []
        return Pool(
            docs,
            number,
            self._fewshot.get("sampler") or "default",
            excludes,
            int(self._harness.get("fewshot_seed", 1234)),
        )


def references_of(target: Any, choices: Sequence[Any] | None, many: bool, processed: bool) -> list[Any]:
    """Acceptable answers as texts. With choices the target is an index; ``processed`` ones stay what they
    are.

    >>> references_of(1, ["yes", "no"], many=False, processed=False)
    ['no']
    """
    if processed:
        return list(target) if isinstance(target, list) else [target]
    if choices is not None:
        try:
            return [str(choices[target])]
        except (TypeError, IndexError) as error:
            raise DatasetError(
                f"the target {target!r:.80} is no index of the {len(choices)} choices"
            ) from error
    if many:
        return [str(answer) for answer in target] if isinstance(target, list) else [str(target)]
    return [str(target)]


def gold_indices(gold: Any, choices: Sequence[str]) -> list[int]:
    """Right choices: an index, a choice's text, or a list of indices. -100 for one that is not there, as in
    the harness."""
    if isinstance(gold, list):
        return [_index(entry, choices) for entry in gold]
    return [_index(gold, choices)]


def _index(gold: Any, choices: Sequence[str]) -> int:
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else IGNORED_TARGET
    if isinstance(gold, int | float) and gold == int(gold):
        return int(gold) if gold < len(choices) else IGNORED_TARGET
    return IGNORED_TARGET
