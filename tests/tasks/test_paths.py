"""Dotted paths into an item's data."""

import pytest

from tasks.datasets.config import field_at


def test_path_goes_through_mappings_and_lists() -> None:
    assert field_at({"a": [{"b": 2}]}, "a.0.b") == 2


def test_a_field_whose_name_holds_dots_wins_over_a_path() -> None:
    assert field_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


@pytest.mark.parametrize(
    ("path", "missing"), [("a.c", "c"), ("a.b.c", "c"), ("l.1", "1"), ("l.-1", "-1"), ("x", "x")]
)
def test_what_is_not_there_is_named(path: str, missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        field_at({"a": {"b": 2}, "l": [0]}, path)
