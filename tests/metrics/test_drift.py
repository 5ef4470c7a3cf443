"""Drift over nights: told where items go one way, and not because nights share their answers."""

from typing import Any

import numpy as np
import pytest

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.drift import adjusted_over_nights, slope_chance
from metrics.statistics.gate import decide

MEAN = build_aggregation("mean")
OPTIONS = StatisticsConfig()


def nights(rng: np.random.Generator, count: int, items: int, redrawn: float, fall: float = 0.0) -> Any:
    """Right or wrong answers (count, items), of which a share is drawn anew each night; each night ``fall``
    of the right ones turn wrong for good."""
    chance, lost = rng.beta(0.3, 0.15, items), np.zeros(items, dtype=bool)
    answers, made = rng.random(items) < chance, []
    for _ in range(count):
        anew = rng.random(items) < redrawn
        answers = np.where(anew, rng.random(items) < chance, answers)
        lost |= rng.random(items) < fall / 0.67
        made.append((answers & ~lost).astype(np.float64))
    return np.stack(made)


def columns(table: Any) -> list[ItemColumn]:
    return [ItemColumn(night, night.reshape(-1, 1)) for night in table]


@pytest.mark.parametrize("count", [4, 6, 7, 10])
@pytest.mark.parametrize("redrawn", [0.05, 1.0])
def test_nights_that_share_their_answers_make_no_alarms(count: int, redrawn: float) -> None:
    rng, rounds = np.random.default_rng(count), 400
    found = [slope_chance(columns(nights(rng, count, 300, redrawn)), MEAN, seed=n) for n in range(rounds)]
    alarms = float(np.mean(np.array(found) < 0.05))
    assert alarms <= 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5


def test_few_nights_can_tell_a_decline() -> None:
    rng = np.random.default_rng(1)
    table = nights(rng, 4, 2000, 0.05, fall=0.01)
    assert adjusted_over_nights([slope_chance(columns(table), MEAN)])[0] < 0.05
    assert np.isnan(slope_chance(columns(table[:2]), MEAN))


def test_ratios_and_labels_drift_too() -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(5, 30, 500).astype(float)
    rows = [np.column_stack([rng.binomial(30, 0.1 + 0.01 * night, 500), words]) for night in range(7)]
    assert slope_chance([ItemColumn(row[:, 0], row) for row in rows], build_aggregation("wer")) < 1e-4
    gold = rng.integers(0, 2, 500)
    wrong = [rng.random(500) < 0.05 * night for night in range(7)]
    pairs = [[[int(one), int(one != bad)] for one, bad in zip(gold, own, strict=True)] for own in wrong]
    runs = [ItemColumn(np.zeros(500), values=own) for own in pairs]
    assert slope_chance(runs, build_aggregation("f1", {"average": "macro"})) < 1e-4
    blank = [ItemColumn(rng.random(50)) for _ in range(5)]
    assert np.isnan(slope_chance(blank, build_aggregation("median")))


def test_clusters_drift_together() -> None:
    rng = np.random.default_rng(3)
    drifting = np.repeat(rng.integers(0, 2, 10), 50)
    table = [np.where(drifting == 1, 0.1 * night, 0.5) + rng.normal(0, 0.01, 500) for night in range(5)]
    assert slope_chance(columns(table), MEAN) < 1e-3
    assert slope_chance(columns(table), MEAN, np.repeat(np.arange(10), 50)) > 1e-3


def test_alarms_are_counted_over_all_pairs_of_a_month() -> None:
    assert adjusted_over_nights([0.0001, 0.5]).tolist() == pytest.approx([0.006, 1.0])
    assert np.isnan(adjusted_over_nights([float("nan"), 0.001])[0])


def _verdicts(table: Any, margin: float) -> tuple[list[str], list[str]]:
    """What the gate says of each night against the last that passed, and against the first."""
    passed, told = 0, []
    runs = columns(table)
    share = build_aggregation("mean")
    for night in range(1, len(runs)):
        answers = tuple(
            str(decide(compare_items(share, runs[base], runs[night], None, OPTIONS), margin, 0.05).verdict)
            for base in (passed, 0)
        )
        told.append(answers)
        if answers[0] == "pass" and answers[1] != "regression":
            passed = night
    return [first for first, _ in told], [second for _, second in told]


@pytest.mark.parametrize("history", range(8))
def test_a_decline_of_a_thousandth_a_night_is_caught_by_the_first_night_that_passed(history: int) -> None:
    table = nights(np.random.default_rng(100 + history), 60, 2000, 0.05, fall=0.001)
    _, against_first = _verdicts(table, margin=0.02)
    assert "regression" in against_first
    caught = against_first.index("regression") + 1
    assert float(table[0].mean() - table[caught].mean()) < 0.06
