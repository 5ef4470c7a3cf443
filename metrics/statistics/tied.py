"""Units that are alike, and what they hide: how far others may lie that the sample does not have."""

import math
from dataclasses import dataclass

import numpy as np

from metrics.statistics.intervals import Shape
from metrics.types import Floats

CLOSE = 1 / 8  # of a range: numbers no farther from each other say nothing of one that is far away
_ROUNDING = 1e-12
_SPARSE = 30  # units that differ, up to which they are counted and not averaged


@dataclass(frozen=True)
class Tied:
    """Units that change alike, as most do: by nothing as a rule. They hide how many may change otherwise.

    ``moved`` (G,) is what a unit changes by beyond what the others of its size do, 0 for those that tie.
    ``change`` is what an item of these changes by, and ``largest`` what a unit may change by beyond it.
    """

    moved: Floats
    change: float
    largest: float

    @classmethod
    def of(cls, sums: Floats, sizes: Floats, width: float, near: float) -> "Tied":
        """From the changes of units of so many items each, whose numbers lie within a range of ``width``;
        those tie whose items differ by ``near`` at most from the commonest change. Where no range is known, a
        unit that does not tie may not change at all."""
        of_item = sums / sizes
        near = max(near, _ROUNDING * float(np.abs(of_item).max()))
        change = commonest(of_item, near)
        moved = np.where(np.abs(of_item - change) <= near, 0.0, sums - change * sizes)
        largest = width if math.isfinite(width) else abs(change)
        return cls(moved, change, largest * float(sizes.mean()))

    @property
    def differing(self) -> int:
        """How many units do not tie."""
        return int((self.moved != 0).sum())

    @property
    def ties(self) -> float:
        """The share of units that tie."""
        return 1 - self.differing / len(self.moved)

    @property
    def typical(self) -> float:
        """The square of what a unit changes by that does not tie."""
        return mean_square(self.moved, self.largest)

    @property
    def sparse(self) -> bool:
        """Whether so few do not tie that these are counted and not averaged."""
        return self.differing < _SPARSE and self.ties > 0.5

    @property
    def alike(self) -> bool:
        """Whether units that do not tie change by about as much each: the sum's variance is that of half as
        many equal ones, or of more. Else the few of them that change most decide."""
        squares = self.moved**2
        return float(squares.sum()) ** 2 >= self.differing * float((squares**2).sum()) / 2

    def straight(self, shape: Shape, degrees: float) -> Shape:
        """The shape of a sum of the changes, ``shape`` by these alone: of a few that are alike, skewness and
        tails are those of their number, and units that tie already tell how far others may lie."""
        return Shape(0.0, degrees) if self.sparse and self.alike and self.largest > 0 else shape

    @property
    def growth(self) -> float:
        """By how much the variance of all changes grows with a change of 1, if units that tie make it."""
        return self.ties * size_of_change(self.moved, self.largest)


def mean_square(changes: Floats, largest: float) -> float:
    """Of the changes that are not 0; the largest one's where all are."""
    differing = int((changes != 0).sum())
    return float((changes * changes).sum()) / differing if differing else largest**2


def commonest(changes: Floats, near: float) -> float:
    """The change in the middle of those that lie within ``near`` of one, where most do: of 0 where none has
    more, else of the one nearest to the mean."""
    ordered, tried = np.sort(changes), np.append(changes, 0.0)
    first, last = np.searchsorted(ordered, tried - near), np.searchsorted(ordered, tried + near, "right")
    close = last - first
    if close.max() < 2:
        return 0.0  # none is like another
    most = np.flatnonzero(close == close.max())
    place = -1 if close[-1] == close.max() else most[np.argmin(np.abs(tried[most] - changes.mean()))]
    return float(np.median(ordered[first[place] : last[place]]))


def size_of_change(changes: Floats, largest: float) -> float:
    """By how much a unit differs that ties here: as those that do not, and one that differs by all it can."""
    differing = int((changes != 0).sum())
    return size_with_one_more(float((changes * changes).sum()), differing, largest)


def size_with_one_more(squares: float, differing: float, largest: float) -> float:
    """The size of so many changes, with these squares together, and of one that is ``largest``."""
    known = largest > 0
    return math.sqrt((squares + largest**2) / (differing + known)) if differing + known else 0.0
