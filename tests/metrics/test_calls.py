"""Calls of tools: equal to BFCL's checker on its own cases, and what it has no case for."""

import json
from pathlib import Path
from typing import Any

import pytest

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.types import Answer

RECORDED = json.loads((Path(__file__).parent / "bfcl_cases.json").read_text())
CITY = {"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "scale": {"type": "number"},
    "places": {"type": "array", "items": {"type": "string"}}, "exact": {"type": "boolean"},
    "where": {"type": "object"}}, "required": ["city"]}}  # fmt: skip


def metric(name: str = "tool_match", **arguments: Any) -> Any:
    return build_metric(MetricConfig.model_validate({"metric": name, **arguments}), resolve=None)  # type: ignore[arg-type]


def answer(calls: list[Any], functions: list[Any], text: str | None = "") -> Answer:
    tools = [{"type": "function", "function": function} for function in functions]
    return Answer(text, calls, [], tools)


def judged(references: Any, calls: list[Any], functions: list[Any] | None = None, **arguments: Any) -> float:
    found = metric(**arguments).evaluate([references], [""], answers=[answer(calls, functions or [CITY])])
    return float(found.score[0])


def call(**arguments: Any) -> dict[str, Any]:
    return {"name": "weather", "arguments": arguments}


def test_there_are_enough_recorded_cases_of_either_verdict() -> None:
    verdicts = [case["valid"] for case in RECORDED["cases"]]
    assert len(verdicts) >= 200
    assert min(verdicts.count(True), verdicts.count(False)) >= 100
    assert len({case["kind"] for case in RECORDED["cases"]}) >= 15


def test_every_recorded_case_has_the_checker_s_verdict() -> None:
    differ = []
    for case in RECORDED["cases"]:
        item = RECORDED["items"][case["item"]]
        calls = [{"name": name, "arguments": given} for made in case["calls"] for name, given in made.items()]
        found = judged(item["right"], calls, item["functions"])
        if found != float(case["valid"]):
            differ.append((case["item"], case["kind"], case["valid"]))
    assert differ == []


PARIS = {"name": "weather", "arguments": {"city": "Paris"}}
ROME = {"name": "weather", "arguments": {"city": "Rome"}}
CASES: list[tuple[str, Any, list[Any], float]] = [
    ("as it is due", [PARIS], [call(city="Paris")], 1),
    ("other letters", [PARIS], [call(city="paris ")], 1),
    ("another value", [PARIS], [call(city="London")], 0),
    ("a parameter more", [PARIS], [call(city="Paris", days=1)], 0),
    ("none made", [PARIS], [], 0),
    ("none due, none made", [], [], 1),
    ("none due, one made", [], [call(city="Paris")], 0),
    ("any order", [PARIS, ROME], [call(city="Rome"), call(city="Paris")], 1),
    ("one twice", [PARIS, ROME], [call(city="Rome"), call(city="Rome")], 0),
    ("either answer", [[PARIS], [ROME]], [call(city="Rome")], 1),
    ("either answer, both made", [[PARIS], [ROME]], [call(city="Rome"), call(city="Paris")], 0),
    ("malformed arguments", [PARIS], [{"name": "weather", "arguments": '{"city": "Par'}], 0),
    ("another function", [PARIS], [{"name": "forecast", "arguments": {"city": "Paris"}}], 0),
    ("optional, left out", [{**PARIS, "optional": ["days"]}], [call(city="Paris")], 1),
    ("optional, any value", [{**PARIS, "optional": ["days"]}], [call(city="Paris", days=2)], 0),
    ("alternative", [{**PARIS, "alternatives": {"city": ["Lutetia"]}}], [call(city="Lutetia")], 1),
    ("a number as text", [call(city="Paris", days=2)], [call(city="Paris", days="2")], 0),
    ("a whole number for a float", [call(city="Paris", scale=2.0)], [call(city="Paris", scale=2)], 1),
    ("true for 1", [call(city="Paris", days=1)], [call(city="Paris", days=True)], 0),
    ("a list", [call(city="P", places=["a", "b"])], [call(city="P", places=["A", "b"])], 1),
    ("a list turned around", [call(city="P", places=["a", "b"])], [call(city="P", places=["b", "a"])], 0),
    ("an object", [call(city="P", where={"x": 1})], [call(city="P", where={"x": 1})], 1),
    ("an object's other value", [call(city="P", where={"x": 1})], [call(city="P", where={"x": 2})], 0),
    ("a dotted name", [{"maps.weather": {"city": ["Paris"]}}],
     [{"name": "maps_weather", "arguments": {"city": "Paris"}}], 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("references", "calls", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
@pytest.mark.parametrize("tools", [True, False], ids=["declared", "undeclared"])
def test_each_way_to_be_right_or_wrong(references: Any, calls: Any, expected: float, tools: bool) -> None:
    functions = [CITY] if tools else [{"name": "else"}]
    assert judged(references, calls, functions) == expected


VALUES: list[Any] = [
    "", "a", 0, 1, 2.5, True, False, None, [], [""], [1, 2], [2.5, 1], [1, "a"], [[1, 2], []], [None], {},
    {"a": 1}, {"a": ""}, {"a": None}, {"a": []}, {"a": [1, 2]}, {"a": {"b": 1}}, {"f": [{"b": 1}], "t": "x"},
    [{"a": [1]}, {"a": "x"}],
]  # fmt: skip
TYPED = ("string", "integer", "number", "boolean", "array", "object", None)


@pytest.mark.parametrize("kind", TYPED)
def test_a_call_as_it_is_due_is_right_whatever_its_arguments_are(kind: str | None) -> None:
    schema = {} if kind is None else {"type": kind}
    items = {"items": {"type": "number"}} if kind == "array" else {}
    functions = [{"name": "weather", "parameters": {"properties": {"x": {**schema, **items}}}}]
    assert [value for value in VALUES if judged([call(x=value)], [call(x=value)], functions) != 1] == []


def test_no_other_value_than_the_one_that_is_due_is_right() -> None:
    right = [
        (due, made)
        for at, due in enumerate(VALUES)
        for made in [*VALUES[:at], *VALUES[at + 1 :]]
        if judged([call(x=due)], [call(x=made)], [{"name": "weather"}]) != 0
    ]
    assert right == []


def test_numbers_of_one_value_are_equal_at_any_depth() -> None:
    for functions in ([CITY], [{"name": "weather"}]):
        assert judged([call(city="P", days=2)], [call(city="P", days=2.0)], functions) == 1
        assert (
            judged([call(where={"x": [1, 2.0]})], [call(where={"x": [1.0, 2]})], [{"name": "weather"}]) == 1
        )
        assert judged([call(where={"x": [1]})], [call(where={"x": [True]})], [{"name": "weather"}]) == 0


def test_what_is_right_is_the_reference_s_word_whatever_the_tool_declares() -> None:
    assert judged([call(note="a")], [call(note="a")]) == 1
    assert judged([{**PARIS, "optional": ["city"]}], [call()]) == 1


def test_an_empty_text_is_a_value_and_not_left_out() -> None:
    assert judged([call(city="P", note="")], [call(city="P")], [{"name": "weather"}]) == 0
    empty = {**call(city="P"), "alternatives": {"note": [""]}}
    assert judged([empty], [call(city="P")], [{"name": "weather"}]) == 0
    assert judged([empty], [call(city="P", note="")], [{"name": "weather"}]) == 1
    left_out = {**empty, "optional": ["note"]}
    assert judged([left_out], [call(city="P")], [{"name": "weather"}]) == 1


def test_a_list_within_an_object_is_no_choice_of_values() -> None:
    assert judged([call(where={"x": [1, 2]})], [call(where={"x": 1})], [{"name": "weather"}]) == 0
    assert (
        judged([{"weather": {"where": [{"x": [1, 2]}]}}], [call(where={"x": 1})], [{"name": "weather"}]) == 1
    )


def test_in_order_is_in_order() -> None:
    calls = [call(city="Rome"), call(city="Paris")]
    assert judged([PARIS, ROME], calls, ordered=True) == 0
    assert judged([ROME, PARIS], calls, ordered=True) == 1


def test_a_parameter_that_the_tool_requires_is_due() -> None:
    assert judged([{"weather": {"city": ["Paris", ""]}}], [call()]) == 0
    assert judged([{"weather": {"city": ["Paris", ""]}}], [call()], [{"name": "weather"}]) == 1


def test_what_is_wrong_is_said() -> None:
    found = metric().evaluate([[PARIS]], [""], answers=[answer([call(city="London")], [CITY])])
    assert "city is 'London'" in found.details[0]["error"]


def test_calls_that_a_filter_found_in_a_text_are_calls() -> None:
    assert metric().evaluate([[PARIS]], [[call(city="Paris")]], answers=[answer([], [])]).score[0] == 1
    assert metric().evaluate([[PARIS]], [[{"weather": {"city": "Paris"}}]], answers=[None]).score[0] == 1


def test_a_chosen_prediction_without_calls_is_an_error_and_no_wrong_answer() -> None:
    with pytest.raises(Exception, match="let it keep each"):
        metric().evaluate([[PARIS]], [""], answers=[None])


def test_a_reference_that_is_no_call_is_an_error() -> None:
    with pytest.raises(Exception, match="expected a call"):
        judged(["Paris"], [call(city="Paris")])
    with pytest.raises(Exception, match="expected a list of values"):
        judged([{"weather": {"city": "Paris"}}], [call(city="Paris")])


def test_use_of_tools_is_a_share() -> None:
    answers = [answer([], []), answer([call()], [])]
    assert list(metric("tool_use_rate").evaluate([[], []], ["", ""], answers=answers).score) == [0, 1]
    named = build_metric(
        MetricConfig.model_validate({"metric": "tool_use_rate", "name": "search"}),
        resolve=None,  # type: ignore[arg-type]
    )
    assert list(named.evaluate([[], []], ["", ""], answers=answers).score) == [0, 0]
