"""Clusters of unequal size count as fewer equal ones: in intervals, comparisons and gates."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.coverage import LOW, SHARE, UNEVEN, measure, uneven_clusters
from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
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


def test_students_quantile_of_broken_degrees_is_that_of_its_distribution() -> None:
    for degrees in (1.02, 1.3, 1.5, 1.9, 2.5, 3.7, 11.2):
        assert student_coverage(student_quantile(0.95, degrees), degrees) == pytest.approx(0.95, abs=2e-4)
