"""Of the files that ``-m`` is said to choose nothing of, it chooses nothing."""

import re
from pathlib import Path

import pytest

from tests.conftest import SETS, chosen_from

FAST = "not slow and not services and not nights and not serving and not inspect"
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


BOTH = "@pytest.fixture(params=['a', pytest.param('b', marks=pytest.mark.nights)])\ndef it(): ...\n"


@pytest.mark.parametrize("source", [UNMARKED, ONE, ALL, ALL_AND_ONE, SOME_CLASS])
def test_a_mark_that_a_fixture_brings_is_one_that_a_files_tests_can_have(source: str) -> None:
    others = {FAST, "services", "services and not nights", "slow"}
    for expression in others:
        assert chosen_from(source, expression, BOTH) == chosen_from(source, expression), expression
    assert chosen_from(source, "nights", BOTH)
    assert not chosen_from(source, "nights")


@pytest.mark.parametrize("file", ["Makefile", ".ci/run"])
def test_what_is_run_chooses_by_marks_of_sets_alone(file: str) -> None:
    """With any other word, no file is left alone, and every worker collects all."""
    text = Path(__file__).parents[1].joinpath(file).read_text("utf-8")
    expressions = re.findall(r'-m "((?:not )?[a-z][^"]*)"|^fast="(.*)"$', text, re.M)
    assert expressions
    for expression in expressions:
        assert set(re.findall(r"\w+", "".join(expression))) <= SETS | {"and", "not"}
