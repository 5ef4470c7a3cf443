"""Drift over nights: told where items go one way, and not because nights share their answers or are many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bench.levels import Suites, false_alarms, found_in_time
from metrics.aggregation import build_aggregation
from metrics.statistics.differences import ItemColumn
from metrics.statistics.drift import adjusted_at_night, drift_chance, least_chance

MEAN = build_aggregation("mean")


def columns(table: Sequence[Any]) -> list[ItemColumn]:
    return [ItemColumn(night, night.reshape(-1, 1)) for night in table]


@pytest.mark.parametrize("pairs", [1, 10])
@pytest.mark.parametrize("redrawn", [0.05, 1.0])
@pytest.mark.parametrize("kind", ["0/1", "clusters", "WER"])
def test_nights_that_share_their_answers_make_no_alarms(kind: str, redrawn: float, pairs: int) -> None:
    rounds = 60 // pairs if kind != "0/1" else 100 // pairs
    suites = Suites(nights=10, pairs=pairs, redrawn=redrawn, items=200, kind=kind)
    share = false_alarms(suites, np.random.default_rng(7), rounds)
    assert share <= 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5


def test_a_long_history_makes_no_more_alarms_than_a_short_one() -> None:
    rounds = 100
    share = false_alarms(Suites(nights=60, items=300), np.random.default_rng(8), rounds)
    assert share <= 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5


@pytest.mark.parametrize("pairs", [1, 10])
def test_a_decline_of_a_thousandth_a_night_is_found_before_a_twentieth_is_lost(pairs: int) -> None:
    suites = Suites(nights=60, pairs=pairs, items=2000, fall=0.001)
    assert found_in_time(suites, np.random.default_rng(9), 8, most=0.05) >= 7 / 8


def test_one_night_can_tell_a_fall_and_one_run_tells_nothing() -> None:
    table = np.stack([np.ones(2000), np.repeat([1.0, 0.0], [1970, 30])])
    assert adjusted_at_night([drift_chance(columns(table), MEAN)], 1)[0] < 1e-6
    assert np.isnan(drift_chance(columns(table[:1]), MEAN))


@pytest.mark.parametrize("clusters", [6, 10, 15])
def test_few_clusters_can_reach_no_smaller_chance_than_if_all_fall(clusters: int) -> None:
    """Of ten clusters no night can tell, even if all their items fall."""
    groups = np.arange(300) % clusters
    all_fall = drift_chance(columns(np.stack([np.ones(300), np.zeros(300)])), MEAN, groups)
    assert least_chance(300, groups) == pytest.approx(all_fall)
    assert (adjusted_at_night([all_fall], 1)[0] < 0.05) == (clusters == 15)
    crossed = np.column_stack([groups, np.arange(300) // 3])
    assert least_chance(300, crossed) == least_chance(clusters)


def test_parts_of_all_nights_add_up_to_the_level() -> None:
    parts = [1 / adjusted_at_night([1e-9], night)[0] * 1e-9 for night in range(1, 20_000)]
    assert sum(parts[:30]) == pytest.approx(0.5)
    assert 0.99 < sum(parts) < 1


def test_pairs_of_a_night_share_its_part() -> None:
    alone, beside = adjusted_at_night([0.0001], 5)[0], adjusted_at_night([0.0001, 0.5, np.nan], 5)
    assert beside[0] == pytest.approx(2 * alone)
    assert np.isnan(beside[2])


def test_the_chance_is_counted_where_items_are_right_or_wrong() -> None:
    before, after = np.repeat([1.0, 0.0], [900, 100]), np.repeat([1.0, 0.0], [850, 150])
    assert drift_chance(columns([before, after]), MEAN) == pytest.approx(2.0**-49)


def test_ratios_and_labels_drift_too() -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(5, 30, 500).astype(float)
    rows = [np.column_stack([rng.binomial(30, 0.1 + 0.01 * night, 500), words]) for night in range(7)]
    assert drift_chance([ItemColumn(row[:, 0], row) for row in rows], build_aggregation("wer")) < 1e-4
    gold = rng.integers(0, 2, 500)
    wrong = [rng.random(500) < 0.05 * night for night in range(7)]
    pairs = [[[int(one), int(one != bad)] for one, bad in zip(gold, own, strict=True)] for own in wrong]
    runs = [ItemColumn(np.zeros(500), values=own) for own in pairs]
    assert drift_chance(runs, build_aggregation("f1", {"average": "macro"})) < 1e-4
    blank = [ItemColumn(rng.random(50)) for _ in range(5)]
    assert np.isnan(drift_chance(blank, build_aggregation("median")))


def test_clusters_drift_together() -> None:
    rng = np.random.default_rng(3)
    drifting = np.repeat(rng.integers(0, 2, 10), 50)
    table = [np.where(drifting == 1, 0.1 * night, 0.5) + rng.normal(0, 0.01, 500) for night in range(5)]
    assert drift_chance(columns(table), MEAN) < 1e-3
    assert drift_chance(columns(table), MEAN, np.repeat(np.arange(10), 50)) > 1e-3
