"""Of the files that ``-m`` is said to choose nothing of, it chooses nothing."""

import pytest

from tests.conftest import chosen_from

FAST = "not slow and not services and not nights and not serving"
UNMARKED = "def test_it(): ...\n"
ONE = "@pytest.mark.services\ndef test_it(): ...\n\n\ndef test_another(): ...\n"
ALL = f"pytestmark = pytest.mark.services\n\n\n{UNMARKED}"
ALL_AND_ONE = f"pytestmark = pytest.mark.services\n\n\n@pytest.mark.slow\n{UNMARKED}"
SOME_CLASS = f"class TestIt:\n    pytestmark = pytest.mark.services\n\n\n{UNMARKED}"
LISTED = f"pytestmark = [pytest.mark.services, pytest.mark.usefixtures('home')]\n\n\n{UNMARKED}"
OVER_LINES = f"pytestmark = [\n    pytest.mark.services,\n]\n\n\n{UNMARKED}"


@pytest.mark.parametrize(
    ("source", "expressions"),
    [
        (UNMARKED, {FAST}),
        (ONE, {FAST, "services", "services and not slow"}),
        (ALL, {"services", "services and not slow"}),
        (ALL_AND_ONE, {"services", "services and not slow", "slow"}),
        (SOME_CLASS, {FAST, "services", "services and not slow"}),
        (LISTED, {"services", "services and not slow"}),
        (OVER_LINES, {FAST, "services", "services and not slow"}),  # more than need be, and nothing less
    ],
)
def test_a_file_is_left_alone_if_no_marks_that_its_tests_can_have_are_chosen(
    source: str, expressions: set[str]
) -> None:
    every = {FAST, "services", "services and not slow", "slow", "nights"}
    assert {expression for expression in every if chosen_from(source, expression)} == expressions
