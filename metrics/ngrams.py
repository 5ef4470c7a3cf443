"""Matching n-grams of many documents at once, exactly, by one sort.

Every position of every sequence becomes one integer: document, the next ``order`` token numbers (0 past the
end), and whose it is (0 the hypothesis, 1 … the references). Sorted, equal n-grams of all orders lie side by
side, and the bits in which neighbours differ say where the runs of each order end. A run's matches are the
smaller of the hypothesis's count and the largest count of a reference.
"""

from dataclasses import dataclass

import numpy as np

from metrics.types import Floats, Ints

_BITS = 63


@dataclass(frozen=True)
class Sequences:
    """Token numbers from 1 in one flat array, every sequence followed by ``padding`` zeros.

    ``lengths`` (s,), ``documents`` (s,) and ``sides`` (s,) describe the sequences in order; documents are
    numbered 0 … ``n`` - 1, ascending.
    """

    tokens: Ints  # (t,), padded
    lengths: Ints
    documents: Ints
    sides: Ints
    padding: int
    n: int


def fits(tokens: int, documents: int, sides: int, order: int) -> bool:
    """Whether so many distinct tokens, documents and sides can be packed into one integer."""
    bits = order * tokens.bit_length() + max(documents - 1, 0).bit_length() + (sides - 1).bit_length()
    return bits <= _BITS


def matches(sequences: Sequences, order: int) -> Floats:
    """Matching n-grams of the orders 1 … ``order`` of each document (n, order)."""
    counted = np.zeros((sequences.n, order))
    if not len(sequences.tokens):
        return counted
    bits = int(sequences.tokens.max()).bit_length()
    side_bits = int(sequences.sides.max()).bit_length()
    keys = _packed(sequences, order, bits, side_bits)
    if not len(keys):
        return counted
    keys.sort()
    changed = keys[1:] ^ keys[:-1]
    tallies = _tallies(keys & ((1 << side_bits) - 1), int(sequences.sides.max()))
    document_shift = order * bits + side_bits
    for n in range(1, order + 1):
        shift = (order - n) * bits + side_bits
        starts = np.concatenate([[0], np.flatnonzero(changed >= 1 << shift) + 1])  # a bit above differs
        first = keys[starts] >> shift
        shared = _shared(tallies, starts, len(keys))
        shared[first & ((1 << bits) - 1) == 0] = 0  # the sequence ends before the n-gram does
        counted[:, n - 1] = np.bincount(first >> (document_shift - shift), shared, minlength=sequences.n)
    return counted


def possible(lengths: Ints, order: int) -> Floats:
    """How many n-grams of each order sequences of these lengths have (s, order)."""
    return np.asarray(np.maximum(lengths[:, None] - np.arange(order), 0), dtype=np.float64)


def _packed(sequences: Sequences, order: int, bits: int, side_bits: int) -> Ints:
    tokens = sequences.tokens
    window = np.zeros(len(tokens), dtype=np.int64)
    for place in range(order):
        window <<= bits
        window[: len(tokens) - place] |= tokens[place:]
    owner = np.repeat(
        (sequences.documents << (order * bits + side_bits)) | sequences.sides,
        sequences.lengths + sequences.padding,
    )
    return ((window << side_bits) | owner)[tokens > 0]


def _tallies(side: Ints, last: int) -> list[Ints]:
    """Running counts, from 0, of the positions of the hypothesis and of all references but the last."""
    running = []
    for number in range(last):
        tally = np.zeros(len(side) + 1, dtype=np.int32)
        np.cumsum(side == number, out=tally[1:])
        running.append(tally)
    return running


def _shared(tallies: list[Ints], starts: Ints, end: int) -> Ints:
    """The smaller of the hypothesis's count and the largest of a reference, for each run."""
    bounds = np.append(starts, end)
    counts = [np.diff(tally[bounds]) for tally in tallies]
    if not counts:
        return np.zeros_like(starts)
    best = np.diff(bounds) - sum(counts)  # what is left of the run is the last reference's
    for other in counts[1:]:
        best = np.maximum(best, other)
    return np.asarray(np.minimum(counts[0], best))
