"""Simulations: tests are wrong no more often than they say, and find what the docs promise."""

import pytest

from bench.levels import Rate, measure, rates

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rate", rates(), ids=lambda rate: f"{rate.family}, {rate.name}")
def test_tests_keep_what_the_table_says(rate: Rate) -> None:
    found = measure(rate)
    assert found.holds, (found.share, rate.bound)
