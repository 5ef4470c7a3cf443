"""Which solved examples stand before a question: a draw that no limit, shard or order of the dataset can
change.
"""

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metrics.errors import ConfigError
from tasks.benchmarks.config import BenchmarkFields, FewshotConfig
from tasks.benchmarks.records import Item
from tasks.datasets import DatasetConfig, dataset_digest, open_dataset
from tasks.store.keys import digest

POOL_LIMIT = 10_000  # examples kept in memory; of more, those with the smallest digests, whatever their order


@dataclass(frozen=True)
class Example:
    """A candidate: the item and the digest of its content, by which an item recognises itself."""

    item: Item
    digest: str


class Fewshot:
    """The examples of a benchmark. The pool is the whole file, however few of the items are evaluated."""

    def __init__(self, fields: BenchmarkFields, config: FewshotConfig) -> None:
        self._fields = fields
        self._config = config
        self._pool: tuple[Example, ...] | None = None

    def draw(self, item: Item) -> Sequence[Example]:
        """The examples of one item, never itself; raises ConfigError if there are too few.

        The random draw depends on the seed, the item's id and the pool's content only.
        """
        if self._config.count() == 0:
            return ()
        if self._pool is None:
            self._pool = self._load()
        own = self._content(item)
        if self._config.sampler == "first_n" or self._config.examples is not None:
            found = [example for example in self._pool if example.digest != own][: self._config.count()]
        else:
            found = self._sample(self._pool, item.item_id, own)
        if len(found) < self._config.count() and self._config.examples is None:
            raise ConfigError(
                f"fewshot.num is {self._config.count()}, but {self._source().describe()} has only "
                f"{len(found)} examples besides item '{item.item_id}'"
            )
        return found

    def digest(self) -> str:
        """Digest of everything that decides a draw."""
        if self._config.examples is not None:
            return digest(self._config)
        source = dataset_digest(self._source(), self._fields.base_dir)
        return digest({"config": self._config.model_copy(update={"path": None}), "source": source})

    def _sample(self, pool: Sequence[Example], item_id: str, own: str) -> list[Example]:
        """Draws without replacement by hashing a counter: the same on every Python version and machine."""
        found: dict[int, Example] = {}
        wanted = min(
            self._config.count(), sum(example.digest != own for example in pool[: self._config.count() + 1])
        )
        counter = 0
        while len(found) < wanted:
            text = f"{self._config.seed}\0{item_id}\0{counter}".encode()
            index = int.from_bytes(hashlib.sha256(text).digest()[:8]) % len(pool)
            counter += 1
            if pool[index].digest != own:
                found.setdefault(index, pool[index])
        return list(found.values())

    def _source(self) -> DatasetConfig:
        assert self._fields.dataset is not None
        if self._config.path is None:
            return self._fields.dataset
        return DatasetConfig(path=self._config.path, ground_truth=self._fields.dataset.ground_truth)

    def _load(self) -> tuple[Example, ...]:
        if self._config.examples is not None:
            return tuple(self._fixed(self._config))
        examples = (self._example(item) for item in open_dataset(self._source(), self._fields.base_dir))
        if self._config.sampler == "first_n":
            # One more than asked for: an item that is among them leaves itself out.
            return tuple(example for example, _ in zip(examples, range(self._config.num + 1), strict=False))
        # Sorted by content and free of doubles, so that the draw does not hang on the file's order.
        smallest = heapq.nsmallest(POOL_LIMIT, examples, key=lambda example: example.digest)
        return tuple({example.digest: example for example in smallest}.values())

    def _fixed(self, config: FewshotConfig) -> Iterator[Example]:
        named = self._fields.dataset.ground_truth if self._fields.dataset is not None else None
        for index, row in enumerate(config.examples or ()):
            yield self._example(
                Item(f"fewshot.examples.{index}", index, row, row.get(named or "ground_truth"))
            )

    def _example(self, item: Item) -> Example:
        return Example(item, self._content(item))

    def _content(self, item: Item) -> str:
        """Digest of an item without its id: two files may hold the same question under two ids."""
        own = self._fields.dataset.id if self._fields.dataset is not None else None
        data = {name: value for name, value in item.data.items() if name not in ("id", own)}
        return digest({"data": data, "ground_truth": item.ground_truth})
