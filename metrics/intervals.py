"""Quantiles of the normal and of Student's distribution, and Wilson's interval, without scipy."""

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_quantile(level: float) -> float:
    """Half-width, in standard errors, of a two-sided normal interval: 1.96 for 0.95."""
    return _NORMAL.inv_cdf(0.5 + level / 2)


@lru_cache(maxsize=4096)
def student_quantile(level: float, degrees: int) -> float:
    """Half-width of a two-sided interval with ``degrees`` of freedom; infinite for none of them.

    >>> round(student_quantile(0.95, 9), 6)
    2.262157
    """
    if degrees < 1:
        return math.inf
    if degrees > 400:
        return _cornish_fisher(normal_quantile(level), degrees)
    low, high = 0.0, 1.0
    while _student_coverage(high, degrees) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_coverage(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def _student_coverage(t: float, degrees: int) -> float:
    """P(|T| < t), by the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3,
    26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for j in range(2 if odd else 1, degrees, 2):
        total += term
        term *= cosine * cosine * j / (j + 1)
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + sine * total)


def _cornish_fisher(z: float, degrees: int) -> float:
    """Expansion of Student's quantile in 1/degrees (Abramowitz and Stegun 26.7.5); 1e-10 from 400 on."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion ``share`` of ``n``, which has a width at 0 and at 1 too.

    >>> [round(end, 6) for end in wilson(0.0, 20, 0.95)]
    [0.0, 0.161125]
    """
    z = normal_quantile(level)
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(max(share * (1 - share) / n + z * z / (4 * n * n), 0.0))
    return (0.0 if share == 0 else max(centre - half, 0.0)), (1.0 if share == 1 else min(centre + half, 1.0))
