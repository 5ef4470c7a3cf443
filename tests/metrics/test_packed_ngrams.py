"""n-grams counted by one sort against those counted through a table, and one by one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.text.chrf import fits_one_integer, packed_matches
from metrics.text.ngrams import Sequences, matching_ngrams

TEXT = st.lists(st.integers(0, 3), max_size=9)
DOCUMENTS = st.lists(st.tuples(TEXT, TEXT), max_size=6)


def arrays(documents: list[tuple[list[int], list[int]]]) -> tuple[np.ndarray, np.ndarray]:
    texts = [text for pair in documents for text in pair]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return np.array([token for text in texts for token in text], dtype=np.int64), lengths


def one_by_one(own: list[int], gold: list[int], n: int) -> int:
    counted = [Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for text in (own, gold)]
    return (counted[0] & counted[1]).total()


@given(DOCUMENTS, st.integers(1, 6))
def test_every_n_gram_is_counted(documents: list[tuple[list[int], list[int]]], order: int) -> None:
    found = packed_matches(*arrays(documents), order)
    expected = [[one_by_one(own, gold, n) for n in range(1, order + 1)] for own, gold in documents]
    np.testing.assert_array_equal(found, np.array(expected).reshape(-1, order))


@pytest.mark.parametrize("alphabet", [1, 2, 60, 200])
def test_blocks_give_what_a_table_gives(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    lengths = rng.integers(0, 400, 600)
    lengths[rng.integers(0, 600, 60)] = 0
    tokens = rng.integers(0, alphabet, lengths.sum())
    n = len(lengths) // 2
    sequences = Sequences(tokens, lengths, np.repeat(np.arange(n), 2), np.tile([0, 1], n), n)
    assert fits_one_integer(alphabet, n, 6)
    np.testing.assert_array_equal(packed_matches(tokens, lengths, 6), matching_ngrams(sequences, 6))


def test_what_does_not_fit_is_known() -> None:
    assert fits_one_integer(127, 1023, 6)
    assert not fits_one_integer(2**9, 1023, 6)
