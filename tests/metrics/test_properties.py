"""What holds for every metric: range, order of items, merging, facets, weights of one, constant input."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.config import StatisticsConfig
from metrics.registry import METRICS
from metrics.statistics.estimate import estimate
from metrics.types import Answer, ChoiceBatch, Scores

EVERY_METRIC = [
    name
    for name, known in ((name, METRICS[name]) for name in METRICS)
    if known.function.__module__.startswith("metrics.") and not known.endless  # seconds an example
]
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
        known = {"numeric_match": "12", "json_match": "[12]", "json_schema_valid": {"type": "integer"}}
        golds: list[Any] = [[known.get(metric.entry, item[0])] for item in items]
        answers = None
        if metric.takes_answer:
            golds = [[{"name": item[0], "arguments": {}}] for item in items]
            made = [[{"name": item[1], "arguments": {}}] if item[1] else [] for item in items]
            answers = [Answer(None, calls, [], []) for calls in made]
        return metric.evaluate(golds, [item[1] for item in items], answers=answers)
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
@given(items=ITEMS, rng=st.randoms(use_true_random=False))
def test_any_split_into_parts_scored_apart_merges_into_the_whole(
    name: str, build: Any, items: Any, rng: Any
) -> None:
    metric = build(name)
    whole, place = score(metric, items), [rng.randrange(4) for _ in items]
    rows = [[row for row, own in enumerate(place) if own == part] for part in set(place)]
    parts = [score(metric, [items[row] for row in own]) for own in rows]
    for own, part in zip(rows, parts, strict=True):  # to the last bit what the whole says of the same items
        for alone, among in ((part.statistics, whole.statistics), (part.score, whole.score)):
            np.testing.assert_array_equal(alone, None if among is None else among[own])
    if whole.statistics is None:
        values = [
            entry for part in parts for entry in (part.values if part.values is not None else part.score)
        ]
        assert metric.aggregation.value(None, values) == pytest.approx(value(metric, whole), abs=1e-12)
        return
    total = sum(part.statistics.sum(axis=0) for part in parts)  # added up part by part, as partitions are
    assert metric.aggregation.of_total(total, float(len(items))) == pytest.approx(
        value(metric, whole), rel=1e-12
    )


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=15)
@given(items=ITEMS, rng=st.randoms(use_true_random=False))
def test_facets_are_the_scores_of_their_items_alone_and_together_make_the_whole(
    name: str, build: Any, items: Any, rng: Any
) -> None:
    metric = build(name)
    whole, facet = score(metric, items), np.array([rng.randrange(3) for _ in items])
    adding, table = metric.aggregation.tabled(whole.statistics, whole.values)
    total, n = np.zeros(adding.k), 0
    for one in np.unique(facet):
        rows = np.flatnonzero(facet == one)
        alone = score(metric, [items[row] for row in rows])
        assert value(metric, taken(whole, rows)) == pytest.approx(
            value(metric, alone), rel=1e-12, nan_ok=True
        )
        total, n = total + table[rows].sum(axis=0), n + len(rows)
    assert n == len(items)
    assert adding.of_total(total, float(n)) == pytest.approx(value(metric, whole), rel=1e-12)


@pytest.mark.parametrize("name", EVERY_METRIC)
@settings(max_examples=15)
@given(items=ITEMS)
def test_weights_of_one_are_no_weights(name: str, build: Any, items: Any) -> None:
    metric = build(name)
    scores, n = score(metric, items), len(items)
    adding, table = metric.aggregation.tabled(scores.statistics, scores.values)
    assert adding.of_total(np.ones(n) @ table, float(n)) == pytest.approx(value(metric, scores), rel=1e-12)
    values = scores.values if scores.values is not None else scores.score
    for method in ("jackknife", "delta"):
        options = StatisticsConfig(method=method)
        plain, own = (
            estimate(metric.aggregation, scores.statistics, values, clusters, options)
            for clusters in (None, np.arange(n)[::-1])  # a cluster for each item
        )
        assert own.value == pytest.approx(plain.value, rel=1e-12)
        assert own.stderr == pytest.approx(plain.stderr, rel=1e-9, abs=1e-9, nan_ok=True)
        assert own.n_items == plain.n_items


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


# Not BLEU: where an n-gram is never found, its smoothing puts a share of their number in its place.
@pytest.mark.parametrize("name", [name for name in EVERY_METRIC if name != "bleu"])
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
