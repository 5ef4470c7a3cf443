"""Matching n-grams of many documents at once, exactly and without sorting, and the words of many texts as
numbers. BLEU, chrF and ROUGE count with it.

Two n-grams are alike if their first n - 1 tokens are and their last ones. So every place of the texts gets,
order by order, the number of the n-gram that begins there, made of the number of the one a token shorter and
of the last token's. A number is a place at which the same n-gram stands: all places are written into a table,
each where its n-gram belongs, and which of them stayed is read back. The matches of an n-gram are the smaller
of the hypothesis's count and the largest count of a reference; what has none is not followed to longer ones.

Words get their numbers from the bytes of all texts at once; only distinct words are looked at one by one.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from metrics.ragged import gathered_rows, offsets_of
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
            tokens, documents = gathered_rows(self.tokens, ends, own), self.documents[own] - first
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
    return Block(
        representatives(np.insert(keys, np.cumsum(lengths), -1 - sides)), starts, side_starts, documents, n
    )


def matching_ngrams(sequences: Sequences, order: int) -> Floats:
    """Matching n-grams of the orders 1 … ``order`` of each document (n, order)."""
    return np.concatenate(
        [np.empty((0, order)), *(_block_matches(block, order) for block in sequences.blocks)]
    )


def ngram_counts(lengths: Ints, order: int) -> Floats:
    """How many n-grams of each order sequences of these lengths have (s, order)."""
    return np.asarray(np.maximum(lengths[:, None] - np.arange(order), 0), dtype=np.float64)


def _block_matches(block: Block, order: int) -> Floats:
    counted = np.zeros((block.n, order))
    places, numbers = np.arange(len(block.words)), block.words
    for n in range(1, order + 1):
        common = match_counts(numbers, np.searchsorted(places, block.sides))
        sums = np.diff(offsets_of(common)[np.searchsorted(places, block.starts)])
        counted[:, n - 1] = np.bincount(block.documents, sums, minlength=block.n)
        going = np.flatnonzero(common[numbers])
        if n == order or not len(going):
            break
        places = places[going]
        numbers = representatives(numbers[going] * len(block.words) + block.words[places + n])
    return counted


def match_counts(numbers: Ints, sides: Ints) -> Ints:
    """Matches (t,) of the numbers 0 … t - 1: the smaller of the hypothesis's count and a reference's largest.

    ``numbers`` (t,) are those that occur, side after side; ``sides`` says where each one's start.
    """
    own, best, *others = (np.bincount(numbers[a:b], minlength=len(numbers)) for a, b in pairwise(sides))
    for other in others:
        best = np.maximum(best, other)
    return np.minimum(own, best)


def representatives(keys: Ints, multiplier: int = _FIBONACCI) -> Ints:
    """For each 64-bit key (t,) a place at which it stands, the same place for all that are equal.

    >>> representatives(np.array([7, 9, 7])).tolist() in ([0, 1, 0], [2, 1, 2])
    True
    """
    bits = (2 * len(keys)).bit_length()
    slots = ((keys.view(np.uint64) * np.uint64(multiplier)) >> np.uint64(64 - bits)).view(np.int64)
    table = np.empty(1 << bits, dtype=np.int32)
    table[slots] = np.arange(len(keys), dtype=np.int32)
    places = table[slots].astype(np.int64)
    robbed = np.flatnonzero(keys[places] != keys)
    if len(robbed):  # another key has the slot, and so at all places of the key or at none
        places[robbed] = robbed[representatives(keys[robbed], multiplier * _FIBONACCI % (1 << 64))]
    return places


_FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(8)] + [-1])  # masks of the first n of eight
_NO_BYTE = b"\xff"  # UTF-8 has none


@dataclass(frozen=True)
class Words:
    """The words of some lines of text, one after the other.

    ``numbers[i]`` is a place at which the same word as the i-th stands, the same place for all of them.
    """

    data: bytes  # UTF-8
    starts: Ints  # (w,)
    ends: Ints
    numbers: Ints
    lengths: Ints  # (lines,): how many words each line has

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> "Words":
        """The words of UTF-8 lines: what stands between spaces (and nothing else that is white)."""
        data = b" ".join([b"", *lines, b""])
        inside = np.frombuffer(data, dtype=np.uint8) != ord(" ")
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
        starts, ends = edges[::2], edges[1::2]
        after = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64)
        lengths = np.diff(np.searchsorted(starts, after), prepend=0)
        return cls(data, starts, ends, _numbers(data, starts, ends), lengths)

    def tokens(self, tokens_of: Callable[[bytes], Sequence[Hashable]]) -> tuple[Ints, Ints]:
        """Numbers (t,) of the tokens that ``tokens_of`` makes of the words, and how many each line has."""
        distinct = np.flatnonzero(self.numbers == np.arange(len(self.numbers)))
        bounds = zip(self.starts[distinct].tolist(), self.ends[distinct].tolist(), strict=True)
        apart = [tokens_of(self.data[start:end]) for start, end in bounds]
        numbers = _Numbers()
        flat = np.array([numbers[token] for token in chain.from_iterable(apart)], dtype=np.int64)
        offsets = offsets_of(np.array([len(tokens) for tokens in apart], dtype=np.int64))
        rank = np.empty(len(self.numbers), dtype=np.int64)
        rank[distinct] = np.arange(len(distinct))
        words = rank[self.numbers]
        sums = offsets_of(np.diff(offsets)[words])
        return gathered_rows(flat, offsets, words), np.diff(sums[offsets_of(self.lengths)])


class _Numbers(dict[Hashable, int]):
    """A number for everything that is asked for, in the order of asking: 0, 1, …"""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


def _numbers(data: bytes, starts: Ints, ends: Ints) -> Ints:
    sizes = ends - starts
    padded = data.replace(b"\0", _NO_BYTE) + bytes(16)
    numbers = representatives(
        _eight(padded, starts, sizes)
    )  # this tells words of up to seven bytes from all others
    longer = np.flatnonzero(sizes > 7)
    rest = representatives(_eight(padded, starts[longer] + 8, sizes[longer] - 8))
    numbers[longer] = longer[representatives(numbers[longer] * len(numbers) + rest)]
    first: dict[bytes, int] = {}
    for place in np.flatnonzero(sizes > 15).tolist():
        numbers[place] = first.setdefault(data[starts[place] : ends[place]], place)
    return numbers


def _eight(data: bytes, starts: Ints, sizes: Ints) -> Ints:
    """The first eight bytes of words as one integer, zeros after those that are shorter."""
    integers = np.ndarray(len(data) - 7, dtype="<i8", buffer=data, strides=(1,))  # one from every byte on
    return np.asarray(integers[starts] & _FIRST_BYTES[np.minimum(sizes, 8)])
