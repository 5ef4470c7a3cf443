"""What is equal but for rounding is equal, and a tiny number is no rounding."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.intervals import wilson
from metrics.statistics.unpaired import compare_unpaired

OPTIONS = StatisticsConfig(bootstrap_iters=2_000)


def own(function: Any) -> Aggregation:
    return build_aggregation("own.py:fn", None, lambda _: function)


def mean(values: Any) -> float:
    return float(sum(values) / len(values))


KINDS: dict[str, Aggregation] = {
    "mean": build_aggregation("mean"),
    "median": build_aggregation("median"),
    "percentile@90": build_aggregation("percentile@90"),
    "perplexity": build_aggregation("perplexity"),
    "own": own(mean),
}


def column(aggregation: Aggregation, values: Any) -> ItemColumn:
    values = np.asarray(values, dtype=np.float64)
    return ItemColumn(values, values[:, None] if aggregation.kind == "sums" else None)


def compared(kind: str, base: Any, candidate: Any) -> Any:
    aggregation = KINDS[kind]
    runs = column(aggregation, base), column(aggregation, candidate)
    return compare_items(aggregation, *runs, None, OPTIONS)


@pytest.mark.parametrize("kind", ["mean", "median", "percentile@90", "own"])
@pytest.mark.parametrize("scale", [1e-15, 1e-40, 1e12])
def test_a_comparison_does_not_depend_on_the_unit(kind: str, scale: float) -> None:
    base, candidate = np.exp(np.random.default_rng(0).normal(0, 1, (2, 60)))
    plain, scaled = compared(kind, base, candidate), compared(kind, base * scale, candidate * scale)
    assert scaled.p_value == pytest.approx(plain.p_value, rel=1e-6)
    assert scaled.ci_low == pytest.approx(plain.ci_low * scale, rel=1e-6)
    assert scaled.ci_high == pytest.approx(plain.ci_high * scale, rel=1e-6)
    assert plain.p_value > 0.05


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("seed", range(8))
def test_runs_that_differ_by_rounding_do_not_differ(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.normal(-2, 0.5, 80)
    found = compared(kind, base, base * (1 + 1e-15 * rng.normal(size=80)))
    assert found.p_value == 1.0
    assert found.warning is None or "resample" not in found.warning
    assert found.ci_low < 0 < found.ci_high or np.isnan(found.ci_low)


def test_numbers_that_are_all_rounded_to_one_side_do_not_differ() -> None:
    found = compared("mean", np.full(40, 0.3), np.full(40, 0.1 + 0.2))
    assert found.p_value == 1.0


@pytest.mark.parametrize("kind", ["own", "median"])
def test_a_small_change_of_large_numbers_is_a_change(kind: str) -> None:
    base = 1e9 + np.random.default_rng(1).normal(0, 0.01, 40)
    assert compared(kind, base, base + 3e-3).p_value < 0.05


def test_values_of_different_lengths_can_be_compared() -> None:
    longest = own(lambda values: float(max(map(len, values))))
    runs = [[["a"] * (1 + (i + shift) % 3) for i in range(20)] for shift in (0, 1)]
    base, candidate = (ItemColumn(np.full(20, np.nan), values=run) for run in runs)
    found = compare_items(longest, base, candidate, None, OPTIONS)
    assert found.difference == 0
    assert found.p_value == 1.0


def test_the_p_value_of_what_every_resample_says_minds_how_many_units_differ() -> None:
    spread = own(lambda values: float(np.ptp(values)))
    base, candidate = np.zeros(12), np.array([0.0, 1.0] * 6)
    found = compare_items(spread, ItemColumn(base), ItemColumn(candidate), None, OPTIONS)
    assert found.p_value >= 2.0**-5


def test_a_function_that_has_no_value_for_some_resamples_keeps_its_number() -> None:
    ratio = own(lambda values: sum(hit for hit, _ in values) / sum(size for _, size in values))
    values = [(1, 1), (1, 2)] + [(0, 0)] * 8
    found = estimate(ratio, None, values, None, OPTIONS)
    assert found.value == pytest.approx(2 / 3)
    assert found.warning is not None
    assert "resamples have no value" in found.warning


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinite_number_is_never_the_rounding_of_a_finite_one(kind: str, infinite: float) -> None:
    finite = np.linspace(0.5, 1.5, 40)
    lost = np.where(np.arange(40) < 10, infinite, finite)
    for base, candidate in ((finite, lost), (lost, finite)):
        found = compared(kind, base, candidate)
        alone = compared(kind, base, base).base, compared(kind, candidate, candidate).base
        np.testing.assert_array_equal((found.base, found.candidate), alone)
        assert found.ties == 30
        assert np.isnan(found.p_value) or not KINDS[kind].averages


CONSTANTS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1 / 3, 2 / 3]
SHARE = replace(KINDS["mean"], bounds=(0.0, 1.0))


def alike(number: float, n: int) -> ItemColumn:
    return column(SHARE, np.full(n, number))


@pytest.mark.parametrize("n", [2, 5, 7, 30, 100])
@pytest.mark.parametrize("number", CONSTANTS)
def test_items_that_are_alike_have_the_interval_of_as_many_answers(number: float, n: int) -> None:
    for name in ("mean", "nanmean"):
        made = estimate(
            replace(build_aggregation(name), bounds=(0.0, 1.0)),
            build_aggregation(name).scores(np.full(n, number)).statistics,
            None,
            None,
            OPTIONS,
        )
        low, high = wilson(number, n, 0.95)
        assert made.stderr == 0
        assert made.ci_low <= low + 1e-9
        assert made.ci_high >= high - 1e-9
    clusters = np.arange(2 * n) // 2
    made = estimate(SHARE, np.full((2 * n, 1), number), None, clusters, OPTIONS)
    assert made.stderr == 0
    assert made.ci_low == pytest.approx(wilson(number, n, 0.95)[0])


@pytest.mark.parametrize("n", [2, 5, 7, 30, 100])
@pytest.mark.parametrize("number", CONSTANTS)
def test_items_that_all_move_by_the_same_have_no_spread(number: float, n: int) -> None:
    base, candidate = alike(number, n), alike(number - 0.05, n)
    paired = compare_items(SHARE, base, candidate, None, OPTIONS)
    assert paired.stderr == 0
    assert not paired.mde < 0.5 / n
    exact = [compare_unpaired(SHARE, (alike(one, n), alike(one, n)), (None, None), OPTIONS) for one in EXACT]
    made = compare_unpaired(SHARE, (base, candidate), (None, None), OPTIONS)
    assert made.stderr == 0
    assert made.ci_high - made.ci_low > 0.4 * min(one.ci_high - one.ci_low for one in exact)
    assert not made.mde < 0.5 / n
    assert made.p_value > 0.1 or n == 100


EXACT = (0.25, 0.5)


@pytest.mark.parametrize("kind", ["perplexity", "mean"])
def test_numbers_that_are_alike_have_no_error(kind: str) -> None:
    for number in CONSTANTS:
        made = estimate(KINDS[kind], np.full((30, 1), -number), None, None, OPTIONS)
        assert made.stderr == 0
        assert np.isnan(made.ci_low)
        assert made.warning is not None
        ways = np.column_stack(np.divmod(np.arange(30), 6))
        assert estimate(KINDS[kind], np.full((30, 1), -number), None, ways, OPTIONS).stderr == 0


@pytest.mark.parametrize("spread", [1.0, 1e-2])
def test_changes_of_large_scores_that_lie_close_are_not_one_change(spread: float) -> None:
    apart = np.round(np.random.default_rng(3).normal(0, spread, (2, 1_000)) * 2**20) / 2**20  # exact at 1e9
    plain, moved = (compared("mean", level + apart[0], level + apart[1]) for level in (0.0, 2.0**30))
    assert moved.p_value == pytest.approx(plain.p_value, rel=0.02)
    assert moved.ci_low == pytest.approx(plain.ci_low, rel=0.02)
    assert moved.ci_high == pytest.approx(plain.ci_high, rel=0.02)
    assert moved.stderr == pytest.approx(plain.stderr, rel=0.02)


def test_one_runaway_score_makes_no_other_change_rounding() -> None:
    base = np.concatenate([[1e12], np.linspace(1.0, 2.0, 59)])
    lost = base - np.where(np.arange(60) > 0, np.linspace(0.03, 0.06, 60), 0.0)
    found = compared("mean", base, lost)
    assert found.losses == 59
    assert found.p_value < 0.001


@pytest.mark.parametrize("method", ["auto", "jackknife", "delta", "bootstrap"])
@pytest.mark.parametrize("spread", [1.0, 1e-2])
def test_the_spread_of_large_scores_is_no_rounding(spread: float, method: str) -> None:
    numbers = 1e9 + np.random.default_rng(4).normal(0, spread, 400)
    options = StatisticsConfig(bootstrap_iters=2_000, method=method)
    made = estimate(KINDS["mean"], numbers[:, None], None, None, options)
    exact = float((numbers - 1e9).std(ddof=1)) / 20
    assert made.stderr == pytest.approx(exact, rel=0.05 if method == "bootstrap" else 1e-3)
