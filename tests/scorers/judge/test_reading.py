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
TRUTH = {"type": "json", "field": "hallucinated", "choices": {"true": 0, "false": 1}}
BETTER = {"type": "json", "field": "better", "choices": {"1": 1, "2": 0}}
OVERALL = {"type": "json", "field": "score", "min": 0, "max": 10}
SIGNED = {"type": "number", "min": -10, "max": 10}
THOUSAND = {"type": "number", "min": 0, "max": 1000}
HALVES = {"type": "choice", "choices": {"A": 1, "B": 0.75, "C": 0.5, "D": 0.25, "E": 0}}
DIGITS = {"type": "choice", "choices": {"0": 0, "1": 1, "2": 2, "3": 3}}
TITLES = {"type": "choice", "choices": {"Yes": 1, "No": 0}}
SMALL = {"type": "choice", "choices": {"yes": 1, "no": 0}}
ATTEMPTED = {"type": "choice", "choices": {"NOT": 0, "NOT ATTEMPTED": 0.5}}
FIVE = {"type": "number", "min": 0, "max": 5}
TURKISH = {"type": "choice", "choices": {"DOĞRU": 1, "YANLIŞ": 0}}
PATTERN = {"type": "regex", "pattern": r"GRADE=(\w+)", "choices": {"A": 4, "B": 3}}
PLUSES = {"type": "regex", "pattern": r"GRADE=(\S+)", "choices": {"A": 4, "A+": 5}}
POINTS = {"type": "regex", "pattern": r"Score: (\d+)"}
ONE_DIGIT = {"type": "regex", "pattern": r"Score: ([1-5])"}


def grade(text, reading, cut=False):
    return read_grade(text, TypeAdapter(Reading).validate_python(reading), cut)


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
        ('{"verdict": "fail",} {"verdict": "Pass"}', LABEL, 1),
        ('{"verdict": "pass"} {"reason": "it says "x"",}', LABEL, 1),
        ("GRADE=A, no: GRADE=B", PATTERN, 3),
        # the English article is no label
        ("The result is a tie.", LETTERS, 0.5),
        ("My verdict is a tie", LETTERS, 0.5),
        ("A tie.", LETTERS, 0.5),
        ("verdict: a", LETTERS, 1),
        ("[[a]] since it is shorter", LETTERS, 1),
        ("Answer A gives the right year", LETTERS, 1),
        ("The winner is A because it is shorter.", LETTERS, 1),
        ("Winner: b\nIt is shorter.", LETTERS, 0),
        ("So A is better.", LETTERS, 1),
        ("It does not contain errors, so CORRECT", VERDICT, 1),
        ("Verdict: A outperforms B", LETTERS, 1),
        ("Winner: A edges out B", LETTERS, 1),
        ("Verdict: A rather than B", LETTERS, 1),
        ("Verdict: A although B is also good", LETTERS, 1),
        ("Verdict: A in every respect. B fails", LETTERS, 1),
        ("Verdict: A with high confidence", LETTERS, 1),
        ("Verdict: A due to its clarity", LETTERS, 1),
        ("verdict: b, as it is shorter", LETTERS, 0),
        ("Verdict: a because it is shorter", LETTERS, 1),
        ("**Answer:** B", LETTERS, 0),
        # the answer that is judged, and the reference, are no verdicts
        ("INCORRECT\n\nThe reference answer is correct, but the response differs.", VERDICT, 0),
        ("The student's answer is correct numerically but lacks units, so\n\n**INCORRECT**", VERDICT, 0),
        ("Yes. The answer is no different from the reference.", TITLES, 1),
        ("The model's answer is yes, while the expected one differs.\n\nNo", TITLES, 0),
        ("Grade: E. The response is a disaster; the right answer is A.", HALVES, 0),
        ("Score: 3\n\nThe correct answer is 4, but the response says 5.", FIVE, 3),
        ("The right one is not given. The answer is B.", HALVES, 0.75),
        ("The student writes\n\nAnswer: C\n\nwhich is not the reference's, so\n\nB", HALVES, 0.75),
        ("Yes, the response is fine.", SMALL, 1),
        # a denial in another line or of something else
        ("The response does not answer\n\nINCORRECT", VERDICT, 0),
        ("They are not equal\n**INCORRECT**", VERDICT, 0),
        ("The answer does not match (INCORRECT)", VERDICT, 0),
        ("Is there any contradiction? No\nOverall: CORRECT", VERDICT, 1),
        ("I have no doubt this is CORRECT", VERDICT, 1),
        ("Score: 2", DIGITS, 2),
        ('The answer opens `{"name": ` and never closes it.\n\n{"score": 2}', OVERALL, 2),
        ('{"reason": "line one\nline two", "score": 4}', OVERALL, 4),
        ("Rating: 8 - 1 point off", NUMBER, 8),
        ("8/10\u5206", NUMBER, 8),
        ("\u8bc4\u5206\uff1a8\u5206", NUMBER, 8),
        ("Score (1-10): 8", NUMBER, 8),
        ("I'd give it a score of 7 because it has 2 errors", NUMBER, 7),
        ("I give 8/10. Only 2/3 of the claims hold.", NUMBER, 8),
        # a field's label may be a number or a boolean
        ('{"hallucinated": true}', TRUTH, 0),
        ('{"hallucinated": "False"}', TRUTH, 1),
        ('{"better": 2}', BETTER, 0),
        ('{"better": 1.0}', BETTER, 1),
        ("Score: \u22125", SIGNED, -5),
        ("Score: -5.5", SIGNED, -5.5),
        ("Score: 7.", NUMBER, 7),
        ("Score: 7, since it is short", NUMBER, 7),
        ("Score: 8/10", NUMBER, 8),
        ("8 out of 10", NUMBER, 8),
        ('Here: {{"score": 5}}', OVERALL, 5),
        ('I use {curly} and {odd braces. {"score": 5}', OVERALL, 5),
        ("Verdict: yanl\u0131\u015f", TURKISH, 0),
        # another label in the sentence that is not joined to the announced one
        ("Verdict: tie between A and B", LETTERS, 0.5),
        ("Verdict: tie, A and B are equally good", LETTERS, 0.5),
        ("Verdict: A, B is verbose", LETTERS, 1),
        ("Verdict: A (but B is close)", LETTERS, 1),
        ("[[A]] would be wrong; my verdict: [[B]]", LETTERS, 0),
        ("Verdict: B to a large degree", LETTERS, 0),
        ("Verdict: INCORRECT because it is not CORRECT", VERDICT, 0),
        ("INCORRECT, not CORRECT", VERDICT, 0),
        ("Yes, no doubt", TITLES, 1),
        ("I need no tie-breaker: Answer B", LETTERS, 0),
        # a label that is an ordinary word, where it is no word of the sentence
        ("Is it right? yes", SMALL, 1),
        ("I would say no because the year is wrong", SMALL, 0),
        ("Yes it matches.", TITLES, 1),
        ("My answer would be: no.", SMALL, 0),
        ("I think that it is Yes for both.", TITLES, 1),
        # a denial of something else
        ("I cannot find any mistakes. I'd give it 8", NUMBER, 8),
        ("It is not perfect. Score: 7", NUMBER, 7),
        ("An almost perfect score of 9", NUMBER, 9),
        ("I'm sorry, but this is wrong. Score: 2", NUMBER, 2),
        ("It does not match the reference Grade: INCORRECT", VERDICT, 0),
        # another number in the sentence that is not joined to the announced one
        ("Score: 7, since it has 2 errors", NUMBER, 7),
        ("Score: 7 (2 errors)", NUMBER, 7),
        ("Score: 7, out of 10", NUMBER, 7),
        ("Score: 7, max 10.", NUMBER, 7),
        ("Score: 8 = good, for 2 reasons", NUMBER, 8),
        ("**Score:**\n8\n\n1. It is short.\n2. It is right.", NUMBER, 8),
        ("Score:\n8. It is short.", NUMBER, 8),
        ("7. It is short.", NUMBER, 7),
        ("Score: 7 - since x = 3 is wrong", NUMBER, 7),
        ("It is short. <score>8</score>", NUMBER, 8),
        ("Verdict: <b>A</b>", LETTERS, 1),
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
        ("The decision is a draw", LETTERS, "none of the labels"),
        ("The answer is a bit verbose, so B or A", LETTERS, "several of the labels"),
        ("A tough call; I cannot decide.", LETTERS, "none of the labels"),
        ("Grade: NOT CORRECT", VERDICT, "denied or weakened"),
        ("The response is not CORRECT.", VERDICT, "denied or weakened"),
        ("Grade: PARTIALLY CORRECT", VERDICT, "denied or weakened"),
        ("The answer isn't really CORRECT.", VERDICT, "denied or weakened"),
        ("The better answer is A when compared with B", LETTERS, "several of the labels"),
        ("I prefer A while B is verbose", LETTERS, "several of the labels"),
        ("Verdict: A clear win for B", LETTERS, "can't be told without a guess"),
        ("No\n\nOn reflection:\n\nYes", TITLES, "several of the labels"),
        ("Score: 0.5", DIGITS, "none of the labels"),
        ("Score: -1", DIGITS, "none of the labels"),
        ("Score: 1/10", DIGITS, "none of the labels"),
        ("Score: 2-3", DIGITS, "none of the labels"),
        ("Rating: [[2.5]]", DIGITS, "none of the labels"),
        ("Score: 2.5 (1 error)", DIGITS, "'Score: 2.5' is none of the labels"),
        ("Verdict: C. It is like B", LETTERS, "'Verdict: C' is none of the labels"),
        ("**Final Grade: B+**", HALVES, "can't be told without a guess"),
        ("Grade: B-", HALVES, "can't be told without a guess"),
        ("Grade: B/C", HALVES, "can't be told without a guess"),
        ("Final Grade: B or C", HALVES, "can't be told without a guess"),
        ("Grade: CORRECT/INCORRECT", VERDICT, "can't be told without a guess"),
        ("Verdict: CORRECT? No, INCORRECT.", VERDICT, "can't be told without a guess"),
        ("Score: 4 (out of 5)", NUMBER, "4 (out of 5 is not out of 10"),
        ("Score: 4 of 5", NUMBER, "4 of 5 is not out of 10"),
        ('{"hallucinated": 0}', TRUTH, "0 is none of the labels"),
        ('{"hallucinated": null}', TRUTH, "no JSON object with a field"),
        ('{"better": [1]}', BETTER, "is none of the labels"),
        ('{"score": 5}', BETTER | {"field": "score"}, "5 is none of the labels"),
        ("Score: 1,000", THOUSAND, "no number"),
        ("Score: 7,5", NUMBER, "no number"),
        ("Score: 92.5%", THOUSAND, "no number"),
        ("Score: 92.5% (3 errors)", THOUSAND, "no number"),
        ("Score: 8.5points", NUMBER, "no number"),
        ("Score: 7-8", NUMBER, "no number"),
        ("Score: 7 \u2013 8", NUMBER, "no number"),
        ("Due 3/4/2024", NUMBER, "several numbers"),
        ("4/5", NUMBER, "4/5 is not out of 10"),
        ("Score: 4/5", NUMBER, "4/5 is not out of 10"),
        ("Rating \u20138", NUMBER, "not between"),
        ('{"clarity": {"score": 2}, "score": 9, "reason": "it says "x" here"}', OVERALL, "no JSON object"),
        ('{"clarity": {"score": 2}, "score": 9, "reason": "it', OVERALL, "no JSON object"),
        ('{clarity: {"score": 2}, score: 9}', OVERALL, "no JSON object"),
        ('Draft: {"score": 3}\nFinal: {"score": 9,}', OVERALL, "'score' is broken"),
        ('{"score": 3}\nFinal: {"score": 9, "reason": "the', OVERALL, "'score' is broken"),
        ("{\"score\": 3}, no: {'score': 9}", OVERALL, "'score' is broken"),
        ('{"grade": {"score": 3}} {"grade": {"score": 4,}}', FIELD, "'grade.score' is broken"),
        ("Grade: CORRECT | INCORRECT", VERDICT, "can't be told without a guess"),
        ("Grade: [CORRECT|INCORRECT]", VERDICT, "can't be told without a guess"),
        ("Grade: CORRECT, INCORRECT", VERDICT, "can't be told without a guess"),
        ("Grade: CORRECT \u2192 INCORRECT", VERDICT, "can't be told without a guess"),
        ("Verdict: IN-CORRECT", VERDICT, "none of the labels"),
        ("Verdict: CORRECT-ish", VERDICT, "none of the labels"),
        ("Grade: CORRECT would be wrong", VERDICT, "can't be told without a guess"),
        ("Score: 2 or 3", DIGITS, "can't be told without a guess"),
        ("Score: 2, 3", DIGITS, "can't be told without a guess"),
        ("[[A]] or [[B]]", LETTERS, "'[[B]]' can't be told without a guess"),
        ("The verdict is yes and no", SMALL, "can't be told without a guess"),
        ("Verdict: yes, but no", SMALL, "can't be told without a guess"),
        ("no, yes", SMALL, "can't be told without a guess"),
        ("Yes and no.", TITLES, "can't be told without a guess"),
        ("There are no mistakes; the response matches the reference.", SMALL, "none of the labels"),
        ("Right in every way, no doubt about it.", SMALL, "none of the labels"),
        ("I'm sorry, there is no way I can judge this.", SMALL, "none of the labels"),
        ("I have no idea", SMALL, "none of the labels"),
        ("No mistakes were found. The response is right.", TITLES, "none of the labels"),
        ("No problem! The response matches.", TITLES, "none of the labels"),
        ("I cannot determine whether this is CORRECT.", VERDICT, "denied or weakened"),
        ("Unable to say if the response is CORRECT", VERDICT, "denied or weakened"),
        ("I refuse to say CORRECT here", VERDICT, "denied or weakened"),
        ("The response is far from CORRECT.", VERDICT, "denied or weakened"),
        ("It is anything but CORRECT.", VERDICT, "denied or weakened"),
        ("It fails to be CORRECT.", VERDICT, "denied or weakened"),
        ("As an AI, I can't say. Ask whoever marks papers for CORRECT.", VERDICT, "the reply refuses"),
        ("I can't give it a grade of A", HALVES, "can't be told without a guess"),
        ("As an AI, I can't rate this. Please try again in 3 days.", NUMBER, "the reply refuses"),
        ("I can't rate this. Please try again in 3 days.", NUMBER, "the reply refuses"),
        ("Sorry, this violates policy section 4.", NUMBER, "the reply refuses"),
        ("The score is not 10.", NUMBER, "denied or weakened"),
        ("Score: not 8", NUMBER, "denied or weakened"),
        ("It is not 8/10", NUMBER, "denied or weakened"),
        ("I would not give it a score of 5", NUMBER, "denied or weakened"),
        ("Score: 10 - 2 = 8", NUMBER, "several numbers"),
        ("Score: 10 - 2 points = 8", NUMBER, "several numbers"),
        ("Score: 3 + 4 = 7", NUMBER, "several numbers"),
        ("Score: 3 + 4", NUMBER, "several numbers"),
        ("Score: 7 or 8", NUMBER, "several numbers"),
        ("Score: **7** (or 8)", NUMBER, "several numbers"),
        ("Score: 9 or 10", NUMBER, "several numbers"),
        ("Score: 8 -> 6", NUMBER, "several numbers"),
        ("Score: 7 to 8", NUMBER, "several numbers"),
        ("Score: 7/10 or 8/10", NUMBER, "several numbers"),
        ("7/10 or 8/10", NUMBER, "several numbers"),
        ("[[7]] or [[8]]", NUMBER, "several numbers"),
        ("Score: 7, maybe 8", NUMBER, "several numbers"),
        ("Score: 8 vs. 3", NUMBER, "several numbers"),
        ("Score: 8 \u2192 reduced to 6", NUMBER, "several numbers"),
        ("Score: 5 (initially), final 7", NUMBER, "several numbers"),
        ("Score: 8 (style) and 3 (content)", NUMBER, "several numbers"),
        ("Score:\n1. Accuracy: 9\n2. Style: 8", NUMBER, "the number of a list"),
        ("Score:\n1. Accuracy: 3\n2. Style: 2", DIGITS, "can't be told without a guess"),
        ("Score: >7", NUMBER, "only a bound"),
        ("Score: less than 3", NUMBER, "only a bound"),
        ("It deserves at least 3", NUMBER, "only a bound"),
        ("Score: >2", DIGITS, "can't be told without a guess"),
        ("Score: less than 3", DIGITS, "can't be told without a guess"),
    ],
)
def test_reply_that_cannot_be_read_is_no_grade_and_says_why(text, reading, message):
    found = grade(text, reading)
    assert found.value is None
    assert message in found.error


@pytest.mark.parametrize(
    "said",
    [
        "A < B",
        "A > B",
        "A<B",
        "B>A",
        "A = B",
        "A == B",
        "A \u2248 B",
        "A|B",
        "A & B",
        "**A**, **B**",
        "A,B",
        "A and B",
        "A and B are equally good",
        "A vs. B",
        "A is worse",
        "A is slightly worse than B",
        "A loses to B",
        "A is not the winner",
    ],
)
def test_verdict_that_joins_another_label_or_is_taken_back_is_none(said):
    assert "can't be told without a guess" in grade(f"Verdict: {said}", LETTERS).error


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("Let me weigh them. Answer A gives the right year and", LETTERS),
        ("There are 2 errors in the", NUMBER),
        ("Score: 1", NUMBER),
        ("Grade: NOT", ATTEMPTED),
        ("NOT", ATTEMPTED),
        ("Score: 1", POINTS),
        ("Score: 1", POINTS | {"max": 10}),
        ("GRADE=A", PLUSES),
        ('{"score": 3}\nFinal: {"sco', OVERALL),
        ('{"score": 3}\nFinal: {', OVERALL),
    ],
)
def test_reply_that_was_cut_off_has_settled_on_nothing(text, reading):
    assert grade(text, reading).value is not None
    assert "was cut off" in grade(text, reading, cut=True).error


@pytest.mark.parametrize(
    ("text", "reading", "value"),
    [
        ("4", FIVE, 4),
        ("Score: 1. It", NUMBER, 1),
        ("B", LETTERS, 0),
        ("Verdict: B. I say so since", LETTERS, 0),
        ("7", NUMBER, 7),
        ("[[7]] since", NUMBER, 7),
        ("Score: 1 since", POINTS, 1),
        ("Score: 7", POINTS | {"max": 10}, 7),
        ("Score: 0", POINTS, 0),
        ("Score: 1", ONE_DIGIT, 1),
        ("GRADE=A", PATTERN, 4),
        ("GRADE=A+", PLUSES, 5),
        ('{"score": 7} for it says', OVERALL, 7),
    ],
)
def test_verdict_before_the_cut_counts(text, reading, value):
    assert grade(text, reading, cut=True).value == value


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


@pytest.mark.parametrize(
    "part",
    [
        "\n",
        "\n* ",
        "answer ",
        "answer is ",
        "Grade: ",
        "score (",
        "not ",
        "option ",
        "1,",
        "7 - ",
        "[[",
        "{",
        "A ",
    ],
)
def test_long_replies_of_one_thing_come_to_an_end(part):
    """A reader that looks back over the whole reply from every place would take hours."""
    for reading in (LETTERS, NUMBER, FIELD):
        found = grade(part * 20_000, reading)
        assert (found.value is None) != (found.error is None)
