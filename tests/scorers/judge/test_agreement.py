"""Krippendorff's alpha against published values and its definition."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.reductions.reduction import Repeats, build_reduction, reduce_repeats
from metrics.statistics.estimate import estimate
from scorers.judge.calibration import krippendorff_alpha

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)

# Krippendorff (2011), section B to D: four observers, twelve units.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]
PUBLISHED = [[list(unit)] for unit in zip(*OBSERVERS, strict=True)]


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("interval", 0.849)])
def test_published_example(level, alpha):
    assert krippendorff_alpha(level=level).value(None, PUBLISHED) == pytest.approx(alpha, abs=5e-4)


def by_definition(units, distance):
    units = [[grade for grade in unit if grade is not None] for unit in units]
    units = [unit for unit in units if len(unit) > 1]
    everything = [grade for unit in units for grade in unit]
    n = len(everything)
    if n < 2:
        return math.nan
    observed = sum(
        distance(a, b) / (len(unit) - 1) for unit in units for a, b in itertools.permutations(unit, 2)
    )
    expected = sum(distance(a, b) for a, b in itertools.permutations(everything, 2)) / (n - 1)
    return math.nan if expected < 1e-9 else 1 - observed / expected


grades = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0])


@PROPERTY
@given(units=st.lists(st.lists(grades, min_size=1, max_size=4), min_size=1, max_size=8))
def test_alpha_is_its_definition(units):
    values = [[unit] for unit in units]
    for level, distance in (("nominal", lambda a, b: float(a != b)), ("interval", lambda a, b: (a - b) ** 2)):
        expected = by_definition(units, distance)
        np.testing.assert_allclose(krippendorff_alpha(level=level).value(None, values), expected, atol=1e-9)


@PROPERTY
@given(units=st.lists(st.lists(grades, min_size=1, max_size=3), min_size=2, max_size=6))
def test_repeats_of_an_item_are_units_of_their_own(units):
    alpha = krippendorff_alpha()
    merged = alpha.merge([[unit] for unit in units])
    np.testing.assert_allclose(alpha.value(None, [merged]), alpha.value(None, [[unit] for unit in units]))


def test_full_agreement_is_one_and_systematic_disagreement_below_zero():
    assert krippendorff_alpha().value(None, [[[1, 1]], [[0, 0]]]) == 1.0
    assert krippendorff_alpha().value(None, [[[1, 0]], [[0, 1]]]) < 0


def test_grades_that_are_all_the_same_leave_alpha_undefined():
    assert math.isnan(krippendorff_alpha().value(None, [[[1, 1]], [[1, 1]]]))
    assert math.isnan(krippendorff_alpha(level="interval").value(None, [[[7.3, 7.3]], [[7.3, 7.3]]]))
    assert math.isnan(krippendorff_alpha().value(None, []))


def test_sample_shows_the_share_of_raters_in_agreement():
    scores = krippendorff_alpha().scores([[[1, 1, 0]], [[1, None]], [[0, 0], [0, 1]]])
    np.testing.assert_allclose(scores.score, [1 / 3, np.nan, 0.5])
    assert scores.values[0] == [[1, 1, 0]]


def test_unknown_level_and_another_shape_are_refused():
    with pytest.raises(ConfigError, match="nominal or interval"):
        krippendorff_alpha(level="ordinal")
    with pytest.raises(MetricError, match="list of units a sample, and sample 0"):
        krippendorff_alpha().scores([1.0])


def test_repeats_of_verdicts_are_units_of_their_own_and_nothing_warns_of_means() -> None:
    alpha = krippendorff_alpha()
    values = [[[1.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]
    repeats = Repeats(
        np.zeros(4), np.ones(4, np.bool_), np.zeros(4, np.int64), np.array([0, 2, 4]), values=values
    )
    (reduced,) = reduce_repeats(replace(build_reduction("mean"), aggregation=alpha), repeats)
    assert reduced.values == [[[1.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]


def _rated(
    rng: np.random.Generator, items: int, common: float, error: float, grades: int, raters: int
) -> list[Any]:
    """Raters' grades of so many items: most of one grade, each rater wrong with a chance of ``error``."""
    true = np.where(rng.random(items) < common, 0, rng.integers(0, grades, items))
    wrong = rng.random((items, raters)) < error
    given = np.where(wrong, rng.integers(0, grades, (items, raters)), true[:, None])
    return [[row] for row in given.tolist()]


TWO_RATERS = [(20, (0.8, 0.2, 2, 2)), (30, (0.9, 0.1, 2, 2)), (50, (0.95, 0.05, 10, 2))]


@pytest.mark.parametrize(
    ("level", "items", "of"),
    [
        *[(level, *one) for level in ("nominal", "interval") for one in TWO_RATERS],
        ("nominal", 100, (0.98, 0.05, 2, 5)),
    ],
)
def test_an_interval_of_agreement_that_misses_carries_a_doubt(level: Any, items: int, of: Any) -> None:
    alpha, rng = krippendorff_alpha(level=level), np.random.default_rng(0)
    true, missed = alpha.value(None, _rated(rng, 40_000, *of)), 0
    for _ in range(200):
        rows = _rated(rng, items, *of)
        made = estimate(alpha, None, rows, None, StatisticsConfig())
        outside = not math.isnan(made.ci_low) and not made.ci_low <= true <= made.ci_high
        missed += outside and "the error bar is unreliable" not in str(made.warning)
    assert missed / 200 <= 0.07


def test_agreement_on_balanced_grades_is_not_doubted() -> None:
    rows = [[[grade, grade if item % 7 else 1 - grade]] for item, grade in enumerate([0, 1] * 100)]
    for level in ("nominal", "interval"):
        made = estimate(krippendorff_alpha(level=level), None, rows, None, StatisticsConfig())
        assert made.warning is None
        assert made.ci_low < made.value < made.ci_high
