"""A function of one's own over all values: what it is handed, and how often it is called for an error bar."""

from typing import Any

import numpy as np
import pytest

from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate


class Counted:
    """The mean, by a function that spoils the list it was given and notes what that was."""

    def __init__(self) -> None:
        self.calls = 0
        self.kinds: set[Any] = set()

    def __call__(self, values: list[Any]) -> float:
        self.calls += 1
        self.kinds.add((type(values), type(values[0])))
        result = float(np.mean(values))
        values.sort()
        values.clear()
        return result


def aggregation_of(function: Any) -> Aggregation:
    return build_aggregation("own.py:fn", None, lambda _: function)


def numbers(n: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).normal(0, 1, n)


@pytest.mark.parametrize("clusters", [None, 10, "crossed"])
def test_each_call_gets_a_list_of_its_own_with_numpy_numbers(clusters: Any) -> None:
    function, values = Counted(), numbers(300)
    ways = {
        None: None,
        10: np.arange(300) // 10,
        "crossed": np.column_stack(np.divmod(np.arange(300), 20)),
    }[clusters]
    found = estimate(aggregation_of(function), None, values, ways, StatisticsConfig())
    plain = estimate(aggregation_of(lambda own: float(np.mean(own))), None, values, ways, StatisticsConfig())
    assert (found.value, found.stderr, found.ci_low) == (plain.value, plain.stderr, plain.ci_low)
    assert found.value == pytest.approx(values.mean())
    runs = ItemColumn(values), ItemColumn(values + 0.1 * numbers(300, 4))
    compare_items(aggregation_of(function), *runs, ways, StatisticsConfig())
    assert function.kinds == {(list, np.float64)}


def test_values_that_are_no_numbers_are_handed_over_as_they_are() -> None:
    values = [(float(number), "text", [1, 2]) for number in numbers(60)]

    def first(own: list[Any]) -> float:
        assert all(type(value) is tuple and value[2] == [1, 2] for value in own)
        return float(np.mean([value[0] for value in own]))

    found = estimate(aggregation_of(first), None, values, None, StatisticsConfig())
    assert found.stderr == pytest.approx(np.std([v[0] for v in values], ddof=1) / np.sqrt(60), rel=0.1)


@pytest.mark.parametrize(("items", "draws"), [(1_000, 800), (5_000, 800), (8_000, 500), (12_000, 400)])
def test_of_many_items_it_is_called_less_often(items: int, draws: int) -> None:
    function = Counted()
    estimate(aggregation_of(function), None, numbers(items), None, StatisticsConfig())
    assert draws + 100 <= function.calls <= draws + 110  # a hundred blocks are left out, and the value itself


def test_runs_that_change_places_end_early_where_they_do_not_differ() -> None:
    def told(shift: float) -> tuple[int, float]:
        function, base = Counted(), numbers(100)
        candidate = base + shift + 0.5 * numbers(100, 9) - 0.5 * numbers(100, 9).mean()
        found = compare_items(
            aggregation_of(function), ItemColumn(base), ItemColumn(candidate), None, StatisticsConfig()
        )
        return function.calls, found.p_value

    (alike, chance), (differing, certain) = told(0.0), told(0.5)
    assert chance > 0.5
    assert certain <= 2 / 801
    assert differing - alike > 1_000  # 801 swaps of two runs, or some twenty
