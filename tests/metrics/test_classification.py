"""F1 and MCC against scikit-learn."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, matthews_corrcoef

from metrics.aggregation import build_aggregation, statistics_of
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate

BINARY = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
ANY = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


def _value(aggregation: Any, pairs: Any) -> float:
    scores = aggregation.scores(pairs)
    return aggregation.value(scores.statistics, scores.values)


@given(BINARY)
def test_binary_f1_is_scikit_learns(pairs: Any) -> None:
    gold, predicted = zip(*pairs, strict=True)
    own = _value(build_aggregation("f1"), pairs)
    assert own == pytest.approx(f1_score(gold, predicted, zero_division=0), abs=1e-12)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@given(pairs=ANY)
def test_averaged_f1_is_scikit_learns(average: str, pairs: Any) -> None:
    gold, predicted = zip(*pairs, strict=True)
    own = _value(build_aggregation("f1", {"average": average}), pairs)
    assert own == pytest.approx(f1_score(gold, predicted, average=average, zero_division=0), abs=1e-12)


@given(ANY)
def test_matthews_correlation_is_scikit_learns(pairs: Any) -> None:
    gold, predicted = zip(*pairs, strict=True)
    assume(len(set(gold) | set(predicted)) > 1)  # of one label alone scikit-learn warns
    own = _value(build_aggregation("matthews_corrcoef"), pairs)
    assert own == pytest.approx(matthews_corrcoef(gold, predicted), abs=1e-12)


@given(ANY, st.randoms(use_true_random=False))
def test_a_resample_scores_as_scikit_learn_scores_it(pairs: Any, rng: Any) -> None:
    picked = rng.choices(pairs, k=len(pairs))
    sums, table = build_aggregation("f1", {"average": "macro"}).tabled(None, [list(pair) for pair in pairs])
    rows = dict(zip(pairs, table, strict=True))
    total = np.sum([rows[pair] for pair in picked], axis=0)
    gold, predicted = zip(*picked, strict=True)
    expected = f1_score(gold, predicted, average="macro", zero_division=0)
    assert sums.of_total(total, float(len(picked))) == pytest.approx(expected, abs=1e-12)


def test_labels_may_be_words() -> None:
    pairs = [("yes", "yes"), ("no", "yes"), ("no", "no")]
    own = _value(build_aggregation("f1", {"pos_label": "yes"}), pairs)
    assert own == pytest.approx(f1_score(["yes", "no", "no"], ["yes", "yes", "no"], pos_label="yes"))
    assert _value(build_aggregation("mcc"), pairs) == pytest.approx(0.5)


def test_a_label_other_than_0_and_1_is_refused_with_the_remedy() -> None:
    with pytest.raises(MetricError, match="sample 1 has 0 and 2; set pos_label, or average: macro"):
        statistics_of("f1", [(1, 1), (0, 2)])


def test_an_unknown_average_is_refused() -> None:
    with pytest.raises(ConfigError, match="binary, macro, micro, weighted"):
        build_aggregation("f1", {"average": "mean"})


def test_an_ignored_target_counts_in_no_cell() -> None:
    assert statistics_of("f1", [(-100, 1), (1, 1)]).statistics.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
    assert _value(build_aggregation("mcc"), [(-100, 1), (1, 1), (0, 0)]) == pytest.approx(1.0)


def test_several_right_choices_count_as_the_chosen_one(build: Any, batch_of: Any) -> None:
    scores = build("f1").evaluate_choices(batch_of([[-2.0, -1.0]], [[0, 1]]))
    assert scores.statistics.tolist() == [[0, 0, 0, 1]]


def test_repeats_of_labels_share_their_item() -> None:
    aggregation = build_aggregation("mcc")
    assert aggregation.merge is not None
    merged = [aggregation.merge([[1, 1], [1, 0]]), [0, 0], [1, 1]]
    _, table = aggregation.tabled(None, merged)
    assert table is not None
    assert table.sum() == pytest.approx(3.0)
    assert table[0].max() == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["f1", "mcc"])
def test_pairs_and_labels_as_columns_have_the_same_error_bars(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pairs of labels are kept as what they add to the labels' sums."""
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 6, 90)
    answers = [np.where(rng.random(90) < 0.8, gold, rng.integers(0, 6, 90)) for _ in range(2)]
    columns = [
        ItemColumn(np.zeros(90), values=list(zip(gold.tolist(), own.tolist(), strict=True)))
        for own in answers
    ]
    aggregation = build_aggregation(name, {"average": "macro"} if name == "f1" else {})
    options, made = StatisticsConfig(bootstrap_iters=20_000), []
    for most in (64, 3):
        monkeypatch.setattr("metrics.classification.FEW_PAIRS", most)
        compared = compare_items(aggregation, *columns, None, options)
        made.append((estimate(aggregation, None, columns[0].values, None, options), compared))
    (by_pair, paired), (by_label, again) = made
    assert by_label.value == pytest.approx(by_pair.value, abs=1e-12)
    assert again.difference == pytest.approx(paired.difference, abs=1e-12)
    assert by_label.stderr == pytest.approx(by_pair.stderr, rel=0.03)
    assert by_label.ci_low == pytest.approx(by_pair.ci_low, abs=0.005)
    assert again.stderr == pytest.approx(paired.stderr, rel=0.03)
    assert again.p_value == pytest.approx(paired.p_value, abs=0.02)


@pytest.mark.parametrize("label", [["a", "b"], ("a", "b"), {"a"}, {"a": 1}, np.array([1, 2])])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("f1", {}), ("f1", {"pos_label": "a"}), ("f1", {"average": "macro"}), ("matthews_corrcoef", {})],
)
def test_several_labels_of_an_item_are_refused_by_its_row(
    name: str, arguments: Any, side: int, label: Any
) -> None:
    pair: list[Any] = [1, 1]
    pair[side] = label
    with pytest.raises(MetricError, match="takes one label each, and sample 1 has") as caught:
        build_aggregation(name, arguments).scores([(1, 1), tuple(pair)])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("f1", {}), *(("f1", {"average": own}) for own in ("macro", "micro", "weighted")), ("mcc", {})],
)
def test_a_number_of_ignored_items_alone_is_none_with_its_reason(name: str, arguments: Any) -> None:
    aggregation = build_aggregation(name, arguments)
    scores = aggregation.scores([(-100, 1)] * 5)
    made = estimate(aggregation, scores.statistics, scores.values, None, StatisticsConfig())
    assert (math.isnan(made.value), math.isnan(made.stderr), made.n_items) == (True, True, 5)
    assert made.warning == "none of 5 items counts"
