"""Multiple choice by asking: the choices with letters under the question, in the order of the item and in
others.

``Lettering`` is what a benchmark renders its questions with; native ones and those of lm-evaluation-harness
use the same. Which choice stood where goes along with the requests (``Rendered.orders``).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from tasks.benchmarks.config import ChoicesBy
from tasks.datasets.config import DatasetError

LIST: Final = (
    "{% if not listed %}{% for choice in choices %}{{ letters[loop.index0] }}. {{ choice }}\n{% endfor %}"
    "{% endif %}"
)
CHAT_TEMPLATE: Final = (
    "{{ question }}\n\n" + LIST + "{% if not listed %}\n{% endif %}"
    "Reply with the letter of the right choice alone."
)
"""What a chat model is asked by default: the question, the choices, and how to reply."""
TEXT_TEMPLATE: Final = "{{ question }}\n" + LIST + "{{ cue or 'Answer:' }}"
"""What a completion begins with by default: the question, the choices, and the question's own cue."""
_ENVIRONMENT: Final = SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)
_CUE: Final = re.compile(r"\n[ \t]*((?:[^\s:]+[ \t]+){0,2}[^\s:]+:)[ \t]*\Z")


@dataclass(frozen=True)
class Lettering:
    """How the choices of a benchmark are shown; ``template`` renders question, choices, letters, cue and
    ``listed``.

    ``permutations`` orders of the choices are asked about, the first the item's own.
    """

    template: str
    permutations: int = 1
    seed: int = 1234

    @classmethod
    def of(cls, config: ChoicesBy | None) -> "Lettering | None":
        """The lettering of a config; None where choices are not asked by letters."""
        if config is None or config.ask == "likelihood":
            return None
        return cls(config.template or CHAT_TEMPLATE, config.permutations or 1, config.seed)

    def shown(self, question: str, choices: Sequence[str], order: Sequence[int]) -> str:
        """The question with the choices in this order under it.

        Where the choices are the letters themselves, the question lists them already, and they are not
        repeated. A last line that is only a cue, as "Answer:", is given to the template apart. Raises
        DatasetError for more choices than there are letters.
        """
        return _filled(self.template, question, [choices[place] for place in order])

    def solved(self, question: str, choices: Sequence[str]) -> str:
        """A few-shot example up to its answer, which is a letter."""
        return _filled(TEXT_TEMPLATE, question, choices)

    def orders(self, item: str, choices: Sequence[str]) -> list[list[int]]:
        """Which choice stands at each position, once for each order that is asked about; ``item`` and the
        seed decide the draw.

        The first is the item's own. Within as many orders as there are choices each one stands once at every
        position. Choices that are the letters themselves have one order.
        """
        n = len(choices)
        if is_listed(choices) or self.permutations == 1:
            return [list(range(n))]
        found: list[list[int]] = []
        for block in range(-(-self.permutations // max(n, 1))):
            base = list(range(n)) if block == 0 else _shuffled(n, f"{self.seed}\0{item}\0{block}")
            turns = [0, *(turn + 1 for turn in _shuffled(n - 1, f"{self.seed}\0{item}\0{block}\0turns"))]
            found += [base[turn:] + base[:turn] for turn in turns]
        return found[: self.permutations]


def is_listed(choices: Sequence[str]) -> bool:
    """Whether the choices are letters, so that the question itself has to say what they stand for.

    >>> is_listed(["A", "B"]), is_listed([" (A)", " (B)"]), is_listed(["yes", "no"])
    (True, True, False)
    """
    bare = [choice.strip(" \t\n().:") for choice in choices]
    return len(bare) > 1 and bare == list(ascii_uppercase[: len(bare)])


def split_cue(text: str) -> tuple[str, str]:
    """A question without the line at its end that only asks for the answer, and that line.

    >>> split_cue("Question: why?\\nAnswer:"), split_cue("Why?")
    (('Question: why?', 'Answer:'), ('Why?', ''))
    """
    found = _CUE.search(text)
    return (text[: found.start()].rstrip(), found[1]) if found else (text.rstrip(), "")


def _filled(template: str, question: str, choices: Sequence[str]) -> str:
    if len(choices) > len(ascii_uppercase):
        raise DatasetError(
            f"there are {len(choices)} choices, and {len(ascii_uppercase)} letters; choices_by: likelihood "
            "has no such limit"
        )
    bare, cue = split_cue(question)
    variables: Mapping[str, Any] = {
        "question": bare,
        "cue": cue,
        "choices": [choice.strip() for choice in choices],
        "letters": list(ascii_uppercase[: len(choices)]),
        "listed": is_listed(choices),
    }
    try:
        return _ENVIRONMENT.from_string(template).render(**variables).lstrip("\n")
    except Exception as error:
        raise DatasetError(f"choices_by.template: {type(error).__name__}: {error}") from error


def _shuffled(n: int, name: str) -> list[int]:
    """0 to n − 1 in an order that the name decides, the same on every machine."""
    drawn = [(hashlib.sha256(f"{name}\0{number}".encode()).digest(), number) for number in range(n)]
    return [number for _, number in sorted(drawn)]
