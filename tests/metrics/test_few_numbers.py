"""Numbers without a range: what a tail holds that few of them have not met, a gate can't rule out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import Comparison, compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.gate import decide
from metrics.statistics.unpaired import compare_unpaired
from tasks.reduction.estimators import mean_of_samples

FAST = StatisticsConfig(bootstrap_iters=200)


def runs(n: int, loss: float = 0.0, share: bool = False) -> tuple[ItemColumn, ItemColumn]:
    """A base and a candidate that differ by little and lose ``loss``; ``share``: all in 0 to 1."""
    rng = np.random.default_rng(n)
    base = rng.uniform(0.4, 0.6, n) if share else -2 + rng.normal(0, 0.5, n)
    both = base, base - loss + rng.normal(0, 0.01, n)
    first, second = (ItemColumn(own, own.reshape(-1, 1)) for own in both)
    return first, second


def compared(name: str, both: tuple[ItemColumn, ItemColumn], clusters: Any = None) -> Comparison:
    return compare_items(build_aggregation(name), *both, clusters, FAST)


@pytest.mark.parametrize("name", ["mean", "perplexity"])
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("units", [20, 49, 50])
def test_no_gate_passes_on_few_numbers_without_a_range_and_a_loss_is_still_told(
    name: str, clustered: bool, units: int
) -> None:
    """Twenty lognormal losses passed .067 of losses of the margin, of which .05 may pass."""
    each = 5 if clustered else 1
    clusters = np.repeat(np.arange(units), each) if clustered else None
    higher = name == "mean"
    same = compared(name, runs(units * each), clusters)
    lost = compared(name, runs(units * each, loss=1.0), clusters)
    assert decide(same, 0.3, 0.05, higher_is_better=higher).verdict == (
        "inconclusive" if units < 50 else "pass"
    )
    assert decide(lost, 0.3, 0.05, higher_is_better=higher).verdict == "regression"
    what = "clusters of numbers" if clustered else "numbers"
    needs = "it takes 50, or a metric that declares its range"
    said = f"{units} {what} without a range are too few to rule out a loss: {needs}"
    assert same.too_few == (said if units < 50 else None)


def test_a_known_range_and_a_median_bound_what_an_unseen_item_does() -> None:
    ranged = compare_items(
        replace(build_aggregation("mean"), bounds=(0.0, 1.0)), *runs(20, share=True), None, FAST
    )
    assert ranged.too_few is None
    assert decide(ranged, 0.3, 0.05).verdict == "pass"
    middle = compared("median", tuple(ItemColumn(own.value, values=own.value) for own in runs(20)))  # type: ignore[arg-type]
    assert middle.too_few is None


def test_of_two_runs_without_common_items_each_needs_as_many() -> None:
    (few, _), (many, _) = runs(49), runs(60)
    made = compare_unpaired(build_aggregation("mean"), (few, many), (None, None), FAST)
    assert str(made.too_few).startswith("49 numbers without a range")
    made = compare_unpaired(build_aggregation("mean"), (many, many), (None, None), FAST)
    assert made.too_few is None


@pytest.mark.parametrize(("texts", "passes"), [(49, False), (50, True)])
def test_no_gate_passes_on_few_texts_of_a_corpus_score(texts: int, passes: bool) -> None:
    """Where one text in twenty loses nearly all, 30 texts have none of them in .21 of runs: .10 passed a loss
    of the margin. The row says that what is rare and large may be missing."""
    rng, length = np.random.default_rng(3), np.full(texts, 20)
    possible = np.stack([length - order for order in range(4)], axis=1)
    columns = []
    for _ in range(2):
        matched = rng.binomial(possible, np.array([0.8, 0.6, 0.5, 0.4]))
        table = np.column_stack([length, length, matched, possible]).astype(np.float64)
        columns.append(ItemColumn(table[:, 0], table))
    made = compare_items(build_aggregation("bleu"), columns[0], columns[1], None, FAST)
    assert (decide(made, 30.0, 0.05).verdict == "pass") is passes
    said = "49 texts of a corpus score are too few to rule out a loss: it takes 50"
    assert made.too_few == (None if passes else said)
    assert (made.warning is None) is passes


@pytest.mark.parametrize("made", ["perplexity of words", "mean of samples"])
@pytest.mark.parametrize(
    ("words", "needed"), [(np.full(60, 40.0), None), (np.round(4_000 / np.arange(1, 61)), "13.4 equal ones")]
)
def test_no_gate_passes_on_items_that_count_as_few_by_what_they_weigh(
    made: str, words: Any, needed: str | None
) -> None:
    """Of documents of such lengths .05 to .11 of gates passed a loss of the margin, and .07 to .13 of means
    over so many samples each."""
    samples = made == "mean of samples"
    aggregation = (
        mean_of_samples((0.0, 1.0)).aggregation if samples else build_aggregation("weighted_perplexity")
    )
    rng = np.random.default_rng(6)
    shares = (0.7 if samples else -2.0) + rng.normal(0, 0.01, (2, len(words)))
    columns = [ItemColumn(own, np.column_stack([own * words, words])) for own in shares]
    compared = compare_items(aggregation, columns[0], columns[1], None, FAST)
    verdict = decide(compared, 1.0, 0.05, higher_is_better=samples).verdict
    assert (verdict == "inconclusive") is (needed is not None)
    kind = "items of unequal weight" if samples else "numbers without a range"
    said = None if needed is None else f"60 {kind} that count as {needed} are too few to rule out a loss: it"
    assert (compared.too_few or "").partition(" takes 50")[0] == (said or "")
    # A comparison without a gate has the doubt, too.
    assert (needed or "None") in str(compared.warning)


def test_a_median_that_many_items_have_is_not_said_to_be_of_items_that_are_alike() -> None:
    grades = np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], [10, 20, 40, 20, 10])
    made = estimate(build_aggregation("median"), None, grades, None, FAST)
    assert np.isnan(made.ci_low)
    assert made.warning == "nothing varies where the number lies, and no interval of other items is known"
