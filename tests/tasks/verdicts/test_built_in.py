from collections.abc import Callable
from typing import Any

import pytest

from tasks.rows.parts import Part
from tasks.verdicts.built_in import JUDGES, numbers_in
from tasks.verdicts.config import METHOD_PARAMS


def judge(kind: str, response: str, truth: Any, **params: Any) -> tuple[bool, Any]:
    return JUDGES[kind](METHOD_PARAMS[kind].model_validate(params))(response, truth)


@pytest.mark.parametrize(
    ("kind", "response", "truth", "params", "passed"),
    [
        ("exact_match", " 18\n", "18", {}, True),
        ("exact_match", " 18\n", "18", {"strip": False}, False),
        ("exact_match", "Paris.", "paris", {"ignore_case": True, "ignore_punctuation": True}, True),
        ("exact_match", "STRASSE", "straße", {"ignore_case": True}, True),
        ("exact_match", "18", 18, {}, True),
        ("exact_match", "true", True, {}, True),
        ("contains", "It is Paris, of course", "Paris", {}, True),
        ("contains", "It is Paris", "paris", {}, False),
        ("contains", "It is Paris", "paris", {"ignore_case": True}, True),
        ("contains", "a and b", None, {"values": ["a", "c"]}, True),
        ("contains", "a and b", None, {"values": ["a", "c"], "mode": "all"}, False),
        ("regex_match", "so #### 18", None, {"pattern": r"####\s*\d+"}, True),
        ("regex_match", "so #### 18", "18", {"pattern": r"####\s*(\d+)", "group": 1}, True),
        ("regex_match", "so #### 19", "18", {"pattern": r"####\s*(?P<n>\d+)", "group": "n"}, False),
        ("regex_match", "abc", "b+", {}, True),
        ("regex_match", "abc", "b+", {"mode": "fullmatch"}, False),
        ("regex_match", "a\nB", "^b", {"ignore_case": True, "multiline": True}, True),
        ("numeric_match", "7 + 5 is 12", "12", {}, True),
        ("numeric_match", "12 is 7 + 5", 12, {"take": "first"}, True),
        ("numeric_match", "about 12", 12, {"take": "whole"}, False),
        ("numeric_match", " $1,200 ", 1200, {"take": "whole"}, True),
        ("numeric_match", "The answer is \u22125.", 5, {}, False),
        ("numeric_match", "\u22125", -5, {}, True),
        ("numeric_match", "-$5", 5, {}, False),
        ("numeric_match", "a loss of -€1,200", -1200, {}, True),
        ("numeric_match", "1\u202f234 people", 1234, {}, True),
        ("numeric_match", "5", "\u22125", {}, False),
        ("numeric_match", "5.", 5, {"take": "whole"}, True),
        ("numeric_match", "€5", 5, {"take": "whole"}, True),
        ("numeric_match", "-$5", -5, {"take": "whole"}, True),
        ("numeric_match", "$$5", 5, {"take": "whole"}, False),
        ("numeric_match", "3, 4", 34, {"take": "whole"}, False),
        ("numeric_match", "3.1", 3.14159, {"tolerance": 0.05}, True),
        ("numeric_match", "102", 100, {"relative_tolerance": 0.02}, True),
        ("numeric_match", "103", 100, {"relative_tolerance": 0.02}, False),
        ("numeric_match", "none at all", 1, {}, False),
        ("length_check", "12345", None, {"max_length": 5}, True),
        ("length_check", "12345", None, {"min_length": 6}, False),
        ("length_check", "one two three", None, {"min_length": 3, "max_length": 3, "unit": "words"}, True),
        ("length_check", "a\nb", None, {"max_length": 1, "unit": "lines"}, False),
    ],
)
def test_built_in_methods_pass_what_they_should(
    kind: str, response: str, truth: Any, params: dict[str, Any], passed: bool
) -> None:
    assert judge(kind, response, truth, **params)[0] is passed


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("10-5=5", [10.0, 5.0, 5.0]),
        ("x=-5, (3)-2", [-5.0, 3.0, 2.0]),
        ("1,234,567.5 and 1,2345", [1234567.5, 1.0, 2345.0]),
        (".5 or -.25", [0.5, -0.25]),
        ("-$5, +€3 and ($2)-$1", [-5.0, 3.0, 2.0, 1.0]),
        ("10\u22125 = \u22121\u202f234.5", [10.0, 5.0, -1234.5]),
        ("1\u00a0234\u00a0567, 12\u00a034", [1234567.0, 12.0, 34.0]),
        ("5e\u22122", [0.05]),
        ("2e3 but 1e999", [2000.0]),
        ("no number", []),
    ],
)
def test_numbers_of_a_text_are_read_as_people_read_them(text: str, numbers: list[float]) -> None:
    assert numbers_in(text) == numbers


def test_details_say_what_was_found() -> None:
    assert judge("numeric_match", "is 11", 12)[1] == {"expected": 12.0, "found": 11.0, "difference": 1.0}
    assert judge("contains", "a", None, values=["b"])[1] == {"missing": ["b"]}
    assert judge("regex_match", "b", "a")[1] == {"matched": None}


@pytest.mark.parametrize(
    ("kind", "truth", "said"),
    [("numeric_match", "none", "holds no number"), ("regex_match", "(", "no regular expression"),
     ("json_match", "{", "not JSON")],
)  # fmt: skip
def test_a_ground_truth_that_cannot_be_compared_leaves_the_sample_unscored(
    asking: Any, judged: Callable[..., Part], kind: str, truth: str, said: str
) -> None:
    part = judged(kind, asking({"a": truth}), {"a": ["{}"]})
    [row] = [row for batch in part.statistics(["scored", "score", "error"]) for row in batch.to_pylist()]

    assert (row["scored"], row["score"]) == (False, None)
    assert said in row["error"]


def test_any_of_several_ground_truths_is_right(asking: Any, judged: Callable[..., Part]) -> None:
    items = asking({"a": ["4", "four"], "b": ["5", "five"]})
    for kind in ("exact_match", "contains"):
        part = judged(kind, items, {"a": ["four", "4", "5"], "b": ["5"]})
        assert [x for b in part.statistics(["passed"]) for x in b["passed"].to_pylist()] == [
            True,
            True,
            False,
            True,
        ]


@pytest.mark.parametrize(
    ("kind", "truths", "responses", "passed"),
    [
        ("numeric_match", ["5", "five"], ["5", "6", "no number"], [True, False, False]),
        ("numeric_match", ["five", "5"], ["5", "6", "no number"], [True, False, False]),
        ("json_match", ["{", "[1]"], ["[1]", "[2]", "no JSON"], [True, False, False]),
        ("regex_match", ["(", "b+"], ["abc", "aa"], [True, False]),
        ("regex_match", ["b+", "("], ["abc", "aa"], [True, False]),
    ],
)
def test_right_answers_that_cannot_be_compared_are_left_out_of_several(
    asking: Any,
    judged: Callable[..., Part],
    kind: str,
    truths: list[str],
    responses: list[str],
    passed: list[bool],
) -> None:
    part = judged(kind, asking({"a": truths}), {"a": responses})
    rows = [row for batch in part.statistics(["passed", "error"]) for row in batch.to_pylist()]
    assert [(row["passed"], row["error"]) for row in rows] == [(said, None) for said in passed]


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [(True, "true", "false"), (False, "false", "0"), ([True, 2], "true", "false"), (18, "18.0", "19"),
     ("true", "true", "false"), ({"a": True}, '{"a": true}', '{"a": 1}')],
)  # fmt: skip
def test_json_match_compares_with_the_item_s_own_value(
    asking: Any, judged: Callable[..., Part], truth: Any, right: str, wrong: str
) -> None:
    part = judged("json_match", asking({"a": truth}), {"a": [right, wrong]})
    rows = [row for batch in part.statistics(["passed", "error"]) for row in batch.to_pylist()]
    assert [(row["passed"], row["error"]) for row in rows] == [(True, None), (False, None)]


@pytest.mark.parametrize("kind", ["exact_match", "json_match", "numeric_match", "contains"])
def test_a_target_is_what_built_in_methods_compare_with(
    asking: Any, judged: Callable[..., Part], kind: str
) -> None:
    part = judged(kind, asking({"a": 1}, references={"a": ["2"]}), {"a": ["1", "2"]})
    assert [x for b in part.statistics(["passed"]) for x in b["passed"].to_pylist()] == [False, True]


def test_an_item_of_which_no_right_answer_can_be_compared_is_unscored_whatever_the_response(
    asking: Any, judged: Callable[..., Part]
) -> None:
    part = judged("numeric_match", asking({"a": ["five", "six"]}), {"a": ["5", "x"]})
    rows = [row for batch in part.statistics(["scored", "error"]) for row in batch.to_pylist()]
    assert rows == [{"scored": False, "error": "the ground truth 'five' holds no number"}] * 2


def test_an_item_without_ground_truth_is_unscored_unless_none_is_needed(
    asking: Any, judged: Callable[..., Part]
) -> None:
    items = asking({"a": []})
    wanting = judged("exact_match", items, {"a": ["x"]})
    length = judged({"name": "length_check", "params": {"max_length": 3}}, items, {"a": ["x"]})

    [row] = [row for batch in wanting.statistics(["scored", "error"]) for row in batch.to_pylist()]
    assert row == {"scored": False, "error": "the item has no ground truth to compare"}
    assert [x for b in length.statistics(["passed"]) for x in b["passed"].to_pylist()] == [True]
