"""exact_match against the numpy implementation that ``evaluate`` and lm-evaluation-harness share."""

import re
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.errors import ConfigError, MetricError
from metrics.exact_match import exact_match

TEXT = st.one_of(
    st.text(max_size=8), st.sampled_from(["The A.", "the a", "a1", "a", "a\0", "İ", "ß", "5,000", ""])
)


def _evaluate(
    predictions: list[str], references: list[str], patterns: Any, case: bool, punct: bool, digits: bool
) -> Any:
    own, gold = np.array(predictions), np.array(references)
    for pattern in patterns or []:
        own = np.array([re.sub(pattern, "", text) for text in own])
        gold = np.array([re.sub(pattern, "", text) for text in gold])
    if case:
        own, gold = np.char.lower(own), np.char.lower(gold)
    for wanted, characters in ((punct, string.punctuation), (digits, string.digits)):
        if wanted:
            table = str.maketrans("", "", characters)
            own, gold = np.char.translate(own, table=table), np.char.translate(gold, table=table)
    return own == gold


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6),
    st.sampled_from([None, ["a", r"\d+"], [r"(?<=T)he "]]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_scores_are_those_of_evaluate(
    pairs: Any, patterns: Any, case: bool, punct: bool, digits: bool
) -> None:
    predictions, references = [own for own, _ in pairs], [gold for _, gold in pairs]
    own = exact_match(
        [[gold] for gold in references],
        predictions,
        regexes_to_ignore=patterns,
        ignore_case=case,
        ignore_punctuation=punct,
        ignore_numbers=digits,
    )
    expected = _evaluate(predictions, references, patterns, case, punct, digits)
    np.testing.assert_array_equal(own.score, expected.astype(float))


def test_no_prediction_is_wrong_even_where_the_reference_is_empty() -> None:
    assert exact_match([[""], ["None"]], [None, None]).score.tolist() == [0.0, 0.0]


def test_a_json_value_is_compared_as_a_value() -> None:
    assert exact_match([[{"a": 1}], [[1, 2]], ["7"]], [{"a": 1}, [2, 1], 7]).score.tolist() == [1.0, 0.0, 0.0]


def test_an_item_without_reference_is_refused_by_its_row() -> None:
    with pytest.raises(MetricError, match="row 1 has no reference") as caught:
        exact_match([["a"], []], ["a", "b"])
    assert caught.value.index == 1


def test_a_broken_pattern_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"'\(' , which|'\(', which is no pattern"):
        exact_match([["a"]], ["a"], regexes_to_ignore=["("])
