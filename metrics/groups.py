"""Several benchmarks as one number."""

import math
from collections.abc import Sequence

from metrics.errors import ConfigError
from metrics.intervals import normal_quantile
from metrics.types import Estimate


def group_aggregate(
    estimates: Sequence[Estimate], weight_by_size: bool = True, ci_level: float = 0.95
) -> Estimate:
    """The mean of independent benchmarks' values, weighted by their items or not, with its standard error.

    The weights w add up to 1, and the error is √Σ (w · stderr)² for either kind of weight; a member without
    an error bar leaves the group without one. A member without a value leaves the group without a value:
    nothing is dropped.
    """
    if not estimates:
        raise ConfigError("a group needs at least one benchmark")
    n_items = sum(member.n_items for member in estimates)
    empty = sum(math.isnan(member.value) for member in estimates)
    if empty or (weight_by_size and n_items == 0):
        said = f"{empty} of {len(estimates)} benchmarks have no value"
        return Estimate(math.nan, math.nan, "none", math.nan, math.nan, n_items, said)
    sizes = [member.n_items if weight_by_size else 1 for member in estimates]
    weights = [size / sum(sizes) for size in sizes]
    value = math.fsum(weight * member.value for weight, member in zip(weights, estimates, strict=True))
    bare = sum(math.isnan(member.stderr) for member in estimates)
    if bare:
        said = f"{bare} of {len(estimates)} benchmarks have no error bar"
        return Estimate(value, math.nan, "none", math.nan, math.nan, n_items, said)
    stderr = math.sqrt(
        math.fsum((w * member.stderr) ** 2 for w, member in zip(weights, estimates, strict=True))
    )
    reach = normal_quantile(ci_level) * stderr
    return Estimate(value, stderr, "weighted sum of variances", value - reach, value + reach, n_items)
