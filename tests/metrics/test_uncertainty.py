"""Standard errors and intervals: known numbers, scipy as oracle, and agreement of the methods."""

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
from metrics.statistics.estimate import estimate
from metrics.statistics.formulas import maritz_jarrett
from metrics.statistics.intervals import student_quantile, wilson, wilson_near_bounds
from metrics.statistics.resampling import resampled_totals
from metrics.types import Estimate

DEFAULT = StatisticsConfig()


def of_numbers(
    name: str, values: Any, clusters: Any = None, bounds: Any = (-math.inf, math.inf), **options: Any
) -> Estimate:
    aggregation = build_aggregation(name)
    if bounds[0] > -math.inf:
        aggregation = replace(aggregation, bounds=bounds)
    scores = aggregation.scores(list(values))
    return estimate(aggregation, scores.statistics, scores.score, clusters, StatisticsConfig(**options))


def bleu_rows(seed: int, n: int) -> Any:
    rng = np.random.default_rng(seed)
    length = rng.integers(20, 80, n)
    possible = np.stack([length - order for order in range(4)], axis=1)
    matched = rng.binomial(possible, rng.beta(6, 4, n)[:, None] ** np.arange(1, 5))
    return np.column_stack([length, length + rng.integers(1, 9, n), matched, possible]).astype(np.float64)


def test_the_standard_error_of_0_and_1_is_the_known_one() -> None:
    made = of_numbers("mean", [1, 0, 1, 0])
    assert made.stderr == pytest.approx(0.2886751, abs=5e-8)
    assert made.stderr_method == "wilson"


def test_none_of_20_right_has_a_width() -> None:
    made = of_numbers("mean", [0] * 20, bounds=(0.0, 1.0))
    assert (made.value, made.stderr, made.ci_low) == (0.0, 0.0, 0.0)
    assert made.ci_high == pytest.approx(0.1611252)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_is_scipys(case: tuple[int, int], level: float) -> None:
    right, n = case
    expected = scipy.stats.binomtest(right, n).proportion_ci(level, method="wilson")
    assert wilson(right / n, n, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(
    ("n", "least"), [(5, 0.91), (7, 0.89), (10, 0.91), (20, 0.92), (30, 0.92), (100, 0.925), (300, 0.925)]
)
def test_the_interval_of_right_and_wrong_answers_covers_whatever_their_share(n: int, least: float) -> None:
    """By enumeration, not simulation: every count and its chance. Wilson's own falls to .84 near a bound."""
    counts = np.arange(n + 1)
    made = [of_numbers("mean", [1] * right + [0] * (n - right), bounds=(0.0, 1.0)) for right in counts]
    ends = np.array([(one.ci_low, one.ci_high) for one in made])
    for share in (*np.linspace(0.5, 0.98, 97), 0.985, 0.99, 0.993, 0.995, 0.998, 0.999):
        inside = (ends[:, 0] <= share) & (share <= ends[:, 1])
        assert scipy.stats.binom.pmf(counts, n, share)[inside].sum() >= least, share
        mirrored = (ends[:, 0] <= 1 - share) & (1 - share <= ends[:, 1])
        assert mirrored.tolist() == inside[::-1].tolist()


def test_three_exceptions_move_the_end_beside_them_and_four_do_not() -> None:
    right = 100 - np.array([0, 1, 3, 4])
    made = [of_numbers("mean", [1] * r + [0] * (100 - r), bounds=(0.0, 1.0)) for r in right]
    own = [wilson(r / 100, 100, 0.95) for r in right]
    assert [one.ci_low for one in made] == pytest.approx([low for low, _ in own])
    assert [made[place].ci_high for place in (0, 3)] == pytest.approx([own[place][1] for place in (0, 3)])
    for place, wrong in ((1, 1), (2, 3)):  # as many or more come with a chance of .05
        assert scipy.stats.binom.sf(wrong - 1, 100, 1 - made[place].ci_high) == pytest.approx(0.05)
        assert made[place].ci_high > own[place][1]


@given(st.integers(1, 3000), st.floats(0.5, 0.999))
def test_student_quantiles_are_scipys(degrees: int, level: float) -> None:
    assert student_quantile(level, degrees) == pytest.approx(
        float(scipy.stats.t.ppf(0.5 + level / 2, degrees)), rel=1e-8
    )


def test_the_interval_of_a_symmetric_mean_is_students() -> None:
    values = np.linspace(-1, 1, 60)
    made = of_numbers("mean", values)
    expected = scipy.stats.t.interval(0.95, 59, 0.0, scipy.stats.sem(values))
    assert (made.ci_low, made.ci_high) == pytest.approx(expected, abs=1e-9)


def test_the_interval_of_skewed_numbers_reaches_further_to_their_side() -> None:
    made = of_numbers("mean", np.random.default_rng(1).exponential(size=40))
    assert made.ci_high - made.value > 1.3 * (made.value - made.ci_low)
    mirrored = of_numbers("mean", -np.random.default_rng(1).exponential(size=40))
    assert (mirrored.ci_low, mirrored.ci_high) == pytest.approx((-made.ci_high, -made.ci_low))


@pytest.mark.parametrize("q", [0.25, 0.5, 0.9])
def test_the_interval_of_a_quantile_is_scipys(q: float) -> None:
    values = np.random.default_rng(2).normal(size=201)
    made = of_numbers(f"percentile@{100 * q:g}", values)
    expected = scipy.stats.quantile_test(values, q=0, p=q).confidence_interval(0.95)
    assert (made.ci_low, made.ci_high) == (expected.low, expected.high)


@pytest.mark.parametrize("n", [9, 10, 100])
def test_the_standard_error_of_the_median_is_that_of_many_bootstrap_draws(n: int) -> None:
    rng = np.random.default_rng(n)
    values = np.sort(rng.exponential(size=n))
    # Of an even number the formula smooths between the lower and the upper middle of a resample.
    draws = np.sort(values[rng.integers(0, n, (40_000, n))], axis=1)
    ranks = draws[:, [(n - 1) // 2, n // 2]]
    assert maritz_jarrett(values, 0.5) == pytest.approx(float(np.median(draws, axis=1).std()), rel=0.06)
    assert maritz_jarrett(values, 0.5) <= float(ranks.std(axis=0).max()) * 1.05


def test_clustered_standard_errors_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(3)
    clusters = np.sort(rng.integers(0, 25, 200))
    values = rng.normal(size=200) + clusters % 3
    # CR2 by its matrices: residuals of each cluster, times the inverse root of what is left of their variance
    # where clusters are alike within.
    same = (clusters[:, None] == clusters[None, :]).astype(float)
    maker = np.eye(200) - np.full((200, 200), 1 / 200)
    left = maker @ same @ maker
    sums = []
    for cluster in np.unique(clusters):
        own = clusters == cluster
        due, seen = float(own.sum()) ** 2, float(left[np.ix_(own, own)].sum())
        sums.append(float((maker @ values)[own].sum()) * math.sqrt(due / seen))
    expected = math.sqrt(sum(total**2 for total in sums)) / 200
    made = of_numbers("mean", values, clusters)
    assert made.stderr == pytest.approx(expected, rel=1e-12)
    assert made.stderr_method == "closed form, clustered"


@pytest.mark.parametrize("name", ["mean", "sum", "nanmean", "perplexity"])
def test_clusters_of_one_item_are_no_clusters(name: str) -> None:
    values = np.random.default_rng(4).normal(-2, 0.3, 80)
    plain, clustered = of_numbers(name, values), of_numbers(name, values, np.arange(80)[::-1])
    assert clustered.stderr == pytest.approx(plain.stderr, rel=2e-3)
    assert clustered.value == pytest.approx(plain.value)


def test_repeating_every_item_within_its_cluster_leaves_the_error_alone() -> None:
    values = np.random.default_rng(5).normal(size=60)
    once, thrice = (
        of_numbers("mean", values),
        of_numbers("mean", np.repeat(values, 3), np.repeat(np.arange(60), 3)),
    )
    assert thrice.stderr == pytest.approx(once.stderr, rel=1e-9)


@pytest.mark.parametrize("method", ["delta", "jackknife", "bootstrap", "bca"])
def test_the_methods_agree_on_bleu(method: str) -> None:
    bleu, rows = build_aggregation("bleu"), bleu_rows(6, 300)
    usual = estimate(bleu, rows, None, None, DEFAULT)
    other = estimate(bleu, rows, None, None, StatisticsConfig(method=method, bootstrap_iters=20_000))
    assert usual.stderr_method == "jackknife"
    assert other.stderr == pytest.approx(usual.stderr, rel=0.02)
    assert (other.ci_low, other.ci_high) == pytest.approx((usual.ci_low, usual.ci_high), abs=0.2)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (np.eye(4)[np.random.default_rng(7).integers(0, 4, 300)], "multinomial"),
        (
            np.eye(5)[np.random.default_rng(7).choice([0, 2, 3], 300)],
            "multinomial, two kinds that never occur",
        ),
        (
            np.array([[0, 0.5, 2], [1, 1, 1]])[np.random.default_rng(7).integers(0, 2, 300)],
            "multinomial, not one-hot",
        ),
        (np.random.default_rng(8).normal(size=(20, 2)), "gathered"),
        (np.random.default_rng(9).normal(size=(211, 2)), "circulant, of a prime number of items"),
        (np.random.default_rng(9).integers(0, 50, (200, 2)).astype(float), "circulant, of whole numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_resamples_have_the_mean_and_the_covariance_of_resampling(table: Any, kind: str) -> None:
    totals = np.concatenate(list(resampled_totals(table, 40_000, np.random.default_rng(1))))
    n = len(table)
    spread = np.sqrt(np.diag(np.cov(table.T, bias=True)) * n)
    assert len(totals) >= 40_000
    assert np.abs(totals.mean(axis=0) - table.sum(axis=0)).max() < 0.05 * spread.max()
    np.testing.assert_allclose(
        np.cov(totals.T), n * np.cov(table.T, bias=True), atol=0.04 * spread.max() ** 2
    )
    if kind.endswith("whole numbers"):
        np.testing.assert_array_equal(totals, np.rint(totals))


@pytest.mark.parametrize("largest", [1, 150, 10**6, 10**12])
def test_columns_of_whole_numbers_are_resampled_together_as_each_alone(largest: int) -> None:
    """Several are transformed at once, as digits of one number, as far as rounding can tell them apart."""
    rng = np.random.default_rng(11)
    table = rng.integers(0, largest, (211, 8), endpoint=True).astype(np.float64)
    table[:, 0] = np.arange(211)  # too many distinct rows to count them

    def totals(columns: Any) -> Any:
        return np.concatenate(list(resampled_totals(columns, 500, np.random.default_rng(1))))

    together = totals(table)
    for place in range(8):
        alone = (
            totals(table[:, [place]]) if largest > 64 or place == 0 else totals(table[:, [0, place]])[:, 1:]
        )
        np.testing.assert_array_equal(together[:, [place]], alone)


def test_a_seed_makes_the_error_bar_and_another_seed_another() -> None:
    table = np.eye(4)[np.random.default_rng(10).integers(0, 4, 200)]
    made = [
        estimate(build_aggregation("f1"), table, None, None, StatisticsConfig(seed=seed))
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1]
    assert made[0].stderr != made[2].stderr


@pytest.mark.parametrize("draws", [0, -1])
def test_no_draws_mean_no_standard_errors(draws: int) -> None:
    for name in ("mean", "median", "perplexity"):
        made = of_numbers(name, [0.2, 0.4, 0.9], bootstrap_iters=draws)
        assert math.isfinite(made.value)
        assert math.isnan(made.stderr)
        assert made.stderr_method == "none"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_not_hidden(bad: float) -> None:
    made = of_numbers("mean", [1.0, bad, 0.5])
    assert not math.isfinite(made.value)
    assert made.warning == "1 of 3 items have a value that is not finite"
    assert of_numbers("nanmean", [1.0, bad, 0.5]).value == 0.75


def test_a_handful_of_rare_events_carries_a_warning() -> None:
    rare = np.eye(4)[[3] * 95 + [0, 0, 1, 1, 2]]
    made = estimate(build_aggregation("f1"), rare, None, None, DEFAULT)
    assert made.warning
    assert "only 5 items" in made.warning


@pytest.mark.parametrize("method", ["auto", "bootstrap", "bca", "jackknife", "delta"])
@pytest.mark.parametrize("crossed", [False, True])
def test_a_handful_of_rare_events_carries_a_warning_whatever_the_method(method: Any, crossed: bool) -> None:
    rare = np.eye(4)[[3] * 95 + [0, 0, 1, 1, 2]]
    ways = np.column_stack([np.arange(100) % 20, np.arange(100) // 5]) if crossed else None
    options = StatisticsConfig(method=method, bootstrap_iters=500)
    assert "only 5 items" in str(estimate(build_aggregation("f1"), rare, None, ways, options).warning)


def test_few_items_of_a_label_carry_a_warning_however_many_were_given_it() -> None:
    cells = np.eye(4)[[0] * 85 + [1] * 12 + [2, 3, 3]]
    made = estimate(build_aggregation("f1"), cells, None, None, DEFAULT)
    assert (
        made.warning
        == "only 3 items have the rarest label: the error bar is unreliable; 10 and more are safer"
    )
    pairs = [[0, 0]] * 60 + [[1, 1]] * 30 + [[0, 1]] * 7 + [[2, 1], [2, 2]]
    for name, warns in (("f1", True), ("matthews_corrcoef", True), ("weighted", False)):
        average = {} if name == "matthews_corrcoef" else {"average": "macro" if name == "f1" else name}
        aggregation = build_aggregation("f1" if name == "weighted" else name, average)
        made = estimate(aggregation, None, pairs, None, DEFAULT)
        assert (made.warning is not None and "only 2 items have the rarest label" in made.warning) == warns


@pytest.mark.parametrize(("strange", "warns"), [(0, False), (1, True), (9, True), (10, False)])
def test_macro_f1_warns_of_a_label_that_is_predicted_and_no_item_has(strange: int, warns: bool) -> None:
    """One such answer of 200 moves it from .90 to .60, and so rare ones are covered .31 to .86."""
    pairs = [[0, 0]] * 90 + [[1, 1]] * 90 + [[0, "unsure"]] * strange + [[0, 1]] * (20 - strange)
    made = estimate(build_aggregation("f1", {"average": "macro"}), None, pairs, None, DEFAULT)
    assert (made.value < 0.65) == (strange > 0)
    assert ("a label that no item has" in str(made.warning)) == warns
    for name, average in (("matthews_corrcoef", {}), ("f1", {"average": "weighted"})):
        assert estimate(build_aggregation(name, average), None, pairs, None, DEFAULT).warning is None


def test_one_right_answer_has_an_interval_and_no_standard_error() -> None:
    made = of_numbers("mean", [1], bounds=(0.0, 1.0))
    assert math.isnan(made.stderr)
    assert (made.ci_low, made.ci_high) == pytest.approx((0.2065493, 1.0))
    assert made.warning == "one item has no spread"


def test_few_clusters_carry_a_warning() -> None:
    made = of_numbers("mean", [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    assert made.warning == "only 2 clusters: the error bar is a rough guide"


def test_one_cluster_has_no_error_bar() -> None:
    for name in ("mean", "median"):
        made = of_numbers(name, [0.1, 0.2, 0.3], [7, 7, 7])
        assert made.warning == "one cluster has no spread"
        assert math.isnan(made.stderr)


def test_extremes_have_no_error_bar() -> None:
    assert of_numbers("max", [1.0, 2.0]).warning == "no error bar for max"


def test_a_users_aggregation_is_bootstrapped() -> None:
    spread = build_aggregation("mine.py:fn", None, lambda reference: lambda values: float(np.mean(values)))
    values = np.random.default_rng(11).normal(size=200)
    made = estimate(spread, None, values, None, DEFAULT)
    assert made.stderr_method == "bootstrap"
    assert made.stderr == pytest.approx(values.std(ddof=1) / math.sqrt(200), rel=0.1)
    clustered = estimate(spread, None, values, np.arange(200) // 4, DEFAULT)
    assert clustered.stderr_method == "bootstrap, clustered"


def test_a_perplexity_of_log_likelihoods_far_apart_has_a_value_and_an_interval() -> None:
    made = of_numbers("perplexity", [-1000.0, -1.0])
    assert made.value == pytest.approx(math.exp(500.5))
    assert math.isnan(made.stderr)
    assert (made.ci_low, made.ci_high) == (0.0, math.inf)
    assert str(made.warning).startswith("the spread is too wide for a standard error; only 2 items")


@pytest.mark.parametrize("method", ["analytic", "delta", "jackknife", "bootstrap", "bca"])
@pytest.mark.parametrize("lls", [[-700.0, -650, -100, -5], [-1400.0, -1000, -100, -5]])
def test_no_method_stumbles_over_numbers_beyond_all_numbers(method: Any, lls: Any) -> None:
    made = of_numbers("perplexity", lls, method=method, bootstrap_iters=500)
    assert made.value == pytest.approx(math.exp(-np.mean(lls)))
    assert math.isfinite(made.stderr) or made.warning
    assert made.stderr_method == "none" or made.ci_low <= made.value <= made.ci_high


def test_bounds_decide_what_a_proportion_is(build: Any) -> None:
    for name in ("rouge1", "sentence_bleu"):
        metric = build(name)
        scores = metric.evaluate([["x"]] * 5, ["y"] * 5)
        made = estimate(metric.aggregation, scores.statistics, None, None, DEFAULT)
        assert (made.stderr, made.ci_low, made.ci_high) == pytest.approx((0, 0, 100 * wilson(0, 5, 0.95)[1]))
    length = build("length")
    made = estimate(length.aggregation, np.ones((5, 1)), None, None, DEFAULT)
    assert math.isnan(made.ci_low)
    assert "range is not known" in str(made.warning)


def test_a_column_of_an_unknown_range_is_no_proportion_where_all_are_alike() -> None:
    alike = of_numbers("mean", [0.0] * 20)  # of 0 to 1, or of 0 to 100?
    assert (alike.stderr, math.isnan(alike.ci_high)) == (0.0, True)
    mixed = of_numbers("mean", [0.0] * 19 + [1.0])
    assert (mixed.ci_low, mixed.ci_high) == pytest.approx(wilson_near_bounds(0.05, 20, 0.95))


def test_a_users_numbers_of_a_known_name_may_have_another_scale(build: Any) -> None:
    aggregation = build("exact_match").aggregation
    made = estimate(aggregation, np.array([[100.0], [0.0], [50.0], [80.0]] * 5), None, None, DEFAULT)
    assert made.ci_low < made.value < made.ci_high
    assert made.ci_high > 1


def test_one_value_off_1_changes_the_interval_little() -> None:
    answers = np.array([1.0] * 90 + [0.0] * 10)
    nearly = answers.copy()
    nearly[0] = 0.999
    first, second = (of_numbers("mean", values, bounds=(0.0, 1.0)) for values in (answers, nearly))
    assert second.stderr_method == "wilson"
    assert (second.ci_low, second.ci_high) == pytest.approx((first.ci_low, first.ci_high), abs=3e-3)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_exact_and_bayesian_intervals_of_shares_are_scipys(case: tuple[int, int]) -> None:
    right, n = case
    values = [1.0] * right + [0.0] * (n - right)
    made = of_numbers("mean", values, bounds=(0.0, 1.0), method="clopper_pearson")
    expected = scipy.stats.binomtest(right, n).proportion_ci(0.95, method="exact")
    assert (made.ci_low, made.ci_high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert made.stderr_method == "clopper_pearson"
    own = of_numbers("mean", values, bounds=(0.0, 1.0), method="jeffreys")
    low, high = scipy.stats.beta.ppf([0.025, 0.975], right + 0.5, n - right + 0.5)
    assert (own.ci_low, own.ci_high) == pytest.approx(
        (0.0 if right == 0 else low, 1.0 if right == n else high), abs=1e-9
    )


def test_the_interval_of_a_mean_ends_where_the_metrics_range_ends(build: Any) -> None:
    numbers = np.array([[1.0], [1.0], [1.0], [0.5]])  # shares of an item's repeats
    assert estimate(build("exact_match").aggregation, numbers, None, None, DEFAULT).ci_high < 1.0
    scaled = np.array([[3.0], [3.0], [3.0], [2.5]])
    own = build({"metric": "exact_match", "reduction": "u.py:total"}, resolve=lambda _: lambda **_: 3.0)
    assert estimate(own.aggregation, scaled, None, None, DEFAULT).ci_high > 3.0


def test_rounding_beyond_the_range_leaves_the_value_in_its_interval(build: Any) -> None:
    metric = build("bleu")
    scores = metric.evaluate([["a b c d e"]] * 6, ["a b c d e"] * 6)
    made = estimate(metric.aggregation, scores.statistics, None, None, DEFAULT)
    assert made.ci_low <= made.value <= made.ci_high


@pytest.mark.parametrize("name", ["mean", "median", "f1", "perplexity", "weighted_mean"])
def test_few_clusters_are_warned_about_whatever_the_method(name: str) -> None:
    rng = np.random.default_rng(3)
    aggregation = build_aggregation(name)
    pairs = [(int(gold), int(gold)) for gold in rng.random(60) < 0.5]
    values = pairs if name in ("f1", "weighted_mean") else rng.random(60).tolist()
    values = [(a, b + 1) for a, b in values] if name == "weighted_mean" else values
    scores = aggregation.scores(values)
    for clusters, said in ((4, ["only 4 clusters: the error bar is a rough guide"]), (60, [])):
        made = estimate(aggregation, scores.statistics, scores.score, np.arange(60) % clusters, DEFAULT)
        assert [part for part in str(made.warning).split("; ") if "rough guide" in part] == said
        assert (made.warning is None) == (said == [])


@pytest.mark.parametrize("name", ["median", "max"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_items_of_an_order_statistic_that_are_not_finite_are_counted(name: str, bad: float) -> None:
    aggregation = build_aggregation(name)
    values = [bad, *map(float, range(9))]
    made = estimate(aggregation, None, values, None, StatisticsConfig())
    assert (math.isnan(made.stderr), math.isnan(made.ci_low), math.isnan(made.ci_high)) == (True, True, True)
    assert made.warning == "1 of 10 items have a value that is not finite"
