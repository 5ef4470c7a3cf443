"""How large a true difference must be for a test to find it, and what a planner makes of it.

The alternative is a loss: the share of items that improve stays at its smoothed estimate, the share that
worsens is larger by the effect. Agresti's smoothing (half an item in either cell, two items more) keeps runs
without a single discordant item from promising that any difference would be seen.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from metrics.statistics.intervals import beta_share, bisected, fewest, normal_quantile, student_quantile
from metrics.statistics.tied import CLOSE, size_with_one_more
from metrics.types import Floats

POWER = 0.8
"""Chance of seeing a true difference as large as the minimum detectable effect."""

FORESEEN_DEGREES = 12
"""Degrees of freedom below which the clusters of two runs are too few, or too uneven, to foresee others."""
FORESEEN_CLUSTERS = 20
"""Clusters of one run from which on it foresees others: of 13, half of the comparisons have too few degrees
of freedom."""

_NORMAL = NormalDist()
_EXACT = 30.0  # expected improvements up to which every count is gone through
_HALVINGS = 24


def smoothed(count: float, n: int) -> float:
    """A share of n items with half an item more of two more (Agresti and Min 2005).

    >>> round(smoothed(0, 98), 4)
    0.005
    """
    return (count + 0.5) / (n + 2)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value: the discordant items as tosses of a fair coin; 1 without any.

    >>> round(mcnemar(2, 8), 6)
    0.109375
    """
    n, fewer = gained + lost, min(gained, lost)
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


@lru_cache(maxsize=4096)
def mcnemar_mde(n: int, gained: float, alpha: float, power: float = POWER) -> float:
    """The loss that the exact test finds among n items of which ``gained`` improve; NaN where even the loss
    of all others would be missed.

    >>> round(mcnemar_mde(100, 2, 0.05), 3)
    0.115
    """
    better = smoothed(gained, n)
    most = 1 - better
    chance = _exact_power if n * better <= _EXACT else _normal_power
    if most <= 0 or chance(n, better, most, alpha) < power:
        return math.nan
    return bisected(
        lambda loss: chance(n, better, better + loss, alpha) < power, 0.0, most - better, _HALVINGS
    )[1]


def _exact_power(n: int, better: float, worse: float, alpha: float) -> float:
    """P(p < alpha) in the direction of a loss, over all counts of items that improve."""
    centre, spread = n * better, math.sqrt(n * better) + 1
    first, last = max(0, int(centre - 6 * spread)), min(n, int(centre + 6 * spread))
    share, total = min(worse / (1 - better), 1.0), 0.0
    for gained in range(first, last + 1):
        chance = _binomial(gained, n, better)
        needed = _needed(gained, alpha)
        if chance > 1e-12 and needed <= n - gained:
            total += chance * beta_share(share, needed, n - gained - needed + 1)
    return total


def _binomial(count: int, n: int, share: float) -> float:
    """How likely so many of n are, each with a chance of ``share``."""
    if not 0 < share < 1:
        return float(count == n * share)
    return math.exp(
        math.lgamma(n + 1)
        - math.lgamma(count + 1)
        - math.lgamma(n - count + 1)
        + count * math.log(share)
        + (n - count) * math.log1p(-share)
    )


@lru_cache(maxsize=4096)
def _needed(gained: int, alpha: float) -> int:
    """The fewest lost items that are significant beside ``gained`` ones."""
    lost = gained + 1 if gained == 0 else _needed(gained - 1, alpha) + 1
    while mcnemar(gained, lost) >= alpha:
        lost += 1
    return lost


def _normal_power(n: int, better: float, worse: float, alpha: float) -> float:
    """The same for many discordant items, by the normal approximation with continuity correction."""
    effect, discordant = worse - better, worse + better
    spread = math.sqrt(n * max(discordant - effect**2, 1e-300))
    reach = normal_quantile(1 - alpha) * math.sqrt(n * discordant)
    return _NORMAL.cdf((n * effect - 1 - reach) / spread)


def shift_mde(
    stderr: float,
    degrees: float,
    ties: float,
    size: float,
    alpha: float,
    width: float = math.inf,
    clusters: float = math.inf,
) -> float:
    """The loss that a test of a mean difference finds; NaN where that is beyond ``width``, the most that two
    numbers can differ by.

    ``ties`` is the share of units that do not differ, ``size`` the mean absolute difference of all: where
    most units tie, a loss is made of units that did not differ before, and widens the spread. So it does
    among few ``clusters``, whose spread has one more that differs by the loss.
    """
    if not degrees >= 1 or not math.isfinite(stderr) or stderr <= 0:
        return math.nan
    squared = (sum(reaches(degrees, alpha)) * stderr) ** 2
    growth, left = ties / size if size > 0 else 0.0, 1 - (sum(reaches(degrees, alpha)) / clusters) ** 2
    if left <= 0:
        return math.nan
    found = (squared * growth + math.sqrt((squared * growth) ** 2 + 4 * squared * left)) / (2 * left)
    return found if found <= width else math.nan


def reaches(degrees: float, alpha: float, power: float = POWER) -> tuple[float, float]:
    """Standard errors from the loss that is tested to where it is found, and from there to what is found with
    that chance."""
    widened = 1 + 1 / degrees  # a spread that few units say is more often too small than too large
    within, beyond = student_quantile(1 - alpha, degrees), student_quantile(2 * power - 1, degrees)
    return widened * within, widened * beyond


@dataclass(frozen=True)
class Alike:
    """A mean of items that may lose nearly the same, and what a comparison then finds.

    Items that change alike hide others (``tied.Tied``): if all lose a little, most tie there, and no loss at
    all is only what unseen items would have to make up for. ``noise`` is the standard error of the mean
    change, ``moved`` the share of items that do not tie, ``square`` the mean square of what these change by
    beyond it, ``width`` the range.
    """

    items: int
    noise: float
    moved: float
    square: float
    width: float

    @classmethod
    def expected(cls, items: int, variances: Floats, width: float) -> "Alike":
        """Of changes that are normal about the same loss, with these variances: one, or one an item."""
        spread = np.sqrt(variances[variances > 0])
        reach = CLOSE * width / spread
        beyond = np.array([math.erfc(one / math.sqrt(2)) for one in reach])
        squares = spread**2 * (beyond + reach * np.sqrt(2 / math.pi) * np.exp(-(reach**2) / 2))
        moved = float(beyond.sum()) / len(variances)
        square = float(squares.sum() / beyond.sum()) if moved > 0 else 0.0
        return cls(items, math.sqrt(float(variances.mean()) / items), moved, square, width)

    def mde(self, degrees: float, alpha: float, power: float = POWER) -> float:
        """The loss of all items that is found; NaN where even one of the whole range is missed."""
        counts, chances = self._counts()
        ties = 1 - counts / self.items
        hidden = ties * np.where(counts > 0, self.square, self.width**2) / self.items**2
        sizes = np.array([size_with_one_more(one * self.square, one, self.width) for one in counts])
        growth = ties * sizes / self.items
        within, beyond = reaches(degrees, alpha, power)
        spread, rising = within * np.sqrt(self.noise**2 + hidden), student_quantile(1 - alpha, degrees)
        unit = beyond * self.noise / normal_quantile(2 * power - 1)

        def found(loss: float) -> bool:
            left = loss - np.maximum(spread, rising * np.sqrt(growth * loss))
            if unit <= 0:
                return float(chances @ (left >= 0)) >= power
            return (
                math.fsum(c * _NORMAL.cdf(one / unit) for c, one in zip(chances, left, strict=True)) >= power
            )

        return bisected(found, self.width, 0.0, _HALVINGS)[0] if found(self.width) else math.nan

    def _counts(self) -> tuple[Floats, Floats]:
        """How many items do not tie, and how likely; the expected number where they are many."""
        expected = self.items * self.moved
        if expected > _EXACT:
            return np.array([expected]), np.ones(1)
        counts = np.arange(min(self.items, int(expected + 6 * math.sqrt(expected) + 6)) + 1.0)
        return counts, np.array([_binomial(int(one), self.items, self.moved) for one in counts])


def foreseen_mde(
    units: int,
    stderr: float,
    alpha: float,
    *,
    means: Floats | None = None,
    repeats: Floats | None = None,
    sampling: float | None = None,
    width: float = math.inf,
    clusters: float = math.inf,
) -> float:
    """The loss that a comparison of a mean with another run of the same items finds, as far as one run tells.

    ``sampling`` is the part of ``stderr`` that repeats explain, ``means`` and ``repeats`` (n,) each item's:
    the other run is taken to answer the same items again. Of single answers nothing says how many items of
    another run would differ, and the runs are taken to be unrelated, the worst that is usual; or to change so
    little, where they are neither right nor wrong, that all of their items hide others. ``clusters`` is the
    number of equal ones that the items' clusters count as, infinite without any. NaN for too few units,
    and beyond ``width``, the range of the number.
    """
    degrees = min(units, clusters) - 1.0
    if units < units_needed(alpha) or clusters < FORESEEN_CLUSTERS or not math.isfinite(stderr):
        return math.nan
    more = math.sqrt(1 + 1 / clusters)  # one cluster more that differs, as in a comparison
    if sampling is not None and means is not None and repeats is not None:
        if sampling <= 0:
            return mcnemar_mde(units, 0.0, alpha)
        ties = float(((means <= 0) | (means >= 1)).mean())
        apart = float(np.sqrt(4 / math.pi * means * (1 - means) / repeats).mean())
        found = shift_mde(math.sqrt(2) * sampling * more, degrees, ties, apart, alpha, width, clusters)
        return found if math.isfinite(clusters) else _with_alike(found, means, repeats, width, alpha)
    if means is not None and len(means) == units and bool(((means == 0) | (means == 1)).all()):
        share = float(means.mean())
        return mcnemar_mde(units, units * share * (1 - share), alpha)
    found = shift_mde(math.sqrt(2) * stderr * more, degrees, 0.0, 1.0, alpha, width, clusters)
    if means is None or math.isfinite(clusters) or not math.isfinite(width):
        return found
    if repeats is not None and are_samples(means, repeats):  # they spread more than the items do, by chance
        return _with_alike(found, means, repeats, width, alpha)
    return larger(found, unseen_mde(units, alpha, width))  # how little the items will change is not known


def are_samples(means: Floats, repeats: Floats) -> bool:
    """Whether each mean is of at least two repeats of 0 or 1."""
    right = means * repeats
    whole = bool((np.abs(right - np.rint(right)) < 1e-9).all()) and bool(((means >= 0) & (means <= 1)).all())
    return whole and bool((repeats >= 2).all())


def _with_alike(found: float, means: Floats, repeats: Floats, width: float, alpha: float) -> float:
    """The loss with what items of these means hide, if all change nearly alike."""
    alike = _alike_items(means, repeats, found, width)
    if alike is None:
        return found
    still = (1 - alike.moved) ** alike.items > 0.5  # as a rule no item leaves the others
    unseen = unseen_mde(alike.items, alpha, width) if still else 0.0
    return larger(larger(found, unseen), alike.mde(alike.items - 1.0, alpha))


def _alike_items(means: Floats, repeats: Floats, loss: float, width: float) -> Alike | None:
    """What items (n,) of these means do if each loses the same part of its own; None where most do not change
    at all, and the loss is that of the others."""
    if not math.isfinite(width) or math.isnan(loss):
        return None
    lost = means * max(1 - loss / float(means.mean()), 0.0)
    unchanged = np.where(means >= 1, lost**repeats, means <= 0)
    variances = means * (1 - means) / (repeats - 1) + lost * (1 - lost) / repeats
    return None if float(unchanged.mean()) > 0.5 else Alike.expected(len(means), variances, width)


def larger(first: float, second: float) -> float:
    """The larger of two losses that are found; NaN where one of them is not known."""
    return math.nan if math.isnan(first) or math.isnan(second) else max(first, second)


def unseen_mde(items: int, alpha: float, width: float) -> float:
    """The loss of the fewest items that a sign-flip test finds, of the whole range each."""
    return units_needed(alpha) * width / items


def units_needed(alpha: float) -> int:
    """Units from which on a sign-flip test can reach the level: all of them on one side.

    >>> units_needed(0.05)
    6
    """
    return math.floor(1 - math.log2(alpha)) + 1


def items_needed(margin: float, alpha: float) -> int | None:
    """The fewest items, each right or wrong, among which the exact test finds a loss of ``margin`` at best:
    where none improves. None for a margin of 0, which no number decides.

    >>> items_needed(0.02, 0.05)
    439
    """
    if margin <= 0:
        return None
    return fewest(lambda items: mcnemar_mde(items, 0, alpha) <= margin, 8)
