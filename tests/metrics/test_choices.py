"""Log-likelihood metrics against a loop over items that does one item at a time."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.errors import MetricError

LL = st.one_of(st.floats(-50, 0), st.sampled_from([-1.0, -2.0, -1.0]))
CHOICE = st.tuples(LL, st.booleans(), st.sampled_from(["a", "bb", "é", "漢字 x", "yes or no"]), LL)


@st.composite
def items(draw: Any) -> Any:
    size = draw(st.one_of(st.just(0), st.integers(2, 5)))  # one length for all, or any lengths
    sizes = draw(st.lists(st.just(size) if size else st.integers(1, 6), min_size=1, max_size=8))
    rows = [[draw(CHOICE) for _ in range(length)] for length in sizes]
    several = draw(st.booleans())
    gold = [
        draw(st.lists(st.sampled_from([-100, *range(length)]), min_size=1, max_size=3 if several else 1))
        for length in sizes
    ]
    return rows, gold


def _first(gold: list[int]) -> int | None:
    return next((index for index in gold if index != -100), None)


def _argmax(weights: list[float]) -> int:
    return max(range(len(weights)), key=lambda i: (weights[i], -i))


def _accuracy(weigh: Any) -> Any:
    def one(row: Any, gold: list[int]) -> float:
        return float(_argmax([weigh(choice) for choice in row]) in gold)

    return one


def _logsumexp(weights: list[float]) -> float:
    top = max(weights)
    return top + math.log(sum(math.exp(weight - top) for weight in weights))


def _gold_weight(weigh: Any, finish: Any) -> Any:
    def one(row: Any, gold: list[int]) -> float:
        index = 0 if len(row) == 1 else _first(gold)
        return math.nan if index is None else finish([weigh(choice) for choice in row], index)

    return one


def _ll(choice: Any) -> float:
    return float(choice[0])


def _per_byte(choice: Any) -> float:
    return float(choice[0] / len(choice[2].encode()))


def _brier(weights: list[float], index: int) -> float:
    total = _logsumexp(weights)
    return sum((math.exp(w - total) - (i == index)) ** 2 for i, w in enumerate(weights))


ORACLES = {
    "acc": _accuracy(_ll),
    "acc_norm": _accuracy(lambda choice: choice[0] / len(choice[2])),
    "acc_bytes": _accuracy(_per_byte),
    "acc_mutual_info": _accuracy(lambda choice: choice[0] - choice[3]),
    "acc_greedy": lambda row, gold: float(any(choice[1] for choice in row)),
    "exact_match_mc": lambda row, gold: float(any(row[i][1] for i in gold if i != -100)),
    "logprob": _gold_weight(_ll, lambda weights, i: weights[i]),
    "likelihood": _gold_weight(_ll, lambda weights, i: weights[i]),
    "perplexity": _gold_weight(_ll, lambda weights, i: weights[i]),
    "bpb": _gold_weight(_per_byte, lambda weights, i: -weights[i] / math.log(2)),
    "choice_logprob": _gold_weight(_ll, lambda weights, i: weights[i] - _logsumexp(weights)),
    "choice_logprob_norm": _gold_weight(_per_byte, lambda weights, i: weights[i] - _logsumexp(weights)),
    "choice_prob_norm": _gold_weight(
        _per_byte, lambda weights, i: math.exp(weights[i] - _logsumexp(weights))
    ),
    "brier_score": _gold_weight(_ll, _brier),
}


@pytest.mark.parametrize("name", sorted(ORACLES))
@settings(max_examples=40)
@given(items())
def test_many_items_at_once_score_as_each_alone(
    name: str, build: Any, batch_of: Any, given_items: Any
) -> None:
    rows, gold = given_items
    batch = batch_of(
        [[choice[0] for choice in row] for row in rows],
        gold,
        [[choice[2] for choice in row] for row in rows],
        [[choice[1] for choice in row] for row in rows],
        [[choice[3] for choice in row] for row in rows],
    )
    own = build(name).evaluate_choices(batch).score
    expected = [ORACLES[name](row, targets) for row, targets in zip(rows, gold, strict=True)]
    np.testing.assert_allclose(own, expected, rtol=1e-9, atol=1e-9)


def test_an_empty_batch_has_no_scores(build: Any, batch_of: Any) -> None:
    for name in ORACLES:
        assert len(build(name).evaluate_choices(batch_of([], [], unconditional=[]))) == 0


def test_a_log_likelihood_that_is_not_a_number_gives_the_item_no_score(build: Any, batch_of: Any) -> None:
    batch = batch_of([[-1.0, math.nan], [-1.0, -2.0]], [[0], [0]])
    scores = build("acc").evaluate_choices(batch).score
    assert math.isnan(scores[0])
    assert scores[1] == 1.0


def test_an_impossible_choice_is_never_chosen(build: Any, batch_of: Any) -> None:
    batch = batch_of([[-math.inf, -700.0], [-math.inf, -math.inf]], [[1], [0]])
    assert build("acc").evaluate_choices(batch).score.tolist() == [1.0, 1.0]


def test_empty_choices_do_not_divide_by_zero(build: Any, batch_of: Any) -> None:
    batch = batch_of([[0.0, -1.0], [-1.0, -2.0]], [[0], [1]], [["", "a"], ["", "a"]])
    assert build("acc_norm").evaluate_choices(batch).score.tolist() == [1.0, 1.0]


def test_a_target_outside_the_choices_is_refused_by_its_item(build: Any, batch_of: Any) -> None:
    with pytest.raises(MetricError, match="item 1 has the target 5 among 2 choices") as caught:
        build("logprob").evaluate_choices(batch_of([[-1.0, -2.0]] * 2, [[0], [5]]))
    assert caught.value.index == 1


def test_mutual_information_needs_the_unconditional_log_likelihoods(build: Any, batch_of: Any) -> None:
    metric = build("acc_mutual_info")
    with pytest.raises(MetricError, match="without context, and has none"):
        metric.evaluate_choices(batch_of([[-1.0, -2.0]], [[0]]))
    with pytest.raises(MetricError, match="as many unconditional"):
        metric.evaluate_choices(batch_of([[-1.0, -2.0]], [[0]], unconditional=[[-1.0]]))
