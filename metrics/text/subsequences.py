"""Lengths of the longest common subsequences of many pairs of token sequences.

A row of the table that everybody fills is kept as bits, set where the length does not grow. A token moves it
on by ``row = (row + met) | (row - met)``, where ``met`` are those of its bits at which the other sequence has
the token (Hyyrö 2004). Pairs of ordinary length go side by side, a token of each at a time, in integers of 64
bits; long ones, or a few, one after the other in Python's integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrics.ragged import offsets_of
from metrics.text.ngrams import Sequences, match_counts
from metrics.types import Ints

_LONG = 256  # tokens in common; beyond, Python's integers carry faster
_FEW = 64  # pairs; below, a step side by side costs more than its share


def common_subsequences(pairs: Sequences) -> Ints:
    """Length of the longest common subsequence of the two sides of each document (n,)."""
    own, gold = _in_common(pairs)
    longest = np.maximum(own.lengths, gold.lengths)
    together = np.flatnonzero((longest > 0) & (longest <= _LONG))
    if len(together) < _FEW:
        together = together[:0]
    lengths = np.zeros(pairs.n, dtype=np.int64)
    if len(together):
        together = together[np.argsort(-own.lengths[together], kind="stable")]  # the first to end come last
        lengths[together] = _side_by_side(own, gold, together)
    longest[together] = 0
    for document in np.flatnonzero(longest).tolist():
        lengths[document] = common_subsequence(own.of(document), gold.of(document))
    return lengths


def common_subsequence(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common subsequence of two sequences of tokens.

    >>> common_subsequence([1, 2, 3, 4], [2, 4, 3])
    2
    """
    places: dict[int, int] = {}
    for place, token in enumerate(second):
        places[token] = places.get(token, 0) | (1 << place)
    full = (1 << len(second)) - 1
    row = full
    for token in first:
        met = row & places.get(token, 0)
        row = ((row + met) | (row - met)) & full
    return len(second) - row.bit_count()


@dataclass(frozen=True)
class _Side:
    """One side's tokens that the other side has too: no others can be in a common subsequence."""

    tokens: Ints  # (t,); documents have none in common
    offsets: Ints  # (n + 1,)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def of(self, document: int) -> list[int]:
        chosen: list[int] = self.tokens[self.offsets[document] : self.offsets[document + 1]].tolist()
        return chosen

    def places(self, chosen: Ints) -> tuple[Ints, Ints, Ints]:
        """The chosen documents' tokens; of each, its document's place among the chosen, and its own in
        that."""
        lengths = self.lengths[chosen]
        which = np.repeat(np.arange(len(chosen)), lengths)
        within = np.arange(len(which)) - offsets_of(lengths)[which]
        return self.tokens[self.offsets[chosen][which] + within], which, within


def _in_common(pairs: Sequences) -> tuple[_Side, _Side]:
    tokens: tuple[list[Ints], list[Ints]] = ([], [])
    lengths: tuple[list[Ints], list[Ints]] = ([], [])
    known = 0
    for block in pairs.blocks:
        common = match_counts(block.words, block.sides) > 0
        kept = np.flatnonzero(common[block.words])
        numbers = (np.cumsum(common) - 1 + known)[block.words[kept]]
        sizes = np.diff(np.searchsorted(kept, block.starts))
        cut = int(np.searchsorted(kept, block.sides[1]))
        for side, own in enumerate((slice(None, cut), slice(cut, None))):
            tokens[side].append(numbers[own])
            lengths[side].append(sizes[side * block.n : (side + 1) * block.n])
        known += int(common.sum())
    first, second = (
        _Side(np.concatenate(tokens[side]), offsets_of(np.concatenate(lengths[side]))) for side in (0, 1)
    )
    return first, second


def _side_by_side(own: _Side, gold: _Side, chosen: Ints) -> Ints:
    """The lengths (n,) for the chosen documents; a later one's own side is no longer than an earlier's."""
    words, distinct = -(-int(gold.lengths[chosen].max()) // 64), int(own.tokens.max()) + 1
    tokens, _, within = gold.places(chosen)
    bits = np.zeros(words * distinct, dtype=np.uint64)
    # No two tokens of a document share a place, so that adding bits is setting them.
    np.add.at(bits, within // 64 * distinct + tokens, np.uint64(1) << (within % 64).astype(np.uint64))
    tokens, which, within = own.places(chosen)
    steps = np.zeros((int(own.lengths[chosen].max()), len(chosen)), dtype=np.int64)
    steps[within, which] = tokens
    rows = np.full((words, len(chosen)), ~np.uint64(0))
    for step, going in zip(steps, np.bincount(within).tolist(), strict=True):
        _advance(rows[:, :going], bits.reshape(words, distinct), step[:going])
    grown = np.unpackbits((~rows).view(np.uint8).reshape(words, len(chosen), 8), axis=-1)
    return np.asarray(grown.sum(axis=(0, 2), dtype=np.int64))


def _advance(rows: NDArray[np.uint64], bits: NDArray[np.uint64], tokens: Ints) -> None:
    """Moves the rows (words, n) on by a token each (n,), in place; ``bits`` (words, t) are those of each
    token."""
    carry = None
    for row, of_token in zip(rows, bits, strict=True):
        met = of_token.take(tokens)
        met &= row
        total = row + met
        if carry is not None:
            total += carry
        carry = (met | (row & ~total)) >> np.uint64(63)  # what leaves the word in row + met + carry
        row ^= met  # row - met, met being part of it
        row |= total
