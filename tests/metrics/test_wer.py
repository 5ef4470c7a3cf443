"""Word error rate against a plain table of edit distances, and against the library that jiwer counts with."""

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.aggregation import statistics_of
from metrics.errors import MetricError
from metrics.text.edits import levenshtein, wer, wer_aggregation

WORD = st.sampled_from(
    ["a", "A", "the", "cat", "cat.", "é", "e\u0301", "漢字", "😀", "\ud800", "\0", "\u200b"]
)
GAP = st.sampled_from([" ", "  ", "\n", "\t", "\u00a0", "\u2003", "\x1c", "\r\n"])
TEXT = st.one_of(st.lists(st.tuples(WORD, GAP).map("".join), max_size=9).map("".join), st.text(max_size=12))
PAIRS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6)


def table_distance(own: Sequence[Any], gold: Sequence[Any]) -> int:
    """Wagner and Fischer 1974, cell by cell."""
    above = list(range(len(gold) + 1))
    for i, word in enumerate(own, 1):
        row = [i]
        for j, other in enumerate(gold, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
        above = row
    return above[-1]


@given(PAIRS)
def test_statistics_are_those_of_a_plain_table(pairs: Any) -> None:
    golds, texts = zip(*pairs, strict=True)
    expected = [(table_distance(text.split(), gold.split()), len(gold.split())) for gold, text in pairs]
    scores = wer([[gold] for gold in golds], texts)
    assert scores.statistics.tolist() == [list(map(float, row)) for row in expected]
    assert scores.score.tolist() == [edits / max(words, 1) for edits, words in expected]
    total = sum(edits for edits, _ in expected) / max(sum(words for _, words in expected), 1)
    assert wer_aggregation().value(scores.statistics, None) == total


def test_edits_are_those_of_the_library_behind_jiwer() -> None:
    library = pytest.importorskip("rapidfuzz.distance").Levenshtein
    rng = random.Random(5)
    for length in (0, 1, 7, 63, 64, 65, 200):
        for other in (0, 1, 8, 64, 130):
            first, second = ([str(rng.randrange(9)) for _ in range(n)] for n in (length, other))
            assert levenshtein(first, second) == library.distance(first, second)
            assert levenshtein(second, first) == library.distance(first, second)


@given(TEXT, st.lists(TEXT, min_size=1, max_size=4))
def test_of_several_references_the_closest_counts_in_whatever_order_they_stand(
    text: str, golds: list[str]
) -> None:
    rates = [wer([[gold]], [text]).score[0] for gold in golds]
    statistics = {tuple(wer([order], [text]).statistics[0]) for order in permutations(golds)}
    assert len(statistics) == 1
    assert wer([golds], [text]).score[0] == min(rates)


def test_no_prediction_is_an_answer_without_words() -> None:
    assert wer([["a b"], [""]], [None, None]).statistics.tolist() == [[2, 2], [0, 0]]


def test_numbers_are_compared_as_they_are_written() -> None:
    assert wer([[12]], ["12"]).score.tolist() == [0.0]
    assert wer([["12"]], [12]).score.tolist() == [0.0]


def test_values_of_process_results_are_pairs() -> None:
    pairs = [("a b c", "a c"), (["x", "x y"], "x y")]
    np.testing.assert_array_equal(statistics_of("wer", pairs).statistics, [[1, 3], [0, 2]])


def test_an_item_without_reference_and_an_answer_that_is_no_text_are_refused_by_their_row() -> None:
    with pytest.raises(MetricError, match="wer: row 1 has no reference") as caught:
        wer([["a"], []], ["a", "b"])
    assert caught.value.index == 1
    with pytest.raises(MetricError, match="wer: the prediction of row 0 is list, not text"):
        wer([["a"]], [["a"]])
