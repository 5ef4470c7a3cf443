from typing import Any

import numpy as np
import orjson
import pytest

from tasks.verdicts.labels import read_verdicts


def test_one_label_and_a_list_of_labels_are_read_alike() -> None:
    one = {"label": "polite", "result": {"passed": True, "score": 0.5}}
    for returned in (one, {"labels": [one]}, [one]):
        [verdict] = read_verdicts(returned, "method")
        assert (verdict.label, verdict.passed, verdict.score) == ("polite", True, 0.5)


def test_names_descriptions_details_and_custom_fields_are_kept() -> None:
    [verdict] = read_verdicts(
        {
            "label": "polite",
            "name": "Politeness",
            "description": "Says please",
            "result": {
                "passed": 1,
                "detailed_results": {"why": "«bitte»"},
                "custom_fields": {"tp": 1},
                "model": "j",
            },
        },
        "method",
    )
    assert orjson.loads(str(verdict.details)) == {
        "detailed_results": {
            "name": "Politeness", "description": "Says please", "model": "j", "why": "«bitte»", "tp": 1,
        },
    }  # fmt: skip


def test_the_documented_return_is_read_whole() -> None:
    returned = {
        "labels": [
            {
                "label": {"name": "correct", "description": "Is it right?"},
                "result": {"passed": True, "score": 0.5, "custom_fields": {"why": "x"}, "judge": "j"},
            },
            {"label": {"name": "short"}, "result": {"passed": False, "score": 0.25}},
        ],
        "custom_fields": {"version": 7},
        "took": 3,
    }
    first, second = read_verdicts(returned, "method")
    assert (first.label, first.passed, first.score) == ("correct", True, 0.5)
    assert orjson.loads(str(first.details)) == {
        "detailed_results": {"description": "Is it right?", "judge": "j", "why": "x"},
        "custom_fields": {"took": 3, "version": 7},
    }
    assert (second.label, second.passed, second.score) == ("short", False, 0.25)
    assert orjson.loads(str(second.details)) == {"custom_fields": {"took": 3, "version": 7}}


def test_one_label_alone_keeps_the_method_s_custom_fields_apart() -> None:
    returned = {
        "label": {"name": "polite"},
        "result": {"passed": True, "custom_fields": {"a": 1}},
        "custom_fields": {"b": 2},
    }
    [verdict] = read_verdicts(returned, "method")
    assert (verdict.label, verdict.score) == ("polite", 1.0)
    assert orjson.loads(str(verdict.details)) == {"detailed_results": {"a": 1}, "custom_fields": {"b": 2}}


@pytest.mark.parametrize(
    ("returned", "passed", "score"),
    [(True, True, 1.0), (False, False, 0.0), (0.25, True, 0.25), (0, False, 0.0), (-1.5, False, -1.5),
     (np.float64(2), True, 2.0)],
)  # fmt: skip
def test_a_bool_or_a_number_alone_is_a_verdict(returned: Any, passed: bool, score: float) -> None:
    [verdict] = read_verdicts(returned, "method")
    assert (verdict.label, verdict.passed, verdict.score) == ("method", passed, score)


def test_a_result_alone_stands_under_the_method_s_name() -> None:
    [verdict] = read_verdicts({"passed": True, "score": 0.5, "expected": "4"}, "method")
    assert (verdict.label, verdict.passed, verdict.score) == ("method", True, 0.5)
    assert orjson.loads(str(verdict.details)) == {"detailed_results": {"expected": "4"}}


def test_fields_of_the_same_name_are_all_kept() -> None:
    result = {
        "passed": True,
        "why": 1,
        "details": {"why": 2},
        "custom_fields": {"why": 3, "custom_fields": 4},
    }
    [verdict] = read_verdicts({"label": {"name": "x", "why": 0}, "result": result}, "method")
    assert orjson.loads(str(verdict.details))["detailed_results"] == {
        "why": 0,
        "result": {"why": 1},
        "details": {"why": 2},
        "custom_fields": {"why": 3, "custom_fields": 4},
    }


def test_numbers_that_json_has_no_word_for_are_kept_as_text() -> None:
    [verdict] = read_verdicts({"passed": True, "custom_fields": {"a": [float("nan"), None]}}, "method")
    assert orjson.loads(str(verdict.details)) == {"detailed_results": {"a": ["nan", None]}}


def test_numpy_scalars_are_numbers() -> None:
    [verdict] = read_verdicts({"result": {"passed": np.bool_(False), "score": np.float32(0.25)}}, "method")
    assert (verdict.label, verdict.passed, verdict.score) == ("method", False, 0.25)


def test_a_verdict_without_a_score_counts_as_one_or_zero() -> None:
    [verdict] = read_verdicts({"label": "x", "result": {"passed": False}}, "method")
    assert verdict.score == 0.0


def test_counts_alone_are_a_verdict() -> None:
    [verdict] = read_verdicts({"label": "x", "result": {"custom_fields": {"tp": 1}}}, "method")
    assert (verdict.passed, verdict.score) == (None, None)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "expected .*not None"),
        ("yes", "not 'yes'"),
        ({"foo": 1}, "says nothing"),
        (float("nan"), "no number to average"),
        ({"label": {"description": "nameless"}, "result": {"passed": True}}, "must be a text"),
        (
            {"labels": [{"label": "x", "result": {"passed": True}}], "custom_fields": 3},
            "of the method must be",
        ),
        ([], "not \\[\\]"),
        ({"labels": []}, "expected"),
        ({"labels": [3]}, "not 3"),
        ({"label": "", "result": {"passed": True}}, "not empty"),
        ({"label": 3, "result": {"passed": True}}, "must be a text"),
        ({"label": "x", "result": True}, "must be a mapping, not True"),
        ({"label": "x", "result": {}}, "says nothing"),
        ({"label": "x", "result": {"passed": "yes"}}, "true or false, not 'yes'"),
        ({"label": "x", "result": {"score": "high"}}, "must be a number"),
        ({"label": "x", "result": {"score": float("nan")}}, "no number to average"),
        ({"label": "x", "result": {"passed": True, "custom_fields": 3}}, "must be a mapping, not 3"),
        ({"label": "x", "result": {"passed": True, "details": {"a": object()}}}, "must be JSON values"),
        ([{"label": "x", "result": {"passed": True}}] * 2, "label 'x' twice"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(returned: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_verdicts(returned, "method")
