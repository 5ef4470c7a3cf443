"""How a shared limit is divided into blocks."""

import pytest

from tasks.limits import block


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 64, 1000])
def test_whoever_comes_gets_something_while_anything_is_free(limit: int) -> None:
    free, taken = limit, []
    while free:
        taken.append(block(10**6, limit, free))
        assert 1 <= taken[-1] <= free
        free -= taken[-1]
    assert sum(taken) == limit
    assert taken == sorted(taken, reverse=True)


def test_the_first_gets_three_quarters_and_never_more_than_it_wants() -> None:
    assert block(10**6, limit=64, free=64) == 48
    assert block(5, limit=64, free=64) == 5
