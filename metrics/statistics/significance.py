"""Tests of one hypothesis by the data alone: that two runs do not differ, that answers prefer no place.

The sign-flip permutation test: were there no difference, each unit's could as well have the other sign.

Do answers prefer a place, whatever stands there? Without a preference an answer is right as often
wherever the right choice stands, and a wrong one stands at any of the other places alike. The sums by
which choices differ from that, item by item, are compared with their own covariance, so that the repeats
of an item may hang together in any way.
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

    All patterns for few units; else random ones, the observed pattern counted as one of them. A unit is an
    item's difference, or the sum of a cluster's.
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
    return (1 + int((np.abs(sums) >= observed - slack).sum())) / (1 + draws)


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
"""Items that a covariance is estimated from, at least."""


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
    inside = np.arange(k)[None, :] < counts[:, None]
    picked = np.zeros((n, k))
    picked[np.arange(n), chosen] = 1.0
    accuracy = float(right[np.arange(n), chosen].mean())
    among_right, among_wrong = right.sum(1, keepdims=True), (inside & ~right).sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(right, accuracy / among_right, (1 - accuracy) / among_wrong)
    expected = np.where(inside, np.nan_to_num(expected, posinf=0.0), 0.0)
    expected /= np.maximum(expected.sum(1, keepdims=True), 1e-12)  # no right or no wrong choice at all
    _, clusters = np.unique(items, return_inverse=True)
    scores = np.zeros((clusters.max() + 1, k))
    np.add.at(scores, clusters, picked - expected)
    total, covariance = scores.sum(0), scores.T @ scores
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * len(scores)  # less than that is rounding
    if not kept.any():
        return None
    along = vectors[:, kept].T @ total
    statistic = float((along**2 / values[kept]).sum())
    degrees = int(kept.sum())
    return PositionBias(statistic, degrees, _upper_tail(statistic, degrees), picked.mean(0), expected.mean(0))


def _upper_tail(statistic: float, degrees: int) -> float:
    """P(χ² ≥ statistic): in closed form for whole degrees of freedom."""
    half = statistic / 2
    tail = math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half)
    for below in range(1 if degrees % 2 else 2, degrees, 2):
        if half > 0:
            tail += math.exp(below / 2 * math.log(half) - half - math.lgamma(below / 2 + 1))
    return min(1.0, tail)
