"""Intervals from a standard error: of proportions, of means within bounds, and of skewed numbers.

Every function is a closed formula, the same on every machine. ``influence`` (G,) is by how much each of G
independent units raises the estimate, with the mean 0, scaled so that its standard deviation over √G is the
standard error: for a mean, the units' own deviations from it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from metrics.types import Floats

_NORMAL = NormalDist()
_SAME_TO = 1e-12  # of a number: what is less is rounding
_HIDDEN = 1.25  # by simulation: bench/coverage.py
_STRAIGHT = 1e-9  # a skewness below this bends nothing
_WHOLE = 1e-6  # a count may be so far from whole by rounding
_EXCEPTIONS = 3
_BENT_DEGREES = 5  # below them Student's quantile is found, not interpolated
_HALVINGS = 40


def normal_quantile(level: float) -> float:
    """Half-width, in standard errors, of a two-sided normal interval: 1.96 for 0.95."""
    return _NORMAL.inv_cdf(0.5 + level / 2)


@lru_cache(maxsize=4096)
def _student(level: float, degrees: int) -> float:
    if degrees > 400:
        return _cornish_fisher(normal_quantile(level), degrees)
    return _inverse(lambda t: student_coverage(t, degrees), level)


def student_quantile(level: float, degrees: float) -> float:
    """Half-width of a two-sided interval with ``degrees`` of freedom; infinite for none of them.

    Between whole degrees from five on the logarithm is interpolated in 1 / degrees, to a ten-thousandth.

    >>> round(student_quantile(0.95, 9), 6)
    2.262157
    """
    if not degrees >= 1:
        return math.inf
    below = math.floor(degrees)
    first = _student(level, below)
    if below == degrees or below > 400:
        return first
    if below < _BENT_DEGREES:
        return _inverse(lambda t: student_coverage(t, degrees), level)
    share = (1 / below - 1 / degrees) * below * (below + 1)
    return float(first * (_student(level, below + 1) / first) ** share)


def student_coverage(t: float, degrees: float) -> float:
    """P(|T| < t) of Student's distribution, t from 0 on.

    >>> round(student_coverage(2.262157, 9), 6)
    0.95
    """
    if math.isinf(t):
        return 1.0
    return 1 - beta_share(degrees / (degrees + t * t), degrees / 2, 0.5)


def _cornish_fisher(z: float, degrees: int) -> float:
    """Expansion of Student's quantile in 1/degrees (Abramowitz and Stegun 26.7.5); 1e-10 from 400 on."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def _inverse(rising: Callable[[float], float], level: float) -> float:
    """Where a function that rises from 0 reaches ``level``."""
    low, high = 0.0, 1.0
    while rising(high) < level:
        high *= 2
    return sum(bisected(lambda x: rising(x) < level, low, high, 80)) / 2


def bisected(
    holds: Callable[[float], bool], near: float, far: float, halvings: int = _HALVINGS
) -> tuple[float, float]:
    """The two ends between which something ceases to hold that does at ``near`` and does not at ``far``.

    >>> bisected(lambda x: x < 2.5, 0, 8, halvings=3)
    (2.0, 3.0)
    """
    for _ in range(halvings):
        middle = (near + far) / 2
        near, far = (middle, far) if holds(middle) else (near, middle)
    return near, far


def fewest(enough: Callable[[int], bool], start: int, most: float = math.inf) -> int | None:
    """The smallest number that is enough, looked for from ``start`` on; None where not even ``most`` is.

    >>> fewest(lambda n: n * n > 500, 8)
    23
    """
    low, high = 0, start
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def beta_share(x: float, a: float, b: float) -> float:
    """P(B ≤ x) of the beta distribution, by its continued fraction (modified Lentz; DLMF 8.17.22).

    >>> round(beta_share(0.25, 2, 3), 6)
    0.261719
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_share(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d, c = 1 / _away(1 + step * d, tiny), _away(1 + step / c, tiny)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction / a


def _away(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


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


def wilson_near_bounds(share: float, n: float, level: float) -> tuple[float, float]:
    """Wilson's interval of n answers that are right or wrong, of which at most three exceptions move the end
    beside them: to where as many or more come with a chance of 1 - ``level``.

    Wilson's own covers .84 where one exception in all is due. Source: Brown, Cai and DasGupta 2001, Interval
    Estimation for a Binomial Proportion, 4.1.1, with the binomial distribution in place of Poisson's.

    >>> [round(end, 4) for end in wilson_near_bounds(0.95, 20, 0.95)]
    [0.7639, 0.9974]
    """
    low, high = wilson(share, n, level)
    right, wrong = round(share * n), round((1 - share) * n)
    if abs(share * n - right) > _WHOLE:
        return low, high  # no counts, and none of them exceptions
    if 1 <= right <= min(_EXCEPTIONS, wrong):
        low = min(low, _one_sided(right, right + wrong, level))
    if 1 <= wrong <= min(_EXCEPTIONS, right):
        high = max(high, 1 - _one_sided(wrong, right + wrong, level))
    return low, high


@lru_cache(maxsize=4096)
def _one_sided(count: int, n: int, level: float) -> float:
    """The share of which ``count`` or more of n come with a chance of 1 - ``level``."""
    return beta_quantile(1 - level, count, n - count + 1)


def clopper_pearson(share: float, n: float, level: float) -> tuple[float, float]:
    """The exact interval of a proportion ``share`` of ``n`` (Clopper and Pearson 1934): never below the
    level, usually well above.

    >>> [round(end, 4) for end in clopper_pearson(0.1, 20, 0.95)]
    [0.0123, 0.317]
    """
    right, tail = share * n, (1 - level) / 2
    low = 0.0 if right <= 0 else beta_quantile(tail, right, n - right + 1)
    high = 1.0 if right >= n else beta_quantile(1 - tail, right + 1, n - right)
    return low, high


def jeffreys(share: float, n: float, level: float) -> tuple[float, float]:
    """The equal-tailed posterior interval of a proportion under Jeffreys' prior (Brown, Cai and DasGupta
    2001).

    >>> [round(end, 4) for end in jeffreys(0.1, 20, 0.95)]
    [0.0214, 0.2839]
    """
    right, tail = share * n, (1 - level) / 2
    low = 0.0 if right <= 0 else beta_quantile(tail, right + 0.5, n - right + 0.5)
    high = 1.0 if right >= n else beta_quantile(1 - tail, right + 0.5, n - right + 0.5)
    return low, high


def beta_quantile(level: float, a: float, b: float) -> float:
    """Where P(B ≤ x) of the beta distribution reaches ``level``."""
    return _inverse(lambda x: beta_share(x, a, b), level)


@dataclass(frozen=True)
class PairedShares:
    """The difference of two shares of the same n items, of which ``gained`` became right and ``lost`` wrong.

    Where few items differ, Agresti and Min's interval (half an item more in each of four cells) ends too soon
    on the side of those that were not seen, Tango's score interval on the other: the wider of them keeps its
    level on both. Sources: Agresti and Min 2005; Tango 1998, Equivalence test and confidence interval for the
    difference in proportions for the paired-sample design.
    """

    gained: int
    lost: int
    n: int

    def chance(self, value: float) -> float:
        """Two-sided p-value of the difference ``value``, -1 to 1."""
        centre, spread = self._smoothed()
        apart = min(abs(centre - value) / spread, abs(self._score(value)))
        return math.erfc(apart / math.sqrt(2))

    def ends(self, level: float) -> tuple[float, float]:
        """The interval of a level."""
        reach, (centre, spread) = normal_quantile(level), self._smoothed()
        low, high = max(centre - reach * spread, -1.0), min(centre + reach * spread, 1.0)
        return min(low, self._score_end(reach, -1.0)), max(high, self._score_end(reach, 1.0))

    def _smoothed(self) -> tuple[float, float]:
        size, difference = self.n + 2, (self.gained - self.lost) / (self.n + 2)
        return difference, math.sqrt(max((self.gained + self.lost + 1) / size - difference**2, 0.0) / size)

    def _score(self, value: float) -> float:
        """How many standard errors the difference is above ``value``, these being those that it has if
        ``value`` is true."""
        n, gained, lost = self.n, self.gained, self.lost
        linear = (2 * n - gained + lost) * value - gained - lost
        product = lost * value * (1 - value)
        share = (math.sqrt(max(linear * linear + 8 * n * product, 0.0)) - linear) / (4 * n)  # of items lost
        variance = n * (2 * share + value * (1 - value))
        apart = gained - lost - n * value
        if apart == 0:
            return 0.0
        return apart / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, apart)

    def _score_end(self, reach: float, farthest: float) -> float:
        observed = (self.gained - self.lost) / self.n
        return bisected(lambda value: abs(self._score(value)) <= reach, observed, farthest)[1]


def without_rounding(left: Floats, size: Floats | float, to: float = _SAME_TO) -> Floats:
    """What is left of numbers once their mean is taken away, or zeros where all of that is rounding; ``size``
    is how large the numbers are. Numbers that are all 2/3 have no spread, as those that are all 1/2."""
    return np.zeros_like(left) if bool((np.abs(left) <= to * np.asarray(size)).all()) else left


def residuals(sums: Floats, sizes: Floats) -> Floats:
    """What each unit (G,) adds beyond the mean of all its items: ``sums`` are of so many items each."""
    largest = float(np.abs(sums / sizes).max(initial=0.0))
    return without_rounding(sums - sizes * (float(sums.sum()) / float(sizes.sum())), sizes * largest)


def deviation(draws: Floats) -> float:
    """The standard deviation of two or more numbers; 0 where they differ by rounding alone."""
    left = without_rounding(draws - draws.mean(), float(np.abs(draws).max()))
    return math.sqrt(float(left @ left) / (len(draws) - 1))


def effective_units(sizes: Floats) -> float:
    """The number of equal units that units of these sizes count as: (Σ n)² / Σ n² (Kish 1965)."""
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def standard_error(influence: Floats, sizes: Floats | None = None) -> float:
    """Of an estimate that each of G units raises by ``influence`` (G,) over G; ``sizes`` are the items of
    each, where they differ.

    A large unit pulls the estimate towards itself, and its residual is too small by as much: each is divided
    by what is left of it on average, if units are alike within (CR2: Bell and McCaffrey 2002, Bias reduction
    in standard errors for linear regression with multi-stage samples). Of equal units that is G / (G - 1).
    """
    units = len(influence)
    if sizes is None:
        return math.sqrt(float(influence @ influence) / (units - 1) / units)
    return math.sqrt(float((influence * influence / _left(sizes)).sum())) / units


def _left(sizes: Floats) -> Floats:
    """Of the square of each unit's residual, which part is left, if units are alike within."""
    weights = sizes / sizes.sum()
    return np.asarray(1 - 2 * weights + float(weights @ weights))


def left_of_units(sizes: Floats) -> float:
    """Which part of an estimate's spread its residuals have together, if all units are alike.

    >>> round(left_of_units(np.ones(4)) ** 2, 6)
    0.75
    """
    return math.sqrt(float((sizes**2 * _left(sizes)).sum()) / float(sizes @ sizes))


@dataclass(frozen=True)
class Shape:
    """What the units' influence says beyond the standard error.

    ``skew`` is the skewness of the estimate itself (that of a unit over √G). ``degrees`` are those of the
    standard error: G - 1 for normal units and fewer for heavy tails, since a variance that a few units decide
    is known as badly as if there were only these.
    """

    skew: float
    degrees: float

    @classmethod
    def of_unequal(cls, influence: Floats, sizes: Floats) -> "Shape":
        """From the influence (G,) of units of so many items: at most one degree less than the equal units
        that they count as. The skewness that sizes alone bring is none of the numbers', and shrinks with
        them."""
        plain, effective = cls.of(influence), effective_units(sizes)
        skew = plain.skew * effective / len(sizes)
        return cls(skew, max(min(plain.degrees, effective - 1.0), 1.0))

    @classmethod
    def of(cls, influence: Floats) -> "Shape":
        """From the influence (G,) of G units, G at least 2."""
        units = len(influence)
        squares = influence * influence
        second = float(squares.mean())
        if second <= 0:
            return cls(0.0, units - 1.0)
        third, fourth = float((squares * influence).mean()), float((squares * squares).mean())
        excess = fourth / second**2 - 3
        if not math.isfinite(third) or not math.isfinite(excess):
            return cls(0.0, units - 1.0)
        degrees = 2 / (2 / (units - 1) + max(excess, 0.0) / units)
        if units < 3:
            return cls(0.0, degrees)
        unbiased = math.sqrt(units * (units - 1)) / (units - 2)
        return cls(third / second**1.5 * unbiased / math.sqrt(units), degrees)

    def ends(self, level: float) -> tuple[float, float]:
        """How many standard errors the interval reaches below and above the estimate."""
        reach = student_quantile(level, self.degrees)
        return self._bent(reach), -self._bent(-reach)

    def chance(self, t: float) -> float:
        """Two-sided p-value of an estimate ``t`` standard errors above the value that is tested."""
        straight = self._straightened(t)
        return 1 - student_coverage(abs(straight), max(self.degrees, 1.0))

    def _bent(self, x: float) -> float:
        """Inverse of ``_straightened``."""
        c = self.skew
        if abs(c) < _STRAIGHT or math.isinf(x):
            return x
        return (math.cbrt(1 + c * (x - c / 6)) - 1) * 3 / c

    def _straightened(self, t: float) -> float:
        """Hall's cubic transformation (1992): a studentised mean of skewed numbers made symmetric."""
        c = self.skew
        return t + c * t * t / 3 + c * c * t**3 / 27 + c / 6


def skewed(value: float, stderr: float, shape: Shape, level: float) -> tuple[float, float]:
    """Student's interval, its ends moved by the skewness and its degrees of freedom by heavy tails.

    Source: Hall 1992, On the removal of skewness by transformation; degrees of freedom from the variance of
    the variance (Satterthwaite).
    """
    if stderr == 0:
        return value, value
    below, above = shape.ends(level)
    return value - below * stderr, value + above * stderr


@dataclass(frozen=True)
class Bounded:
    """A mean within [0, 1] of G independent units, for Wilson's interval at an effective size.

    ``units`` are G, or the equal ones that they count as. ``variance`` is that of the mean, ``extreme`` the
    share of units at 0 or 1 throughout, ``least`` the size that the units have even if each is right or wrong
    as a whole, ``most`` the number of samples where these are 0 or 1 each. ``unseen`` is the variance that
    one unit more adds which is as far from those that lie close together as it may be.
    """

    value: float
    variance: float
    units: float
    degrees: float
    extreme: float
    least: float
    most: float = math.inf
    unseen: float = 0.0

    def size(self, level: float) -> float:
        """Right-or-wrong answers that would be as uncertain (Kish 1965; Korn and Graubard 1998).

        n* = p(1 - p) / v · (z / t)², the t of as many degrees of freedom as the variance has. Units at a
        bound hide how far others may lie from it: their share adds that part of 1.25 units that are right or
        wrong as a whole. Units that lie close together elsewhere add the variance of 1.25 units far off.
        Never below ``least``: no unit can spread more. Without variance it is the number of units.
        """
        spread = self.value * (1 - self.value)
        if self.variance <= 0 or spread <= 0:
            return self.units
        variance = self.variance + _HIDDEN * self.unseen
        effect = variance * self.units / spread  # of a unit, against one that is right or wrong
        hidden = _HIDDEN * self.extreme
        effect = (self.degrees * effect + hidden) / (self.degrees + hidden)
        tails = (normal_quantile(level) / student_quantile(level, self.degrees)) ** 2
        return max(min(self.units / effect * tails, self.most), self.least)
