"""Arithmetic over ragged arrays: flat values (m,) and offsets (n + 1,), row i being
``values[offsets[i]:offsets[i + 1]]``."""

import numpy as np

from metrics.types import Bools, Floats, Ints, Values


def segment_sum(values: Floats, offsets: Ints) -> Floats:
    """Sums of the rows (n, …); 0 for an empty row. A row of one value is that value, bit for bit."""
    counts = np.diff(offsets)
    full = counts > 0
    sums = np.zeros((len(counts), *values.shape[1:]), dtype=np.float64)
    if full.any():
        # Empty rows own nothing, so that the starts of the full ones alone cut the array right.
        with np.errstate(invalid="ignore"):  # infinities of both signs add up to NaN
            sums[full] = np.add.reduceat(values, offsets[:-1][full], axis=0, dtype=np.float64)
    return sums


def segment_max(values: Floats, offsets: Ints) -> Floats:
    """Largest value of each row (n,); -inf for an empty row, NaN where the row has a NaN."""
    full = np.diff(offsets) > 0
    largest = np.full(len(full), -np.inf)
    if full.any():
        largest[full] = np.maximum.reduceat(values, offsets[:-1][full])
    return largest


def segment_argmax(values: Floats, offsets: Ints) -> Ints:
    """Place within its row of the first largest value (n,); -1 for an empty row. NaN never wins over a
    number."""
    counts = np.diff(offsets)
    best = np.full(len(counts), -np.inf)
    place = np.where(counts > 0, 0, -1)
    starts = offsets[:-1]
    if len(counts) and counts.min() == counts.max():
        # Rows of one length, the usual case: a column at a time, without index arrays.
        for column, value in enumerate(values.reshape(len(counts), -1).T):
            larger = value > best
            np.copyto(best, value, where=larger)
            np.copyto(place, column, where=larger)
        return place
    rows = np.flatnonzero(counts > 0)
    column = 0
    while len(rows):
        value = values[starts[rows] + column]
        better = rows[value > best[rows]]
        best[better] = values[starts[better] + column]
        place[better] = column
        column += 1
        rows = rows[counts[rows] > column]
    return place


def segment_any(flags: Bools, offsets: Ints) -> Bools:
    """Whether any flag of each row is set (n,)."""
    running = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    return np.asarray(running[offsets[1:]] > running[offsets[:-1]])


def segment_counts(flags: Bools, offsets: Ints) -> Ints:
    """How many flags of each row are set (n,)."""
    running = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    return np.asarray(running[offsets[1:]] - running[offsets[:-1]])


def row_of(offsets: Ints) -> Ints:
    """The row that each flat value belongs to (m,)."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def offsets_of(counts: Ints) -> Ints:
    """Offsets (n + 1,) of rows with these lengths (n,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def gathered_rows(values: Ints, offsets: Ints, rows: Ints) -> Ints:
    """The values of the chosen rows, one row after the other; a row may be chosen more than once."""
    sizes = np.diff(offsets)[rows]
    ends = np.cumsum(sizes)
    return np.asarray(
        values[np.arange(ends[-1] if len(ends) else 0) + np.repeat(offsets[rows] - ends + sizes, sizes)]
    )


def pooled(values: Values) -> tuple[Floats, Ints]:
    """The numbers of all rows (m,), and the row that each belongs to; a number is a row of its own."""
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return values, np.arange(len(values))
    rows = [np.atleast_1d(np.asarray(row, dtype=np.float64)) for row in values]
    numbers = np.concatenate(rows) if rows else np.empty(0)
    return numbers, row_of(offsets_of(np.array([len(row) for row in rows], dtype=np.int64)))
