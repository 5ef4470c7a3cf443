"""What a way to the standard error is given, and what it gives."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from metrics.aggregations.aggregation import Aggregation, total_of
from metrics.types import Floats, Ints

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig


@dataclass(frozen=True)
class Spread:
    """A standard error with the interval that goes with it, and a doubt about it, if any."""

    stderr: float
    method: str
    low: float
    high: float
    warning: str | None = None


NOTHING = Spread(math.nan, "none", math.nan, math.nan)


@dataclass(frozen=True)
class Sampled:
    """n items as G independent units: ``table`` (G, k) sums and ``sizes`` (G,) items of each."""

    aggregation: Aggregation
    table: Floats
    sizes: Floats
    value: float
    options: "StatisticsConfig"
    clustered: bool

    @classmethod
    def of(
        cls, aggregation: Aggregation, table: Floats, groups: Ints | None, options: "StatisticsConfig"
    ) -> "Sampled":
        """Items added up within their groups (0 … G-1), or as they are."""
        value = aggregation.of_total(total_of(table), float(len(table)))
        if groups is None:
            return cls(aggregation, table, np.ones(len(table)), value, options, clustered=False)
        count = int(groups.max()) + 1
        sums = np.column_stack([np.bincount(groups, weights=column, minlength=count) for column in table.T])
        sizes: Floats = np.bincount(groups, minlength=count).astype(np.float64)
        return cls(aggregation, np.asarray(sums, dtype=np.float64), sizes, value, options, clustered=True)

    @property
    def units(self) -> int:
        """Number of independent units: items, or clusters."""
        return len(self.table)

    @property
    def n(self) -> float:
        """Number of items."""
        return float(self.sizes.sum())

    @property
    def total(self) -> Floats:
        """Sum of all statistics (k,)."""
        return np.asarray(self.table.sum(axis=0))

    def rng(self) -> np.random.Generator:
        """The generator that the config's seed makes."""
        return np.random.default_rng(self.options.seed)

    def alone(self) -> Spread:
        """What to answer for a single unit."""
        said = "one cluster has no spread" if self.clustered else "one item has no spread"
        return Spread(math.nan, "none", math.nan, math.nan, said)
