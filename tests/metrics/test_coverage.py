"""Simulations: intervals cover what they claim, or say that they may not.

The settings of the published table are those of ``bench/coverage.py``; the rest are methods by name, corpus
metrics and groups, with 2,000 rounds, which leave a noise of half a percent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench.coverage import Setting, edges, measure, settings
from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate

pytestmark = pytest.mark.slow

ROUNDS = 2_000
LOW, HIGH = 0.93, 0.975
Draw = Callable[[np.random.Generator], tuple[Any, Any, Any, float]]  # statistics, values, clusters, truth


def coverage(aggregation: Aggregation, draw: Draw, options: StatisticsConfig, rounds: int = ROUNDS) -> float:
    rng = np.random.default_rng(20240)
    inside = 0
    for _ in range(rounds):
        statistics, values, clusters, truth = draw(rng)
        made = estimate(aggregation, statistics, values, clusters, options)
        inside += made.ci_low <= truth <= made.ci_high
    return inside / rounds


def column(values: Any) -> Any:
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)


SETTINGS = settings()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.family}, {setting.name}")
def test_default_intervals_cover_or_warn(setting: Setting) -> None:
    found = measure(setting)
    assert found.holds or found.relies_on_warning, found
    assert not found.relies_on_warning or setting in WARNED or (setting.family, setting.name) in AT_THE_EDGES
    if setting.benign:
        assert found.warned <= 0.01


MAY_WARN = {
    ("WER", "10"), ("WER", "30"), ("perplexity", "10"), ("bits_per_byte", "30"),
    ("weighted_perplexity", "30"), ("own function", "5"), ("own function", "10"), ("mean of numbers", "10"),
    ("F1", "50"), ("F1", "100"),
}  # fmt: skip
AT_THE_EDGES = {(one.family, one.name) for one in edges()}
WARNED = [
    one
    for one in SETTINGS
    if (one.family, one.name.rpartition("n ")[2]) in MAY_WARN and (one.family, one.name) not in AT_THE_EDGES
]


def test_few_settings_rely_on_a_warning() -> None:
    named = sum(setting.named for setting in SETTINGS)
    assert len(SETTINGS) >= 80
    assert named >= 25
    assert sum(setting.named for setting in WARNED) <= 10
    assert sum(not setting.named for setting in WARNED) <= (len(SETTINGS) - named) // 20 + 1
    assert sum(setting.benign for setting in SETTINGS) >= 20


@pytest.mark.parametrize("method", ["auto", "jackknife", "bootstrap"])
def test_intervals_of_perplexity_cover(method: Any) -> None:
    truth = float(np.exp(2))
    share = coverage(
        build_aggregation("perplexity"),
        lambda rng: (column(rng.normal(-2, 0.5, 100)), None, None, truth),
        StatisticsConfig(method=method, bootstrap_iters=1000),
    )
    assert LOW <= share <= HIGH


@pytest.mark.parametrize(("n", "positive"), [(100, 0.3), (300, 0.1), (1000, 0.5)])
@pytest.mark.parametrize("method", ["auto", "jackknife", "bootstrap", "bca"])
def test_intervals_of_f1_cover(n: int, positive: float, method: Any) -> None:
    cells = np.array([0.9 * (1 - positive), 0.1 * (1 - positive), 0.25 * positive, 0.75 * positive])
    truth = 2 * cells[3] / (2 * cells[3] + cells[1] + cells[2])

    def draw(rng: np.random.Generator) -> Any:
        return np.eye(4)[rng.choice(4, size=n, p=cells)], None, None, truth

    share = coverage(build_aggregation("f1"), draw, StatisticsConfig(bootstrap_iters=4000, method=method))
    assert LOW <= share <= HIGH


def documents(rng: np.random.Generator, n: int) -> Any:
    """BLEU's statistics of documents whose difficulty varies."""
    length = rng.integers(20, 80, n)
    reference = np.maximum(1, length + rng.integers(-8, 13, n))  # shorter than the references on the whole
    quality = rng.beta(6, 4, n)
    possible = np.stack([np.maximum(length - order, 0) for order in range(4)], axis=1)
    matched = rng.binomial(possible, np.clip(quality[:, None] ** np.arange(1, 5), 0, 1))
    return np.column_stack([length, reference, matched, possible]).astype(np.float64)


@pytest.mark.parametrize("n", [50, 300])
@pytest.mark.parametrize("method", ["auto", "bootstrap"])
def test_intervals_of_bleu_cover(n: int, method: Any) -> None:
    bleu = build_aggregation("bleu")
    truth = bleu.value(documents(np.random.default_rng(9), 400_000), None)
    options = StatisticsConfig(method=method, bootstrap_iters=1000)
    share = coverage(bleu, lambda rng: (documents(rng, n), None, None, truth), options)
    assert LOW <= share <= HIGH


@pytest.mark.parametrize("name", ["mean", "nanmean"])
def test_intervals_of_clustered_means_cover(name: str) -> None:
    aggregation = build_aggregation(name)

    def draw(rng: np.random.Generator) -> Any:
        sizes = rng.integers(1, 9, 40)
        clusters = np.repeat(np.arange(40), sizes)
        values = rng.normal(0, 1, 40)[clusters] + rng.normal(0, 1, len(clusters))
        return aggregation.scores(values.tolist()).statistics, None, clusters, 0.0

    assert LOW <= coverage(aggregation, draw, StatisticsConfig()) <= HIGH


def test_intervals_of_clustered_medians_cover() -> None:
    def draw(rng: np.random.Generator) -> Any:
        clusters = np.repeat(np.arange(60), 5)
        return None, rng.normal(0, 1, 60)[clusters] + rng.normal(0, 1, 300), clusters, 0.0

    assert LOW <= coverage(build_aggregation("median"), draw, StatisticsConfig()) <= HIGH


def rejections(
    make: Callable[[np.random.Generator], Any], name: str, clusters: Any = None, rounds: int = ROUNDS
) -> float:
    """Share of comparisons with p < 0.05."""
    rng = np.random.default_rng(77)
    options = StatisticsConfig(bootstrap_iters=2000)
    aggregation = build_aggregation(name)
    hits = 0
    for _ in range(rounds):
        base, candidate = make(rng)
        hits += compare_items(aggregation, base, candidate, clusters, options).p_value < 0.05
    return hits / rounds


def scalar(values: Any) -> ItemColumn:
    values = np.asarray(values, dtype=np.float64)
    return ItemColumn(values, values.reshape(-1, 1))


def test_mcnemar_keeps_its_level() -> None:
    def make(rng: np.random.Generator) -> Any:
        base = rng.random(300) < 0.6
        flipped = rng.random(300) < 0.2
        return scalar(base), scalar(np.where(flipped, rng.random(300) < 0.6, base))

    assert 0.015 <= rejections(make, "mean") <= 0.055  # exact, hence on the safe side


@pytest.mark.parametrize("n", [12, 60, 200])
def test_sign_flips_keep_their_level(n: int) -> None:
    def make(rng: np.random.Generator) -> Any:
        base = rng.exponential(size=n)
        return scalar(base), scalar(base + rng.normal(0, 1, n))

    assert 0.035 <= rejections(make, "mean") <= 0.065


def test_sign_flips_of_clusters_keep_their_level_where_items_are_alike() -> None:
    clusters = np.repeat(np.arange(40), 5)

    def make(rng: np.random.Generator) -> Any:
        shift = rng.normal(0, 1, 40)[clusters] + rng.normal(0, 0.3, 200)
        return scalar(np.zeros(200)), scalar(shift)

    assert 0.035 <= rejections(make, "mean", clusters) <= 0.065


def _two_systems(rng: np.random.Generator, n: int, lift: float) -> Any:
    base = documents(rng, n)
    candidate = base.copy()
    candidate[:, 2:6] = rng.binomial(
        base[:, 6:10].astype(int), np.clip(base[:, 2:6] / np.maximum(base[:, 6:10], 1), 0, 1)
    )
    again = base.copy()
    again[:, 2:6] = rng.binomial(
        base[:, 6:10].astype(int), np.clip(base[:, 2:6] / np.maximum(base[:, 6:10], 1) + lift, 0, 1)
    )
    blank = np.zeros(n)
    return ItemColumn(blank, candidate), ItemColumn(blank, again)


def test_the_paired_bootstrap_of_bleu_keeps_its_level() -> None:
    found = rejections(lambda rng: _two_systems(rng, 100, 0.0), "bleu", rounds=4000)
    assert 0.03 <= found <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)
