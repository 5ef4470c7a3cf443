"""Repeats of an item → one row: every reduction against a loop over items, and what failed repeats do."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.aggregation import build_aggregation
from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.errors import ConfigError, MetricError
from metrics.reductions.pass_at_k import hypergeometric_tail, probabilities
from metrics.reductions.reduction import (
    Reduced,
    Reduction,
    Repeats,
    build_reduction,
    reduce_repeats,
    reduction_key,
)

Sample = tuple[float, bool, int]  # score, scored, code of the prediction


def repeats_of(items: Sequence[Sequence[Sample]], **extra: Any) -> Repeats:
    rows = [sample for item in items for sample in item]
    score = np.array([row[0] for row in rows], dtype=np.float64)
    return Repeats(
        score=score,
        scored=np.array([row[1] for row in rows], dtype=np.bool_),
        codes=np.array([row[2] for row in rows], dtype=np.int64),
        offsets=np.concatenate([[0], np.cumsum([len(item) for item in items], dtype=np.int64)]),
        **{"statistics": score.reshape(-1, 1), **extra},
    )


def bound(name: str, resolve: Any = None) -> Reduction:
    return build_reduction(name, resolve).bound(build_aggregation("mean"))


def reduced(name: str, items: Sequence[Sequence[Sample]]) -> Reduced:
    (result,) = reduce_repeats(bound(name), repeats_of(items))
    return result


def right(*scores: float) -> list[Sample]:
    return [(score, True, int(score)) for score in scores]


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(10, 3, 1, 0.3), (10, 3, 5, 0.9166667), (64, 7, 10, 0.7149132)]
)
def test_pass_at_k_has_the_known_values(n: int, c: int, k: int, expected: float) -> None:
    assert hypergeometric_tail(n, c, k, 1) == pytest.approx(expected, abs=5e-8)
    assert reduced(f"pass@{k}", [right(*[1] * c, *[0] * (n - c))]).value[0] == pytest.approx(
        expected, abs=5e-8
    )


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_counting_reductions_are_the_share_of_all_draws(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = [sum(draw) for draw in combinations([1] * c + [0] * (n - c), k)]
    item = [right(*[1] * c, *[0] * (n - c))]
    for name, hits in (
        (f"pass@{k}", [draw >= 1 for draw in draws]),
        (f"pass^{k}", [draw == k for draw in draws]),
        (f"g_pass@{k}", [draw >= max(1, math.ceil(k / 2)) for draw in draws]),
        (f"g_pass@{k}@1", [draw == k for draw in draws]),
    ):
        assert reduced(name, item).value[0] == float(Fraction(sum(hits), len(hits)))
    assert reduced(f"at_least_{k}", item).value[0] == float(c >= k)
    steps = range(math.ceil(k / 2) + 1, k + 1)
    expected = 2 / k * sum(sum(draw >= i for draw in draws) / len(draws) for i in steps)
    assert reduced(f"mg_pass@{k}", item).value[0] == pytest.approx(expected)


@given(st.lists(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1))
def test_pass_at_k_over_mixed_numbers_of_repeats(counts: list[tuple[int, int]]) -> None:
    n, c = (np.array(column) for column in zip(*counts, strict=True))
    own = probabilities(n, c, 5, lambda repeats, right: hypergeometric_tail(repeats, right, 5, 1))
    expected = [
        float(1 - Fraction(math.comb(int(a - b), 5), math.comb(int(a), 5))) if a >= 5 else math.nan
        for a, b in zip(n, c, strict=True)
    ]
    np.testing.assert_array_equal(own, expected)


SAMPLES = st.lists(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 0.25]), st.booleans(), st.integers(-1, 3)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=6,
)


def _mode(values: list[Any]) -> Any:
    counts = Counter(values)
    return next(value for value in values if counts[value] == max(counts.values()))


def _majority(samples: list[Sample]) -> float:
    votes = [code for _, _, code in samples if code >= 0]
    winner = _mode(votes) if votes else None
    return next(score for score, _, code in samples if winner is None or code == winner)


def _complete(k: int, finish: Any) -> Any:
    def one(samples: list[Sample]) -> float:
        first = samples[:k]
        ready = len(first) == k and all(scored for _, scored, _ in first)
        return finish(first) if ready else math.nan

    return one


def _over_scored(finish: Any) -> Any:
    def one(samples: list[Sample]) -> float:
        scored = [sample for sample in samples if sample[1]]
        return finish(scored) if scored else math.nan

    return one


ORACLES = {
    "mean": _over_scored(lambda samples: np.mean([sample[0] for sample in samples])),
    "max": _over_scored(lambda samples: max(sample[0] for sample in samples)),
    "min": _over_scored(lambda samples: min(sample[0] for sample in samples)),
    "median": _over_scored(lambda samples: np.median([sample[0] for sample in samples])),
    "mode": _over_scored(lambda samples: _mode([sample[0] for sample in samples])),
    "majority": _over_scored(_majority),
    "take_first": _complete(1, lambda samples: samples[0][0]),
    "avg@1": _complete(1, lambda samples: samples[0][0]),
    "maj@1": _complete(1, _majority),
}


@pytest.mark.parametrize("name", sorted(ORACLES))
@given(items=SAMPLES)
def test_reduction_of_all_items_is_that_of_each(name: str, items: Any) -> None:
    result = reduced(name, items)
    np.testing.assert_allclose(result.value, [ORACLES[name](item) for item in items], rtol=1e-12)
    np.testing.assert_array_equal(result.valid, ~np.isnan(result.value))
    assert result.n_samples.tolist() == [len(item) for item in items]
    assert result.n_scored.tolist() == [sum(scored for _, scored, _ in item) for item in items]
    assert result.statistics is not None
    np.testing.assert_array_equal(result.statistics[:, 0], result.value)


@pytest.mark.parametrize("name", ["avg@3", "maj@3"])
@given(items=SAMPLES)
def test_reductions_of_the_first_k_need_all_of_them(name: str, items: Any) -> None:
    items = [*items, [(1.0, True, 1)] * 3]
    finish = _majority if name == "maj@3" else lambda samples: np.mean([sample[0] for sample in samples])
    expected = [_complete(3, finish)(item) for item in items]
    np.testing.assert_allclose(reduced(name, items).value, expected, rtol=1e-12)


def test_more_draws_than_repeats_is_an_error_that_says_so() -> None:
    with pytest.raises(MetricError, match="pass@8 needs 8 repeats of an item, and no item has more than 4"):
        reduced("pass@8", [right(1, 0, 1, 0)])


def test_an_item_whose_repeats_failed_is_unscored_and_counted_not_zero() -> None:
    failed = [(1.0, True, 1), (math.nan, False, -1), (math.nan, False, -1)]
    result = reduced("pass@2", [right(1, 0, 0), failed])
    assert result.value[0] == pytest.approx(2 / 3)
    assert math.isnan(result.value[1])
    assert result.valid.tolist() == [True, False]
    assert result.n_scored.tolist() == [3, 1]


def test_scores_between_0_and_1_have_no_pass_at_k() -> None:
    with pytest.raises(MetricError, match=r"pass@1 counts right and wrong answers.*0\.25.*avg@k"):
        reduced("pass@1", [right(1, 0), [(0.25, True, 0)]])


def test_a_prediction_that_is_missing_has_no_vote() -> None:
    item = [(0.0, True, -1), (0.0, True, -1), (1.0, True, 7)]
    assert reduced("maj@3", [item]).value[0] == 1.0


def test_picking_keeps_the_statistics_of_the_chosen_repeat() -> None:
    statistics = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    repeats = repeats_of([[(0.2, True, 1), (0.9, True, 2)], [(0.1, True, 3)]], statistics=statistics)
    (result,) = reduce_repeats(build_reduction("max").bound(build_aggregation("weighted_mean")), repeats)
    assert result.statistics is not None
    assert result.statistics.tolist() == [[3.0, 4.0], [5.0, 6.0]]


def test_the_mean_of_one_repeat_is_that_repeat_bit_for_bit() -> None:
    values = np.random.default_rng(0).random(1000)
    result = reduced("mean", [right(value) for value in values])
    np.testing.assert_array_equal(result.value, values)


def test_a_corpus_metric_takes_the_mean_of_its_repeats_statistics() -> None:
    statistics = np.array([[1.0, 2.0], [3.0, 4.0]])
    repeats = repeats_of([[(0.2, True, 1), (0.9, True, 2)]], statistics=statistics)
    (result,) = reduce_repeats(build_reduction("mean").bound(build_aggregation("weighted_mean")), repeats)
    assert result.statistics is not None
    assert result.statistics.tolist() == [[2.0, 3.0]]


def test_a_number_cannot_stand_for_statistics() -> None:
    with pytest.raises(ConfigError, match=r"'pass@2' computes one number.*'bleu' needs"):
        build_reduction("pass@2").bound(build_aggregation("bleu"))


def spread(references: list[Any], predictions: list[float]) -> dict[str, float]:
    return {"low": min(predictions), "high": max(predictions)}


def test_a_users_dictionary_gives_one_result_an_entry() -> None:
    reduction = bound("mine.py:spread", lambda reference: spread)
    results = reduce_repeats(reduction, repeats_of([right(1, 0), [(1.0, False, 1)], right(1)]))
    assert [result.name for result in results] == ["low", "high"]
    np.testing.assert_array_equal(results[0].value, [0.0, math.nan, 1.0])
    metric = build_metric(MetricConfig.model_validate({"metric": "exact_match"}), lambda reference: spread)
    assert reduction_key(metric.name, "low") == "low(exact_match)"
    assert reduction_key(metric.name, "mean") == "exact_match"


def test_a_users_reduction_sees_the_references_and_the_scores_that_exist() -> None:
    seen = []

    def watch(references: list[Any], predictions: list[float]) -> float:
        seen.append((references, predictions))
        return 1.0

    items = [[(0.5, True, 1), (math.nan, False, -1)]]
    reduce_repeats(bound("mine.py:watch", lambda reference: watch), repeats_of(items, references=[["gold"]]))
    assert seen == [(["gold"], [0.5])]


@pytest.mark.parametrize(("returned", "said"), [("x", "returned str"), (None, "returned NoneType")])
def test_a_users_reduction_must_return_numbers(returned: Any, said: str) -> None:
    reduction = bound("mine.py:fn", lambda reference: lambda references, predictions: returned)
    with pytest.raises(MetricError, match=said):
        reduce_repeats(reduction, repeats_of([right(1)]))


def test_a_users_reduction_that_raises_names_the_item() -> None:
    def broken(references: list[Any], predictions: list[float]) -> float:
        return 1 / (predictions[0] - 1)

    said = r"failed on item 1: ZeroDivisionError: .* \(test_reductions\.py:\d+\)"
    with pytest.raises(MetricError, match=said) as caught:
        reduce_repeats(bound("mine.py:broken", lambda reference: broken), repeats_of([right(0), right(1)]))
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pass@k", "needs a number in place of k"),
        ("pass@0", "at least 1"),
        ("pass@4@0.5", "takes no threshold"),
        ("g_pass@4@2", "threshold"),
        ("maj8", "is not known; did you mean"),
    ],
)
def test_a_reduction_that_cannot_be_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_reduction(name)


def test_no_items_reduce_to_no_rows() -> None:
    for name in ("mean", "take_first", "max", "median", "mode", "majority", "pass@2", "maj@2", "avg@2"):
        assert len(reduced(name, []).value) == 0


def test_repeats_that_are_not_finite_are_no_0() -> None:
    items = [[(math.nan, True, 1), (1.0, True, 2)], [(-math.inf, True, 1), (-1.0, True, 2)]]
    np.testing.assert_array_equal(reduced("avg@2", items).value, [math.nan, -math.inf])
    np.testing.assert_array_equal(reduced("mean", items).value, [math.nan, -math.inf])


def test_infinities_of_both_signs_have_no_mean_and_no_median() -> None:
    items = [[(math.inf, True, 1), (-math.inf, True, 2)]]
    for name in ("mean", "median", "avg@2"):
        assert math.isnan(reduced(name, items).value[0])


def test_failed_repeats_that_could_decide_leave_at_least_k_open() -> None:
    failed = (math.nan, False, -1)
    items = [
        [*right(1, 0), failed],  # the failed one could have been the second
        [*right(1, 1), failed],
        [*right(0, 0), failed],
    ]
    result = reduced("at_least_2", items)
    np.testing.assert_array_equal(result.value, [math.nan, 1.0, 0.0])
    assert result.valid.tolist() == [False, True, True]


def test_a_score_that_is_neither_right_nor_wrong_has_its_item() -> None:
    with pytest.raises(MetricError) as caught:
        reduced("pass@1", [right(1, 0), right(1, 0.25)])
    assert caught.value.index == 1
