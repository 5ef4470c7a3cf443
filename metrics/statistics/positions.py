"""Do answers prefer a place, whatever stands there? A test over the positions that were chosen.

Without a preference an answer is right as often wherever the right choice stands, and a wrong one stands at
any of the other places alike. The sums by which choices differ from that, item by item, are held against
their own covariance, so that the repeats of an item may hang together in any way.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrics.types import Floats, Ints

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
