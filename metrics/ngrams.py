"""Matching n-grams of many documents at once, exactly, and without sorting them.

Two n-grams are alike if their first n - 1 tokens are and their last ones. So every place of the texts gets,
order by order, the number of the n-gram that begins there, made of the number of the one a token shorter and
of the last token's. A number is a place at which the same n-gram stands: all places are written into a table,
each where its n-gram belongs, and which of them stayed is read back. The matches of an n-gram are the smaller
of the hypothesis's count and the largest count of a reference; what has none is not followed to longer ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from metrics.ragged import offsets_of, taken_rows
from metrics.types import Floats, Ints

_BLOCK = 1 << 14  # tokens counted at once: what is worked out for them stays in the processor's cache
_FIBONACCI = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio: its products differ in the upper bits


@dataclass(frozen=True)
class Sequences:
    """Token numbers, 0 and above, in one flat array, sequence after sequence.

    ``lengths``, ``documents`` and ``sides`` (s,) describe the sequences in order: how many tokens, of which
    of the ``n`` documents (ascending), and whose they are (0 the hypothesis, 1 … the references).
    """

    tokens: Ints  # (t,)
    lengths: Ints
    documents: Ints
    sides: Ints
    n: int

    @cached_property
    def blocks(self) -> tuple["Block", ...]:
        """The same in parts of whole documents, in order; every document is in one of them."""
        return tuple(self._cut())

    def _cut(self) -> Iterator["Block"]:
        ends = offsets_of(self.lengths)
        owned = offsets_of(np.bincount(self.documents, minlength=self.n))  # sequences of each document
        cuts = [0, *(np.flatnonzero(np.diff(ends[owned[:-1]] // _BLOCK)) + 1).tolist(), self.n]
        for first, last in pairwise(cuts):
            own = np.arange(owned[first], owned[last])
            own = own[np.argsort(self.sides[own], kind="stable")]
            tokens, documents = taken_rows(self.tokens, ends, own), self.documents[own] - first
            yield _block(tokens, self.lengths[own], documents, self.sides[own], last - first)


@dataclass(frozen=True)
class Block:
    """Sequences of some documents, those of side 0 first, then those of side 1 and so on.

    Every token is told by a place of its document at which the same one stands. A sequence ends in one that
    no other side has, so that an n-gram beyond its end has no match.
    """

    words: Ints  # (t,)
    starts: Ints  # (s + 1,) of the sequences
    sides: Ints  # (sides + 1,) places at which a side's sequences start
    documents: Ints  # (s,)
    n: int


def _block(tokens: Ints, lengths: Ints, documents: Ints, sides: Ints, n: int) -> Block:
    keys = np.repeat(documents, lengths) * (int(tokens.max(initial=0)) + 1) + tokens
    starts = offsets_of(lengths + 1)
    side_starts = starts[np.searchsorted(sides, np.arange(max(sides.max(initial=0), 1) + 2))]
    return Block(alike(np.insert(keys, np.cumsum(lengths), -1 - sides)), starts, side_starts, documents, n)


def matches(sequences: Sequences, order: int) -> Floats:
    """Matching n-grams of the orders 1 … ``order`` of each document (n, order)."""
    return np.concatenate([np.empty((0, order)), *(_matches(block, order) for block in sequences.blocks)])


def possible(lengths: Ints, order: int) -> Floats:
    """How many n-grams of each order sequences of these lengths have (s, order)."""
    return np.asarray(np.maximum(lengths[:, None] - np.arange(order), 0), dtype=np.float64)


def _matches(block: Block, order: int) -> Floats:
    counted = np.zeros((block.n, order))
    places, numbers = np.arange(len(block.words)), block.words
    for n in range(1, order + 1):
        common = shared(numbers, np.searchsorted(places, block.sides))
        sums = np.diff(offsets_of(common)[np.searchsorted(places, block.starts)])
        counted[:, n - 1] = np.bincount(block.documents, sums, minlength=block.n)
        going = np.flatnonzero(common[numbers])
        if n == order or not len(going):
            break
        places = places[going]
        numbers = alike(numbers[going] * len(block.words) + block.words[places + n])
    return counted


def shared(numbers: Ints, sides: Ints) -> Ints:
    """Matches (t,) of the numbers 0 … t - 1: the smaller of the hypothesis's count and a reference's largest.

    ``numbers`` (t,) are those that occur, side after side; ``sides`` says where each one's start.
    """
    own, best, *others = (np.bincount(numbers[a:b], minlength=len(numbers)) for a, b in pairwise(sides))
    for other in others:
        best = np.maximum(best, other)
    return np.minimum(own, best)


def alike(keys: Ints, multiplier: int = _FIBONACCI) -> Ints:
    """For each 64-bit key (t,) a place at which it stands, the same place for all that are equal.

    >>> alike(np.array([7, 9, 7])).tolist() in ([0, 1, 0], [2, 1, 2])
    True
    """
    bits = (2 * len(keys)).bit_length()
    slots = ((keys.view(np.uint64) * np.uint64(multiplier)) >> np.uint64(64 - bits)).view(np.int64)
    table = np.empty(1 << bits, dtype=np.int32)
    table[slots] = np.arange(len(keys), dtype=np.int32)
    places = table[slots].astype(np.int64)
    robbed = np.flatnonzero(keys[places] != keys)
    if len(robbed):  # another key has the slot, and so at all places of the key or at none
        places[robbed] = robbed[alike(keys[robbed], multiplier * _FIBONACCI % (1 << 64))]
    return places
