"""The planner's numbers: what it says decides a gate does so as often as it says."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.formulas import variance_components
from metrics.statistics.gate import PairSpread, Verdict, decide
from metrics.statistics.power import FORESEEN_CLUSTERS, foreseen_mde, shift_mde

SHARE = replace(build_aggregation("mean"), bounds=(0.0, 1.0))


def test_more_samples_take_away_what_sampling_adds_and_nothing_else() -> None:
    spread = PairSpread(items=0.04, sampling=0.2)
    assert spread.variance(1) == pytest.approx(0.24)
    assert spread.variance(10**9) == pytest.approx(0.04)
    few, many = spread.items_for(0.02, 1, 0.05), spread.items_for(0.02, 16, 0.05)
    assert few is not None
    assert many is not None
    assert few / many == pytest.approx(0.24 / (0.04 + 0.2 / 16), rel=0.01)


def test_the_fewest_items_are_the_fewest() -> None:
    spread = PairSpread(0.0, 0.1, 1.0)
    items = spread.items_for(0.02, 1, 0.05)
    assert items is not None
    assert spread.margin(items, 1, 0.05) <= 0.02 < spread.margin(items - 1, 1, 0.05)
    assert spread.items_for(0.0, 1, 0.05) is None
    assert spread.items_for(0.02, 1, 0.05, 0.95) > items  # type: ignore[operator]
    assert math.isnan(spread.margin(5, 1, 0.05))  # five items reach no level


def test_no_plan_has_fewer_items_than_a_gate_passes_on() -> None:
    spread = PairSpread(0.0, 0.001, least=40)
    assert math.isnan(spread.margin(39, 1, 0.05))
    assert spread.items_for(0.5, 1, 0.05) == 40
    assert spread.loss_found(0.02, 39, 1, 0.05) > 0.02  # a regression is told of fewer


@pytest.mark.parametrize("n", [50, 100, 400])
def test_the_margin_that_is_planned_is_one_that_runs_without_a_difference_pass(n: int) -> None:
    """Nor is a gate decided by fewer items than the gate itself asks for."""
    column = ItemColumn(np.ones(n), np.ones((n, 1)))
    made = compare_items(SHARE, column, column, None, StatisticsConfig())
    planned = PairSpread(0.0, 0.0, 1.0).margin(n, 1, 0.05)
    assert decide(made, planned, 0.05).verdict == "pass"
    assert decide(made, 0.5 * planned, 0.05).verdict == "inconclusive"


@pytest.mark.parametrize("items", [10, 47, 400])
def test_the_margin_of_a_plan_is_the_loss_that_a_comparison_of_as_many_items_finds(items: int) -> None:
    """Few items know their spread less well, and a plan of few allows for that as a comparison does."""
    planned = PairSpread(0.03, 0.0).margin(items, 16, 0.05)
    assert planned == pytest.approx(shift_mde(math.sqrt(0.03 / items), items - 1, 0.0, 1.0, 0.05))


def test_items_that_never_differed_may_yet() -> None:
    assert PairSpread(0.0, 0.0, 1.0).margin(100, 1, 0.05) > 0.01
    assert PairSpread(0.0, 0.0).margin(100, 1, 0.05) == 0  # of numbers without a range nothing is known


def repeated(rng: np.random.Generator, loss: float, items: int, samples: int) -> list[ItemColumn]:
    """Two runs of the same items of which the second loses: each item the same part of its chance, .7."""
    chance = rng.beta(2.1, 0.9, items)
    means = [rng.binomial(samples, c) / samples for c in (chance, chance * (1 - loss / 0.7))]
    return [ItemColumn(column, column.reshape(-1, 1)) for column in means]


ROUNDS = 100
FAST = StatisticsConfig(bootstrap_iters=200)


def foreseen(run: ItemColumn, samples: int) -> float:
    n, repeats = len(run), np.full(len(run), float(samples))
    stderr = float(run.value.std(ddof=1)) / math.sqrt(n)
    parts = variance_components(run.value, repeats, stderr)
    assert parts is not None
    return foreseen_mde(n, stderr, 0.05, means=run.value, repeats=repeats, sampling=parts[1], width=1.0)


@pytest.mark.parametrize("runs", [1, 2])
def test_many_samples_of_few_items_find_the_loss_that_is_printed(runs: int) -> None:
    """Most items change within an eighth of the range: .10 and .31 of such losses were found, not .80."""
    rng = np.random.default_rng(5)
    made = [repeated(rng, 0.0, 30, 64) for _ in range(ROUNDS)]
    printed = [
        foreseen(both[0], 64) if runs == 1 else compare_items(SHARE, *both, None, FAST).mde for both in made
    ]
    loss = float(np.median(printed))
    found = [
        compare_items(SHARE, *repeated(rng, loss, 30, 64), None, FAST).p_value < 0.05 for _ in range(ROUNDS)
    ]
    assert 0.75 - 0.12 <= np.mean(found) <= 0.9 + 0.09


def test_many_samples_of_few_items_rule_out_the_margin_that_is_planned() -> None:
    """A candidate as good as the base passed .07 of the gates that were to pass it .80 of the time."""
    rng, spread = np.random.default_rng(6), PairSpread(0.0, 2 * 0.7 * 0.3 * 0.75, 1.0)
    margin = spread.margin(30, 64, 0.05)
    made = [compare_items(SHARE, *repeated(rng, 0.0, 30, 64), None, FAST) for _ in range(ROUNDS)]
    assert np.mean([decide(one, margin, 0.05).verdict == "pass" for one in made]) >= 0.75 - 0.12
    assert spread.items_for(margin, 64, 0.05) == 30


def equally_hard(
    rng: np.random.Generator, loss: float, items: int, samples: int, p: float
) -> list[ItemColumn]:
    """Two runs of items of one chance, of which the second loses the same of each."""
    means = [rng.binomial(samples, chance, items) / samples for chance in (p, p - loss)]
    return [ItemColumn(column, column.reshape(-1, 1)) for column in means]


def graded(rng: np.random.Generator, loss: float, items: int) -> list[ItemColumn]:
    """Two runs of one answer an item, with grades that change by some .03."""
    level = rng.normal(0.8, 0.02, items)
    grades = [np.clip(level - less + rng.normal(0, 0.03, items), 0, 1) for less in (0.0, loss)]
    return [ItemColumn(column, column.reshape(-1, 1)) for column in grades]


def test_samples_whose_parts_are_not_told_apart_foresee_what_others_do() -> None:
    """In two of five runs repeats spread more than the items: these named .039, and .19 of it was found."""
    rng, repeats = np.random.default_rng(7), np.full(30, 64.0)
    printed = []
    for _ in range(ROUNDS):
        means = equally_hard(rng, 0.0, 30, 64, 0.7)[0].value
        stderr = float(means.std(ddof=1)) / math.sqrt(30)
        if variance_components(means, repeats, stderr) is None:
            printed.append(foreseen_mde(30, stderr, 0.05, means=means, repeats=repeats, width=1.0))
    loss = float(np.median(printed))
    made = [compare_items(SHARE, *equally_hard(rng, loss, 30, 64, 0.7), None, FAST) for _ in range(ROUNDS)]
    assert np.mean([one.p_value < 0.05 for one in made]) >= 0.75 - 0.12


def test_grades_of_single_answers_foresee_a_loss_that_is_found() -> None:
    """One run does not say how little its items will change: it named .028, of which none was found."""
    rng = np.random.default_rng(8)
    column = graded(rng, 0.0, 30)[0].value
    stderr = float(column.std(ddof=1)) / math.sqrt(30)
    loss = foreseen_mde(30, stderr, 0.05, means=column, repeats=np.ones(30), width=1.0)
    made = [compare_items(SHARE, *graded(rng, loss, 30), None, FAST) for _ in range(ROUNDS)]
    assert np.mean([one.p_value < 0.05 for one in made]) >= 0.75 - 0.12


def test_items_of_which_many_rise_by_a_part_of_the_range_name_a_loss_that_is_found() -> None:
    """Of 30 items with 8 samples two comparisons in five named none, and said that none would be found."""
    rng = np.random.default_rng(9)
    made = [compare_items(SHARE, *equally_hard(rng, 0.0, 30, 8, 0.7), None, FAST) for _ in range(ROUNDS)]
    assert not any(math.isnan(one.mde) or one.warning for one in made)
    loss = float(np.median([one.mde for one in made]))
    made = [compare_items(SHARE, *equally_hard(rng, loss, 30, 8, 0.7), None, FAST) for _ in range(ROUNDS)]
    assert 0.15 < loss < 0.2
    assert np.mean([one.p_value < 0.05 for one in made]) >= 0.75 - 0.12


def test_items_that_all_change_a_little_name_the_loss_of_the_fewest_that_reach_the_level() -> None:
    """As if none had changed at all, .28 was named, where six items that lose all are found always."""
    rng = np.random.default_rng(10)
    made = [compare_items(SHARE, *equally_hard(rng, 0.0, 30, 64, 0.95), None, FAST) for _ in range(10)]
    assert max(one.mde for one in made) < 0.21
    for _ in range(ROUNDS):
        base, candidate = (run.value for run in equally_hard(rng, 0.0, 30, 64, 0.95))
        candidate = np.where(np.arange(30) < 6, 0.0, candidate)
        runs = [ItemColumn(column, column.reshape(-1, 1)) for column in (base, candidate)]
        assert compare_items(SHARE, *runs, None, FAST).p_value < 0.05


def test_few_clusters_foresee_no_loss() -> None:
    """Of 12 clusters a comparison names no loss either, and 13 found .59 of those that one run foresaw."""
    few, enough = (
        foreseen_mde(40, 0.02, 0.05, width=1.0, clusters=clusters)
        for clusters in (FORESEEN_CLUSTERS - 0.1, FORESEEN_CLUSTERS)
    )
    assert math.isnan(few)
    assert enough > foreseen_mde(40, 0.02, 0.05, width=1.0)


SPREADS: dict[str, tuple[PairSpread, int, float]] = {
    **{f"{share:.0%} differ, margin {margin}": (PairSpread(0.0, share, 1.0), 1, margin)
       for share, margin in ((0.01, 0.05), (0.02, 0.02), (0.1, 0.02), (0.1, 0.05), (0.3, 0.05))},
    **{f"{samples} samples": (PairSpread(0.0, 2 * 0.7 * 0.3 * 0.75, 1.0), samples, 0.05)
       for samples in (1, 4, 16)},
    "64 samples of few items": (PairSpread(0.0, 2 * 0.7 * 0.3 * 0.75, 1.0), 64, 0.11),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREADS)
def test_a_gate_decides_as_often_as_the_planner_says(name: str) -> None:
    spread, samples, margin = SPREADS[name]
    items = spread.items_for(margin, samples, 0.05)
    assert items is not None
    loss = spread.loss_found(margin, items, samples, 0.05)
    rng, rounds = np.random.default_rng(17), 500

    def verdict(lost: float) -> Verdict:
        if "samples" in name:
            columns = repeated(rng, lost, items, samples)
        else:
            drawn, share = rng.random(items), spread.sampling
            change: Any = np.where(drawn < share / 2, 1.0, np.where(drawn < share + lost, -1.0, 0.0))
            base = np.where(change == 0, rng.integers(0, 2, items), change < 0).astype(np.float64)
            columns = [ItemColumn(column, column.reshape(-1, 1)) for column in (base, base + change)]
        return decide(
            compare_items(SHARE, *columns, None, StatisticsConfig(bootstrap_iters=400)), margin, 0.05
        ).verdict

    noise = 2 * math.sqrt(0.8 * 0.2 / rounds)
    passed = sum(verdict(0.0) in ("pass", "worse") for _ in range(rounds)) / rounds
    assert 0.75 - noise <= passed <= 0.9 + noise
    failed = sum(verdict(loss) == "regression" for _ in range(rounds)) / rounds
    assert 0.7 - noise <= failed <= (1 if samples == 64 else 0.9 + noise)
