"""Tests of one hypothesis by the data alone: that two runs do not differ, that answers prefer no place.

The sign-flip permutation test: were there no difference, each unit's could as well have the other sign.

Do answers prefer a place, whatever stands there? Without a preference an answer is right as often
wherever the right choice stands, and a wrong one stands at any of the other places alike. The sums by
which choices differ from that are compared with the covariance that they then have, widened by as much as
the repeats of an item hang together (Rao and Scott 1981). Their own covariance will not do: where places are
more than a few for the items, some were never chosen, and seem surely avoided.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrics.types import Floats, Ints

_EXACT_UNITS = 16  # up to here all sign patterns are tried
_COUNTED = 75  # a binomial draw costs as much as the signs of so many units
_WORK = 200_000_000  # signs at most, or some tenths of a second
_FEWEST_DRAWS = 10_000


def sign_flip(units: Floats, draws: int, rng: np.random.Generator) -> float:
    """Two-sided p-value of the sum of ``units`` under random signs; 1 if all are 0, NaN for no draws.

    All patterns for few units; else random ones, the observed pattern counted as one of them. Below what
    draws resolve it is the bound that holds for any signs (Hoeffding 1963): of many pairs that are corrected
    for each other none would be found. A unit is an item's difference, or the sum of a cluster's.
    """
    sizes = np.abs(units[units != 0])
    observed = abs(float(units.sum()))
    if len(sizes) == 0:
        return 1.0
    slack = 1e-9 * float(sizes.sum())  # sums that are equal but for rounding count as equal
    if len(sizes) <= _EXACT_UNITS:
        sums = np.array([sizes[0]])  # patterns with all signs turned have the same size of a sum
        for size in sizes[1:]:
            sums = np.concatenate([sums + size, sums - size])
        return float((np.abs(sums) >= observed - slack).mean())
    if draws <= 0:
        return math.nan
    distinct, counts = np.unique(sizes, return_counts=True)
    if len(distinct) * _COUNTED <= len(sizes):
        positive = rng.binomial(counts, 0.5, size=(draws, len(distinct)))
        sums = (2 * positive - counts) @ distinct
    else:
        draws = min(draws, max(_WORK // len(sizes), _FEWEST_DRAWS))
        sums = _signed_sums(sizes, draws, rng)
    drawn = (1 + int((np.abs(sums) >= observed - slack).sum())) / (1 + draws)
    return min(drawn, 2 * math.exp(-(observed**2) / (2 * float(sizes @ sizes))))


def _signed_sums(sizes: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Sums of ``sizes`` under ``draws`` random sign vectors: the 256 sums of every eight sizes, picked by a
    byte."""
    signs = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    padded = np.concatenate([sizes, np.zeros(-len(sizes) % 8)]).reshape(-1, 8)
    sums = np.zeros(draws)
    for block in padded:
        sums += (signs @ block)[rng.integers(0, 256, size=draws, dtype=np.uint8)]
    return sums


LEAST_ITEMS = 10
"""Items that a test is made of, at least."""


@dataclass(frozen=True)
class PositionBias:
    """The test's outcome: χ², its degrees of freedom, the p-value; what was chosen and what was due at each
    position, as shares."""

    statistic: float
    degrees: int
    p_value: float
    chosen: Floats
    due: Floats

    @property
    def favourite(self) -> int:
        """The position that was chosen most beyond its due."""
        return int(np.argmax(self.chosen - self.due))


def position_bias(chosen: Ints, right: NDArray[np.bool_], counts: Ints, items: Ints) -> PositionBias | None:
    """Tests for a preference of positions.

    ``chosen`` holds the position of each sample's choice (n,), ``right`` where its right choices stood
    (n, k), ``counts`` how many choices there were (n,), ``items`` the number of its item (n,). None where
    fewer than ten items or two positions are there, or where every item's choices are spread evenly.
    """
    n, k = right.shape if right.ndim == 2 else (0, 0)
    if k < 2 or len(np.unique(items)) < LEAST_ITEMS:
        return None
    picked = np.zeros((n, k))
    picked[np.arange(n), chosen] = 1.0
    wrong = (np.arange(k)[None, :] < counts[:, None]) & ~right
    # With more choices an answer is right less often: each kind of item has its own share.
    kinds = np.column_stack([right.sum(1), wrong.sum(1)])
    _, kind, size = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
    kind, hit = kind.ravel(), right[np.arange(n), chosen].astype(np.float64)
    known = (np.bincount(kind, weights=hit) / size)[kind]
    of_right, of_wrong = right / np.maximum(kinds[:, :1], 1), wrong / np.maximum(kinds[:, 1:], 1)
    expected = known[:, None] * of_right + (1 - known)[:, None] * of_wrong
    slope = of_right - of_wrong  # by which one answer more that is right moves what is expected
    usual = np.zeros((len(size), k))
    np.add.at(usual, kind, slope)
    usual = (usual / size[:, None])[kind]
    free = (slope - usual) * np.sqrt(known * (1 - known))[:, None]
    covariance = _of_one_pick(of_right, known) + _of_one_pick(of_wrong, 1 - known) + free.T @ free
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * n  # less than that is rounding
    if not kept.any():
        return None
    along = (picked - expected - (hit - known)[:, None] * usual) @ (vectors[:, kept] / np.sqrt(values[kept]))
    _, clusters = np.unique(items, return_inverse=True)
    scores, degrees = np.zeros((clusters.max() + 1, along.shape[1])), along.shape[1]
    np.add.at(scores, clusters, along)
    statistic = float((scores.sum(0) ** 2).sum()) / max(float((scores**2).sum()) / degrees, 1.0)
    return PositionBias(statistic, degrees, _upper_tail(statistic, degrees), picked.mean(0), expected.mean(0))


def _of_one_pick(among: Floats, chance: Floats) -> Floats:
    """The covariance (k, k) of picks at random ``among`` places (n, k), each made with a ``chance`` (n,)."""
    weighed = among * chance[:, None]
    return np.asarray(np.diag(weighed.sum(0)) - weighed.T @ among)


def _upper_tail(statistic: float, degrees: int) -> float:
    """P(χ² ≥ statistic): in closed form for whole degrees of freedom."""
    half = statistic / 2
    tail = math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half)
    for below in range(1 if degrees % 2 else 2, degrees, 2):
        if half > 0:
            tail += math.exp(below / 2 * math.log(half) - half - math.lgamma(below / 2 + 1))
    return min(1.0, tail)
