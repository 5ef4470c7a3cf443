"""The test for a preference of positions: its level where there is none, and that it finds one."""

import numpy as np
import pytest

from metrics.statistics.significance import position_bias


def drawn(seed, *, accuracy, bias, items=80, permuted=True):
    """Three samples an item of a model that knows it or not; with ``bias`` it takes position 0 instead."""
    rng = np.random.default_rng(seed)
    chosen, right, numbers = [], [], []
    for item in range(items):
        known, other, start = rng.random() < accuracy, rng.integers(1, 4), rng.integers(4)
        for repeat in range(3):
            place = (start + (repeat if permuted else 0)) % 4
            # What it believes hangs on the item: the same content in every repeat.
            said = place if known else (place + other) % 4
            chosen.append(0 if rng.random() < bias else said)
            right.append(np.arange(4) == place)
            numbers.append(item)
    n = len(chosen)
    return np.array(chosen), np.array(right), np.full(n, 4), np.array(numbers)


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("accuracy", [0.25, 0.8])
def test_without_a_preference_the_test_keeps_its_level(accuracy, permuted):
    p_values = [
        found.p_value
        for seed in range(400)
        if (found := position_bias(*drawn(seed, accuracy=accuracy, bias=0.0, permuted=permuted))) is not None
    ]
    assert len(p_values) == 400
    assert np.mean(np.array(p_values) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("accuracy", [0.25, 0.6])
def test_a_preference_is_found_and_named(accuracy):
    found = [position_bias(*drawn(seed, accuracy=accuracy, bias=0.25)) for seed in range(20)]
    assert all(one is not None and one.p_value < 0.01 and one.favourite == 0 for one in found)


def test_too_few_items_and_answers_that_are_all_right_say_nothing():
    assert position_bias(*drawn(0, accuracy=0.5, bias=0.5, items=9)) is None
    assert position_bias(*drawn(0, accuracy=1.0, bias=0.0)) is None


def test_items_may_have_different_numbers_of_choices():
    chosen, right, counts, items = drawn(1, accuracy=0.5, bias=0.4)
    few = items % 2 == 0
    right[few, 2:] = False
    right[few, 0] = ~right[few, 1]
    counts[few], chosen[few] = 2, chosen[few] % 2
    found = position_bias(chosen, right, counts, items)
    assert found is not None
    assert found.due[0] == pytest.approx(0.375, abs=0.05)


@pytest.mark.parametrize(("items", "choices"), [(15, 4), (30, 10), (50, 26)])
def test_many_places_for_few_items_keep_the_level(items, choices):
    """One sample an item: where a place was never chosen by chance, no place is avoided."""
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(1_000):
        place, known = rng.integers(0, choices, items), rng.random(items) < 0.5
        chosen = np.where(known, place, (place + rng.integers(1, choices, items)) % choices)
        right = np.arange(choices) == place[:, None]
        found = position_bias(chosen, right, np.full(items, choices), np.arange(items))
        alarms += found is not None and found.p_value < 0.01
    assert alarms / 1_000 <= 0.01 + 3 * np.sqrt(0.01 * 0.99 / 1_000)


def test_items_of_more_choices_may_be_right_less_often():
    """Of four choices most are right, of ten few, never at the last places: these are not preferred."""
    rng, alarms = np.random.default_rng(8), 0
    for _ in range(200):
        counts = rng.choice([4, 10], 2_000)
        known = rng.random(2_000) < np.where(counts == 4, 0.9, 0.2)
        place = rng.integers(0, 4, 2_000)
        other = 1 + (rng.random(2_000) * (counts - 1)).astype(np.int64)
        chosen = np.where(known, place, (place + other) % counts)
        found = position_bias(chosen, np.arange(10) == place[:, None], counts, np.arange(2_000))
        alarms += found is not None and found.p_value < 0.01
    assert alarms / 200 <= 0.01 + 3 * np.sqrt(0.01 * 0.99 / 200)
