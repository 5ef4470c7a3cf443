from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.config import StatisticsConfig
from tasks.reduction.verdict_metrics import aggregate_metric, build_evaluation_metric, reduce_metric
from tasks.rows.parts import Part
from tasks.verdicts.config import EvaluationMetricConfig
from tasks.verdicts.labels import measures_of

OWN = {"name": "spam", "function": "f.py:judge"}


def row_of(part: Part, **params: Any) -> dict[str, Any]:
    config = EvaluationMetricConfig(name="detection", type="classification", params=params)
    metric = build_evaluation_metric(config, lambda _: None, [])
    [batch] = aggregate_metric(metric, "demo", reduce_metric(metric, "demo", [part]), StatisticsConfig())
    [row] = batch.to_pylist()
    return {**row, **orjson.loads(row["values_json"])}


def cell(response: str, ground_truth: Any, inference_result: Any) -> dict[str, Any]:
    right = "t" if response == ground_truth else "f"
    return {"label": "spam", "result": {"custom_fields": {f"{right}{'p' if response == 'spam' else 'n'}": 1}}}


@pytest.fixture
def detected(asking: Any, judged: Callable[..., Part]) -> Part:
    truths = {"a": "spam", "b": "spam", "c": "ham", "d": "ham", "e": "ham"}
    answers = {"a": ["spam"], "b": ["ham"], "c": ["spam"], "d": ["ham"], "e": ["ham"]}
    return judged(OWN, asking(truths), answers, function=cell)


def test_measures_come_from_the_summed_cells(detected: Part) -> None:
    row = row_of(detected)

    counts = [row[f"{name}_positives"] for name in ("true", "false")]
    assert [*counts, row["true_negatives"], row["false_negatives"]] == [1, 1, 2, 1]
    assert (row["num_trials"], row["sample_count"], row["ignored_count"], row["total_count"]) == (1, 5, 0, 5)
    assert (row["accuracy"], row["specificity"]) == (3 / 5, 2 / 3)
    assert (row["precision"], row["recall"], row["f1"]) == (0.5, 0.5, 0.5)
    assert row["balanced_accuracy"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert row["value"] == row["f1"]
    assert row["stderr"] > 0


def test_the_row_s_value_is_the_measure_asked_for(detected: Part) -> None:
    assert row_of(detected, value="balanced_accuracy")["value"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_a_named_cell_counts_as_one(asking: Any, judged: Callable[..., Part]) -> None:
    def judge(response: str, **_: Any) -> Any:
        return {"label": "x", "result": {"passed": True, "details": {"classification": response}}}

    row = row_of(judged(OWN, asking({"a": "1", "b": "1"}), {"a": ["tp"], "b": ["fn"]}, function=judge))
    assert (row["true_positives"], row["false_negatives"]) == (1, 1)
    assert (row["recall"], row["precision"]) == (0.5, 1.0)


def test_a_label_without_cells_gives_zeros_and_by_items_it_is_unscored(
    asking: Any, judged: Callable[..., Part]
) -> None:
    part = judged("exact_match", asking({"a": "1"}), {"a": ["1"]})
    row = row_of(part)
    assert (row["status"], row["value"], row["n_unscored"]) == ("ok", 0.0, 0)
    assert (row["sample_count"], row["ignored_count"], row["total_count"]) == (0, 1, 1)
    row = row_of(part, estimator="items")
    assert (row["status"], row["value"], row["n_unscored"]) == ("failed", None, 1)


def test_what_says_something_without_cells_counts_and_what_says_nothing_is_ignored(
    asking: Any, judged: Callable[..., Part]
) -> None:
    """The first sample that says something takes the trial; one with passed and score alone does not."""

    def judge(response: str, **_: Any) -> Any:
        said = {"tp": {"tp": True}, "why": {"note": "unsure"}}.get(response, {})
        return {"label": "x", "result": {"passed": True, "score": 1.0, **said}}

    items = asking({"a": "1", "b": "1"})
    row = row_of(judged(OWN, items, {"a": ["", "tp"], "b": ["why", "tp"]}, function=judge))
    assert (row["true_positives"], row["sample_count"], row["ignored_count"]) == (1, 3, 1)
    row = row_of(judged(OWN, items, {"a": ["", "tp"], "b": ["why", "tp"]}, function=judge), num_trials=2)
    assert row["true_positives"] == 2


def test_a_measure_without_cases_is_no_zero() -> None:
    counts = {"true_positives": 0, "true_negatives": 3, "false_positives": 0, "false_negatives": 0}
    undefined = ["precision", "recall", "f1", "balanced_accuracy"]
    known = {"accuracy": 1.0, "specificity": 1.0}
    assert measures_of(np.array([[0.0, 3.0, 0.0, 0.0]])) == {**dict.fromkeys(undefined), **known, **counts}


def test_trials_take_the_first_samples_and_zero_for_a_measure_without_cases(
    asking: Any, judged: Callable[..., Part]
) -> None:
    """As the two-phase framework counts; all samples with items of the same weight have a name."""
    items = asking({"a": "spam", "b": "ham"})
    part = judged(OWN, items, {"a": ["ham", "spam"], "b": ["ham", "spam"]}, function=cell)
    first = row_of(part)
    assert (first["true_negatives"], first["false_negatives"]) == (1, 1)
    assert (first["precision"], first["recall"], first["f1"], first["balanced_accuracy"]) == (0, 0, 0, 0.5)
    both = row_of(part, num_trials=2)
    assert (both["true_positives"], both["num_trials"], both["f1"]) == (1, 2, 0.5)
    whole = row_of(part, estimator="items")
    assert (whole["true_positives"], whole["f1"]) == (0.5, 0.5)
    assert "num_trials" not in whole


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_measures_equal_scikit_learn(pairs: list[tuple[bool, bool]]) -> None:
    from sklearn.metrics import f1_score, precision_score, recall_score

    gold, predicted = zip(*pairs, strict=True)
    cells = np.array([[g and p, not g and not p, p and not g, g and not p] for g, p in pairs], dtype=float)
    ours = measures_of(cells)
    for name, oracle in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        expected = oracle(gold, predicted, zero_division=np.nan)
        assert (np.nan if ours[name] is None else ours[name]) == pytest.approx(expected, nan_ok=True)
