"""How many items and samples decide a gate: what one comparison's spread says of larger and smaller ones.

A margin is decided where a candidate as good as the baseline passes with the power asked for: the interval
then reaches from no difference to the margin. Which loss beyond it is called a regression as often is a
number of its own: where items are right or wrong, a loss makes more of them differ.
"""

import math
from dataclasses import dataclass

from metrics.statistics.intervals import normal_quantile, student_quantile
from metrics.statistics.power import POWER, smoothed, units_needed

_MOST = 1 << 40
_STEPS = 40


@dataclass(frozen=True)
class PairSpread:
    """By how much an item's difference varies from item to item, in the metric's own units.

    ``items`` is the variance that stays however often an item is asked, ``sampling`` what one sample adds to
    it in both runs together, and shrinks with the samples. ``width`` is the range of an item's numbers,
    infinite where it is not known.
    """

    items: float
    sampling: float
    width: float = math.inf

    @classmethod
    def of_share(cls, share: float) -> "PairSpread":
        """Of items that are right or wrong, of which that share differs, for chance as it were."""
        return cls(0.0, share, 1.0)

    def variance(self, samples: int) -> float:
        """Of an item's difference, each side being the mean of so many samples."""
        return self.items + self.sampling / samples

    def margin(self, items: int, samples: int, alpha: float, power: float = POWER) -> float:
        """The margin that a comparison of so many items decides; NaN where none could be."""
        if items < units_needed(alpha):
            return math.nan
        within, beyond = _reaches(items, alpha, power)
        varied = self._smoothed(items, samples)
        seen = beyond * math.sqrt(varied / items)
        margin = within * math.sqrt(varied / items) + seen
        if samples > 1 or not math.isfinite(self.width):
            return margin
        # If the margin were lost, more items would differ than do: the variance that Tango's test takes.
        for _ in range(_STEPS):
            at_margin = (varied + math.sqrt(varied**2 + 4 * (self.width * margin) ** 2)) / 2
            margin = within * math.sqrt(at_margin / items) + seen
        return margin

    def loss_found(
        self, margin: float, items: int, samples: int, alpha: float, power: float = POWER
    ) -> float:
        """The true loss beyond the margin that is called a regression; NaN where none could be."""
        if items < units_needed(alpha):
            return math.nan
        grows = self.width if samples == 1 and math.isfinite(self.width) else 0.0
        squared = sum(_reaches(items, alpha, power)) ** 2 / items
        varied = self._smoothed(items, samples) + grows * margin
        return margin + (squared * grows + math.sqrt((squared * grows) ** 2 + 4 * squared * varied)) / 2

    def _smoothed(self, items: int, samples: int) -> float:
        """The variance with a difference in it that was not seen yet, and may be there."""
        varied = self.variance(samples)
        if not math.isfinite(self.width):
            return varied
        unit = self.width**2 / samples
        return smoothed(varied / unit * items, items) * unit

    def items_for(self, margin: float, samples: int, alpha: float, power: float = POWER) -> int | None:
        """The fewest items that decide a margin; None where no number does."""
        if margin <= 0:
            return None
        high = units_needed(alpha)
        while not self.margin(high, samples, alpha, power) <= margin:
            high *= 2
            if high > _MOST:
                return None
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.margin(middle, samples, alpha, power) <= margin:
                high = middle
            else:
                low = middle
        return high


def _reaches(items: int, alpha: float, power: float) -> tuple[float, float]:
    """Standard errors from the loss that is tested to where it is found, and from there to what is."""
    return student_quantile(1 - alpha, items - 1.0), normal_quantile(2 * power - 1)
