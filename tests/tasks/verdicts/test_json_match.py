from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verdicts.built_in import json_match
from tasks.verdicts.config import JsonMatchParams

LOOSE = {"ignore_order": True, "allow_extra_keys": True}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def judge(response: str, truth: Any, **params: Any) -> tuple[bool, dict[str, Any]]:
    return json_match(JsonMatchParams(**params))(response, truth)


@pytest.mark.parametrize(
    ("found", "truth", "params", "passed"),
    [
        ('{"a": 1, "b": [1, 2]}', {"b": [1, 2], "a": 1}, {}, True),
        ('{"a": 1}', '{"a": 1.0}', {}, True),
        ('{"a": true}', {"a": 1}, {}, False),
        ('{"a": 2}', {"a": 1}, {}, False),
        ('{"a": 2}', {"a": 1}, {"compare": "structure"}, True),
        ('{"a": "2"}', {"a": 1}, {"compare": "structure"}, False),
        ('{"a": 1, "b": 2}', {"a": 1}, {}, False),
        ('{"a": 1, "b": 2}', {"a": 1}, {"allow_extra_keys": True}, True),
        ("[2, 1]", [1, 2], {}, False),
        ("[2, 1]", [1, 2], {"ignore_order": True}, True),
        ("[1, 1]", [1, 2], {"ignore_order": True}, False),
        ('[{"a": 1, "b": 2}, {"a": 1}]', [{"a": 1}, {"a": 1, "b": 2}], LOOSE, True),
        ('{"a": 1.004}', {"a": 1}, {"tolerance": 0.01}, True),
        ('Here:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}, {}, True),
        ('```python\nprint(1)\n```\ngives\n```json\n{"a": 1}\n```\n', {"a": 1}, {}, True),
        ('```\n{"a": 2}\n```\n```JSON\n{"a": 1}\n```\n', {"a": 1}, {}, True),
        ('It is ```json {"a": 1} ```.', {"a": 1}, {}, True),
        ('```json\n{"a": 1}```\nDone.', {"a": 1}, {}, True),
        ('1. So:\r\n\r\n   ````json\r\n   {"a": 1}\r\n   ````\r\n', {"a": 1}, {}, True),
        ('{"a": "```json\\n1\\n```"}', {"a": "```json\n1\n```"}, {}, True),
        ('```python\n{"a": 1}\n```', {"a": 1}, {}, False),
        ("not json", {"a": 1}, {}, False),
        ("null", None, {}, True),
    ],
)  # fmt: skip
def test_structure_and_values_are_compared(
    found: str, truth: Any, params: dict[str, Any], passed: bool
) -> None:
    assert judge(found, truth, **params)[0] is passed


def test_differences_are_named_by_path() -> None:
    _, details = judge('{"a": {"b": [1, "x"]}, "d": 1}', {"a": {"b": [1, 2]}, "c": 3})

    assert details["differences"] == [
        "$.a.b[1]: expected number, found text", "$.c: is missing", "$.d: is not expected",
    ]  # fmt: skip
    assert (details["structure_matches"], details["values_match"]) == (False, False)


@settings(deadline=None)
@given(VALUES)
def test_every_value_matches_itself(value: Any) -> None:
    text = orjson.dumps(value).decode()
    for params in ({}, {"ignore_order": True}, {"allow_extra_keys": True}, {"compare": "structure"}):
        assert judge(text, text, **params)[0]


@settings(deadline=None)
@given(st.lists(VALUES, max_size=5), st.randoms(use_true_random=False))
def test_order_of_a_list_counts_only_if_asked(values: list[Any], random: Any) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert judge(orjson.dumps(shuffled).decode(), values, ignore_order=True)[0]
