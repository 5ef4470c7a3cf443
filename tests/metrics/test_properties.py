"""What holds for every metric: range, order of items, merging, facets, weights of one, constant input."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.config import StatisticsConfig
from metrics.registry import METRICS
from metrics.types import ChoiceBatch, Scores
from metrics.uncertainty import estimate

TEXT_METRICS = [
    name for name in METRICS if METRICS[name].style == "batched" and not name.endswith("_for_test")
]
CHOICE_METRICS = [name for name in METRICS if METRICS[name].style == "choices"]
EVERY_METRIC = TEXT_METRICS + CHOICE_METRICS
OPTIONS = StatisticsConfig(bootstrap_iters=200)

ANSWER = st.sampled_from(["12", "12.", "-3", "the cat", "the cat sat on the mat", "1,234", "0", "a b\nc"])
ITEM = st.tuples(
    ANSWER,
    st.one_of(st.none(), ANSWER),
    st.floats(-9, -0.1),
    st.floats(-9, -0.1),
    st.booleans(),
    st.integers(0, 1),
)
ITEMS = st.lists(ITEM, min_size=2, max_size=12)


def score(metric: Any, items: Any) -> Scores:
    """Texts for a text metric; for the others two choices an item (a document where one is scored whole)."""
    if metric.input == "text":
        numeric = metric.entry == "numeric_match"
        golds = [
            ["12" if numeric else ("[12]" if metric.entry == "json_match" else item[0])] for item in items
        ]
        return metric.evaluate(golds, [item[1] for item in items])
    rolling = metric.output_types == ("loglikelihood_rolling",)
    width = 1 if rolling else 2
    n = len(items)
    lengths = np.tile(np.array([3, 5], dtype=np.int32)[:width], n)
    return metric.evaluate_choices(
        ChoiceBatch(
            lls=np.array([ll for item in items for ll in item[2:4][:width]]),
            is_greedy=np.array(
                [flag for item in items for flag in (item[4], not item[4])[:width]], dtype=np.bool_
            ),
            offsets=np.arange(n + 1) * width,
            gold=np.array([0 if rolling else item[5] for item in items], dtype=np.int32),
            gold_offsets=np.arange(n + 1),
            chars=lengths,
            bytes=lengths,
            words=lengths,
            unconditional=np.array([-1.0, -2.0][:width] * n),
        )
    )


def value(metric: Any, scores: Scores) -> float:
    values = scores.values if scores.values is not None else scores.score
    return metric.aggregation.value(scores.statistics, values)


def taken(scores: Scores, rows: Any) -> Scores:
    statistics = None if scores.statistics is None else scores.statistics[rows]
    values = None if scores.values is None else [scores.values[row] for row in rows]
    return Scores(statistics, values, scores.score[rows])


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=15)
@given(items=ITEMS)
def test_the_value_and_each_score_lie_in_the_stated_range(name: str, build: Any, items: Any) -> None:
    metric = build(name)
    scores = score(metric, items)
    low, high = METRICS[name].bounds
    assert low - 1e-9 <= value(metric, scores) <= high + 1e-9
    made = estimate(metric.aggregation, scores.statistics, scores.values or scores.score, None, OPTIONS)
    assert not made.ci_low > made.value + 1e-9
    assert not made.ci_high < made.value - 1e-9 or "BCa" in made.stderr_method


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=15)
@given(items=ITEMS, rng=st.randoms(use_true_random=False))
def test_the_order_of_items_does_not_matter(name: str, build: Any, items: Any, rng: Any) -> None:
    metric = build(name)
    shuffled = rng.sample(items, len(items))
    assert value(metric, score(metric, shuffled)) == pytest.approx(
        value(metric, score(metric, items)), abs=1e-12, rel=1e-12
    )


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=15)
@given(items=ITEMS, cut=st.integers(0, 12))
def test_parts_scored_apart_merge_into_the_whole(name: str, build: Any, items: Any, cut: int) -> None:
    metric = build(name)
    whole = score(metric, items)
    parts = [score(metric, part) for part in (items[:cut], items[cut:]) if part]
    if whole.statistics is None:
        values = [
            entry for part in parts for entry in (part.values if part.values is not None else part.score)
        ]
        assert metric.aggregation.value(None, values) == pytest.approx(value(metric, whole), abs=1e-12)
        return
    statistics = np.concatenate([part.statistics for part in parts])
    np.testing.assert_array_equal(statistics, whole.statistics)
    total = sum(part.statistics.sum(axis=0) for part in parts)  # added up part by part, as partitions are
    assert metric.aggregation.of_total(total, float(len(items))) == pytest.approx(
        value(metric, whole), rel=1e-12
    )


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=15)
@given(items=ITEMS)
def test_facets_are_the_scores_of_their_items_alone(name: str, build: Any, items: Any) -> None:
    metric = build(name)
    whole = score(metric, items)
    for facet in (0, 1):
        rows = np.array([row for row, item in enumerate(items) if item[5] == facet], dtype=np.int64)
        if len(rows):
            alone = score(metric, [items[row] for row in rows])
            assert value(metric, taken(whole, rows)) == pytest.approx(
                value(metric, alone), rel=1e-12, nan_ok=True
            )


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=10)
@given(item=ITEM, n=st.integers(2, 9))
def test_items_that_are_all_alike_have_no_error(name: str, build: Any, item: Any, n: int) -> None:
    metric = build(name)
    scores = score(metric, [item] * n)
    for method in ("auto", "jackknife", "bootstrap"):
        options = StatisticsConfig(bootstrap_iters=50, method=method)
        made = estimate(metric.aggregation, scores.statistics, scores.values or scores.score, None, options)
        assert made.stderr == pytest.approx(0.0, abs=1e-6) or made.stderr_method == "none"


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=10)
@given(items=ITEMS, copies=st.integers(2, 4))
def test_every_item_counted_alike_often_is_every_item_counted_once(
    name: str, build: Any, items: Any, copies: int
) -> None:
    metric = build(name)
    scores = score(metric, items)
    rows = np.tile(np.arange(len(items)), copies)
    assert value(metric, taken(scores, rows)) == pytest.approx(value(metric, scores), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", EVERY_METRIC)
def test_no_items_have_no_scores(name: str, build: Any) -> None:
    metric = build(name)
    scores = score(metric, [])
    assert len(scores) == 0
    assert math.isnan(value(metric, scores))
