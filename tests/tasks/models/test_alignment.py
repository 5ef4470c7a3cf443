"""Tokens are laid along their text, whatever of a character's bytes each of them has."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.models.providers.openai.tokens import Alignment

PROPERTY = settings(deadline=None, derandomize=True, max_examples=150)
TEXT = st.text(st.sampled_from("ab é夜🦉\u0301\ufffd"), min_size=2, max_size=12)


@PROPERTY
@given(text=TEXT, data=st.data())
def test_wherever_bytes_are_cut_the_true_boundary_is_found(text, data):
    whole = text.encode()
    start = data.draw(st.integers(1, len(text) - 1))
    boundary = len(text[:start].encode())
    cuts = data.draw(st.sets(st.integers(1, len(whole) - 1))) | {0, boundary, len(whole)}
    places = sorted(cuts)
    tokens = [whole[a:b].decode("utf-8", "replace") for a, b in pairwise(places)]
    laid = Alignment.of([*tokens, "more"], text, 1)
    assert laid is not None
    assert laid.end == len(tokens)
    assert places.index(boundary) in laid.tokens_at(start)


@pytest.mark.parametrize("first", ["<s>", "", None, "The"])
def test_a_first_token_that_is_none_of_the_text_is_passed_over(first):
    tokens = [first, "The", " owl", " flies"] if first != "The" else ["The", " owl", " flies"]
    laid = Alignment.of(tokens, "The owl flies", 0)
    assert laid is not None
    assert laid.tokens_at(7) == [len(tokens) - 1]
    assert laid.tokens_at(0) == [len(tokens) - 3] or first is None


def test_tokens_behind_a_character_of_several_are_told_from_those_in_it():
    tokens = ["owl ", "\ufffd", "\ufffd", "\ufffd", "\ufffd", " yes", "x"]
    laid = Alignment.of(tokens, "owl 🦉 yes", 1)
    assert laid is not None
    assert laid.tokens_at(5) == [5]
    # An offset that counts the pieces would point into the character.
    assert laid.tokens_at(4) == [1]


def test_bytes_may_be_spelt_as_openai_spells_them():
    laid = Alignment.of(["a", "bytes:\\xc3", "bytes:\\xa9", "b"], "aéb", 0)
    assert laid is not None
    assert (laid.tokens_at(1), laid.tokens_at(2)) == ([1], [3])


@pytest.mark.parametrize("tokens", [["the", " owl"], ["The", "owl"], ["The owl", "s"], []])
def test_tokens_that_do_not_spell_the_text_are_not_laid(tokens):
    assert Alignment.of(tokens, "The owl", 0) is None


def test_a_boundary_inside_a_token_has_none():
    laid = Alignment.of(["The ow", "l", "s"], "The owls", 0)
    assert laid is not None
    assert laid.tokens_at(4) == []
    assert laid.first_after(4) == 1
