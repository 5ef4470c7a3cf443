"""How a metric over evaluation results makes one number of samples.

``trials`` and ``samples`` are the two-phase framework's own ways: a trial takes k consecutive samples of
every item in the order of the file and gives one rate over all items, which is aggregated over the trials;
a median is that of all samples. ``unbiased`` and ``items`` are the statistically better ones. The unit of
every error bar is the item.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrics.ragged import pooled, segment_sum

if TYPE_CHECKING:
    from metrics.aggregation import Aggregation
    from metrics.config import StatisticsConfig
    from metrics.reductions.reduction import Reduced, Repeats
    from metrics.types import Estimate, Values

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SampleEstimator:
    """``reduce`` makes an item's row of its samples, ``aggregation`` the number of all rows.

    ``estimate`` knows more about the number's error than the aggregation does; None where it does not.
    """

    reduce: "Callable[[Repeats], Reduced]"
    aggregation: "Aggregation"
    estimate: "Callable[[Floats | None, Values | None, Any, StatisticsConfig], Estimate | None] | None" = None


_OVER_TRIALS: dict[str, Callable[[Floats], Floats]] = {
    "mean": lambda rates: np.mean(rates, axis=-1),
    "median": lambda rates: np.median(rates, axis=-1),
    "min": lambda rates: np.min(rates, axis=-1),
    "max": lambda rates: np.max(rates, axis=-1),
}


def trials(k: int, num_trials: int, aggregation: str) -> SampleEstimator:
    """Trial t takes samples t·k to (t + 1)·k of every item; its rate is the share of items that pass in one.

    An item's row holds 1 a trial that passes, 0 else. An item with fewer than k × num_trials scored samples
    is unscored.
    """
    from metrics.aggregation import Aggregation
    from metrics.reductions.reduction import Reduced, scored_only
    from metrics.statistics.rules import BootstrapRule, MeanRule

    over = _OVER_TRIALS[aggregation]

    def reduce(repeats: "Repeats") -> "Reduced":
        scored = scored_only(repeats)
        enough = scored.counts >= k * num_trials
        rows = scored.offsets[:-1][enough, None] + np.arange(k * num_trials)
        passed = np.zeros((len(scored), num_trials))
        passed[enough] = (scored.score[rows] > 0).reshape(-1, num_trials, k).any(axis=2)
        value = np.where(enough, over(passed), np.nan)
        return Reduced("mean", value, passed, None, repeats.counts, scored.counts, enough)

    def compute(total: Floats, n: Any) -> Floats:
        return over(total / np.asarray(n, dtype=np.float64)[..., None])

    name = "trial" if num_trials == 1 else f"{aggregation} of {num_trials} trials"
    several = None if aggregation == "mean" else BootstrapRule()
    rule = MeanRule() if num_trials == 1 else several
    return SampleEstimator(
        reduce, Aggregation(name, k=num_trials, compute=compute, rule=rule, bounds=(0.0, 1.0))
    )


def first_cells(num_trials: int, aggregation: "Aggregation") -> SampleEstimator:
    """The cells of an item's first ``num_trials`` samples that count, added up: whole samples are counted.

    A sample's last statistic says whether it counts; an item's says how many of its samples do.
    """
    from metrics.reductions.reduction import Reduced, scored_only

    def reduce(repeats: "Repeats") -> "Reduced":
        scored = scored_only(repeats)
        samples = len(scored.score)
        own = np.zeros((samples, aggregation.k)) if scored.statistics is None else scored.statistics
        counts = own[:, -1] > 0
        before = np.concatenate([[0], np.cumsum(counts)])
        place = before[:-1] - np.repeat(before[scored.offsets[:-1]], scored.counts)
        cells = np.where((counts & (place < num_trials))[:, None], own[:, :-1], 0.0)
        table = segment_sum(np.column_stack([cells, counts]).astype(np.float64), scored.offsets)
        there = scored.counts > 0
        value = np.full(len(scored), np.nan)
        return Reduced("mean", value, table, None, repeats.counts, scored.counts, there)

    return SampleEstimator(reduce, aggregation)


def mean_of_samples(bounds: tuple[float, float]) -> SampleEstimator:
    """The mean over all samples, whatever the number of an item's: Σ scores / Σ samples."""
    from metrics.aggregation import Aggregation, build_aggregation
    from metrics.reductions.reduction import Reduced, scored_only
    from metrics.statistics.estimate import estimate

    plain = replace(build_aggregation("mean"), bounds=bounds)

    def reduce(repeats: "Repeats") -> "Reduced":
        scored = scored_only(repeats)
        total, count = segment_sum(scored.score, scored.offsets), scored.counts
        there = count > 0
        value = np.where(there, total / np.where(there, count, 1), np.nan)
        table = np.column_stack([total, count]).astype(np.float64)
        return Reduced("mean", value, table, None, repeats.counts, count, there)

    def compute(total: Floats, n: Any) -> Floats:
        return np.asarray(total[..., 0] / total[..., 1])

    def of_items(
        table: Floats | None, values: "Values | None", clusters: Any, options: "StatisticsConfig"
    ) -> "Estimate | None":
        """Items with equally many samples: the mean of their means, whose error bar is known better. Samples
        that are right or wrong have a share, whatever their numbers."""
        if table is None or not len(table):
            return None
        if (table[:, 1] != table[0, 1]).any():
            if bounds == shares.bounds or not _right_or_wrong(table):
                return None
            return estimate(shares, table, values, clusters, options)
        samples = int(table[:, 1].sum())
        return estimate(plain, table[:, :1] / table[:, 1:], None, clusters, options, samples)

    aggregation = Aggregation(
        "mean of samples", k=2, compute=compute, bounds=bounds, weight=(1,), proportional=True
    )
    shares = replace(aggregation, bounds=(0.0, 1.0))
    return SampleEstimator(reduce, aggregation, of_items)


def _right_or_wrong(table: Floats) -> bool:
    """Whether rows of sums and numbers of samples may be of samples that are 0 or 1, not all alike."""
    means = table[:, 0] / table[:, 1]
    whole = bool((np.abs(table[:, 0] - np.rint(table[:, 0])) < 1e-9).all())
    return whole and 0 <= float(means.min()) < float(means.max()) <= 1


def quantile_of_samples(q: float) -> SampleEstimator:
    """The q-quantile (0 to 1) of all samples together, linear between the two nearest of them."""
    from metrics.aggregation import Aggregation
    from metrics.reductions.reduction import Reduced, scored_only
    from metrics.statistics.rules import QuantileRule

    def reduce(repeats: "Repeats") -> "Reduced":
        scored = scored_only(repeats)
        own = [row.tolist() for row in np.split(scored.score, scored.offsets[1:-1])]
        there = scored.counts > 0
        value = np.array([quantile(np.asarray(row), q) if row else np.nan for row in own], dtype=np.float64)
        return Reduced("mean", value, None, list(own), repeats.counts, scored.counts, there)

    def combine(values: "Values") -> float:
        return quantile(pooled(values)[0], q)

    name = f"percentile@{100 * q:g} of samples"
    return SampleEstimator(reduce, Aggregation(name, kind="values", combine=combine, rule=QuantileRule(q)))


def quantile(samples: Floats, q: float) -> float:
    """The q-quantile of some samples, linear between the two nearest."""
    ordered = np.sort(samples)
    place = q * (len(ordered) - 1)
    low = int(place)
    if low == place:
        return float(ordered[low])
    return float(ordered[low] + (ordered[low + 1] - ordered[low]) * (place - low))
