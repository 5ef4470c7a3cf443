"""Aggregations: known numbers, values of process_results, and what nothing, one item or NaN give."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.aggregation import build_aggregation, statistics_of
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.registry import AGGREGATIONS
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.unpaired import compare_unpaired


def value(name: str, values: Any) -> float:
    aggregation = build_aggregation(name)
    scores = aggregation.scores(values)
    return aggregation.value(scores.statistics, scores.score if scores.values is None else scores.values)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("weighted_perplexity", [(-10, 3), (-20, 5)], 42.521082),
        ("bits_per_byte", [(-10, 3), (-20, 5)], 5.4101064),
        ("weighted_perplexity", [(-10, 3), (-10, 2)], 54.59815),
        ("weighted_perplexity", [(-10, 13), (-10, 10)], 2.3858733),
        ("weighted_mean", [(1, 2), (5, 2)], 1.5),
        ("perplexity", [-1.0, -3.0], math.exp(2)),
        ("median", [4, 1, 3, 2], 2.5),
        ("median", [5, 1, 3], 3),
        ("percentile@90", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 10),
        ("nanmean", [1.0, math.nan, 3.0, math.inf], 2),
        ("pass_rate", [0.5, 0, 1, -1], 0.5),
        ("min", [3, 1, 2], 1),
        ("max", [3, 1, 2], 3),
        ("sum", [3, 1, 2], 6),
        ("count", [3, 1, 2], 3),
        ("bypass", [3, 1, 2], 999),
        ("brier_score", [(0, [0.5, 0.5]), (1, [1.0, 0.0])], 1.25),
        ("brier_score", [0.5, 1.5], 1.0),
    ],
)
def test_known_numbers(name: str, values: Any, expected: float) -> None:
    assert value(name, values) == pytest.approx(expected, rel=1e-7)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(0, 100))
def test_percentiles_are_numpys(values: list[float], q: int) -> None:
    assert value(f"percentile@{q}", values) == np.percentile(values, q)


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_every_aggregation_reads_per_sample_values(name: str) -> None:
    samples = AGGREGATIONS[name].example
    assert len(statistics_of(name, samples)) == len(samples)
    assert math.isfinite(value(name, samples))


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_no_items_have_no_value_and_no_error_bar(name: str) -> None:
    aggregation = build_aggregation(name)
    scores = aggregation.scores([])
    made = estimate(aggregation, scores.statistics, scores.values or scores.score, None, StatisticsConfig())
    assert math.isnan(made.value)
    assert math.isnan(made.stderr)
    assert (made.n_items, made.stderr_method, made.warning) == (0, "none", "no scored items")


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_one_item_has_a_value_and_no_standard_error_of_chance(name: str) -> None:
    aggregation = build_aggregation(name)
    scores = aggregation.scores(AGGREGATIONS[name].example[:1])
    values = scores.values if scores.values is not None else scores.score
    made = estimate(aggregation, scores.statistics, values, None, StatisticsConfig())
    assert math.isfinite(made.value)
    assert math.isnan(made.stderr)
    assert made.warning


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("mean", [1, "x"], "mean takes one number a sample, and sample 1 has str"),
        ("bleu", ["text"], r"pair \(reference, prediction\) a sample, and sample 0 has 'text'"),
        ("bleu", [("a", ["b", "c"])], "one prediction a sample, and sample 0 has 2"),
        ("weighted_mean", [(1, 2, 3)], r"pair \(a, b\) a sample"),
        ("mcc", [1], r"pair \(gold, predicted\) a sample"),
        ("brier_score", [(4, [0.5, 0.5])], r"pair \(gold, probabilities\)"),
    ],
)
def test_values_of_another_shape_are_refused_by_their_sample(name: str, values: Any, said: str) -> None:
    with pytest.raises(MetricError, match=said) as caught:
        statistics_of(name, values)
    assert caught.value.index is not None


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"'meen' is not known; did you mean 'mean'\? \(python -m flows.catalog"
    ):
        build_aggregation("meen")


@pytest.mark.parametrize("name", ["percentile@x", "percentile@101"])
def test_a_percentile_out_of_range_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="0 to 100"):
        build_aggregation(name)


def test_an_argument_that_an_aggregation_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no argument 'smoth_method'; did you mean 'smooth_method'"):
        build_aggregation("bleu", {"smoth_method": "exp"})


def test_a_users_aggregation_takes_numbers_or_anything_else() -> None:
    longest = build_aggregation(
        "mine.py:longest", None, lambda reference: lambda values: max(map(len, values))
    )
    assert longest.value(None, longest.scores(["a", "bbb"]).values) == 3.0
    spread = build_aggregation(
        "mine.py:spread", None, lambda reference: lambda values: max(values) - min(values)
    )
    assert spread.value(None, spread.scores([1.0, 4.0]).score) == 3.0


def test_a_users_aggregation_must_return_a_number() -> None:
    broken = build_aggregation("mine.py:broken", None, lambda reference: lambda values: "much")
    with pytest.raises(MetricError, match="must return a number, not str"):
        broken.value(None, [1.0])


@pytest.mark.parametrize("name", ["weighted_mean", "weighted_perplexity", "bits_per_byte"])
@pytest.mark.parametrize("pairs", [[(1, 0), (2, 0)], [(-1, 0), (-2, 0)], [(0, 0)]])
def test_weights_that_add_up_to_0_have_no_value(name: str, pairs: Any) -> None:
    aggregation = build_aggregation(name)
    assert math.isnan(aggregation.value(aggregation.scores(pairs).statistics, None))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, math.inf], 2.0),
        ([-math.inf, -math.inf, 1], -math.inf),
        ([1, math.inf], math.inf),
        ([-math.inf, math.inf], math.nan),
    ],
)
def test_the_median_of_infinities_is_the_true_one(values: Any, expected: float) -> None:
    np.testing.assert_equal(build_aggregation("median").of_values(np.array(values, dtype=float)), expected)


def test_count_counts_numbers_that_are_none() -> None:
    aggregation = build_aggregation("count")
    assert aggregation.value(aggregation.scores([math.nan, 1.0]).statistics, None) == 2.0


def test_what_a_users_aggregation_raises_has_its_name_and_line() -> None:
    def broken(values: Any) -> float:
        raise KeyError("no")

    with pytest.raises(MetricError, match=r"aggregation 'broken' failed: KeyError: 'no' \(test_aggregations"):
        build_aggregation("u.py:broken", None, lambda _: broken).of_values([1.0])


@given(st.lists(st.floats(-60, -1e-3), min_size=1, max_size=300))
def test_perplexities_have_the_very_bits_of_a_sum_from_first_to_last(lls: list[float]) -> None:
    # They are astronomic for models that know nothing: a last bit of the mean is millions.
    column = np.array(lls)[:, None]
    assert build_aggregation("perplexity").value(column, None) == math.exp(-(sum(lls) / len(lls)))
    pairs = np.column_stack([column, np.arange(1.0, len(lls) + 1)])
    total = sum(range(1, len(lls) + 1))
    assert build_aggregation("weighted_perplexity").value(pairs, None) == math.exp(-(sum(lls) / total))


def test_a_perplexity_beyond_all_numbers_is_infinite() -> None:
    assert build_aggregation("perplexity").value(np.array([[-1e6]]), None) == math.inf
    assert build_aggregation("weighted_perplexity").value(np.array([[-1e6, 1.0]]), None) == math.inf


def test_a_weighted_mean_takes_numbers_times_their_weights_and_says_so() -> None:
    numbers, weights = np.array([1.0, 0.0, 0.5]), np.array([2.0, 1.0, 4.0])
    pairs = list(zip(numbers * weights, weights, strict=True))
    built = build_aggregation("weighted_mean")
    scores = built.scores(pairs)
    assert scores.score.tolist() == numbers.tolist()
    assert built.value(scores.statistics, None) == pytest.approx(np.average(numbers, weights=weights))
    assert AGGREGATIONS["weighted_mean"].takes == "a pair (number × weight, weight)"


@pytest.mark.parametrize(
    "clusters", [None, np.arange(42) // 2, np.column_stack([np.arange(42), np.arange(42) % 7])]
)
@pytest.mark.parametrize("numbers", [[1.0, 0.0], [1.0, 0.0, 0.25, 0.5, 1.0, 0.75]])
def test_nanmean_has_the_error_bar_of_the_items_that_count(numbers: list[float], clusters: Any) -> None:
    aggregation, n = replace(build_aggregation("nanmean"), bounds=(0.0, 1.0)), len(numbers)
    scores, alone = aggregation.scores([*numbers, *[math.nan] * (42 - n)]), aggregation.scores(numbers)
    made = estimate(aggregation, scores.statistics, None, clusters, StatisticsConfig())
    own = None if clusters is None else clusters[:n]
    expected = estimate(aggregation, alone.statistics, None, own, StatisticsConfig())
    of = ("value", "stderr", "stderr_method", "ci_low", "ci_high")
    np.testing.assert_equal(*[[getattr(one, key) for key in of] for one in (made, expected)])
    assert made.n_items == 42
    said = f"{42 - n} of 42 items have no finite number and are left out"
    assert made.warning == "; ".join(filter(None, (said, expected.warning)))


@pytest.mark.parametrize("clusters", [None, np.arange(60) // 2])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-math.inf, math.inf)])
@pytest.mark.parametrize("n", [2, 6, 20])
def test_nanmeans_are_compared_by_the_items_that_count(n: int, bounds: Any, clusters: Any) -> None:
    aggregation, rng = replace(build_aggregation("nanmean"), bounds=bounds), np.random.default_rng(2)
    numbers = rng.random((2, n))

    def compared(items: int, paired: bool) -> list[Any]:
        columns = []
        for own in numbers:
            scores = aggregation.scores([*own, *[math.nan] * (items - n)])
            columns.append(ItemColumn(scores.score, scores.statistics))
        groups, options = (
            None if clusters is None else clusters[:items],
            StatisticsConfig(bootstrap_iters=500),
        )
        if paired:
            made = compare_items(aggregation, columns[0], columns[1], groups, options)
        else:
            made = compare_unpaired(aggregation, (columns[0], columns[1]), (groups, groups), options)
        return [made.p_value, made.ci_low, made.ci_high, made.stderr, made.mde, made.too_few]

    for paired in (True, False):
        np.testing.assert_equal(compared(60, paired), compared(n, paired))


@pytest.mark.parametrize(
    "clusters", [None, np.arange(4) // 2, np.column_stack([np.arange(4), np.arange(4) % 2])]
)
@pytest.mark.parametrize("numbers", [[math.nan] * 4, [0.5, 1.0, math.nan, 0.0]])
def test_nanmeans_of_which_one_counts_no_item_differ_by_no_number(numbers: Any, clusters: Any) -> None:
    aggregation, options = build_aggregation("nanmean"), StatisticsConfig(bootstrap_iters=200)
    made = (aggregation.scores(values) for values in (numbers, [math.nan] * 4))
    base, candidate = (ItemColumn(one.score, one.statistics) for one in made)
    found = compare_items(aggregation, base, candidate, clusters, options)
    assert math.isnan(found.p_value)
    assert found.warning
    found = compare_unpaired(aggregation, (base, candidate), (clusters, clusters), options)
    assert math.isnan(found.p_value)
    assert "none of 4 items counts" in str(found.warning)


def test_an_item_that_counts_in_one_run_is_compared() -> None:
    aggregation = build_aggregation("nanmean")
    first, second = (
        aggregation.scores(values) for values in ([0.5, 1.0, math.nan], [0.25, math.nan, math.nan])
    )
    runs = (ItemColumn(one.score, one.statistics) for one in (first, second))
    made = compare_items(aggregation, *runs, None, StatisticsConfig(bootstrap_iters=500))
    assert (made.base, made.candidate, made.n_items) == (0.75, 0.25, 3)


def test_nanmean_says_how_many_items_do_not_count() -> None:
    aggregation = build_aggregation("nanmean")
    scores = aggregation.scores([1.0, math.nan, math.inf, 0.0, -math.inf])
    made = estimate(aggregation, scores.statistics, None, None, StatisticsConfig())
    assert made.value == 0.5
    assert made.warning is not None
    assert made.warning.startswith("3 of 5 items have no finite number and are left out")
