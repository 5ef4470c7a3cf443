"""The prompt: examples drawn and turns put together as lm-evaluation-harness does it, byte for byte.

Its default sampler draws examples for one document after the other from one generator: the draw for a
document depends on how many came before, and where documents repeat, on what they were. A part of the
dataset therefore replays the draws of all documents before it. ``per_item`` draws from a generator of the
document's own instead.

``example_turns`` makes turns of a question and its answer; ``as_text`` joins turns with delimiters for a
completion, ``as_messages`` makes chat messages of them without. ``HarnessBenchmark`` asks for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from tasks.benchmarks.lm_eval.data.items import Document
from tasks.datasets.config import DatasetError
from tasks.store.keys import digest

Sampler = Literal["default", "first_n", "per_item"]


@dataclass(frozen=True)
class FewshotPool:
    """What examples are drawn from, and how.

    ``excludes``: examples equal to the document at hand are left out, because both come from the same split.
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
