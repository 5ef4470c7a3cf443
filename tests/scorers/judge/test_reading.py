"""What a judge's reply says, and what cannot be told without guessing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from scorers.judge.config import Reading
from scorers.judge.reading import read_grade

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)

VERDICT = {"type": "choice", "choices": {"CORRECT": 1, "INCORRECT": 0}}
LETTERS = {"type": "choice", "choices": {"A": 1, "B": 0, "tie": 0.5}}
NUMBER = {"type": "number", "min": 0, "max": 10}
FIELD = {"type": "json", "field": "grade.score", "min": 0, "max": 5}
LABEL = {"type": "json", "field": "verdict", "choices": {"pass": 1, "fail": 0}}
PATTERN = {"type": "regex", "pattern": r"GRADE=(\w+)", "choices": {"A": 4, "B": 3}}


def grade(text, reading):
    return read_grade(text, TypeAdapter(Reading).validate_python(reading))


@pytest.mark.parametrize(
    ("text", "reading", "value"),
    [
        ("CORRECT", VERDICT, 1),
        ("incorrect.", VERDICT, 0),
        ("**INCORRECT**", VERDICT, 0),
        ("I believe it is INCORRECT, since 2 + 2 = 4.", VERDICT, 0),
        ("It says CORRECT things. Verdict: INCORRECT", VERDICT, 0),
        ("First I thought [[INCORRECT]], now [[CORRECT]]", VERDICT, 1),
        ("A good answer, but B is worse. **Winner**: A", LETTERS, 1),
        ("The verdict is tie", LETTERS, 0.5),
        ("[[B]]", LETTERS, 0),
        ("7", NUMBER, 7),
        (" 7.5 ", NUMBER, 7.5),
        ("I give it 8/10.", NUMBER, 8),
        ("Score: **9**", NUMBER, 9),
        ("Of 3 points 2 hold. Rating: [[4]]", NUMBER, 4),
        ('Sure: {"grade": {"score": 4}}', FIELD, 4),
        ('```json\n{"grade": {"score": "2.5"}}\n```', FIELD, 2.5),
        ('{"grade": {"score": true}}', FIELD, 1),
        ('{"a": 1} then {"grade": {"score": 1}} and {"b": {}}', FIELD, 1),
        ('{broken} {"verdict": "Pass"}', LABEL, 1),
        ("GRADE=A, no: GRADE=B", PATTERN, 3),
    ],
)
def test_grade_is_read(text, reading, value):
    assert (grade(text, reading).value, grade(text, reading).error) == (value, None)


@pytest.mark.parametrize(
    ("text", "reading", "message"),
    [
        ("", VERDICT, "none of the labels CORRECT, INCORRECT"),
        ("Not CORRECT but not INCORRECT either", VERDICT, "several of the labels"),
        ("UNCORRECTED", VERDICT, "none of the labels"),
        ("A is better than B", LETTERS, "several of the labels"),
        ("no idea", NUMBER, "no number"),
        ("3 errors in 2 lines", NUMBER, "several numbers"),
        ("11", NUMBER, "grade 11 is not between 0 and 10"),
        ("70%", NUMBER, "no number"),
        ("-1", NUMBER, "not between"),
        ("{}", FIELD, "no JSON object with a field 'grade.score'"),
        ('{"grade": 5}', FIELD, "no JSON object with a field"),
        ('{"grade": {"score": "high"}}', FIELD, "'high' is not a number"),
        ('{"grade": {"score": NaN}}', FIELD, "not between"),
        ('{"grade": {"score": 1' + "0" * 400 + "}}", FIELD, "not a number"),
        ('{"verdict": "maybe"}', LABEL, "'maybe' is none of the labels pass, fail"),
        ("GRADE:A", PATTERN, "matches nothing"),
        ("GRADE=C", PATTERN, "'C' is none of the labels"),
    ],
)
def test_reply_that_cannot_be_read_is_no_grade_and_says_why(text, reading, message):
    found = grade(text, reading)
    assert found.value is None
    assert message in found.error


def test_number_is_mapped_to_one_if_asked():
    assert grade("3", {"type": "number", "min": 1, "max": 5, "normalize": True}).value == 0.5


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "choice", "choices": {"A": 1}},
        {"type": "number", "min": 5, "max": 5},
        {"type": "regex", "pattern": "("},
        {"type": "regex", "pattern": "x", "group": 1},
        {"type": "jsn"},
    ],
)
def test_reading_that_cannot_work_is_refused(bad):
    with pytest.raises(ValueError, match="validation error"):
        TypeAdapter(Reading).validate_python(bad)


@PROPERTY
@given(text=st.text(max_size=60), reading=st.sampled_from([VERDICT, LETTERS, NUMBER, FIELD, LABEL, PATTERN]))
def test_any_reply_gives_a_grade_within_range_or_a_reason(text, reading):
    found = grade(text, reading)
    assert (found.value is None) != (found.error is None)
    assert found.value is None or 0 <= found.value <= 10


@PROPERTY
@given(before=st.text(alphabet="abc .\n", max_size=20), label=st.sampled_from(["CORRECT", "INCORRECT"]))
def test_announced_label_is_read_whatever_comes_before(before, label):
    assert grade(f"{before}\nVerdict: {label}", VERDICT).label == label
