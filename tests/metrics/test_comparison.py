"""Two runs on the same items: tests against scipy and against counting, intervals, corrections, verdicts."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.statistics.clusters import numbered
from metrics.statistics.comparison import Comparison, compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate, group_aggregate
from metrics.statistics.gate import adjust, decide, p_regression, worst_of
from metrics.statistics.intervals import normal_quantile, wilson
from metrics.statistics.power import mcnemar
from metrics.statistics.significance import sign_flip
from metrics.statistics.unpaired import compare_unpaired
from metrics.types import Estimate

FEW = StatisticsConfig(bootstrap_iters=5000)
MEAN = build_aggregation("mean")


def scalar(values: Any) -> ItemColumn:
    column = np.asarray(values, dtype=np.float64)
    return ItemColumn(column, column.reshape(-1, 1))


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_the_exact_binomial_test(gained: int, lost: int) -> None:
    n = gained + lost
    expected = scipy.stats.binomtest(gained, n).pvalue if n else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_sign_flips_of_few_units_are_all_tried(units: list[int]) -> None:
    patterns = itertools.product([-1, 1], repeat=len(units))
    sums = [abs(sum(s * u for s, u in zip(signs, units, strict=True))) for signs in patterns]
    expected = sum(total >= abs(sum(units)) for total in sums) / len(sums)
    own = sign_flip(np.array(units, dtype=np.float64), 100, np.random.default_rng(0))
    assert own == pytest.approx(expected)


@pytest.mark.parametrize("digits", [0, 12], ids=["few distinct sizes", "many distinct sizes"])
def test_random_sign_flips_come_close_to_scipys(digits: int) -> None:
    rng = np.random.default_rng(1)
    units = np.round(rng.normal(0.15, 1, 100) * (3 if digits == 0 else 1), digits)
    own = sign_flip(units, 50_000, np.random.default_rng(2))
    expected = scipy.stats.permutation_test(
        (units,), np.mean, permutation_type="samples", n_resamples=50_000, rng=np.random.default_rng(3)
    )
    assert own == pytest.approx(expected.pvalue, abs=0.01)


def test_sign_flips_that_no_draw_reaches_are_told_from_each_other() -> None:
    units = np.linspace(1, 2, 200)
    own = [sign_flip(units[:n], 1_000, np.random.default_rng(2)) for n in (30, 100, 200)]
    assert own[0] < 1e-5
    assert 0 < own[2] < own[1] < own[0]


def test_the_test_that_auto_takes_is_named() -> None:
    rng = np.random.default_rng(4)
    base, candidate = rng.integers(0, 2, 60), rng.integers(0, 2, 60)
    clusters = np.arange(60) // 3
    assert compare_items(MEAN, scalar(base), scalar(candidate), None, FEW).test == "McNemar, exact"
    clustered = compare_items(MEAN, scalar(base), scalar(candidate), clusters, FEW)
    assert clustered.test == "sign-flip permutation, clustered"
    assert clustered.n_clusters == 20
    floats = compare_items(MEAN, scalar(base + rng.random(60)), scalar(candidate), None, FEW)
    assert floats.test == "sign-flip permutation"
    median = build_aggregation("median")
    assert compare_items(median, scalar(base), scalar(candidate), None, FEW).test == "paired bootstrap"


def test_items_are_won_by_their_own_numbers_where_that_of_all_falls_with_them() -> None:
    base, candidate = scalar(np.linspace(-5, -3, 30)), scalar(np.linspace(-4.5, -2.5, 30))
    perplexity = build_aggregation("perplexity")
    made = compare_items(perplexity, base, candidate, None, FEW, higher_is_better=False)
    assert made.difference < 0
    assert (made.wins, made.losses) == (30, 0)


def test_difference_wins_and_correlation() -> None:
    made = compare_items(MEAN, scalar([1, 0, 0, 1, 0]), scalar([1, 1, 1, 0, 0]), None, FEW)
    assert made.difference == pytest.approx(0.2)
    assert (made.wins, made.losses, made.ties) == (2, 1, 2)
    assert made.correlation == pytest.approx(np.corrcoef([1, 0, 0, 1, 0], [1, 1, 1, 0, 0])[0, 1])
    assert made.p_value == 1.0
    lower = compare_items(
        MEAN, scalar([1, 0, 0, 1, 0]), scalar([1, 1, 1, 0, 0]), None, FEW, higher_is_better=False
    )
    assert (lower.wins, lower.losses) == (1, 2)


def test_runs_that_agree_everywhere_have_an_interval_with_a_width() -> None:
    made = compare_items(MEAN, scalar([1, 0] * 10), scalar([1, 0] * 10), None, FEW)
    assert (made.difference, made.p_value, made.stderr) == (0.0, 1.0, 0.0)
    assert made.ci_low < 0 < made.ci_high
    assert math.isfinite(made.mde)
    assert made.mde > 0


def test_the_paired_difference_is_tighter_than_two_intervals() -> None:
    rng = np.random.default_rng(5)
    base = rng.normal(size=300)
    made = compare_items(MEAN, scalar(base), scalar(base + 0.1 + rng.normal(0, 0.1, 300)), None, FEW)
    assert made.stderr < 0.01
    assert made.p_value < 1 / 5001  # what draws alone could say
    assert made.ci_low > 0.08


def test_the_interval_of_a_symmetric_mean_difference_is_the_paired_t_interval() -> None:
    base, candidate = np.zeros(40), np.linspace(-1, 1.2, 40)
    made = compare_items(MEAN, scalar(base), scalar(candidate), None, FEW)
    expected = scipy.stats.ttest_rel(candidate, base).confidence_interval(0.95)
    assert (made.ci_low, made.ci_high) == pytest.approx((expected.low, expected.high))


def test_corpus_metrics_are_compared_by_their_statistics() -> None:
    rng = np.random.default_rng(7)
    ratio = build_aggregation("weighted_mean")
    weight = rng.integers(1, 9, 200).astype(np.float64)
    base = np.column_stack([weight * rng.normal(1, 0.2, 200), weight])
    better = base + np.column_stack([weight * 0.1, np.zeros(200)])
    blank = np.zeros(200)
    made = compare_items(ratio, ItemColumn(blank, base), ItemColumn(blank, better), None, FEW)
    assert made.test == "paired bootstrap"
    assert made.difference == pytest.approx(0.1)
    assert made.p_value < 0.001
    assert made.ci_low <= 0.1 + 1e-9
    assert made.ci_high >= 0.1 - 1e-9
    clustered = compare_items(
        ratio, ItemColumn(blank, base), ItemColumn(blank, better), np.arange(200) // 4, FEW
    )
    assert clustered.test == "paired bootstrap, clustered"


def test_no_items_and_one_item_say_so() -> None:
    assert compare_items(MEAN, scalar([]), scalar([]), None, FEW).warning == "no items in common"
    assert compare_items(MEAN, scalar([1]), scalar([0]), None, FEW).warning == "one item has no spread"
    two = compare_items(MEAN, scalar([1, 0]), scalar([0, 1]), [3, 3], FEW)
    assert two.warning == "one cluster has no spread"


def test_columns_of_different_length_and_tests_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MetricError, match="2 and 1 items"):
        compare_items(MEAN, scalar([1, 0]), scalar([1]), None, FEW)
    with pytest.raises(MetricError, match="scores of 0 and 1 without clusters"):
        compare_items(MEAN, scalar([1, 0.5]), scalar([1, 0]), None, FEW, method="mcnemar")
    with pytest.raises(MetricError, match="median is compared by bootstrap"):
        compare_items(
            build_aggregation("median"), scalar([1, 0]), scalar([1, 0]), None, FEW, method="permutation"
        )


def test_values_that_are_not_finite_have_no_test() -> None:
    made = compare_items(MEAN, scalar([1, math.nan]), scalar([1, 0]), None, FEW)
    assert math.isnan(made.p_value)
    assert made.warning == "some items have a value that is not finite"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_benjamini_hochberg_is_scipys(p_values: list[float]) -> None:
    np.testing.assert_allclose(
        adjust(p_values, "bh"), scipy.stats.false_discovery_control(p_values), atol=1e-12
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_step_by_step(p_values: list[float]) -> None:
    adjusted = adjust(p_values, "holm")
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    running = 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, p_values[place] * (len(p_values) - rank)))
        assert adjusted[place] == pytest.approx(running)


def test_a_p_value_that_is_missing_does_not_count() -> None:
    np.testing.assert_array_equal(adjust([0.01, math.nan, 0.02], "holm"), [0.02, math.nan, 0.02])
    np.testing.assert_array_equal(adjust([0.01, math.nan], "none"), [0.01, math.nan])
    with pytest.raises(ConfigError, match="holm, bh, none"):
        adjust([0.1], "bonferroni")


def straight(difference: float, stderr: float = 0.01, **changed: Any) -> Comparison:
    """A comparison with normal ends."""

    def ends(level: float) -> tuple[float, float]:
        reach = normal_quantile(level) * stderr
        return difference - reach, difference + reach

    def chance(value: float) -> float:
        return math.erfc(abs(difference - value) / stderr / math.sqrt(2))

    low, high = ends(0.95)
    made = Comparison(
        base=0.5, candidate=0.5 + difference, difference=difference, stderr=stderr, ci_low=low, ci_high=high,
        test="", p_value=chance(0.0), correlation=0.9, wins=0, losses=0, ties=0, mde=0.03, n_items=100,
        n_clusters=None, ends=ends, chance=chance,
    )  # fmt: skip
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("difference", "margin", "better", "expected"),
    [
        (-0.05, 0.01, True, "regression"),
        (-0.05, 0.04, True, "inconclusive"),  # a loss, beyond the margin or not
        (-0.05, 0.08, True, "worse"),
        (-0.015, 0.04, True, "pass"),  # not significantly a loss
        (0.05, 0.01, True, "pass"),
        (0.0, 0.01, True, "inconclusive"),
        (-0.05, 0.01, False, "pass"),  # lower is better: the candidate is
        (0.05, 0.01, False, "regression"),
        (0.05, 0.0, False, "regression"),
        (0.05, 0.08, False, "worse"),
    ],
)
def test_a_gate_answers_in_the_order_of_its_verdicts(
    difference: float, margin: float, better: bool, expected: str
) -> None:
    assert decide(straight(difference), margin, 0.05, None, better).verdict == expected


def test_a_loss_barely_beyond_the_margin_is_no_regression() -> None:
    made = straight(-0.021, 0.005)  # significantly a loss, and a hair beyond the margin
    assert made.p_value < 1e-4
    assert decide(made, 0.02, 0.05).verdict == "inconclusive"


def test_a_gate_prints_the_interval_that_decided() -> None:
    made = straight(-0.05)
    alone = decide(made, 0.01, 0.05)
    assert (alone.ci_low, alone.ci_high) == pytest.approx((made.ci_low, made.ci_high))
    beyond = p_regression(made, 0.01)
    corrected = decide(made, 0.01, 0.05, (10 * beyond, 10 * made.p_value))
    assert corrected.verdict == "regression"
    assert corrected.ci_low == pytest.approx(made.ci_low)  # passes are not corrected
    assert corrected.ci_high == pytest.approx(made.ends(0.995)[1])
    assert corrected.ci_high < -0.01
    undecided = decide(made, 0.01, 0.05, (0.06, 0.06))
    assert (undecided.verdict, undecided.ci_high > -0.01) == ("inconclusive", True)


def test_a_gate_without_a_test_is_inconclusive() -> None:
    assert decide(straight(-0.05, p_value=math.nan), 0.01, 0.05).verdict == "inconclusive"
    same = compare_items(build_aggregation("mean"), scalar([3.0] * 9), scalar([3.0] * 9), None, FEW)
    assert decide(same, 0.01, 0.05).verdict == "inconclusive"


def test_runs_without_a_discordant_item_promise_no_power_that_is_not_there() -> None:
    base = scalar([1.0, 0.0] * 10)
    made = compare_items(MEAN, base, base, None, FEW)
    assert made.mde == pytest.approx(0.41, abs=0.02)  # was 1/20; six lost items beside none are needed
    few = compare_items(MEAN, scalar([1.0, 0.0] * 2), scalar([1.0, 0.0] * 2), None, FEW)
    assert math.isnan(few.mde)
    assert few.warning == "4 items are too few to find any difference four times of five"


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_the_interval_of_mcnemar_excludes_0_if_and_only_if_the_test_finds_a_difference(
    gained: int, lost: int, rest: int
) -> None:
    n = gained + lost + rest
    if n < 2:
        return
    base = np.array([0.0] * gained + [1.0] * lost + [1.0] * rest)
    candidate = np.array([1.0] * gained + [0.0] * lost + [1.0] * rest)
    made = compare_items(replace(MEAN, bounds=(0.0, 1.0)), scalar(base), scalar(candidate), None, FEW)
    assert (made.p_value < 0.05) == (not made.ci_low <= 0 <= made.ci_high)


def counted(gained: int, lost: int, n: int) -> tuple[ItemColumn, ItemColumn]:
    base = np.array([0.0] * gained + [1.0] * lost + [1.0] * (n - gained - lost))
    candidate = np.array([1.0] * gained + [0.0] * lost + [1.0] * (n - gained - lost))
    return scalar(base), scalar(candidate)


@pytest.mark.parametrize(
    ("n", "margin", "share"),
    [(100, 0.02, 0.0), (200, 0.01, 0.01), (200, 0.02, 0.01), (75, 0.05, 0.0), (50, 0.05, 0.01),
     (20, 0.1, 0.01), (100, 0.05, 0.1), (30, 0.1, 0.3)],
)  # fmt: skip
def test_a_gate_over_right_and_wrong_answers_is_rarely_wrong_at_a_loss_of_exactly_the_margin(
    n: int, margin: float, share: float
) -> None:
    """By enumeration: every count of items gained and lost, and its chance. A pass came in 13 % where 100
    runs without a discordant item were told to lie within .02."""
    better, worse = share / 2, share / 2 + margin
    counts = np.arange(n + 1)
    of_gained = scipy.stats.binom.pmf(counts, n, better)
    chances = {"regression": 0.0, "pass": 0.0, "worse": 0.0, "inconclusive": 0.0}
    for gained in np.flatnonzero(of_gained > 1e-5):
        of_lost = of_gained[gained] * scipy.stats.binom.pmf(counts, n - gained, worse / (1 - better))
        for lost in np.flatnonzero(of_lost > 1e-5):
            made = compare_items(replace(MEAN, bounds=(0.0, 1.0)), *counted(gained, lost, n), None, FEW)
            chances[decide(made, margin, 0.05).verdict] += of_lost[lost]
    assert sum(chances.values()) == pytest.approx(1, abs=1e-3)
    assert chances["regression"] <= 0.05
    assert chances["pass"] + chances["worse"] <= 0.05


def test_runs_that_do_not_differ_on_any_item_pass_a_margin_that_their_number_excludes() -> None:
    """Without a lost item among n, a loss of 3 / n is as good as excluded, and one of 2 / n is not."""
    share = replace(MEAN, bounds=(0.0, 1.0))
    same = scalar([1.0, 0.0] * 50)
    made = compare_items(share, same, same, None, FEW)
    assert decide(made, 0.03, 0.05).verdict == "inconclusive"
    assert decide(made, 0.04, 0.05).verdict == "pass"
    grades = scalar([1.0, 0.5] * 50)
    made = compare_items(share, grades, grades, None, FEW)
    assert made.test == "sign-flip permutation"
    assert decide(made, 0.03, 0.05).verdict == "inconclusive"
    assert decide(made, 0.045, 0.05).verdict == "pass"


def test_five_items_that_differ_are_no_proof_for_ratios_either() -> None:
    """Five heads in a row come with p = .0625, whatever the other 95 items add to a corpus' number."""
    base = np.eye(4)[[0] * 60 + [3] * 40]
    candidate = np.eye(4)[[0] * 60 + [3] * 35 + [2] * 5]
    blank = np.zeros(100)
    runs = ItemColumn(blank, base), ItemColumn(blank, candidate)
    made = compare_items(build_aggregation("f1"), *runs, None, FEW)
    assert made.p_value == pytest.approx(0.0625)  # was .012
    assert made.ci_high >= 0
    pairs = [[[0, 0]] * 60 + [[1, 1]] * 40, [[0, 0]] * 60 + [[1, 1]] * 35 + [[1, 0]] * 5]
    macro = build_aggregation("f1", {"average": "macro"})
    made = compare_items(macro, *(ItemColumn(blank, values=own) for own in pairs), None, FEW)
    assert made.p_value == pytest.approx(0.0625)
    words = np.full(100, 10.0)
    errors = [np.column_stack([own, words]) for own in (np.zeros(100), np.arange(100) < 5)]
    made = compare_items(build_aggregation("wer"), *(ItemColumn(blank, own) for own in errors), None, FEW)
    assert made.p_value == pytest.approx(0.0625)


def test_three_items_that_differ_by_the_same_are_no_proof() -> None:
    base = [1.0, 2.0, 5.0]
    for name in ("median", "weighted_mean"):
        columns = [
            ItemColumn(np.array(column), np.column_stack([column, np.ones(3)]))
            for column in (base, [number + 1 for number in base])
        ]
        made = compare_items(build_aggregation(name), *columns, None, FEW)
        assert made.p_value >= 0.25
        assert made.ci_low <= 0 <= made.ci_high


@pytest.mark.parametrize("clusters", [3, 4, 5])
def test_few_clusters_have_a_test_and_an_interval_that_agree_and_no_mde(clusters: int) -> None:
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(clusters), 20)
    base = rng.random(len(groups))
    made = compare_items(MEAN, scalar(base), scalar(base - 0.2 - 0.01 * rng.random(len(groups))), groups, FEW)
    assert made.p_value >= 2.0 ** (1 - clusters)
    assert made.ci_low <= 0 <= made.ci_high
    assert math.isnan(made.mde)
    assert made.warning == f"{clusters} clusters can't reach p < 0.05 whatever they say; it takes 6"


@given(st.lists(st.floats(-1, 1).map(lambda x: round(x, 6)), min_size=2, max_size=30))
def test_the_interval_of_sign_flips_excludes_0_if_and_only_if_the_test_finds_a_difference(
    differences: list[float],
) -> None:
    column = np.array(differences)
    made = compare_items(MEAN, scalar(np.zeros(len(column))), scalar(column), None, FEW)
    if not math.isnan(made.ci_low):
        assert (made.p_value < 0.05) == (not made.ci_low <= 0 <= made.ci_high)


def test_bounds_decide_what_is_compared_as_a_proportion(build: Any) -> None:
    zeros = scalar([0.0] * 30)
    rouge = compare_items(build("rouge1").aggregation, zeros, zeros, None, FEW)
    assert rouge.test == "sign-flip permutation"
    assert rouge.ci_high > 3  # of 100; was 0.089
    words = scalar([1.0] * 30)
    length = compare_items(build("length").aggregation, words, words, None, FEW)
    assert math.isnan(length.ci_low)
    assert length.warning == "the runs do not differ on any item, and the metric's range is not known"


def test_the_whole_is_the_worst_of_its_pairs() -> None:
    assert worst_of(["pass", "regression", "inconclusive"]) == "regression"
    assert worst_of(["pass", "inconclusive"]) == "inconclusive"
    assert worst_of(["worse", "pass"]) == "worse"
    assert worst_of(["worse", "inconclusive"]) == "inconclusive"
    assert worst_of(["pass"]) == "pass"
    assert worst_of([]) == "inconclusive"


def _member(value: float, stderr: float, n: int) -> Estimate:
    return Estimate(value, stderr, "closed form", value, value, n)


def test_a_group_weighs_by_size_or_not_with_the_error_that_goes_with_it() -> None:
    members = [_member(0.2, 0.03, 100), _member(0.8, 0.04, 300)]
    weighted, plain = group_aggregate(members), group_aggregate(members, weight_by_size=False)
    assert weighted.value == pytest.approx(0.65)
    assert weighted.stderr == pytest.approx(math.hypot(0.25 * 0.03, 0.75 * 0.04))
    assert plain.value == pytest.approx(0.5)
    assert plain.stderr == pytest.approx(0.025)
    assert weighted.n_items == plain.n_items == 400


def test_a_group_of_parts_has_nearly_the_error_of_the_whole() -> None:
    rng = np.random.default_rng(8)
    parts = [rng.normal(0, 1, n) for n in (200, 900)]
    members = [_member(part.mean(), part.std(ddof=1) / math.sqrt(len(part)), len(part)) for part in parts]
    whole = np.concatenate(parts)
    made = group_aggregate(members)
    assert made.value == pytest.approx(whole.mean())
    assert made.stderr == pytest.approx(whole.std(ddof=1) / math.sqrt(len(whole)), rel=0.02)


def test_a_group_has_no_interval_and_says_what_its_members_warn_of() -> None:
    share, clusters = replace(MEAN, bounds=(0.0, 1.0)), np.repeat(np.arange(4), 50)
    ones = estimate(share, np.ones((200, 1)), None, clusters, FEW)
    plain = estimate(share, np.eye(20)[:, :1], None, None, FEW)
    made = group_aggregate([ones, plain, ones])
    assert math.isnan(made.ci_low)
    assert math.isnan(made.ci_high)
    assert made.stderr > 0
    assert made.warning == ones.warning == "only 4 clusters: the error bar is a rough guide"
    assert group_aggregate([plain, plain]).warning is None


def test_a_member_without_value_or_error_is_not_dropped() -> None:
    assert math.isnan(group_aggregate([_member(0.2, 0.1, 10), _member(math.nan, math.nan, 0)]).value)
    bare = group_aggregate([_member(0.2, 0.1, 10), _member(0.4, math.nan, 10)])
    assert bare.value == pytest.approx(0.3)
    assert math.isnan(bare.stderr)
    assert bare.warning == "1 of 2 benchmarks have no error bar"
    with pytest.raises(ConfigError, match="at least one"):
        group_aggregate([])


def test_a_median_that_surely_moved_is_found_among_many_pairs() -> None:
    """As many draws as it takes: of 800 no p-value is below .05 / 41."""
    rng = np.random.default_rng(7)
    base = rng.lognormal(size=80)
    moved = base * np.exp(rng.normal(0.7, 0.4, 80))
    found = compare_items(build_aggregation("median"), scalar(base), scalar(moved), None, FEW)
    assert adjust([found.p_value, *[1.0] * 40], "holm")[0] < 0.05


@pytest.mark.parametrize("name", ["mean", "perplexity", "median"])
def test_infinite_values_have_no_test_and_say_so(name: str) -> None:
    first, second = np.array([-np.inf, -1.0, -2.0]), np.array([-np.inf, -3.0, -2.0])
    runs = [ItemColumn(column, column.reshape(-1, 1)) for column in (first, second)]
    aggregation, few = build_aggregation(name), StatisticsConfig(bootstrap_iters=200)
    higher = aggregation.better_up(None)
    made = compare_items(aggregation, *runs, None, few, higher_is_better=higher)
    assert name == "median" or (math.isnan(made.p_value) and made.warning is not None)
    assert (made.wins, made.losses) == (0, 1)


def test_runs_on_other_items_are_compared_by_their_two_errors() -> None:
    rng = np.random.default_rng(6)
    base, candidate = rng.normal(0, 1, 40), rng.normal(1.5, 3, 90)
    made = compare_unpaired(MEAN, (scalar(base), scalar(candidate)), (None, None), FEW)
    expected = scipy.stats.ttest_ind(candidate, base, equal_var=False)
    assert made.test == "unpaired, Welch"
    assert made.stderr == pytest.approx(math.sqrt(base.var(ddof=1) / 40 + candidate.var(ddof=1) / 90))
    assert made.p_value == pytest.approx(expected.pvalue, abs=0.01)
    assert (made.wins, made.losses, made.ties, made.n_items) == (0, 0, 0, 130)
    assert (made.p_value < 0.05) == (not made.ci_low <= 0 <= made.ci_high)


def test_shares_of_other_items_are_compared_with_an_answer_of_either_kind_added() -> None:
    share = replace(MEAN, bounds=(0.0, 1.0))
    base, candidate = scalar([1] * 30), scalar([1] * 20 + [0] * 10)
    made = compare_unpaired(share, (base, candidate), (None, None), FEW)
    first, second = 31 / 32, 21 / 32
    spread = math.sqrt(first * (1 - first) / 32 + second * (1 - second) / 32)
    reach = scipy.stats.t.ppf(0.975, 58) * spread + 0.1 / 32
    assert made.ci_high == pytest.approx(second - first + reach, abs=1e-6)
    # On the other side a candidate at an end says more: each run's own interval reaches farther there.
    low = wilson(2 / 3, 30, 0.95)[0]
    assert made.ci_low == pytest.approx(-1 / 3 - (2 / 3 - low), abs=1e-6)
    assert made.difference == pytest.approx(-1 / 3)
    alike = compare_unpaired(share, (base, base), (None, None), FEW)
    assert alike.ci_low < 0 < alike.ci_high
    one = compare_unpaired(share, (scalar([1]), base), (None, None), FEW)
    assert math.isnan(one.p_value)


def test_clusters_of_two_fields_that_do_not_cross_are_those_of_one() -> None:
    passage = np.arange(40) // 4
    for ways in (np.column_stack([np.arange(40), passage]), np.column_stack([passage, np.zeros(40, int)])):
        assert numbered(ways).tolist() == passage.tolist()
    crossed = numbered(np.column_stack([passage, np.arange(40) % 4]))
    assert crossed.shape == (40, 2)


def test_the_variance_of_crossed_clusters_is_that_of_both_less_what_both_hold() -> None:
    rng = np.random.default_rng(7)
    ways = np.column_stack([np.arange(200) // 10, np.arange(200) % 10])
    values = rng.normal(0, 1, 20)[ways[:, 0]] + rng.normal(0, 1, 10)[ways[:, 1]] + rng.normal(0, 0.5, 200)
    residual = values - values.mean()

    def between(groups: Any, count: int) -> float:
        sums = np.bincount(groups, weights=residual)
        return count / (count - 1) * float(sums @ sums) / 200**2

    expected = between(ways[:, 0], 20) + between(ways[:, 1], 10) - between(np.arange(200), 200)
    made = estimate(MEAN, values[:, None], None, ways, FEW)
    assert made.stderr == pytest.approx(math.sqrt(expected))
    assert made.stderr_method == "closed form, clustered two ways"
    # A jackknife of a mean, and a bootstrap of both fields, come to about the same.
    nan = build_aggregation("nanmean")
    other = estimate(nan, nan.scores(values.tolist()).statistics, None, ways, FEW)
    assert other.stderr == pytest.approx(made.stderr, rel=0.02)
    own = build_aggregation("own.py:fn", None, lambda _: lambda v: sum(v) / len(v))
    drawn = estimate(own, None, values, ways, FEW)
    assert drawn.stderr == pytest.approx(made.stderr, rel=0.25)
    spread = estimate(build_aggregation("median"), None, values, ways, FEW)
    assert spread.stderr > estimate(build_aggregation("median"), None, values, None, FEW).stderr


def test_a_difference_of_crossed_clusters_tests_both_fields() -> None:
    rng = np.random.default_rng(8)
    ways = np.column_stack([np.arange(240) // 12, np.arange(240) % 12])
    base = rng.normal(0, 1, 240)
    by_prompt = rng.normal(0.4, 0.8, 12)[ways[:, 1]]
    alone = compare_items(MEAN, scalar(base), scalar(base + by_prompt), ways[:, 0], FEW)
    crossed = compare_items(MEAN, scalar(base), scalar(base + by_prompt), ways, FEW)
    assert crossed.test == "sign-flip permutation, clustered two ways"
    assert crossed.n_clusters == 12
    assert crossed.p_value > alone.p_value  # twelve prompts differ, and not 240 items
    bleu = build_aggregation("nanmean")
    columns = [ItemColumn(x, bleu.scores(x.tolist()).statistics) for x in (base, base + by_prompt)]
    assert compare_items(bleu, *columns, ways, FEW).stderr == pytest.approx(crossed.stderr, rel=0.02)


def test_shares_of_two_samples_are_found_apart_by_chance_as_often_as_is_said() -> None:
    """Every outcome of 50 and 50 answers, weighted by its probability; Agresti and Caffo's own reach gives
    .057 at .5."""
    n = 50
    share = replace(MEAN, bounds=(0.0, 1.0))
    columns = [scalar(np.arange(n) < right) for right in range(n + 1)]
    found = np.array(
        [
            [compare_unpaired(share, (one, other), (None, None), FEW).p_value < 0.05 for other in columns]
            for one in columns
        ]
    )
    for p in np.linspace(0.02, 0.5, 13):
        chances = scipy.stats.binom.pmf(np.arange(n + 1), n, p)
        assert chances @ found @ chances <= 0.052


@pytest.mark.parametrize(("n", "m"), [(100, 100), (300, 60)])
def test_a_gate_over_other_items_is_rarely_wrong_where_the_base_is_nearly_all_right(n: int, m: int) -> None:
    """Every outcome, weighted by its probability, at a loss of exactly the margin; Agresti and Caffo's
    interval alone passed .046."""
    share, wrong = replace(MEAN, bounds=(0.0, 1.0)), dict.fromkeys(("pass", "worse", "regression"), 0.0)
    (bases, first), (candidates, second) = (
        ([scalar(np.arange(size) < right) for right in range(size + 1)],
         scipy.stats.binom.pmf(np.arange(size + 1), size, p))
        for size, p in ((n, 0.995), (m, 0.895))
    )  # fmt: skip
    for (base, one), (candidate, other) in itertools.product(
        zip(bases, first, strict=True), zip(candidates, second, strict=True)
    ):
        if one * other > 1e-7:
            made = compare_unpaired(share, (base, candidate), (None, None), FEW)
            verdict = decide(made, 0.1, 0.05).verdict
            wrong[verdict] = wrong.get(verdict, 0.0) + one * other
    assert wrong["pass"] + wrong["worse"] <= 0.03
    assert wrong["regression"] <= 0.03
