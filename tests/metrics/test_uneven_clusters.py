"""Clusters of unequal size count as fewer equal ones: in intervals, comparisons and gates."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.coverage import LOW, SHARE, UNEVEN, measure, uneven_clusters
from bench.levels import WIDE, Losses
from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.clusters import alike_variance
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.gate import decide
from metrics.statistics.intervals import student_coverage, student_quantile

MEAN = build_aggregation("mean")
FAST = StatisticsConfig(bootstrap_iters=100)
NUMBERS = [one for one in uneven_clusters() if "numbers" in one.name]


def scalar(values: Any) -> ItemColumn:
    return ItemColumn(values, values.reshape(-1, 1))


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_intervals_cover_whatever_the_clusters_sizes(setting: Any) -> None:
    found = measure(replace(setting, rounds=300))
    assert found.covered >= LOW - 3 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("called", ["one of 42 has half", "Zipf sizes, 20", "two of 42 have a third each"])
def test_few_effective_clusters_are_said(called: str) -> None:
    sizes = UNEVEN[called].astype(int)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.random.default_rng(1).random(len(groups)) < 0.7
    made = estimate(SHARE, rows.astype(np.float64).reshape(-1, 1), None, groups, FAST)
    equal = sizes.sum() ** 2 / (sizes**2).sum()
    assert f"count as {equal:.1f} equal ones" in str(made.warning)
    base = rows.astype(np.float64)
    candidate = np.random.default_rng(2).permuted(base)
    compared = compare_items(SHARE, scalar(base), scalar(candidate), groups, FAST)
    assert "count as" in str(compared.warning) or math.isnan(compared.mde)


def test_clusters_of_about_equal_size_are_not_warned_about() -> None:
    groups = np.repeat(np.arange(30), np.random.default_rng(3).integers(1, 20, 30))
    rows = (np.random.default_rng(4).random(len(groups)) < 0.7).astype(np.float64)
    assert estimate(SHARE, rows.reshape(-1, 1), None, groups, FAST).warning is None


@pytest.mark.parametrize("called", ["one of 20 has half", "one of 42 has half", "Zipf sizes, 42"])
@pytest.mark.parametrize("kind", ["numbers", "0/1"])
def test_a_gate_passes_a_loss_of_the_margin_no_oftener_than_it_may(called: str, kind: str) -> None:
    sizes = UNEVEN[called].astype(int)
    groups, rng, rounds, margin = np.repeat(np.arange(len(sizes)), sizes), np.random.default_rng(5), 300, 0.1
    passed = 0
    for _ in range(rounds):
        effect = rng.normal(0, 0.3, len(sizes))[groups]
        if kind == "numbers":
            base = rng.normal(0, 0.5, len(groups))
            candidate, aggregation = base - margin + effect + rng.normal(0, 0.5, len(groups)), MEAN
        else:  # of a cluster's items a share is lost, or gained: a tenth is lost on the whole
            base = (rng.random(len(groups)) < 0.5).astype(np.float64)
            moved = np.clip(margin + effect / 2, -0.45, 0.45)
            draw, aggregation = rng.random(len(groups)), SHARE
            lost, gained = (base == 1) & (draw < 2 * moved), (base == 0) & (draw < -2 * moved)
            candidate = np.where(lost, 0.0, np.where(gained, 1.0, base))
        columns = (scalar(base), scalar(candidate))
        made = decide(compare_items(aggregation, *columns, groups, FAST), margin, 0.05)
        passed += made.verdict in ("pass", "worse")
    assert passed / rounds <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / rounds)


@pytest.mark.parametrize("kind", ["each its own", "one in five", "exponential"])
def test_a_gate_is_not_sure_where_the_largest_clusters_happen_to_lose_nothing(kind: str) -> None:
    """It passed .08 to .17 of these at a loss of the margin: slow tests count them more closely."""
    losses = Losses(UNEVEN["Zipf sizes, 101"].astype(int), kind, 0.1)
    rng, rounds, passed = np.random.default_rng(6), 200, 0
    for _ in range(rounds):
        made = compare_items(WIDE if losses.numbers else SHARE, *losses.draw(rng), losses.groups, FAST)
        passed += decide(made, losses.margin, 0.05).verdict in ("pass", "worse")
    assert passed / rounds <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / rounds)


@pytest.mark.parametrize(
    ("sizes", "few"),
    [
        (np.full(9, 60), "9 clusters are too few to rule out a loss: it takes 10"),
        (UNEVEN["Zipf sizes, 20"].astype(int), "count as 8.1 equal ones are too few to rule out a loss"),
        (UNEVEN["Zipf sizes, 42"].astype(int), "count as 11.5 equal ones are too few to rule out a loss"),
        (np.full(10, 60), None),
        (UNEVEN["Zipf sizes, 101"].astype(int), None),
    ],
)
@pytest.mark.parametrize("crossed", [False, True])
def test_no_gate_passes_on_few_effective_clusters_and_a_loss_is_still_told(
    sizes: Any, few: str | None, crossed: bool
) -> None:
    """Gates at 8.1 and 11.5 passed .045 and .035 of losses of the margin, of which .025 may pass."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    ways = np.column_stack([groups, np.arange(len(groups)) % 50]) if crossed else groups
    base = scalar(np.full(len(groups), 0.5))
    moved = np.random.default_rng(9).normal(0, 0.01, len(groups))
    same = compare_items(SHARE, base, scalar(0.5 + moved), ways, FAST)
    lost = compare_items(SHARE, base, scalar(0.1 + moved), ways, FAST)
    assert decide(same, 0.3, 0.05).verdict == ("pass" if few is None else "inconclusive")
    assert decide(lost, 0.3, 0.05).verdict == "regression"
    assert (few or "None") in str(same.too_few)


@pytest.mark.parametrize("name", ["wer", "f1"])
def test_a_gate_over_sums_is_not_sure_either(name: str) -> None:
    """A fifth of the clusters lose a third of their items; the margin is what is lost on the whole."""
    groups = np.repeat(np.arange(101), UNEVEN["Zipf sizes, 101"].astype(int))
    rng, rounds, passed, n = np.random.default_rng(7), 100, 0, len(groups)
    aggregation = build_aggregation(name)
    margin = 0.2 / 3 if name == "wer" else 1 - 1 / (1 + 0.2 / 3 / 2)
    for _ in range(rounds):
        lost = (rng.random(101) < 0.2)[groups] & (rng.random(n) < 1 / 3)
        if name == "wer":
            rows = [np.column_stack([wrong, np.ones(n)]).astype(float) for wrong in (np.zeros(n), 1 * lost)]
        else:  # right answers of which some are missed: F1 falls by half as much, beside what is right
            rows = [np.eye(4)[found] for found in (np.full(n, 3), np.where(lost, 2, 3))]
        made = compare_items(aggregation, *(ItemColumn(own[:, 0], own) for own in rows), groups, FAST)
        answer = decide(made, margin, 0.05, higher_is_better=name == "f1").verdict
        passed += answer in ("pass", "worse")
    assert passed / rounds <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / rounds)


def test_clusters_that_are_alike_add_what_each_of_their_sizes_does() -> None:
    """Against the variance that drawing such clusters again and again has."""
    sizes, rng = np.array([40, 10, 5, 5, 2, 1, 1] * 6), np.random.default_rng(8)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    drawn = [rng.normal(0, 1, len(sizes))[groups] + rng.normal(0, 2, len(groups)) for _ in range(2_000)]
    expected = np.var([own.mean() for own in drawn])
    assert np.mean([alike_variance(own, groups) for own in drawn]) == pytest.approx(expected, rel=0.1)
    assert alike_variance(drawn[0], None) == 0


def test_students_quantile_of_broken_degrees_is_that_of_its_distribution() -> None:
    for degrees in (1.02, 1.3, 1.5, 1.9, 2.5, 3.7, 11.2):
        assert student_coverage(student_quantile(0.95, degrees), degrees) == pytest.approx(0.95, abs=2e-4)
