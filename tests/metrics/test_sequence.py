"""Confidence sequences of paired differences: wrong no more often than they say, whenever one looks."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import MetricError
from metrics.statistics.comparison import Comparison, ItemColumn, compare_items
from metrics.statistics.gate import adjust, decide, p_regression
from metrics.statistics.sequence import (
    STAKED,
    PairedUnits,
    SequenceLevels,
    is_above,
    left_for_the_last,
    log_wealth,
    look_at,
    lower_end,
    upper_end,
)
from metrics.types import Floats, Ints

SHARE = replace(build_aggregation("mean"), bounds=(0.0, 1.0))


def single(
    values: Floats, planned: int | None = None, whole: bool = False, width: float = 1.0
) -> PairedUnits:
    """Items, each a unit of its own."""
    return PairedUnits(values, np.ones(len(values)), width, planned or len(values), whole)


def test_wealth_does_not_grow_on_average_where_the_mean_is_no_higher() -> None:
    """Of every history of five units, each as likely as it is."""
    chances = {-1.0: 0.3, -0.5: 0.1, 0.0: 0.4, 1.0: 0.2}
    mean = sum(value * chance for value, chance in chances.items())
    expected = dict.fromkeys((mean, mean + 0.2), 0.0)
    for history in product(chances, repeat=5):
        chance = math.prod(chances[value] for value in history)
        for at in expected:
            expected[at] += chance * math.exp(log_wealth(single(np.array(history), 200), at)[-1])
    assert expected[mean] == pytest.approx(1.0)
    assert expected[mean + 0.2] < 1.0


def test_wealth_does_not_grow_over_the_orders_of_all_units() -> None:
    """Without replacement, the mean being that of just these units."""
    values = (-1.0, 0.0, 0.0, 0.5, 1.0, -1.0)
    mean = sum(values) / len(values)
    for taken in (1, 3, 5):
        last = [
            math.exp(log_wealth(single(np.array(order[:taken]), 6, whole=True), mean)[-1])
            for order in permutations(values)
        ]
        assert np.mean(last) == pytest.approx(1.0)


def test_units_of_several_items_weigh_by_their_items() -> None:
    """A large unit that is better and small ones that are worse: the mean is that of items."""
    kinds = [(0.6, 1, -1.0), (0.4, 4, 0.5)]  # chance, items, mean of the items
    mean = sum(chance * items * value for chance, items, value in kinds)
    mean /= sum(chance * items for chance, items, _ in kinds)
    expected = 0.0
    for history in product(kinds, repeat=4):
        values, weights = (np.array([kind[at] for kind in history]) for at in (2, 1))
        units = PairedUnits(values, weights / 4, 1.0, 50)
        expected += math.prod(kind[0] for kind in history) * math.exp(log_wealth(units, mean)[-1])
    assert expected == pytest.approx(1.0)


def test_a_mean_that_what_is_left_cannot_bring_about_is_excluded_for_certain() -> None:
    units = single(np.ones(6), 10, whole=True)
    assert is_above(units, 0.1, 1e-300) is not None  # even four of -1 leave .2
    assert is_above(units, 0.3, 1e-3) is None
    assert is_above(single(np.ones(6), 10), 0.1, 1e-300) is None  # of other items anything may come


def test_all_units_asked_leave_their_mean_and_nothing_else() -> None:
    rng = np.random.default_rng(3)
    values = rng.choice([-1.0, 0.0, 1.0], 200)
    units = single(values, 200, whole=True)
    assert lower_end(units, 0.005) <= values.mean() + 1e-6
    assert upper_end(units, 0.005) >= values.mean() - 1e-6
    assert upper_end(units, 0.005) - lower_end(units, 0.005) < 0.1


def test_the_interval_never_widens_and_starts_as_all_that_is_possible() -> None:
    values = np.random.default_rng(5).choice([-1.0, 0.0, 1.0], 300, p=[0.1, 0.85, 0.05])
    lows = [lower_end(single(values[:n], 300), 0.005) for n in (0, 20, 60, 150, 300)]
    highs = [upper_end(single(values[:n], 300), 0.005) for n in (0, 20, 60, 150, 300)]
    assert (lows[0], highs[0]) == (-1.0, 1.0)
    assert lows == sorted(lows)
    assert highs == sorted(highs, reverse=True)
    assert lows[-1] < values.mean() < highs[-1]


def test_width_is_a_unit_of_measure() -> None:
    values = np.random.default_rng(5).choice([-1.0, 0.0, 1.0], 100)
    grades = single(9 * values, 100, width=9.0)
    assert lower_end(grades, 0.01) == pytest.approx(9 * lower_end(single(values, 100), 0.01), abs=1e-6)
    with pytest.raises(MetricError, match="within 1 of 0, not at 9"):
        PairedUnits.of_items(9 * values, np.ones(100, dtype=np.int64), 1, 1.0, 100)


def test_items_become_units_in_their_order() -> None:
    units = PairedUnits.of_items(np.array([1.0, 0.0, -1.0, 0.5, 0.0]), np.array([2, 3]), 4, 1.0, 10)
    assert units.values.tolist() == pytest.approx([0.5, -0.5 / 3])
    assert units.weights.tolist() == [0.5, 0.75]
    assert units.mean == pytest.approx(0.1)


LEVELS = SequenceLevels.of_gate(0.05, 1)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (np.zeros(500), "pass"),
        (np.tile([-1.0, 0.0, 0.0], 100), "regression"),
        (np.tile([-1.0, *[0.0] * 39], 200), "worse"),
        (np.zeros(40), None),
    ],
)
def test_a_look_is_decided_by_what_the_interval_excludes(values: Floats, verdict: str | None) -> None:
    look = look_at(single(values, 10_000), 0.05, LEVELS)
    assert look.verdict == verdict
    assert (look.ci_low > -0.05) == (verdict in ("pass", "worse"))
    assert (look.ci_high < -0.05) == (verdict == "regression")


def test_what_was_decided_first_stays_decided() -> None:
    """Later items that say the opposite don't turn a verdict that asking may have ended by."""
    first = np.zeros(500)
    assert look_at(single(np.r_[first, -np.ones(2000)], 2500), 0.05, LEVELS).verdict in ("pass", "worse")


def test_many_pairs_share_the_level_of_a_regression_and_not_that_of_a_pass() -> None:
    one, three = SequenceLevels.of_gate(0.05, 1), SequenceLevels.of_gate(0.05, 3)
    assert one.passes == three.passes == STAKED * 0.025
    assert three.fails == pytest.approx(one.fails / 3)
    assert left_for_the_last(0.05) + STAKED * 0.05 == pytest.approx(0.05)


N = 600
MARGIN = 0.05
Run = tuple[Floats, Floats, Ints]
"""The baseline's and the candidate's items in the order in which they were asked, and the sizes of their
clusters."""
Drawn = Callable[[np.random.Generator, float, float, int], Run]
"""Of a generator, how alike the runs are (0 to 1), the true loss and the number of items."""
Setting = tuple[Drawn, float]


def right_or_wrong(rng: np.random.Generator, correlation: float, loss: float, n: int = N) -> Run:
    """Answers right with .7 that differ as rarely as the correlation says, as far as the loss allows."""
    differ = max(2 * 0.7 * 0.3 * (1 - correlation), loss)
    drawn = rng.random(n)
    change = np.where(drawn < (differ + loss) / 2, -1.0, np.where(drawn < differ, 1.0, 0.0))
    base = np.where(change == 0, rng.random(n) < 0.7, change < 0).astype(np.float64)
    return base, base + change, np.ones(n, dtype=np.int64)


def grades(rng: np.random.Generator, correlation: float, loss: float, n: int = N) -> Run:
    """Grades from 0 to 1 in tenths; the candidate gives some items the same one, and some the worst."""
    base = rng.binomial(10, 0.7, n) / 10
    own = np.where(rng.random(n) < correlation, base, rng.binomial(10, 0.7, n) / 10)
    return base, np.where(rng.random(n) < loss / 0.7, 0.0, own), np.ones(n, dtype=np.int64)


def repeated(rng: np.random.Generator, correlation: float, loss: float, n: int = N) -> Run:
    """Four samples an item, each right or wrong, by their mean; the candidate loses some right ones."""
    chance = rng.beta(1.4, 0.6, n)  # .7 on average
    base = rng.binomial(4, chance)
    own = np.where(rng.random(n) < correlation, base, rng.binomial(4, chance))
    return base / 4, rng.binomial(own, 1 - loss / 0.7) / 4, np.ones(n, dtype=np.int64)


def clustered(rng: np.random.Generator, correlation: float, loss: float, n: int = N) -> Run:
    """Clusters of one to six items that change together; the small ones lose more often than the large."""
    sizes = rng.integers(1, 7, 2 * n // 7)
    even = (1 - correlation) / 2
    change = rng.choice([-1.0, 0.0, 1.0], len(sizes), p=[even / 2, 1 - even, even / 2])
    # Of 21 items in six clusters, 6 are in small ones: 6 × 2.25 + 15 × .5 = 21.
    lost = rng.random(len(sizes)) < loss * np.where(sizes <= 3, 2.25, 0.5)
    moved = np.repeat(np.where(lost, -1.0, change), sizes)
    return np.where(moved > 0, 0.0, 1.0), np.where(moved < 0, 0.0, 1.0), sizes


SETTINGS: dict[str, Setting] = {
    f"{kind.__name__}, correlation {correlation}": (kind, correlation)
    for kind in (right_or_wrong, grades, repeated, clustered)
    for correlation in (0.0, 0.5, 0.95)
}


def units_of(run: Run) -> PairedUnits:
    base, candidate, sizes = run
    return PairedUnits.of_items(candidate - base, sizes, int(sizes.max()), 1.0, len(sizes))


def compared(run: Run, alpha: float) -> Comparison:
    base, candidate, sizes = run
    clusters = None if sizes.max() == 1 else np.repeat(np.arange(len(sizes)), sizes)
    columns = [ItemColumn(column, column.reshape(-1, 1)) for column in (base, candidate)]
    return compare_items(
        SHARE, *columns, clusters, StatisticsConfig(ci_level=1 - alpha, bootstrap_iters=2000)
    )


def last_look(run: Run, alpha: float) -> str:
    return decide(compared(run, alpha), MARGIN, alpha).verdict


def by_sequence(run: Run, alpha: float, pairs: int) -> str | None:
    """What the sequence says of one of so many pairs, looked at after every unit; None where nothing."""
    units, levels = units_of(run), SequenceLevels.of_gate(alpha, pairs)
    passed = is_above(units, -MARGIN, levels.passes)
    failed = is_above(units.turned, MARGIN, levels.fails)
    if passed is None and failed is None:
        return None
    return "regression" if passed is None or (failed or N) < passed else "pass"


def with_stop(run: Run, alpha: float) -> tuple[str, bool]:
    """The verdict of a gate that stops, and whether the sequence gave it."""
    early = by_sequence(run, alpha, 1)
    return (last_look(run, left_for_the_last(alpha)), False) if early is None else (early, True)


def at_most(level: float, histories: int) -> float:
    """The level with three Monte Carlo errors."""
    return level + 3 * math.sqrt(level * (1 - level) / histories)


def check_levels(setting: Setting, alpha: float, histories: int) -> None:
    draw, correlation = setting
    rng = np.random.default_rng(39)
    passes = [
        found
        for found in (with_stop(draw(rng, correlation, MARGIN, N), alpha) for _ in range(histories))
        if found[0] in ("pass", "worse")
    ]
    assert sum(by_sequence for _, by_sequence in passes) / histories <= at_most(STAKED * alpha / 2, histories)
    assert len(passes) / histories <= alpha


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_of_the_margin_passes_rarely_however_often_it_is_looked_at(name: str) -> None:
    check_levels(SETTINGS[name], 0.05, 100)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("name", SETTINGS)
def test_wrong_passes_of_ten_thousand_histories(name: str, alpha: float) -> None:
    check_levels(SETTINGS[name], alpha, 10_000)


def look_at_all(found: Sequence[Comparison], alpha: float, correction: str) -> list[str]:
    """The verdicts on all items of pairs whose p-values are corrected over each other."""
    beyond = adjust([p_regression(one, MARGIN) for one in found], correction)
    different = adjust([one.p_value for one in found], correction)
    ps = zip(beyond.tolist(), different.tolist(), strict=True)
    return [decide(one, MARGIN, alpha, p).verdict for one, p in zip(found, ps, strict=True)]


PAIRS = 3
"""Pairs of a gate that is corrected."""
Gate = tuple[float, str]
"""Its alpha and its correction; "none": each pair is a gate of its own."""
GATES: list[Gate] = [(alpha, correction) for alpha in (0.05, 0.01) for correction in ("none", "holm", "bh")]


def pairs_lost(runs: Sequence[Run], wanted: Collection[str]) -> dict[Gate, float]:
    """Share of the pairs that each gate finds only where it does not stop, less that which it finds only
    where it stops: both see the same items."""
    found, lost = [compared(run, 0.05) for run in runs], {}
    for alpha, correction in GATES:
        early = [by_sequence(run, alpha, 1 if correction == "none" else len(runs)) for run in runs]
        late = look_at_all(found, left_for_the_last(alpha), correction)
        stopped = sum((one or other) in wanted for one, other in zip(early, late, strict=True))
        full = sum(verdict in wanted for verdict in look_at_all(found, alpha, correction))
        lost[alpha, correction] = (full - stopped) / len(runs)
    return lost


def power_lost(setting: Setting, loss: float, nights: int) -> dict[Gate, tuple[float, float]]:
    """The power that stopping costs each gate, of passes where the loss is below the margin, of regressions
    beyond it; and its Monte Carlo error, over nights of three pairs."""
    draw, correlation = setting
    rng, wanted = np.random.default_rng(43), ("regression",) if loss > MARGIN else ("pass", "worse")
    lost = [
        pairs_lost([draw(rng, correlation, loss, N) for _ in range(PAIRS)], wanted) for _ in range(nights)
    ]
    of_gate = {gate: np.array([night[gate] for night in lost]) for gate in GATES}
    return {
        gate: (float(own.mean()), float(own.std(ddof=1)) / math.sqrt(nights)) for gate, own in of_gate.items()
    }


@pytest.mark.parametrize("name", [name for name in SETTINGS if not name.endswith("0.5")])
def test_stopping_costs_little_power_in_a_few_histories(name: str) -> None:
    """As many as show a last look that is left with too little; the slow test holds the promise itself."""
    for points, error in power_lost(SETTINGS[name], 0.0, 40).values():
        assert points <= 0.05 + 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("name", SETTINGS)
def test_stopping_costs_at_most_five_points_of_power(name: str, loss: float) -> None:
    """Of one pair and of three, although the full run's correction may be a milder one than Bonferroni's."""
    lost = power_lost(SETTINGS[name], loss, 1000)
    assert max(error for _, error in lost.values()) < 0.007
    assert max(points for points, _ in lost.values()) <= 0.05, lost


def share_asked(draw: Drawn, correlation: float, loss: float, whole: bool, histories: int) -> float:
    """Part of 2,000 items that is asked in twenty blocks, at the level of a gate by default."""
    rng, shares, levels = np.random.default_rng(41), [], SequenceLevels.of_gate(0.05, 1)
    for _ in range(histories):
        units = replace(units_of(draw(rng, correlation, loss, 2000)), whole=whole)
        ends = (is_above(units, -MARGIN, levels.passes), is_above(units.turned, MARGIN, levels.fails))
        first = min((end for end in ends if end is not None), default=len(units))
        shares.append(math.ceil(20 * first / len(units)) / 20)
    return float(np.mean(shares))


ONE_IN_TEN = 1 - 0.1 / 0.42


@pytest.mark.parametrize("whole", [False, True])
def test_runs_that_are_equal_up_to_one_item_in_ten_ask_a_third(whole: bool) -> None:
    assert share_asked(right_or_wrong, ONE_IN_TEN, 0.0, whole, 100) <= 0.35


@pytest.mark.parametrize("whole", [False, True])
def test_a_large_loss_is_seen_from_a_tenth(whole: bool) -> None:
    assert share_asked(right_or_wrong, ONE_IN_TEN, 0.3, whole, 100) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("total", [50, 400])
def test_a_benchmark_drawn_without_replacement_is_rarely_taken_for_a_better_one(total: int) -> None:
    """Ten thousand orders of the same items, whose mean is exactly at the margin."""
    lost = round(0.15 * total)
    values = np.r_[-np.ones(lost), np.ones(round(0.1 * total)), np.zeros(total)][:total]
    mean, rng, level = values.mean(), np.random.default_rng(42), 0.05
    wrong = sum(
        is_above(single(rng.permutation(values)[:-1], total, whole=True), mean, level) is not None
        for _ in range(10_000)
    )
    assert wrong / 10_000 <= at_most(level, 10_000)
