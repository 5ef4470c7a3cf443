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
            "name": "Politeness", "description": "Says please", "model": "j", "why": "«bitte»",
        },
        "custom_fields": {"tp": 1},
    }  # fmt: skip


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
        (True, "not True"),
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
