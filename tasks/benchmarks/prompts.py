"""Prompts: a template, examples and system text put together as one text or as chat messages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from tasks.benchmarks.fewshot import Example
from tasks.benchmarks.records import Item
from tasks.benchmarks.templates import Template

Turn = tuple[str, str]  # role, content


@dataclass(frozen=True)
class Prompt:
    """A compiled prompt: a text template, or chat turns of role and template."""

    name: str
    template: Template | None
    turns: tuple[tuple[str, Template], ...] = ()


@dataclass(frozen=True)
class Layout:
    """How the parts of a prompt are put together.

    ``chat``: messages instead of a text. ``as_turns``: an example is a user's and an assistant's turn.
    ``answer`` is an example's answer as text.
    """

    answer: Callable[[Item], str]
    chat: bool = False
    as_turns: bool = False
    system: Template | None = None
    gen_prefix: Template | None = None
    target_delimiter: str = " "
    example_delimiter: str = "\n\n"
    solved: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # examples rendered before, by prompt and digest


def render_prompt(prompt: Prompt, layout: Layout, item: Item, examples: Sequence[Example]) -> str:
    """The text of the prompt, or the JSON text of its messages."""
    if layout.chat:
        turns = [
            {"role": role, "content": content} for role, content in _turns(prompt, layout, item, examples)
        ]
        return orjson.dumps(turns).decode()
    text = _with_examples(prompt, layout, item, examples)
    if layout.system is not None:
        text = layout.system.text(item) + layout.example_delimiter + text
    return _joined(text, _prefix(layout, item), layout.target_delimiter)


def after(text: str, answer: str, delimiter: str) -> str:
    """``answer`` with the delimiter before it that it needs behind ``text``: none where there is white
    space already.
    """
    return (
        answer if not text or not answer or text[-1].isspace() or answer[0].isspace() else delimiter + answer
    )


def _joined(text: str, answer: str, delimiter: str) -> str:
    return text + after(text, answer, delimiter)


def _prefix(layout: Layout, item: Item) -> str:
    return layout.gen_prefix.text(item) if layout.gen_prefix is not None else ""


def _with_examples(prompt: Prompt, layout: Layout, item: Item, examples: Sequence[Example]) -> str:
    parts = [*(_solved(prompt, layout, example) for example in examples), _question(prompt, item)]
    return layout.example_delimiter.join(parts)


def _question(prompt: Prompt, item: Item) -> str:
    if prompt.template is not None:
        return prompt.template.text(item)
    return "\n".join(
        template.text(item) for role, template in prompt.turns if role not in ("system", "developer")
    )


def _solved(prompt: Prompt, layout: Layout, example: Example) -> str:
    key = (prompt.name, example.digest)
    if key not in layout.solved:
        question = _question(prompt, example.item)
        layout.solved[key] = _joined(question, _answer(layout, example.item), layout.target_delimiter)
    return layout.solved[key]


def _answer(layout: Layout, item: Item) -> str:
    return _joined(_prefix(layout, item), layout.answer(item), layout.target_delimiter)


def _turns(prompt: Prompt, layout: Layout, item: Item, examples: Sequence[Example]) -> Iterator[Turn]:
    if layout.system is not None:
        yield "system", layout.system.text(item)
    own = list(_own_turns(prompt, item))
    first_user = next(
        (index for index, (role, _) in enumerate(own) if role not in ("system", "developer")), len(own)
    )
    yield from own[:first_user]
    if layout.as_turns:
        for example in examples:
            yield from (
                turn for turn in _own_turns(prompt, example.item) if turn[0] not in ("system", "developer")
            )
            yield "assistant", _answer(layout, example.item)
    elif examples and own[first_user:]:
        role, content = own[first_user]
        solved = [_solved(prompt, layout, example) for example in examples]
        own[first_user] = (role, layout.example_delimiter.join([*solved, content]))
    yield from own[first_user:]
    if prefix := _prefix(layout, item):
        yield "assistant", prefix


def _own_turns(prompt: Prompt, item: Item) -> Iterator[Turn]:
    if prompt.template is not None:
        yield "user", prompt.template.text(item)
    for role, template in prompt.turns:
        yield role, template.text(item)
