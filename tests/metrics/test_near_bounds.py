"""Numbers between two ends have an interval with a width that covers, also where hardly an item errs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.coverage import LOW, measure, near_bounds
from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import Comparison, compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.gate import decide
from metrics.statistics.unpaired import compare_unpaired
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


RATE = Aggregation("rate", k=2, compute=lambda total, n: total[..., 0] / total[..., 1], bounds=(0.0, 1.0))
TEXTS = ["the cat sat on the mat today", "a quick brown fox jumps over dogs", "we live in a yellow house"]


def column_of(aggregation: Aggregation, values: Any) -> ItemColumn:
    scores = aggregation.scores(values)
    return ItemColumn(scores.score, scores.statistics, scores.values)


def differing(name: str, n: int, wrong: int) -> tuple[Aggregation, ItemColumn, ItemColumn]:
    """Two runs of n items, of which the second has some wrong."""
    if name == "rate":
        aggregation, right, other = RATE, [(1.0, 1.0)], [(0.0, 1.0)]
    elif name == "brier_score":
        aggregation, right, other = build_aggregation(name), [0.0, 0.3], [2.0, 0.1]
    elif name in ("f1", "mcc"):
        aggregation, right, other = build_aggregation(name), [(1, 1), (0, 0)], [(1, 0), (0, 1)]
    else:
        aggregation = build_aggregation(name)
        right, other = [(text, text) for text in TEXTS], [(text, "no idea at all") for text in TEXTS]
    made = [[kind[i % len(kind)] for i in range(n)] for kind in (right, other)]
    return aggregation, *(column_of(aggregation, one) for one in (made[0], made[1][:wrong] + made[0][wrong:]))


def possible(made: Comparison, width: float) -> None:
    """Neither an end nor the smallest effect is beyond what the numbers can differ by."""
    if not math.isnan(made.ci_low):
        assert made.ci_low <= made.difference <= made.ci_high
        assert max(-made.ci_low, made.ci_high) <= width + 1e-9  # a BLEU of 100 may be 100 + 4e-14
    assert math.isnan(made.mde) or made.mde <= width
    assert not math.isnan(made.mde) or made.warning


@pytest.mark.parametrize("clusters", [1, 2], ids=["items", "clusters"])
@pytest.mark.parametrize("wrong", [0, 1, 2, 4])
@pytest.mark.parametrize("n", [4, 6, 12])
@pytest.mark.parametrize("name", ["rate", "brier_score", "bleu", "chrf", "f1", "mcc"])
def test_no_difference_is_beyond_what_the_range_allows(name: str, n: int, wrong: int, clusters: int) -> None:
    aggregation, base, candidate = differing(name, n, wrong)
    low, high = aggregation.bounds
    groups = None if clusters == 1 else np.arange(n) // clusters
    for runs in ((base, candidate), (candidate, base)):
        possible(compare_items(aggregation, *runs, groups, FAST), high - low)
        possible(compare_unpaired(aggregation, runs, (groups, groups), FAST), high - low)


def test_few_items_of_a_rate_have_no_rare_large_differences() -> None:
    for name, doubted in (("rate", False), ("bleu", True)):  # a single long text may decide a BLEU
        made = compare_items(*differing(name, 12, 2), None, FAST)
        assert ("rare large ones" in str(made.warning)) is doubted, name


def test_an_item_beyond_the_range_tells_that_it_is_none() -> None:
    base, candidate = (
        ItemColumn(np.zeros(8), np.column_stack([own, np.ones(8)]))
        for own in (np.arange(8.0), 5 - np.arange(8.0))
    )
    made = compare_items(RATE, base, candidate, None, FAST)
    assert made.ci_low < -1


@pytest.mark.parametrize("name", ["mean", "nanmean", "weighted_mean"])
@pytest.mark.parametrize(("n", "fails"), [(30, 0.03), (50, 0.02), (100, 0.02)])
@pytest.mark.parametrize("kind", ["numbers", "grades"])
def test_scores_that_lie_close_together_away_from_the_ends_hide_others(
    name: str, n: int, fails: float, kind: str
) -> None:
    rng, covered = np.random.default_rng(11), 0
    bounds = (0.0, 1.0) if kind == "numbers" else (1.0, 10.0)
    truth = (1 - fails) * (0.9 if kind == "numbers" else 8.75) + fails * bounds[0]
    for _ in range(ROUNDS):
        usual = rng.normal(0.9, 0.01, n) if kind == "numbers" else rng.choice([8.0, 9.0], n, p=[0.25, 0.75])
        drawn = np.where(rng.random(n) < fails, bounds[0], usual)
        made = of(name, [(x, 1.0) for x in drawn] if name == "weighted_mean" else drawn, bounds)
        covered += made.ci_low <= truth <= made.ci_high
    assert covered / ROUNDS >= LOW - 3 * math.sqrt(0.05 * 0.95 / ROUNDS)


def test_scores_that_spread_have_no_wider_interval_for_what_they_may_hide() -> None:
    spread = np.linspace(0.1, 0.9, 30)
    half = 2.0452 * float(spread.std(ddof=1)) / math.sqrt(30)
    made = of("mean", spread, (0.0, 1.0))
    assert made.ci_high - made.ci_low == pytest.approx(2 * half, rel=0.1)


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 0.01])
def test_two_samples_of_scores_close_together_are_not_surely_apart(spread: float) -> None:
    runs = [column_of(CLOSE, level + spread * np.tile([-1.0, 1.0], 15)) for level in (0.9, 0.88)]
    made = compare_unpaired(CLOSE, (runs[0], runs[1]), (None, None), FAST)
    assert made.p_value > 0.05
    assert made.ci_low < -0.05


CLOSE = replace(build_aggregation("mean"), bounds=(0.0, 1.0))


def test_two_samples_of_grades_know_that_one_may_lack_those_that_fail() -> None:
    """Of 60 items of which 4 % fail none may: half of such candidates passed a margin as large as that loss,
    .047 of all, where .025 may."""
    rng, passed = np.random.default_rng(7), []
    for _ in range(200):
        runs = [column_of(CLOSE, rng.beta(8, 2, n)) for n in (2000, 60)]
        made = compare_unpaired(CLOSE, (runs[0], runs[1]), (None, None), FAST)
        passed.append(decide(made, 0.04 * 0.8, 0.05).verdict == "pass")
    assert np.mean(passed) <= 0.025 / 0.96**60
    assert made.ends is not None
    assert made.chance is not None
    assert made.ends(1 - made.chance(-0.07))[0] == pytest.approx(-0.07, abs=1e-4)  # both are of one test
