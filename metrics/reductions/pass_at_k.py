"""Reductions that count right answers among n repeats: pass@k, pass^k, at_least_k, G-Pass@k.

All are probabilities over drawing k of the n repeats without replacement, c of them being right: exact
rationals of binomial coefficients, evaluated once for each (n, c) that occurs and looked up for the rest. For
a new pair that is Python's integer arithmetic, so the result is the rational number correctly rounded.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from metrics.errors import ConfigError
from metrics.ragged import segment_counts
from metrics.reductions.reduction import Reduction, Repeats, reduction_factory, require_binary
from metrics.types import Floats, Ints

CHEN = "Chen et al. 2021, arXiv:2107.03374"
PROBABILITY = "0 to 1"


@lru_cache(maxsize=65536)
def hypergeometric_tail(n: int, c: int, k: int, at_least: int) -> float:
    """Probability that k of n repeats, drawn without replacement, hold at least so many of the c right ones.

    >>> round(hypergeometric_tail(64, 7, 10, 1), 7)
    0.7149132
    """
    total = math.comb(n, k)
    misses = sum(math.comb(c, j) * math.comb(n - c, k - j) for j in range(min(at_least, k + 1)))
    if at_least > k:
        return 0.0
    return (total - misses) / total


def probabilities(n: Ints, c: Ints, k: int, probability: Callable[[int, int], float]) -> Floats:
    """``probability(n, c)`` for all pairs, computed once for each pair that occurs; NaN where n < k."""
    if len(n) == 0:
        return np.empty(0)
    widest = int(n.max())
    pairs = n * (widest + 1) + c
    occurring = np.flatnonzero(np.bincount(pairs))
    table = np.full(int(occurring[-1]) + 1, np.nan)
    for pair in occurring.tolist():
        repeats, right = divmod(pair, widest + 1)
        if repeats >= k:
            table[pair] = probability(repeats, right)
    return np.asarray(table[pairs])


def _counting(name: str, k: int, probability: Callable[[int, int], float]) -> Reduction:
    if k < 1:
        raise ConfigError(f"{name}: k must be at least 1, not {k}")

    def compute(repeats: Repeats) -> Floats:
        right = require_binary(name, repeats)
        n = segment_counts(repeats.scored, repeats.offsets)
        return probabilities(n, segment_counts(right, repeats.offsets), k, probability)

    return Reduction(name, requires=k, compute=compute)


@reduction_factory("pass@k", source=CHEN, span=PROBABILITY)
def pass_at_k(*, k: int) -> Reduction:
    """Chance that at least one of k repeats is right: 1 - C(n-c, k) / C(n, k), unbiased."""
    return _counting(f"pass@{k}", k, lambda n, c: hypergeometric_tail(n, c, k, 1))


@reduction_factory("pass^k", source="Yao et al. 2024, tau-bench, arXiv:2406.12045", span=PROBABILITY)
def pass_hat_k(*, k: int) -> Reduction:
    """Chance that all of k repeats are right: C(c, k) / C(n, k)."""
    return _counting(f"pass^{k}", k, lambda n, c: hypergeometric_tail(n, c, k, k))


@reduction_factory("at_least_k", span=PROBABILITY)
def at_least_k(*, k: int) -> Reduction:
    """1 if at least k of the item's repeats are right, else 0; unscored where failed repeats could decide."""
    counting = _counting(f"at_least_{k}", k, lambda n, c: float(c >= k))

    def compute(repeats: Repeats) -> Floats:
        assert counting.compute is not None
        right = segment_counts(repeats.scored & (repeats.score == 1), repeats.offsets)
        failed = repeats.counts - segment_counts(repeats.scored, repeats.offsets)
        open_still = (right < k) & (right + failed >= k)
        return np.where(open_still, np.nan, counting.compute(repeats))

    return replace(counting, compute=compute)


@reduction_factory("g_pass@k", source="Liu et al. 2024, arXiv:2412.13147", span=PROBABILITY)
def g_pass_at_k(*, k: int, threshold: float = 0.5) -> Reduction:
    """Chance that at least ⌈threshold · k⌉ of k repeats are right; written g_pass@8@0.75, default 0.5."""
    if not 0 < threshold <= 1:
        raise ConfigError(f"g_pass@{k}: the threshold must be above 0 and at most 1, not {threshold:g}")
    needed = _needed(threshold, k)
    return _counting(f"g_pass@{k}@{threshold:g}", k, lambda n, c: hypergeometric_tail(n, c, k, needed))


@reduction_factory("mg_pass@k", source="Liu et al. 2024, arXiv:2412.13147", span=PROBABILITY)
def mean_g_pass_at_k(*, k: int) -> Reduction:
    """Mean of G-Pass@k over thresholds from one half to one: (2/k) Σ_{i=⌈k/2⌉+1..k} P(at least i right)."""
    steps = range(math.ceil(k / 2) + 1, k + 1)

    def probability(n: int, c: int) -> float:
        return 2 / k * math.fsum(hypergeometric_tail(n, c, k, i) for i in steps)

    return _counting(f"mg_pass@{k}", k, probability)


def _needed(threshold: float, k: int) -> int:
    return max(1, math.ceil(threshold * k - 1e-9))  # 0.7 * 10 is a hair above 7
