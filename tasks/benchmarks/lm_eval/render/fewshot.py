"""Few-shot examples drawn as the harness draws them, so that prompts are the very same.

Its default sampler draws for one document after the other from one generator: the draw for a document depends
on how many came before, and where documents repeat, on what they were. A part of the dataset therefore
replays the draws of all documents before it. ``per_item`` draws from a generator of the document's own
instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

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
