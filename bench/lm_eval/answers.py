"""What the server of ``made`` says: words of the document asked about, in the forms that filters look for.

One sentence for everything would make every score 0, and equal whatever is wrong. An answer depends on the
prompt alone, so that both programs are given the same.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tasks.benchmarks.lm_eval.documents import render_template

KEY = 8
"""Characters of a text by which a prompt is recognised, at least."""
RIGHT = 0.6
"""How often what is said is the right answer, in whatever form."""
FORMS = (
    "{0}", "{0}", "{0}", " {0}", "{0}.", "The answer is {0}.", "The answer is ({1}).", "the answer is {1}",
    "({1})", "{1}", "{1}. {0}", "Answer: {0}\n\nQuestion: {2}?", "#### {3}", "So it is $\\boxed{{{3}}}$.",
    "Final Answer: The final answer is ${3}$. I hope it is correct.", '{{"answer": "{0}"}}', "{3}",
    "{2}\n{0}", "PERSON: {2} $ LOCATION: {0}", "**{0}**", "Yes", "No, {0}", "<answer>{0}</answer>",
    "[[{1}]] {2}", "",
)  # fmt: skip
"""0: a text of the document, 1: a letter, 2: another of its texts, 3: a number."""


@dataclass(frozen=True)
class Document:
    """What is known of a row: all its texts, and the right answer (its own, where that can't be told)."""

    texts: tuple[str, ...]
    target: str

    @classmethod
    def of(cls, row: Mapping[str, Any], target: object) -> "Document":
        """``target`` is the definition's ``doc_to_target``: a column, a template, or something else."""
        texts = tuple(dict.fromkeys(_texts(row))) or ("dusk",)
        right: object = None
        if isinstance(target, str):
            with suppress(Exception):  # a template of columns that ``process_docs`` makes
                right = row[target] if target in row else render_template(target, row)
        return cls(texts, str(right[0] if isinstance(right, list) and right else right or texts[-1]))


class Answers:
    """Answers from the documents of many benchmarks."""

    def __init__(self, documents: Iterable[Document]) -> None:
        keyed = [(max(one.texts, key=len), one) for one in documents]
        self._keys = sorted(keyed, key=lambda pair: (pair[0], pair[1].texts, pair[1].target))

    def __call__(self, prompt: str, *_: object) -> str:
        """The answer to a prompt: of the document whose longest text stands last in it."""
        draw = random.Random(f"answer\0{prompt}")
        found = [(prompt.rfind(key), one) for key, one in self._keys if len(key) >= KEY]
        last = max((place for place, _ in found), default=-1)
        document = next((one for place, one in found if place == last >= 0), Document(("dusk",), "heath"))
        said = document.target if draw.random() < RIGHT else draw.choice(document.texts)
        return draw.choice(FORMS).format(
            said, draw.choice("ABCD"), draw.choice(document.texts), _number([said, *document.texts], draw)
        )


def _texts(value: Any) -> Iterator[str]:
    """Every text and number in a row, however deep."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
        if value[:1] in "{[":
            try:
                yield from _texts(json.loads(value))
            except ValueError:
                return
    elif isinstance(value, int | float):
        yield str(value)


def _number(texts: Sequence[str], draw: random.Random) -> str:
    """A number of the document, else any."""
    words = [word.strip("$.,{}()\\") for text in texts for word in text.replace("{", " ").split()]
    numbers = [word for word in words if word.lstrip("-").replace(".", "", 1).isdecimal()]
    return draw.choice(numbers) if numbers else str(draw.randrange(100))
