"""Steps against the rules of lm-evaluation-harness written down independently, on random text."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from scorers.filters.extraction import multi_choice_regex, regex
from scorers.filters.rewriting import last_number, normalize_number
from scorers.filters.selection import majority_vote

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)

ANSWER = "[invalid]"
words = st.text(alphabet="ABC ab.,:()$-0123456789#\n", max_size=40)


def harness_regex(pattern, text, group_select):
    found = re.compile(pattern).findall(text)
    if not found:
        return ANSWER
    match = found[group_select]
    if isinstance(match, tuple):
        match = [part for part in match if part]
        if not match:
            return ANSWER
        match = match[0]
    return match.strip()


@PROPERTY
@given(
    text=words,
    pattern=st.sampled_from([r"#### (\-?[0-9\.\,]+)", r"(-?[$0-9.,]{2,})|(-?[0-9]+)", r"(a)?(b)?"]),
)
def test_regex_gives_what_the_harness_gives(text, pattern):
    for select in (0, -1):
        expected = harness_regex(pattern, text, select)
        assert regex([[text]], [{}], pattern, select, fallback=ANSWER) == [[expected]]
        assert regex([[text]], [{}], pattern, select) == [[None if expected == ANSWER else expected]]


def test_match_number_beyond_the_matches_is_no_prediction():
    assert regex([["1 2"]], [{}], r"(\d)", 2) == [[None]]


def harness_multi_choice(text, choices):
    found = re.findall(r"\(([A-Z])\)", text)
    if found and found[0].strip():
        return found[0].strip()
    by_text = {choice.strip(): f"({chr(65 + i)})" for i, choice in enumerate(choices)}
    pattern = "|".join(sorted((re.escape(choice) for choice in by_text), key=len, reverse=True))
    found = re.findall(pattern, text)
    if found and found[0].strip():
        return by_text.get(found[0].strip(), found[0].strip())
    found = re.findall(r":[\s]*(" + "|".join(chr(65 + i) for i in range(len(choices))) + ")", text)
    return f"({found[0]})" if found else ANSWER


@PROPERTY
@given(
    text=words,
    choices=st.lists(st.sampled_from(["a", "ab", "b", "12", "1"]), min_size=1, max_size=4, unique=True),
)
def test_multi_choice_regex_gives_what_the_harness_gives(text, choices):
    expected = harness_multi_choice(text, choices)
    assert multi_choice_regex([[text]], [{"choices": choices}], r"\(([A-Z])\)", fallback=ANSWER) == [
        [expected]
    ]


@PROPERTY
@given(votes=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9))
def test_majority_is_the_most_frequent_and_of_equals_the_earliest(votes):
    winner = majority_vote([votes], [{}])[0][0]
    top = max(votes.count(vote) for vote in votes)
    assert winner == next(vote for vote in votes if votes.count(vote) == top)


def test_majority_tells_types_apart_and_takes_any_json():
    assert majority_vote([[1, True, True, {"a": [1]}, {"a": [1]}, {"a": [1]}]], [{}]) == [[{"a": [1]}]]
    assert majority_vote([["1", 1, 1]], [{}]) == [[1]]


@PROPERTY
@given(number=st.integers(-(10**9), 10**9), cents=st.integers(0, 99))
def test_any_way_of_writing_a_number_is_found_and_normalised(number, cents):
    for text in (f"{number:,}.{cents:02d}", f"{number}.{cents:02d}"):
        found = last_number([[f"First 3 then {text}."]], [{}])
        assert normalize_number(found, [{}]) == [[f"{number}.{cents:02d}"]]
