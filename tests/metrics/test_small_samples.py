"""Edges: percentiles, columns, texts and groups of which a few items say little."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.formulas import variance_components
from metrics.statistics.unpaired import compare_unpaired

MEAN = build_aggregation("mean")
SHARE = replace(MEAN, bounds=(0.0, 1.0))
FAST = StatisticsConfig(bootstrap_iters=500)


def scalar(values: Any) -> ItemColumn:
    numbers = np.asarray(values, dtype=np.float64)
    return ItemColumn(numbers, numbers.reshape(-1, 1))


@pytest.mark.parametrize("n", [5, 8, 15])
def test_percentiles_of_few_items_rarely_differ_by_chance(n: int) -> None:
    rng, found = np.random.default_rng(n), []
    for _ in range(150):
        base, candidate = (scalar(rng.exponential(size=n)) for _ in range(2))
        made = compare_items(build_aggregation("percentile@90"), base, candidate, None, FAST)
        found.append(made.p_value < 0.05)
    assert np.mean(found) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


def test_numbers_that_happen_to_lie_between_0_and_1_are_no_shares() -> None:
    values = np.array([[0.1], [0.2], [0.35], [0.4], [0.15], [0.9]])
    made = estimate(MEAN, values, None, None, FAST)
    assert made.stderr_method == "closed form"
    assert "only 6 items" in str(made.warning)
    repeats = np.array([[0.25], [0.5], [0.0], [1.0], [0.75], [0.5]])
    assert estimate(MEAN, repeats, None, None, FAST, samples=24).stderr_method == "wilson"
    assert estimate(SHARE, values, None, None, FAST).stderr_method == "wilson"  # the metric says so


def test_few_short_texts_are_warned_about_and_usual_ones_are_not() -> None:
    bleu = build_aggregation("bleu")
    rows = [[2, 2, 1, 1, 0, 0, 2, 1, 0, 0], [4, 4, 3, 2, 1, 1, 4, 3, 2, 1]] * 6
    assert "weigh as" in str(estimate(bleu, np.array(rows, dtype=float), None, None, FAST).warning)
    rng = np.random.default_rng(4)
    length = rng.integers(20, 30, 100)
    possible = np.stack([length - order for order in range(4)], axis=1)
    usual = np.column_stack([length, length, rng.binomial(possible, 0.5), possible]).astype(float)
    assert estimate(bleu, usual, None, None, FAST).warning is None


def test_a_runaway_output_is_warned_about_by_what_leaving_it_out_shows() -> None:
    rng, wer = np.random.default_rng(4), build_aggregation("wer")
    errors = np.column_stack([rng.binomial(30, 0.1, 100), np.full(100, 30.0)]).astype(float)
    assert estimate(wer, errors, None, None, FAST).warning is None
    errors[7, 0] = 300.0
    assert "leaving one out" in str(estimate(wer, errors, None, None, FAST).warning)


@pytest.mark.parametrize(
    ("small", "large", "enough"),
    [(15, 200, 50), (40, 200, 50), (15, 20, 30), (30, 60, None), (50, 999, None)],
)
def test_a_small_run_beside_a_large_one_is_warned_about(small: int, large: int, enough: int | None) -> None:
    rng = np.random.default_rng(6)
    runs = scalar(rng.lognormal(size=large)), scalar(rng.lognormal(size=small))
    said = str(compare_unpaired(MEAN, runs, (None, None), FAST).warning)
    assert (f"only {small} items in a run" in said) == (enough is not None)
    assert f"{enough} and more are safer" in said or enough is None


def test_an_error_below_that_of_its_samples_is_not_split() -> None:
    means, repeats = np.full(100, 0.5), np.full(100, 8.0)
    assert variance_components(means, repeats, 0.005) is None
    parts = variance_components(means, repeats, 0.03)
    assert parts is not None
    assert parts[0] ** 2 + parts[1] ** 2 == pytest.approx(0.03**2)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40), st.floats(0, 100))
def test_a_percentile_is_numpys_to_the_last_bit(values: list[float], q: float) -> None:
    own = build_aggregation("percentile", {"q": q}).of_values(np.array(values))
    expected = np.quantile(np.array(values), q / 100)
    assert own == expected or (math.isnan(own) and math.isnan(expected))
