"""Words, their numbers, n-grams and common subsequences, against the plain loops that they replace."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.ragged import gathered_rows, offsets_of
from metrics.text import rouge
from metrics.text.inputs import batches
from metrics.text.ngrams import Sequences, Words, matching_ngrams, representatives
from metrics.text.rouge import common_subsequence, common_subsequences

# Beginnings in common, and lengths about the eight and sixteen bytes that are compared at once.
WORD = st.one_of(
    st.builds(
        lambda n, end: b"abcdefghijklmnopqrst"[:n] + end,
        st.integers(0, 18),
        st.sampled_from([b"", b"x", b"\0"]),
    ),
    st.text(st.characters(exclude_characters=" "), max_size=5).map(lambda text: text.encode()),
)
LINES = st.lists(st.lists(WORD, max_size=8).map(b" ".join), max_size=6)
SEQUENCE = st.lists(st.integers(0, 3), max_size=9)
PAIRS = st.lists(st.tuples(SEQUENCE, st.lists(SEQUENCE, min_size=1, max_size=3)), max_size=6)


def _sequences(documents: Any) -> Sequences:
    rows = [
        (which, side, row)
        for which, (own, golds) in enumerate(documents)
        for side, row in enumerate([own, *golds])
    ]
    return Sequences(
        np.array([token for _, _, row in rows for token in row], dtype=np.int64),
        np.array([len(row) for _, _, row in rows], dtype=np.int64),
        np.array([which for which, _, _ in rows], dtype=np.int64),
        np.array([side for _, side, _ in rows], dtype=np.int64),
        len(documents),
    )


@given(LINES)
def test_words_have_equal_numbers_exactly_if_they_are_equal(lines: list[bytes]) -> None:
    expected = [word for line in lines for word in line.split(b" ") if word]
    words = Words.of(lines)
    found = [words.data[start:end] for start, end in zip(words.starts, words.ends, strict=True)]
    assert found == expected
    assert [expected[place] for place in words.numbers] == expected
    assert len(set(words.numbers.tolist())) == len(set(expected))
    assert words.lengths.tolist() == [len([word for word in line.split(b" ") if word]) for line in lines]


@given(LINES)
def test_tokens_are_those_of_each_word_in_turn(lines: list[bytes]) -> None:
    def tokens_of(word: bytes) -> tuple[int, ...]:
        return tuple(word)[::2][:3] if word != b"x" else ()

    expected = [[token for word in line.split(b" ") if word for token in tokens_of(word)] for line in lines]
    numbers, lengths = Words.of(lines).tokens(tokens_of)
    assert lengths.tolist() == [len(tokens) for tokens in expected]
    flat = [token for tokens in expected for token in tokens]
    assert len(set(zip(numbers.tolist(), flat, strict=True))) == len(set(flat)) == len(set(numbers.tolist()))


@given(st.lists(st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1))))
@pytest.mark.parametrize("multiplier", [0x9E3779B97F4A7C15, 1])  # by 1, small keys all claim one slot
def test_alike_keys_share_a_place_that_holds_them(multiplier: int, keys: list[int]) -> None:
    places = representatives(np.array(keys, dtype=np.int64), multiplier).tolist()
    assert [keys[place] for place in places] == keys
    assert len(set(places)) == len(set(keys))


@given(PAIRS, st.integers(1, 4))
def test_matches_are_those_of_counted_ngrams(documents: Any, order: int) -> None:
    def counts(row: list[int], n: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1))

    expected = np.zeros((len(documents), order))
    for which, (own, golds) in enumerate(documents):
        for n in range(1, order + 1):
            best: Counter[tuple[int, ...]] = Counter()
            for gold in golds:
                best |= counts(gold, n)
            expected[which, n - 1] = (counts(own, n) & best).total()
    np.testing.assert_array_equal(matching_ngrams(_sequences(documents), order), expected)


def _plain(first: list[int], second: list[int]) -> int:
    row = [0] * (len(second) + 1)
    for token in first:
        above = row
        row = [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if token == other else max(row[place], above[place + 1]))
    return row[-1]


@given(SEQUENCE, SEQUENCE)
def test_a_common_subsequence_is_the_tables(first: list[int], second: list[int]) -> None:
    assert common_subsequence(first, second) == _plain(first, second)


@pytest.mark.parametrize("distinct", [2, 30, 1000])
@pytest.mark.parametrize("long", [64, 256])
def test_pairs_side_by_side_have_the_subsequences_that_they_have_alone(
    distinct: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rouge, "_LONG", long)
    rng = random.Random(distinct)
    sizes = (0, 1, 20, 63, 64, 65, 127, 128, 129, 192, 200)
    documents = [
        (
            rng.choices(range(distinct), k=rng.choice(sizes)),
            [rng.choices(range(distinct), k=rng.choice(sizes))],
        )
        for _ in range(100)
    ]
    expected = [_plain(own, golds[0]) for own, golds in documents]
    assert common_subsequences(_sequences(documents)).tolist() == expected


def test_pairs_without_a_token_in_common_have_no_subsequence() -> None:
    documents = [([1, 2], [[3]])] * 100
    assert not common_subsequences(_sequences(documents)).any()


@given(st.lists(st.integers(0, 10), max_size=6), st.lists(st.integers(0, 5), max_size=8))
def test_taken_rows_are_the_rows_one_after_the_other(sizes: list[int], rows: list[int]) -> None:
    rows = [row for row in rows if row < len(sizes)]
    offsets = offsets_of(np.array(sizes, dtype=np.int64))
    values = np.arange(offsets[-1])
    expected = [value for row in rows for value in values[offsets[row] : offsets[row + 1]].tolist()]
    assert gathered_rows(values, offsets, np.array(rows, dtype=np.int64)).tolist() == expected


@given(st.lists(st.integers(0, 3 << 20), max_size=40))
def test_batches_follow_each_other_and_stay_small(sizes: list[int]) -> None:
    cut = list(batches(sizes))
    assert [row for own in cut for row in range(len(sizes))[own]] == list(range(len(sizes)))
    assert all(sum(sizes[own]) <= 1 << 21 or len(sizes[own]) == 1 for own in cut)
    assert [own.stop for own in batches([1] * 2500)] == [1024, 2048, 2500]
