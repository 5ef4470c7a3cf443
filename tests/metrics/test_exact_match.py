"""exact_match against what lm-evaluation-harness answered, and against its way with numpy written again.

``bench/lm_eval/exact_match.py`` recorded the answers: the harness has the code of ``evaluate``'s metric.
"""

import json
import re
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.errors import ConfigError, MetricError
from metrics.text.exact_match import exact_match

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("exact_match_oracle.json").read_text("ascii"))

GROWS = "İ"  # the one letter whose lower case is two

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
        own, gold = np.char.lower(own.astype("U99")), np.char.lower(gold.astype("U99"))  # wide enough for any
    for wanted, characters in ((punct, string.punctuation), (digits, string.digits)):
        if wanted:
            table = str.maketrans("", "", characters)
            own, gold = np.char.translate(own, table=table), np.char.translate(gold, table=table)
    return own == gold


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6),
    st.sampled_from(
        [None, ["a", r"\d+"], [r"(?<=T)he "], [",", r"\.$", "(?s).*1"], [r"(.)\1"], [r"^\W", r"\s+\Z"]]
    ),
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


@pytest.mark.parametrize("outcome", RECORDED["outcomes"], ids=lambda made: str([*made.values()][:-1]))
def test_scores_are_those_that_the_harness_gave(outcome: dict[str, Any]) -> None:
    options = {name: value for name, value in outcome.items() if name != "equal"}
    rows = [
        (answer, golds, int(digit))
        for (answer, golds), digit in zip(RECORDED["rows"], outcome["equal"], strict=True)
        if not (outcome["ignore_case"] and GROWS in "".join([answer, *golds]))
    ]
    answers, golds, hits = zip(*rows, strict=True)
    assert len(rows) > 340
    each = sum(
        exact_match([[gold] for gold in column], answers, **options).score
        for column in zip(*golds, strict=True)
    )
    np.testing.assert_array_equal(each, hits)
    np.testing.assert_array_equal(exact_match(golds, answers, **options).score, np.minimum(hits, 1))


def test_a_text_is_not_cut_where_its_lower_case_is_longer() -> None:
    """Numpy keeps an array's width, so that the harness takes these two for equal: the one difference that is
    meant."""
    assert np.char.lower([f"{GROWS}a"]) == np.char.lower([f"{GROWS}b"])
    assert exact_match([[f"{GROWS}a"]], [f"{GROWS}b"], ignore_case=True).score.tolist() == [0.0]
    assert exact_match([[f"{GROWS}A"]], [f"{GROWS}a"], ignore_case=True).score.tolist() == [1.0]
    assert [letter for letter in map(chr, range(0x110000)) if len(letter.lower()) > 1] == [GROWS]


def test_the_recording_has_every_combination_of_options_and_both_answers_to_each() -> None:
    flags = {
        tuple(value for name, value in made.items() if "ignore_" in name) for made in RECORDED["outcomes"]
    }
    assert len(flags) == 8
    patterns = {json.dumps(made["regexes_to_ignore"]) for made in RECORDED["outcomes"]}
    assert len(RECORDED["outcomes"]) == 8 * len(patterns)
    assert all({"0", "1", "2"} == set(made["equal"]) for made in RECORDED["outcomes"])


def test_many_items_are_scored_as_each_of_them_is() -> None:
    answers, golds = zip(*(RECORDED["rows"] * 6), strict=True)  # more than are normalised at once
    answers = [None if row % 7 == 0 else answer for row, answer in enumerate(answers)]
    golds = [own[: 1 + row % 2] for row, own in enumerate(golds)]
    options: dict[str, Any] = {"regexes_to_ignore": [",", r"\.$"], "ignore_case": True}
    alone = [
        exact_match([own], [answer], **options).score[0] for own, answer in zip(golds, answers, strict=True)
    ]
    assert exact_match(golds, answers, **options).score.tolist() == alone


def test_no_prediction_is_wrong_even_where_the_reference_is_empty() -> None:
    assert exact_match([[""], ["None"]], [None, None]).score.tolist() == [0.0, 0.0]


def test_a_json_value_is_compared_as_a_value() -> None:
    assert exact_match([[{"a": 1}], [[1, 2]], [7]], [{"a": 1}, [2, 1], 7]).score.tolist() == [1.0, 0.0, 1.0]


def test_a_number_that_a_filter_gives_meets_the_text_that_a_target_is() -> None:
    """lm-evaluation-harness reads the target as the answer's type: ``gold = type(result)(gold)``."""
    golds = [["1"], ["0"], ["0", "1"], ["1"], ["0.50"], ["yes"], ["True"], ["False"], [1], ["a1"]]
    answers = [1, 1, 1, 1.0, 0.5, 1, True, True, np.int64(1), "a1"]
    expected = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert exact_match(golds, answers).score.tolist() == expected
    assert exact_match([["TRUE"]], [True], ignore_case=True).score.tolist() == [1.0]


def test_an_item_without_reference_is_refused_by_its_row() -> None:
    with pytest.raises(MetricError, match="row 1 has no reference") as caught:
        exact_match([["a"], []], ["a", "b"])
    assert caught.value.index == 1


def test_a_broken_pattern_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"'\(' , which|'\(', which is no pattern"):
        exact_match([["a"]], ["a"], regexes_to_ignore=["("])
