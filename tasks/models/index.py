"""Where answers lie: a sorted index over the request keys of all segments, 24 bytes a key."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class SegmentKeys:
    """A segment's keys: the first 16 of their 32 bytes as two numbers each, and when each answer arrived."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    arrived: NDArray[np.float64]

    @classmethod
    def of(cls, table: pa.Table) -> "SegmentKeys":
        """From the columns key and arrived."""
        high, low = halves(table.column("key").combine_chunks())
        return cls(high, low, table.column("arrived").to_numpy())


def halves(keys: pa.FixedSizeBinaryArray | pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first and second eight bytes of 32-byte keys."""
    array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], pa.binary(32))
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint64) if len(array) else np.empty(0, np.uint64)
    words = raw[array.offset * 4 : (array.offset + len(array)) * 4].reshape(-1, 4)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


class Index:
    """Finds keys among segments; of equal keys the answer that arrived last counts."""

    def __init__(self, segments: Sequence[SegmentKeys], not_before: float = 0.0) -> None:
        high = np.concatenate([np.empty(0, np.uint64), *(part.high for part in segments)])
        low = np.concatenate([np.empty(0, np.uint64), *(part.low for part in segments)])
        arrived = np.concatenate([np.empty(0), *(part.arrived for part in segments)])
        segment = np.repeat(np.arange(len(segments), dtype=np.int32), [len(part.high) for part in segments])
        row = np.concatenate(
            [np.empty(0, np.int32), *(np.arange(len(part.high), dtype=np.int32) for part in segments)]
        )
        kept = np.flatnonzero(arrived >= not_before)
        order = kept[np.lexsort((arrived[kept], low[kept], high[kept]))]
        high, low = high[order], low[order]
        last = np.ones(len(order), bool)
        last[:-1] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self._high, self._low = high[last], low[last]
        self._segment, self._row = segment[order][last], row[order][last]

    def __len__(self) -> int:
        return len(self._high)

    def find(self, keys: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Segment and row of each key, −1 where there is none; shapes (n,)."""
        words = np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 4)
        high, low = words[:, 0], words[:, 1]
        at = np.searchsorted(self._high, high)
        segment, row = np.full(len(keys), -1, np.int32), np.full(len(keys), -1, np.int32)
        pending = np.arange(len(keys))
        while len(pending):  # a second turn only where first halves are equal and second ones are not
            pending = pending[at[pending] < len(self._high)]
            pending = pending[self._high[at[pending]] == high[pending]]
            hit = self._low[at[pending]] == low[pending]
            found = pending[hit]
            segment[found], row[found] = self._segment[at[found]], self._row[at[found]]
            pending = pending[~hit]
            at[pending] += 1
        return segment, row
