"""A definition of lm-evaluation-harness as a benchmark: items, and requests as the harness makes them.

``HarnessBenchmark`` holds to the protocol of ``benchmarks.records``; ``Prompter`` makes of each document what
is asked of a model and what is right. ``benchmarks.open`` makes it of a translated config.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from metrics.errors import ConfigError
from tasks.benchmarks.config import DEFAULT_PROMPT
from tasks.benchmarks.lm_eval.data.items import Document, document_items
from tasks.benchmarks.lm_eval.data.splits import Splits, fewshot_settings
from tasks.benchmarks.lm_eval.read.yaml import decoded, functions_in
from tasks.benchmarks.lm_eval.render.fewshot import FewshotDraws, FewshotPool
from tasks.benchmarks.lm_eval.render.fields import Fields, asks_unconditional, gold_indices, references_of
from tasks.benchmarks.lm_eval.render.prompts import (
    Delimiters,
    PromptPart,
    Question,
    as_messages,
    as_text,
    example_turns,
    join_texts,
)
from tasks.benchmarks.records import Rendered
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item
from tasks.datasets.items import Cluster
from tasks.store.fingerprint import Sources, sources_of
from tasks.store.keys import digest
from tasks.usercode.load import load_function

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
        if self._config.get("unsafe_code") and not harness.get("allow_unsafe_code"):
            raise ConfigError(
                f"{self._where} runs code that the model writes (unsafe_code); allow it with "
                "--set harness.allow_unsafe_code=true on a machine that it can't harm"
            )
        if (
            harness.get("apply_chat_template")
            and self._config.get("output_type", "generate_until") != "generate_until"
        ):
            raise ConfigError(
                f"{self._where}: output_type {self._config['output_type']} asks for log-likelihoods, which "
                "chat endpoints don't give; use api: completions"
            )
        self._splits = Splits(self._config, self._base_dir, self._where, tokenizer=harness.get("tokenizer"))

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
        }

    def _code(self, value: Any) -> Sources:
        return sources_of(*(load_function(name, self._base_dir) for name in sorted(set(functions_in(value)))))


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
        self._output_type: str = config.get("output_type", "generate_until")
        self._fewshot = fewshot_settings(config)
        self._pool = self._fewshot_pool(splits)
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

    def _rendered(self, item: Item, draws: FewshotDraws) -> Rendered:
        doc = item.data
        examples = draws.examples(doc)
        if self._output_type == "loglikelihood_rolling":
            return self._rolling(item)
        turns = self._leading(doc, examples)
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
            prompts = [as_text([*leading, *self._question_turns(doc, choices)])] * len(choices)
            continuations = [delimiter + choice for choice in choices]
            gold = self._fields.target(doc)
        unconditional = asks_unconditional(self._config)
        return Rendered(
            item, "loglikelihood", prompts, continuations, references=[gold], doc=doc,
            gold=gold_indices(gold, choices), choices=choices,
            unconditional=[delimiter + choice for choice in choices] if unconditional else (),
        )  # fmt: skip

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
        if self._many_inputs and choices is not None:
            question, choices = choices[question], None
        example = Question(
            question, choices, self._fields.target(doc, settings["doc_to_target"]),
            self._fields.named(doc, settings["gen_prefix"]),
        )  # fmt: skip
        return example_turns(example, Delimiters(settings["target_delimiter"], settings["fewshot_delimiter"]))

    def _question_turns(self, doc: Document, choices: list[str] | None = None) -> list[PromptPart]:
        return example_turns(
            Question(self._question(doc), choices, prefix=self._fields.prefix(doc)), self._delimiters
        )

    def _question(self, doc: Document) -> Any:
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
