"""What few items can't say is not said: ends of percentiles, and differences that would be found."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import ItemColumn, compare_items
from metrics.statistics.estimate import estimate

SHARE = replace(build_aggregation("mean"), bounds=(0.0, 1.0))
FAST = StatisticsConfig(bootstrap_iters=500)


def scalar(values: Any) -> ItemColumn:
    numbers = np.asarray(values, dtype=np.float64)
    return ItemColumn(numbers, numbers.reshape(-1, 1))


def test_a_high_percentile_of_few_items_has_no_upper_end() -> None:
    values = np.random.default_rng(1).exponential(size=5)
    made = estimate(build_aggregation("percentile@95"), None, values, None, FAST)
    assert made.ci_high == math.inf
    assert made.ci_low <= made.value
    assert "too few" in str(made.warning)
    median = estimate(build_aggregation("median"), None, values, None, FAST)
    assert (median.ci_low, median.ci_high) == (values.min(), values.max())


def test_a_difference_that_was_found_is_not_said_to_be_beyond_what_is() -> None:
    base = np.array([1.0] * 4 + [0.0] * 20 + [1.0] * 16)
    candidate = np.array([0.0] * 4 + [1.0] * 20 + [1.0] * 16)
    made = compare_items(SHARE, scalar(base), scalar(candidate), None, FAST)
    assert made.p_value < 0.01
    assert "too few" not in str(made.warning)


@pytest.mark.parametrize("upward", [True, False])
def test_both_directions_of_a_comparison_have_one_mde(upward: bool) -> None:
    rng = np.random.default_rng(2)
    base = (rng.random(300) < 0.7).astype(float)
    candidate = np.where(rng.random(300) < 0.1, 1.0, base)
    first, second = scalar(base), scalar(candidate)
    there = compare_items(SHARE, first, second, None, FAST, higher_is_better=upward)
    back = compare_items(SHARE, second, first, None, FAST, higher_is_better=upward)
    assert there.mde == pytest.approx(back.mde)
