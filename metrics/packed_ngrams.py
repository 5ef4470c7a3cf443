"""Matching n-grams of pairs of texts over a small alphabet, by one sort.

Every place of the texts becomes one integer: its document, the next ``order`` tokens (0 past the text's end),
and whose it is (0 the reference's, 1 the hypothesis's). Sorted, equal n-grams of all orders lie side by side,
and the highest bit in which neighbours differ says at which orders a new run starts. The starts of an order
are among those of the next longer one, so that each order looks at fewer. ``metrics.ngrams`` counts the same
whatever the tokens; this is faster where the integers hold them, as they do characters.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from metrics.ragged import offsets_of
from metrics.types import Floats, Ints

_BLOCK = 1 << 14  # tokens counted at once: what is worked out for them stays in the processor's cache
_BITS = 63


def fits(tokens: int, documents: int, order: int) -> bool:
    """Whether so many distinct tokens and documents can be packed into one integer."""
    return order * tokens.bit_length() + documents.bit_length() + 1 <= _BITS


def packed_matches(tokens: Ints, lengths: Ints, order: int) -> Floats:
    """Matching n-grams of the orders 1 … ``order`` of each document (n, order).

    ``tokens`` (t,) are numbers from 0; ``lengths`` (2n,) those of the documents' texts, the hypothesis before
    its reference.
    """
    bits = (int(tokens.max(initial=0)) + 1).bit_length()
    ends = offsets_of(lengths)
    parts = [
        _block(tokens[ends[first] : ends[last]] + 1, lengths[first:last], order, bits)
        for first, last in _cut(ends)
    ]
    return np.concatenate([np.empty((0, order)), *parts])


def _cut(ends: Ints) -> Iterator[tuple[int, int]]:
    """Runs of texts, whole documents of them, of about so many tokens as are counted at once."""
    documents = ends[::2]
    cuts = np.flatnonzero(np.diff(documents[:-1] // _BLOCK)) + 1
    yield from pairwise([0, *(2 * cuts).tolist(), len(ends) - 1])


def _block(tokens: Ints, lengths: Ints, order: int, bits: int) -> Floats:
    counted = np.zeros((len(lengths) // 2, order))
    if not len(tokens):
        return counted
    keys = _packed(tokens, lengths, order, bits)
    keys.sort()
    hypothesis = offsets_of(keys & 1)
    change = keys[1:] ^ keys[:-1]
    starts = np.concatenate([[0], np.flatnonzero(change > 1) + 1])
    level = np.append(change, np.iinfo(np.int64).max)[starts - 1]  # the first place starts everything
    first = keys[starts]
    documents = np.arange(len(counted) + 1) << (order * bits + 1)
    for n in range(order, 0, -1):
        shift = (order - n) * bits + 1
        kept = np.flatnonzero(level >= 1 << shift)
        starts, level, first = starts[kept], level[kept], first[kept]
        bounds = np.append(starts, len(keys))
        own = np.diff(hypothesis[bounds])
        shared = np.minimum(own, np.diff(bounds) - own)
        shared *= first & (((1 << bits) - 1) << shift) != 0  # else the text ends before the n-gram does
        counted[:, n - 1] = np.diff(offsets_of(shared)[np.searchsorted(first, documents)])
    return counted


def _packed(tokens: Ints, lengths: Ints, order: int, bits: int) -> Ints:
    texts = np.arange(len(lengths))
    owner = np.repeat(texts, lengths)
    places = np.arange(len(tokens)) + owner * (order - 1)  # each text is followed by zeros
    padded = np.zeros(len(tokens) + (len(lengths) + 1) * (order - 1), dtype=np.int64)
    padded[places] = tokens
    length = len(padded) - (order - 1)
    window = padded[:length].copy()
    for place in range(1, order):
        window <<= bits
        window |= padded[place : length + place]
    keys = window[places]
    keys <<= 1
    keys |= np.repeat(((texts >> 1) << (order * bits + 1)) | (texts & 1 ^ 1), lengths)
    return np.asarray(keys)
