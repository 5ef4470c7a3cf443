import tracemalloc
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from metrics.errors import ConfigError
from tasks.datasets.item import Item
from tasks.datasets.selection import Selection


def dataset(number: int = 50) -> Iterator[Item]:
    return (Item(f"item-{position}", position, {}) for position in range(number))


def chosen(number: int = 50, **options: object) -> list[int]:
    return [item.doc_id for item in Selection.model_validate(options).of(dataset(number))]


def test_positions_count_from_0_and_keep_the_datasets_order() -> None:
    assert chosen(samples="9, 7,20-22") == [7, 9, 20, 21, 22]
    assert chosen(samples="0") == [0]
    assert chosen(samples="3-5,4-6,5") == [3, 4, 5, 6]


def test_positions_are_chosen_before_the_limit() -> None:
    assert chosen(samples="7,9,20-22", limit=3) == [7, 9, 20]


def test_a_position_that_is_not_there_is_refused_by_the_part_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"^--samples 48-60: the dataset has 50 items, at positions 0 to"):
        chosen(samples="3,48-60")


def test_a_range_that_goes_far_beyond_the_dataset_takes_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"^--samples 48-999999999999: the dataset has 50 items"):
        chosen(samples="7,48-999999999999,49-50")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert chosen(samples="0-999999999999", limit=3) == [0, 1, 2]


def test_a_random_sample_of_100_lies_within_that_of_200_and_another_seed_draws_another() -> None:
    few, many = (set(chosen(1000, samples=f"random:{count}@7")) for count in (100, 200))
    assert len(few) == 100
    assert few < many
    other = set(chosen(1000, samples="random:100@8"))
    assert other != few
    assert chosen(1000, samples="random:100@7") == sorted(few)
    assert chosen(5, samples="random:100") == [0, 1, 2, 3, 4]


def test_a_random_sample_covers_the_whole_dataset_alike() -> None:
    counts = [0] * 4
    for seed in range(40):
        for position in chosen(400, samples=f"random:40@{seed}"):
            counts[position // 100] += 1
    assert all(abs(count - 400) < 5 * (1600 * 3 / 16) ** 0.5 for count in counts)


def test_an_item_more_displaces_one_of_the_sample_at_most() -> None:
    before, after = set(chosen(300, samples="random:50@1")), set(chosen(301, samples="random:50@1"))
    assert len(before - after) <= 1


def test_shuffle_makes_the_limit_take_random_items_in_the_datasets_order() -> None:
    few, more = chosen(1000, shuffle=True, limit=20), chosen(1000, shuffle=True, limit=40)
    assert few == sorted(few)
    assert few != list(range(20))
    assert set(few) < set(more)
    assert set(chosen(1000, shuffle=True, limit=5, samples="random:20@3")) < set(
        chosen(1000, samples="random:20@3")
    )
    assert chosen(shuffle=True) == list(range(50))
    assert Selection(shuffle=True).identity() == Selection().identity()


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "5-3", "random:", "random:0", "random:3@x", "1,,2"])
def test_what_is_no_selection_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="expected"):
        Selection(samples=text)
