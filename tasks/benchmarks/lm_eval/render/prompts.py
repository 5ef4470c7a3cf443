"""The prompt: turns put together as lm-evaluation-harness joins them, byte for byte.

``example_turns`` makes turns of a question and its answer; ``as_text`` joins turns with delimiters for a
completion, ``as_messages`` makes chat messages of them without. ``HarnessBenchmark`` asks for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.datasets.config import DatasetError


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
