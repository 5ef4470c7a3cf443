"""The words of many texts as numbers: equal words, equal numbers, without looking each one up.

Where words begin and end, and which are alike, is worked out on the bytes of all texts at once; only the
distinct words are looked at one by one.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from metrics.ngrams import alike
from metrics.ragged import offsets_of, taken_rows
from metrics.types import Ints

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
        return taken_rows(flat, offsets, words), np.diff(sums[offsets_of(self.lengths)])


class _Numbers(dict[Hashable, int]):
    """A number for everything that is asked for, in the order of asking: 0, 1, …"""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


def _numbers(data: bytes, starts: Ints, ends: Ints) -> Ints:
    sizes = ends - starts
    padded = data.replace(b"\0", _NO_BYTE) + bytes(16)
    numbers = alike(_eight(padded, starts, sizes))  # this tells words of up to seven bytes from all others
    longer = np.flatnonzero(sizes > 7)
    rest = alike(_eight(padded, starts[longer] + 8, sizes[longer] - 8))
    numbers[longer] = longer[alike(numbers[longer] * len(numbers) + rest)]
    first: dict[bytes, int] = {}
    for place in np.flatnonzero(sizes > 15).tolist():
        numbers[place] = first.setdefault(data[starts[place] : ends[place]], place)
    return numbers


def _eight(data: bytes, starts: Ints, sizes: Ints) -> Ints:
    """The first eight bytes of words as one integer, zeros after those that are shorter."""
    integers = np.ndarray(len(data) - 7, dtype="<i8", buffer=data, strides=(1,))  # one from every byte on
    return np.asarray(integers[starts] & _FIRST_BYTES[np.minimum(sizes, 8)])
