"""pass@k in trials: an item's samples cut into trials of k consecutive ones, of which one has to pass."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.params import PassAtKParams

if TYPE_CHECKING:
    from metrics.reductions.reduction import Reduction, Repeats

Floats = NDArray[np.float64]

_AGGREGATIONS: dict[str, Callable[[Floats], Floats]] = {
    "mean": lambda trials: np.mean(trials, axis=1),
    "median": lambda trials: np.median(trials, axis=1),
    "min": lambda trials: np.min(trials, axis=1),
    "max": lambda trials: np.max(trials, axis=1),
}


def pass_at_k(params: PassAtKParams) -> "Reduction":
    """The reduction behind ``pass_at_k``: the unbiased estimator, or the aggregate of an item's trials.

    An item's number lies in 0 to 1, higher is better. An item with fewer scored samples than it takes (k, or
    k × num_trials) is unscored.
    """
    from metrics.reductions.reduction import Reduction, build_reduction

    if params.num_trials is None:
        unbiased = build_reduction(f"pass@{params.k}")
        return Reduction(name="mean", requires=params.k, compute=unbiased.compute)
    needed, trials = params.k * params.num_trials, params.num_trials

    def compute(repeats: "Repeats") -> Floats:
        return trial_values(repeats, params.k, trials, params.aggregation)

    return Reduction(name="mean", requires=needed, compute=compute)


def trial_values(repeats: "Repeats", k: int, num_trials: int, aggregation: str) -> Floats:
    """Each item's aggregate over its trials (n,), from its first k × num_trials scored samples.

    A trial is 1 if one of its k samples has a score above zero, else 0. NaN where an item has too few
    samples.
    """
    from metrics.reductions.reduction import scored_only

    scored = scored_only(repeats)
    enough = np.flatnonzero(scored.counts >= k * num_trials)
    values = np.full(len(scored), np.nan)
    rows = scored.offsets[:-1][enough, None] + np.arange(k * num_trials)
    passed = (scored.score[rows] > 0).reshape(len(enough), num_trials, k).any(axis=2)
    values[enough] = _AGGREGATIONS[aggregation](passed.astype(np.float64))
    return values
