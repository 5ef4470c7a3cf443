"""Where in a response a filter's prediction stands."""

import pytest

from tasks.reporting.spans import find_span, patterns, utf16

STRICT = {"name": "strict", "filter": [{"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"}]}
LAST = {"name": "last", "filter": [{"function": "regex", "regex_pattern": r"(\d+)", "group_select": -1}]}
PATTERNS = patterns({"filter_list": [STRICT, LAST]})


@pytest.mark.parametrize(
    ("text", "prediction", "name", "found"),
    [
        ("18 eggs\n#### 18 is 18", "18", "strict", (13, 15)),  # the pattern's match, not the last 18
        ("18 eggs\n#### 18 is 18", "18", "last", (19, 21)),
        ("#### 1,319.", "1319", "strict", (5, 11)),  # a later step took the comma away
        ("18 of 218, so 18.", "18", None, (14, 16)),  # words of its own, the last of them
        ("x18x", "18", None, (1, 3)),
        ("The Answer IS yes", "answer is", None, (4, 13)),
        ("eighteen", "18", None, None),
        ("18", "18", None, None),  # the whole response
        (" 18\n", "18", None, None),
        ("text", None, None, None),
        ("text", "", None, None),
        ("[1, 2]", [1, 2], None, None),
        ("İ 18 answer", "ANSWER", None, None),  # lower case of another length: positions would be wrong
    ],
)
def test_span(text: str, prediction: object, name: str | None, found: tuple[int, int] | None) -> None:
    assert find_span(text, prediction, PATTERNS.get(name or "")) == found


def test_spans_are_in_the_units_of_javascript() -> None:
    text = "😀😀 #### 18"
    span = find_span(text, "18", PATTERNS["strict"])
    assert span == (8, 10)
    assert utf16(text, span) == (10, 12)
    assert text.encode("utf-16-le")[20:24].decode("utf-16-le") == "18"
    assert utf16("answer 😀", (7, 8)) == (7, 9)


def test_configs_without_usable_patterns_have_none() -> None:
    assert patterns({}) == {}
    assert patterns({"filter_list": None}) == {}
    broken = {"name": "b", "filter": [{"function": "regex", "regex_pattern": "("}]}
    assert patterns({"filter_list": [broken, {"name": "n", "filter": []}, "text"]}) == {}
