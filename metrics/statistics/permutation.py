"""The sign-flip permutation test: were there no difference, each unit's could as well have the other sign."""

import math

import numpy as np

from metrics.types import Floats

_EXACT_UNITS = 16  # up to here all sign patterns are tried
_COUNTED = 75  # a binomial draw costs as much as the signs of so many units
_WORK = 400_000_000  # signs at most, or some tenths of a second
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
