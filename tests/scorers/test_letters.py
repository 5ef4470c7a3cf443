"""Answers that name a choice by its letter: every rule with what it must not take, and first tokens."""

import math

import pytest

from scorers.config import ScoringConfig
from scorers.factory import build_scorer
from scorers.letters import FIRST_TOKEN, read_first_token, read_letter

CHOICES = ["red", "dark blue", "blue", "the colour of grass"]
TEXTS = [
    ("B", "alone", 1),
    (" (b) ", "alone", 1),
    ("**C**.", "alone", 2),
    ("$\\boxed{A}$ since B is wrong", "boxed", 0),
    ("First \\boxed{A}, no: \\boxed{\\text{D}}", "boxed", 3),
    ("The answer is (B) dark blue.", "announced", 1),
    ("**Answer:** C", "announced", 2),
    ("Answer: A? No. The correct answer is **option D**, of course", "announced", 3),
    ("I choose option C.", "option", 2),
    # what is said of the other options does not take back the answer
    (
        "The correct answer is B.\n\nOption A is incorrect: it is no colour.\nOption C is wrong, too.",
        "announced",
        1,
    ),
    ("B. Option A is wrong because it is a pet.", "first_line", 1),
    ("B is correct. Option A is not.", "called", 1),
    ("The answer is (B). The other choices, choice D in particular, are wrong.", "announced", 1),
    ("Answer B is right; answer A is wrong.", "called", 1),
    ("Option A is wrong, option C as well", "none", None),
    ("A is correct? No, B is correct", "none", None),
    # other ways to write it
    ("<answer>B</answer>", "announced", 1),
    ("Answer: b", "announced", 1),
    ("the answer is b", "announced", 1),
    ("answer is (b).", "announced", 1),
    ("so it is \\boxed{b}", "boxed", 1),
    ("so it is $\\boxed{\\mathrm{B}}$", "boxed", 1),
    ("The answer is $\\text{B}$", "announced", 1),
    ("The answer is \\(B\\).", "announced", 1),
    ("Answer: “B”", "announced", 1),
    ("Answer：B", "announced", 1),
    ("The correct letter is B.", "announced", 1),
    ("I choose B.", "option", 1),
    ("B, because it is so", "first_line", 1),
    ("The answer must be B", "announced", 1),
    ("Antwort: B", "announced", 1),
    ("正确答案：B", "announced", 1),
    ("答案是B项", "announced", 1),
    ("La respuesta es B", "announced", 1),
    ("Ответ: B", "announced", 1),
    # an article is no letter
    ("Answer: A careful look shows it", "none", None),
    ("The answer is a colour. B", "none", None),
    ("Answer: A (red)", "announced", 0),
    ("Answer: A because roses are", "announced", 0),
    ("answer: a car", "none", None),
    ("The answer is Apparently", "none", None),
    ("It could be many things.\n\nB", "last_line", 1),
    ("C. blue\nbecause the sky is", "first_line", 2),
    ("B)\nIt is", "first_line", 1),
    ("A dog is no colour", "none", None),
    ("Between (A) and (C) I'd say (C)", "marked", 2),
    ("I like **D** most", "marked", 3),
    ("It has to be red, I think", "text", 0),
    ("Dark blue!", "text", 1),
    ("blue and dark blue and red", "none", None),
    ("E", "none", None),
    ("", "none", None),
    (None, "none", None),
    ("I can't say; none of them", "none", None),
]


def test_a_choice_that_begins_with_an_article_is_no_letter():
    assert read_letter("Answer: A dog", ["a cat", "red", "A dog"]).position == 2
    assert (
        read_letter("I think the answer is: I am unsure", [f"choice {i}" for i in range(10)]).position is None
    )


@pytest.mark.parametrize(("text", "rule", "position"), TEXTS)
def test_letters_are_read_by_rules_one_after_the_other(text, rule, position):
    reading = read_letter(text, CHOICES)
    assert (reading.rule, reading.position) == (rule, position)


@pytest.mark.parametrize(
    "part", ["\n", "answer ", "option ", "the choice ", "\\boxed{", "(", "A ", "answer: "]
)
def test_long_answers_of_one_thing_come_to_an_end(part):
    assert read_letter(part * 20_000, CHOICES).rule in {"none", "option"}


def chat(tops):
    entries = [{"token": token, "logprob": math.log(p)} for token, p in tops.items()]
    return {"content": [{"token": "x", "logprob": 0.0, "top_logprobs": entries}]}


def test_a_letters_tokens_with_and_without_blanks_count_together():
    reading = read_first_token(
        chat({"A": 0.2, " A": 0.15, "ĠB": 0.2, "▁B": 0.1, "C": 0.05, "Z": 0.3}), 3, 0.5
    )
    assert (reading.rule, reading.position, reading.coverage) == (FIRST_TOKEN, 0, 0.7)
    assert reading.probabilities == pytest.approx((0.35 / 0.7, 0.3 / 0.7, 0.05 / 0.7))


def test_letters_beyond_the_choices_and_lower_case_do_not_count():
    reading = read_first_token(chat({"A": 0.3, "C": 0.3, "b": 0.3}), 2, 0.25)
    assert (reading.position, reading.probabilities) == (0, (1.0, 0.0))


def test_a_completion_lists_its_alternatives_in_a_mapping():
    reading = read_first_token({"tokens": [" B"], "top_logprobs": [{" B": math.log(0.9), "\n": -3}]}, 2, 0.5)
    assert (reading.position, reading.coverage) == (1, 0.9)


@pytest.mark.parametrize(
    "logprobs", [None, {}, {"content": []}, {"content": None}, {"top_logprobs": [None]}, [], "x", chat({})]
)
def test_an_answer_without_alternatives_is_unscored_with_the_reason(logprobs):
    reading = read_first_token(logprobs, 2, 0.0)
    assert reading.position is None
    assert "top_logprobs" in str(reading.error)


def test_below_the_coverage_there_is_a_reason_and_no_choice():
    reading = read_first_token(chat({"<think>": 0.9, "A": 0.1}), 2, 0.5)
    assert (reading.position, reading.coverage) == (None, 0.1)
    assert reading.error == "the letters have a probability of 0.100 at the first token, below 0.5"


def test_results_say_in_which_way_letters_were_asked_for(resolve):
    signatures = []
    for way in ("letter", "first_token"):
        config = ScoringConfig(output_type="multiple_choice", letters=way)
        (metric,) = build_scorer(config, resolve).get_metrics("none")
        signatures.append(metric.signature())
    assert ["choices_by:letter" in signatures[0], "choices_by:first_token" in signatures[1]] == [True, True]


@pytest.mark.parametrize("value", [5.0, 2e-4, math.inf])
def test_a_first_token_whose_log_probability_cannot_be_is_unscored(value):
    reading = read_first_token({"top_logprobs": [{" A": -0.1, "B": value}]}, 2, 0.5)
    assert reading.position is None
    assert "no log-probability" in reading.error
    assert read_first_token({"top_logprobs": [{" A": 5e-5, "B": -30}]}, 2, 0.5).position == 0


def test_a_first_tokens_true_is_no_number():
    assert "without top_logprobs" in read_first_token({"top_logprobs": [{" A": True}]}, 2, 0.5).error
