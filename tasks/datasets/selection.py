"""Which items of a dataset a run takes: some positions, a random sample, the first ones or any.

They keep the dataset's order, in which all stages go through them, unless a run that may stop early asks them
in a random one.

Random choices depend on a seed and the items' ids alone: a sample of 100 lies within the sample of 200 of the
same seed, and an item that is added to the dataset displaces one other at most.
"""

import heapq
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice, pairwise
from operator import itemgetter
from typing import Final

from pydantic import Field, field_validator

from metrics.config import Strict
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item, item_digest
from tasks.store.keys import digest

_RANDOM: Final = re.compile(r"random:(\d+)(?:@(-?\d+))?")
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
EXPECTED: Final = "positions counted from 0 such as 7,9,100-120, or random:NUMBER such as random:200@1"


class Selection(Strict):
    """First ``samples`` choose, then ``limit`` takes the first of what is left, with ``shuffle`` any."""

    samples: str | None = Field(None, description=f"Which items: {EXPECTED} (the number after @ is the seed)")
    shuffle: bool = Field(False, description="limit takes random items, always the same ones")
    limit: int | None = Field(None, ge=1, description="Only the first items")
    order: int | None = Field(None, description="Seed of a random order; without it, that of the dataset")
    blocks: int = Field(1, ge=1, description="Parts of a random order; each has the dataset's order within")

    @field_validator("samples")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is None:
            return None
        drawn = _RANDOM.fullmatch(value.strip())
        if drawn is not None:
            if int(drawn[1]) < 1:
                raise ValueError(f"'{value}': expected at least one item")
            return value.strip()
        if not value.strip() or any(not _positions(part) for part in value.split(",")):
            raise ValueError(f"'{value}': expected {EXPECTED}")
        return value.strip()

    @property
    def chooses(self) -> bool:
        """Whether it may leave items out."""
        return self.limit is not None or self.samples is not None

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        """The chosen items; raises DatasetError for a position that the dataset does not have."""
        chosen = self._chosen(items)
        return chosen if self.order is None else _in_blocks(chosen, self.order, self.blocks)

    def _chosen(self, items: Iterable[Item]) -> Iterator[Item]:
        chosen: Iterable[Item] = items
        if self.samples is not None:
            drawn = _RANDOM.fullmatch(self.samples)
            if drawn is not None:
                chosen = _drawn(items, int(drawn[1]), int(drawn[2] or 0))
            else:
                chosen = _at(items, self.samples)
        if self.shuffle and self.limit is not None:
            return _drawn(chosen, self.limit, 0)
        return islice(chosen, self.limit)

    def identity(self) -> dict[str, object]:
        """What of it decides the items."""
        return {
            "limit": self.limit,
            **({"samples": self.samples} if self.samples is not None else {}),
            **({"shuffle": True} if self.shuffle and self.limit is not None else {}),
            **({"order": self.order, "blocks": self.blocks} if self.order is not None else {}),
        }


@lru_cache(maxsize=1 << 18)
def place_in_order(seed: int, unit: str) -> str:
    """Where a unit stands in the random order of a seed: places sort as text. A unit is a cluster, whose
    items stay together, or the digest of an item without one, so that the order depends on nothing else."""
    return digest([seed, unit])


def unit_of(cluster: str | None, item_digest: str) -> str:
    """What places an item in a random order."""
    return item_digest if cluster is None else cluster


def cut(items: int, blocks: int) -> list[int]:
    """Where so many blocks of so many items begin, and where the last ends; no block is empty."""
    blocks = min(blocks, max(items, 1))
    return [items * block // blocks for block in range(blocks + 1)]


def _in_blocks(items: Iterable[Item], seed: int, blocks: int) -> Iterator[Item]:
    placed = (
        (place_in_order(seed, unit_of(item.cluster, item_digest(item))), item.doc_id, item) for item in items
    )
    ordered = [item for *_, item in sorted(placed, key=itemgetter(0, 1))]
    for start, stop in pairwise(cut(len(ordered), blocks)):
        yield from sorted(ordered[start:stop], key=lambda item: item.doc_id)


def _positions(part: str) -> range:
    """The positions of "7" or "100-120"; none where it is neither."""
    found = _RANGE.fullmatch(part.strip())
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)


def _place(item: Item, seed: int) -> str:
    return digest([seed, item.item_id])


def _drawn(items: Iterable[Item], number: int, seed: int) -> Iterator[Item]:
    """The items with the smallest digests, in the order of the dataset; all where there are not so many."""
    smallest = heapq.nsmallest(number, ((_place(item, seed), item.doc_id, item) for item in items))
    return iter(sorted((item for _, _, item in smallest), key=lambda item: item.doc_id))


def _at(items: Iterable[Item], text: str) -> Iterator[Item]:
    ranges = sorted(
        ((_positions(part), part.strip()) for part in text.split(",")), key=lambda one: one[0].start
    )
    end = max(positions.stop for positions, _ in ranges)
    count = begun = reached = 0
    for count, item in enumerate(items, start=1):
        while begun < len(ranges) and ranges[begun][0].start < count:
            reached = max(reached, ranges[begun][0].stop)
            begun += 1
        if count <= reached:
            yield item
        if count >= end:
            return
    beyond = next(part for positions, part in ranges if positions.stop > count)
    raise DatasetError(f"--samples {beyond}: the dataset has {count} items, at positions 0 to {count - 1}")
