"""Numbers between two ends have an interval with a width that covers, also where hardly an item errs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.coverage import LOW, measure, near_bounds
from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.estimate import estimate
from metrics.types import Estimate

ROUNDS = 120
FAST = StatisticsConfig(bootstrap_iters=500)


@pytest.mark.parametrize(
    "setting", list(near_bounds()), ids=lambda setting: f"{setting.family}, {setting.name}"
)
def test_intervals_near_an_end_cover(setting: Any) -> None:
    found = measure(replace(setting, rounds=ROUNDS))
    assert found.covered >= LOW - 3 * math.sqrt(0.05 * 0.95 / ROUNDS)


def of(name: str, values: Any, bounds: Any = None, **options: Any) -> Estimate:
    aggregation = build_aggregation(name)
    if bounds is not None:
        aggregation = replace(aggregation, bounds=bounds)
    scores = aggregation.scores(values)
    given = scores.values if scores.values is not None else scores.score
    return estimate(aggregation, scores.statistics, given, None, StatisticsConfig(**options))


@pytest.mark.parametrize("method", ["auto", "jackknife", "bootstrap", "bca", "delta"])
@pytest.mark.parametrize(
    ("name", "values", "bounds"),
    [
        ("f1", [(1, 1), (0, 0)] * 30, None),
        ("f1", [(1, 0), (0, 1)] * 30, None),
        ("mcc", [("a", "a"), ("b", "b")] * 30, None),
        ("mcc", [("a", "b"), ("b", "a")] * 30, None),
        ("nanmean", [1.0] * 40, (0.0, 1.0)),
        ("weighted_mean", [(0.0, 2.0), (0.0, 3.0)] * 20, (0.0, 1.0)),
        ("nanmean", [3.0] * 40, None),
        ("bleu", [("a b c d e f", "a b c d e f")] * 20, None),
        ("bleu", [("a b c d e f", "g h i j k l")] * 20, None),
        ("chrf", [("a b c d e f", "a b c d e f")] * 20, None),
    ],
)
def test_no_interval_is_a_point(name: str, values: Any, bounds: Any, method: str) -> None:
    made = of(name, values, bounds, method=method, bootstrap_iters=300)
    if math.isnan(made.ci_low):
        assert made.warning
    else:
        assert made.ci_high - made.ci_low > 0.01
        assert made.ci_low <= made.value <= made.ci_high
    if method == "auto" and not (name == "nanmean" and bounds is None):
        assert not math.isnan(made.ci_low)


def test_a_perfect_f1_is_as_uncertain_as_its_positive_items() -> None:
    few, many = of("f1", [(1, 1)] * 5 + [(0, 0)] * 95), of("f1", [(1, 1)] * 50 + [(0, 0)] * 50)
    assert few.ci_low < 0.8 < many.ci_low < 1
    assert few.ci_high == many.ci_high == 1


@pytest.mark.parametrize("right", [150, 160, 159])
def test_a_ratio_ends_where_its_range_does(right: int) -> None:
    values = [(1.0, 1.0)] * right + [(0.0, 1.0)] * (160 - right)
    made = of("weighted_mean", values, (0.0, 1.0))
    assert 0 <= made.ci_low < made.value <= made.ci_high <= 1
    assert made.ci_low < 0.999


def test_clusters_of_perfect_items_have_a_width() -> None:
    table = np.tile(np.eye(4)[[0, 3]], (30, 1))
    made = estimate(build_aggregation("f1"), table, None, np.arange(60) // 5, FAST)
    assert 0.4 < made.ci_low < 0.95
    assert made.ci_high == 1
