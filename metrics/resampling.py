"""Bootstrap resamples as sums of statistics: no resample is ever scored again from its items.

Few distinct rows (confusion cells, 0/1 scores): one multinomial draw of their counts per resample. Few items:
rows are gathered. Otherwise circulant weights: one multinomial count vector w over the items, correlated with
a random order of the rows by a Fourier transform, gives as many resample sums as there are items, each an
exact multinomial resample. Sums under one w depend on each other, which halves their effective number, so
that twice as many are drawn. Every generator is explicit and seeded.
"""

from collections.abc import Iterator
from itertools import count

import numpy as np

from metrics.types import Floats, Ints

_FEW_ROWS = 64
_FEW_ITEMS = 32
_CHUNK = 1 << 21  # floats held at once
_COUNTS = 1 << 15  # counts of distinct rows held at once: what stays in a core's cache


def resampled_totals(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Totals (d, k) of resamples of the rows of ``table`` (n, k), chunk by chunk; at least ``draws``
    altogether."""
    rows, counts = distinct_rows(table)
    if rows is not None and counts is not None:
        yield from _multinomial(rows, counts, draws, rng)
    elif len(table) < _FEW_ITEMS:
        yield from _gathered(table, draws, rng)
    else:
        yield from _circulant(table, 2 * draws, rng)


def distinct_rows(table: Floats) -> tuple[Floats | None, Floats | None]:
    """The distinct rows and how often each occurs, or (None, None) if there are many."""
    probe = table[:: max(1, len(table) // 256)]
    if _one_hot(table):  # the columns are the distinct rows
        if np.count_nonzero(probe.any(axis=0)) > _FEW_ROWS:
            return None, None
        counts = table.sum(axis=0)
        used = counts > 0
        return np.eye(table.shape[1])[used], counts[used]
    if len(np.unique(probe, axis=0)) > _FEW_ROWS:
        return None, None
    rows, counts = np.unique(table, axis=0, return_counts=True)
    return (rows, counts.astype(np.float64)) if len(rows) <= _FEW_ROWS else (None, None)


def _one_hot(table: Floats) -> bool:
    """Whether every row is a single 1 among zeros."""
    if table.shape[1] < 2 or not bool(((table == 0) | (table == 1)).all()):
        return False
    return bool((table.sum(axis=1) == 1).all())


def _multinomial(rows: Floats, counts: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    n = round(float(counts.sum()))
    chances = counts / counts.sum()
    step = max(1, _COUNTS // max(rows.shape))
    columns = rows.argmax(axis=1) if _one_hot(rows) else None
    for start in range(0, draws, step):
        weights = rng.multinomial(n, chances, size=min(step, draws - start))
        yield weights @ rows if columns is None else _in_columns(weights, columns, rows.shape[1])


def _in_columns(weights: Ints, columns: Ints, width: int) -> Floats:
    """``weights @ rows`` of one-hot rows: the weights themselves, in the rows' columns.

    The draws of a column lie side by side in memory, for what computes with whole columns.
    """
    totals = np.zeros((width, len(weights)))
    totals[columns] = weights.T
    return totals.T


def _gathered(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    n, k = table.shape
    step = max(1, _CHUNK // (n * k))
    for start in range(0, draws, step):
        yield table[rng.integers(0, n, size=(min(step, draws - start), n))].sum(axis=1)


def _circulant(table: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    n, k = table.shape
    whole = bool((table == np.rint(table)).all())
    columns = np.ascontiguousarray(table.T)
    vectors, length = -(-draws // n), _transform_length(n)
    step = max(1, _CHUNK // (n * k))
    for start in range(0, vectors, step):
        rounds = min(step, vectors - start)
        picks = rng.integers(0, n, size=(rounds, n)) + n * np.arange(rounds)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rounds * n).reshape(rounds, n).astype(np.float64)
        order = rng.permuted(np.broadcast_to(np.arange(n), (rounds, n)), axis=1)
        if length > n:
            order = np.concatenate([order, order[:, :-1]], axis=1)  # round once: what wraps around is cut off
        spectrum = np.conj(np.fft.rfft(weights, n=length, axis=1)) * np.fft.rfft(columns[:, order], n=length)
        totals = np.fft.irfft(spectrum, n=length)[:, :, :n].reshape(k, rounds * n)[:, : draws - start * n].T
        yield np.rint(totals) if whole else totals


def _transform_length(n: int) -> int:
    """Length at which circular sums over n rows are transformed: n itself where its factors are small, else
    enough for the rows twice, since a transform of a prime length costs several of twice that."""
    return n if _has_small_factors(n) else next(m for m in count(2 * n - 1) if _has_small_factors(m))


def _has_small_factors(n: int) -> bool:
    for factor in (2, 3, 5, 7):
        while n % factor == 0:
            n //= factor
    return n == 1
