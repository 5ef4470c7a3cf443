"""Which items belong together: by one field, or by two that cross, such as question and prompt.

Clusters of one field are added up and are then the units. Where two fields cross, an item is alike with those
of its own question and with those of its own prompt: the variance is that between the first field's clusters,
plus that between the second's, less that between their combinations, which both hold (Cameron, Gelbach and
Miller 2011).
"""

import math
from dataclasses import dataclass

import numpy as np

from metrics.statistics.intervals import Shape, effective_units, standard_error, without_rounding
from metrics.types import Floats, Ints

FEW_CLUSTERS = 10
UNEVEN = 0.75  # of the units there are, as which unequal ones count
FEW_UNEVEN_CLUSTERS = 13  # effective ones, where a few hold most of the items
FEW_NUMBERS = 50  # items, or clusters, of numbers without a range, or of texts that are added up
ROUNDING = 1e-9


def numbered(clusters: Ints | None) -> Ints | None:
    """Any integers (n,), or (n, 2) for two fields, as 0 … G - 1 in each column.

    Two fields become one where they do not cross: of a field within the other the wider one decides, and one
    that has the same value throughout says nothing."""
    if clusters is None:
        return None
    given = np.asarray(clusters)
    if given.ndim == 1:
        return np.unique(given, return_inverse=True)[1].reshape(-1)
    ways = np.column_stack([np.unique(column, return_inverse=True)[1].reshape(-1) for column in given.T])
    both = int(combined(ways).max(initial=-1)) + 1
    alone = [way for way, other in ((0, 1), (1, 0)) if counts(ways)[other] in (1, both)]
    return np.asarray(ways[:, alone[0]]) if alone else ways


def counts(ways: Ints) -> tuple[int, ...]:
    """Number of clusters of each field."""
    columns = ways.reshape(len(ways), -1).T
    return tuple(int(column.max(initial=-1)) + 1 for column in columns)


def sizes(groups: Ints) -> Floats:
    """Items of each cluster (n,) of one field."""
    return np.bincount(groups).astype(np.float64)


def effective(ways: Ints, weights: Floats | None = None) -> float:
    """The number of equal clusters that the items' clusters count as, if items weigh that much (n,), or
    alike; of two fields, that of the field that has fewer."""
    columns = ways.reshape(len(ways), -1).T
    return min(effective_units(np.bincount(column, weights).astype(np.float64)) for column in columns)


def cluster_sums(table: Floats, groups: Ints) -> Floats:
    """The rows of a table (n, k) added up within clusters (n,) of one field, in their order (G, k)."""
    count, width = int(groups.max()) + 1, table.shape[1]
    rows, columns = np.nonzero(table != 0)  # of cells of a confusion matrix nearly all are 0
    cells = np.bincount(groups[rows] * width + columns, table[rows, columns], count * width)
    return np.asarray(cells, dtype=np.float64).reshape(count, width)


def few_clusters(ways: Ints | None) -> str | None:
    """A doubt where there are few clusters, or a few that hold most of the items."""
    if ways is None or min(counts(ways)) < 2:
        return None
    number, equal = min(counts(ways)), effective(ways)
    if number < FEW_CLUSTERS:
        return f"only {number} clusters: the error bar is a rough guide"
    if equal >= FEW_CLUSTERS - ROUNDING:
        return None
    return (
        f"clusters of unequal size count as {equal:.1f} equal ones: the error bar is a rough guide; "
        f"{FEW_CLUSTERS} and more are safer"
    )


def too_few_to_pass(ways: Ints | None) -> str | None:
    """Why no gate passes on such clusters: a loss that is in some of them may be in none of those seen, and
    the error bar can't know of it. Below ten effective ones an error bar is a rough guide. Where a few hold
    most of the items, gates at eight and at eleven passed .045 and .035 of losses as large as the margin.
    """
    if ways is None:
        return None
    equal = effective(ways)
    uneven = equal < UNEVEN * min(counts(ways))
    needed = FEW_UNEVEN_CLUSTERS if uneven else FEW_CLUSTERS
    if equal >= needed - ROUNDING:
        return None
    alike = f"{equal:.3g} clusters"
    what = f"clusters of unequal size that count as {equal:.1f} equal ones" if uneven else alike
    return f"{what} are too few to rule out a loss: it takes {needed}"


def too_few_for_a_tail(units: float, count: int, kind: str, remedy: str = "") -> str | None:
    """Why no gate passes on so few numbers without a range, or items that weigh unequally: most may lose
    little and a few much, and the error bar does not know of those that the sample has not met (Bahadur and
    Savage 1956). Of lognormal losses as large as the margin 20 items passed .067 and 42 .055, where .05 may
    pass; 50 pass .048. Of BLEU, where one text in twenty loses nearly all, 30 texts passed .10.

    ``units`` are the equal ones that ``count`` of them count as: of 60 documents that count as 14, word
    perplexity passed .08 of exponential losses, and a mean of samples .13 where one item in five loses.
    """
    if units >= FEW_NUMBERS - ROUNDING:
        return None
    what = f"{count} {kind}" + (f" that count as {units:.3g} equal ones" if units < count - ROUNDING else "")
    return f"{what} are too few to rule out a loss: it takes {FEW_NUMBERS}{remedy}"


def wider(ways: Ints) -> Ints:
    """The clusters (n,) of the field that has fewer, for what knows only one field."""
    return ways if ways.ndim == 1 else np.asarray(ways[:, int(np.argmin(counts(ways)))])


def combined(ways: Ints) -> Ints:
    """Numbers (n,) of the combinations of two fields."""
    codes = ways[:, 0] * (int(ways[:, 1].max(initial=0)) + 1) + ways[:, 1]
    return np.asarray(np.unique(codes, return_inverse=True)[1].reshape(-1))


def alike_variance(values: Floats, ways: Ints | None) -> float:
    """The variance of the mean of items' numbers (n,), if their clusters are alike: the mean of each varies
    by as much, whatever its size. 0 without clusters; of two fields, that of the field that makes it larger.

    A large cluster's own residual says little of what it could have done: where it happens to lose nothing,
    the mean looks both better and surer. The small ones say it too. τ² between clusters is the variance of
    their means, less the part that their items' spread explains; it counts Σw² times for the mean, and
    each cluster's items by their own spread.

    Source: τ² by Cochran 1954 and Hedges 1983, A random effects model for effect sizes; clusters that are
    alike as what robust errors are measured by: Imbens and Kolesár 2016, Robust standard errors in small
    samples. What goes wrong without: MacKinnon and Webb 2017, Wild bootstrap inference for wildly different
    cluster sizes.

    >>> round(alike_variance(np.array([1.0, 3.0, 5.0, 7.0]), np.arange(4)), 6)  # as of items alone
    1.666667
    """
    if ways is None:
        return 0.0
    return max(_alike_in(values, column) for column in ways.reshape(len(ways), -1).T)


def _alike_in(values: Floats, groups: Ints) -> float:
    items = sizes(groups)
    weights = items / items.sum()
    means = np.bincount(groups, weights=values) / items
    left = np.bincount(groups, weights=(values - means[groups]) ** 2)
    free = items - 1
    of_all = float(left.sum()) / max(float(free.sum()), 1.0)
    within = np.where(free > 0, left / np.maximum(free, 1), of_all) / items  # of each cluster's mean
    between = max(float(means.var(ddof=1)) - float(within.mean()), 0.0)
    return float(weights * weights @ (between + within))


@dataclass(frozen=True)
class Members:
    """The rows of each cluster of one field, for resamples of whole clusters."""

    order: Ints  # rows, cluster by cluster
    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, groups: Ints) -> "Members":
        """From the clusters (n,) of the rows, 0 … G - 1."""
        sizes = np.bincount(groups)
        return cls(np.argsort(groups, kind="stable"), np.cumsum(sizes) - sizes, sizes)

    def rows(self, picks: Ints) -> Ints:
        """The rows of the clusters picked, one cluster after the other."""
        sizes = self.sizes[picks]
        ends = np.cumsum(sizes)
        return np.asarray(
            self.order[np.arange(ends[-1]) + np.repeat(self.starts[picks] - ends + sizes, sizes)]
        )


@dataclass(frozen=True)
class Crossed:
    """The variance of an estimate whose items cross two fields, and its shape; ``way`` is the field that the
    larger part comes from."""

    variance: float
    shape: Shape
    way: int

    @property
    def stderr(self) -> float:
        """Standard error."""
        return math.sqrt(self.variance)

    @classmethod
    def of(cls, influence: Floats, ways: Ints) -> "Crossed":
        """From by how much each of the n items raises the estimate, times n, and its clusters (n, 2).

        The variance is never below that of either field alone. Its degrees of freedom are those of its parts
        (Satterthwaite): few prompts that differ count as few.
        """
        parts = [_squared(*between_clusters(influence, column)) for column in (*ways.T, combined(ways))]
        (first, of_first), (second, of_second), (both, _) = parts
        variance = max(first + second - both, first, second)
        way = int(second > first)
        if variance <= 0:
            return cls(0.0, Shape(0.0, float(min(counts(ways)) - 1)), way)
        noise = sum(part**2 / max(shape.degrees, 1.0) for part, shape in parts)
        least = min(of_first.degrees, of_second.degrees)
        degrees = max(min(variance**2 / noise, max(of_first.degrees, of_second.degrees)), least)
        larger, shape = parts[way]
        skew = shape.skew * (larger / variance) ** 1.5
        return cls(variance, Shape(skew, degrees), way)


def between_clusters(influence: Floats, groups: Ints) -> tuple[float, Shape]:
    """The standard error between the clusters of one field, and its shape; ``influence`` (n,) is of items."""
    sums: Floats = np.bincount(groups, weights=influence).astype(np.float64)
    if len(sums) < 2:
        return 0.0, Shape(0.0, 0.0)
    size: Floats = np.bincount(groups, weights=np.abs(influence)).astype(np.float64)
    sums = without_rounding(sums, size)
    scaled, items = sums * (len(sums) / len(influence)), sizes(groups)
    return standard_error(scaled, items), Shape.of_unequal(scaled, items)


def _squared(stderr: float, shape: Shape) -> tuple[float, Shape]:
    return stderr**2, shape
