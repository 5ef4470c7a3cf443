"""Log-likelihood columns become flat arrays with lm-evaluation-harness's lengths, or an error that names the
item."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.types import LikelihoodResult, likelihood_results
from scorers.base import ScorerError
from scorers.choices import ChoiceColumns, choice_batch, take_items

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)

FLOATS, TEXTS, INTS, FLAGS = (pa.list_(kind) for kind in (pa.float64(), pa.string(), pa.int32(), pa.bool_()))


def columns(choices, lls=None, gold=None, scored=None, **others):
    n = len(choices)
    lls = lls if lls is not None else [[-1.0 - i for i in range(len(row))] for row in choices]
    return ChoiceColumns(
        item_ids=[f"q{row}" for row in range(n)],
        scored=np.ones(n, dtype=bool) if scored is None else np.array(scored),
        lls=pa.array(lls, FLOATS),
        is_greedy=pa.array(
            [None if row is None else [i == 0 for i in range(len(row))] for row in lls], FLAGS
        ),
        gold=pa.array(gold if gold is not None else [[0]] * n, INTS),
        continuations=pa.array([[" " + text for text in row] for row in choices], TEXTS),
        choices=pa.array(choices, TEXTS),
        **others,
    )


@PROPERTY
@given(choices=st.lists(st.lists(st.text(max_size=12), min_size=1, max_size=4), min_size=1, max_size=5))
def test_lengths_are_those_of_the_harness(choices):
    batch = choice_batch(columns(choices))
    flat = [text for row in choices for text in row]
    assert batch.chars.tolist() == [len(text) for text in flat]
    assert batch.bytes.tolist() == [len(text.encode("utf-8")) for text in flat]
    assert batch.words.tolist() == [len(re.split(r"\s+", text)) for text in flat]
    assert np.diff(batch.offsets).tolist() == [len(row) for row in choices]


def test_words_are_split_at_every_white_space_that_python_knows():
    spaces = [chr(i) for i in range(0x110000) if re.match(r"\s", chr(i))]
    texts = [f"a{space}b{space}{space}c" for space in spaces] + [
        "a\u200bb",
        "a\u2060b",
        "a\u180eb",
        "a\ufeffb",
    ]
    assert choice_batch(columns([texts])).words.tolist() == [len(re.split(r"\s+", text)) for text in texts]


def test_rolling_lengths_are_the_documents():
    given_columns = replace(
        columns([[]], lls=[[-10.0]], gold=[[]]), continuations=pa.array([["four  five é"]], TEXTS)
    )
    batch = choice_batch(given_columns, rolling=True)
    assert (batch.words.tolist(), batch.bytes.tolist(), batch.chars.tolist()) == ([3], [13], [12])


def test_single_continuation_without_choices_has_lengths_of_one():
    given_columns = replace(
        columns([[]], lls=[[-1.5]], gold=[[]]), continuations=pa.array([[" Paris"]], TEXTS)
    )
    batch = choice_batch(given_columns)
    assert batch.chars.tolist() == batch.bytes.tolist() == batch.words.tolist() == [1]
    assert batch.is_greedy.tolist() == [True]


def test_gold_beyond_the_choices_is_ignored():
    batch = choice_batch(columns([["a", "b"], ["c"]], gold=[[0, 2], [-1]]))
    assert batch.gold.tolist() == [0, -100, -100]


def test_failed_item_has_no_choices_and_disturbs_no_other():
    asked = columns([["a", "b"], ["c", "d"], ["e"]], lls=[[-1, -2], None, [-3]], scored=[True, False, True])
    batch = choice_batch(asked)
    assert batch.offsets.tolist() == [0, 2, 2, 3]
    assert batch.lls.tolist() == [-1, -2, -3]
    assert batch.chars.tolist() == [1, 1, 1]


def test_sliced_and_chunked_columns_are_read_where_they_lie():
    lls = pa.array([[-9.0], [-1.0, -2.0], None, [-3.0]], FLOATS).slice(1)
    asked = replace(
        columns([["a", "b"], [], ["c"]], lls=[[-1, -2], [], [-3]]),
        lls=pa.chunked_array([lls.slice(0, 1), lls.slice(1)]),
    )
    assert choice_batch(asked).lls.tolist() == [-1, -2, -3]


def test_unconditional_log_likelihoods_stand_beside_the_conditional_ones():
    asked = columns(
        [["a", "b"]],
        unconditional=pa.array([[" a", " b"]], TEXTS),
        unconditional_lls=pa.array([[-5.0, -6.0]], FLOATS),
    )
    assert choice_batch(asked).unconditional.tolist() == [-5, -6]


@pytest.mark.parametrize(
    ("unconditional", "lls", "message"),
    [
        ([[" a", " b"], [" c"]], [[-5.0, -6.0], [-1.0]], "'q1' has 1 unconditional log-likelihoods for 2"),
        (
            [[" a", " b"], [" d", " c"]],
            [[-5.0, -6.0], [-1.0, -2.0]],
            "'q1': unconditional request 0 is about ' d'",
        ),
        ([[" a", " b"], []], [[-5.0, -6.0], []], "'q1' has 0 unconditional"),
        ([[" a"], [" c", " d"]], [[-5.0, -6.0], [-1.0, -2.0]], "'q0' has 1 unconditional requests for 2"),
    ],
)
def test_mutual_information_about_other_choices_names_the_item(unconditional, lls, message):
    asked = columns(
        [["a", "b"], ["c", "d"]],
        unconditional=pa.array(unconditional, TEXTS),
        unconditional_lls=pa.array(lls, FLOATS),
    )
    with pytest.raises(ScorerError, match=message):
        choice_batch(asked)


def test_choices_that_are_contexts_are_asked_alone_and_their_common_continuation_is_not():
    asked = replace(
        columns([["Bees", "Bears"]]),
        continuations=pa.array([[" make honey"] * 2], TEXTS),
        unconditional=pa.array([[" Bees", " Bears"]], TEXTS),
        unconditional_lls=pa.array([[-5.0, -6.0]], FLOATS),
    )
    assert choice_batch(asked).unconditional.tolist() == [-5, -6]


def test_benchmark_without_mutual_information_has_none():
    asked = columns(
        [["a"], ["b"]],
        unconditional=pa.array([[], []], TEXTS),
        unconditional_lls=pa.array([None, []], FLOATS),
    )
    assert choice_batch(asked).unconditional is None


def test_another_number_of_log_likelihoods_than_requests_names_the_item():
    with pytest.raises(ScorerError, match="item 'q1' has 1 log-likelihoods for 2 requests"):
        choice_batch(columns([["a"], ["b", "c"]], lls=[[-1.0], [-2.0]]))


@PROPERTY
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    data=st.data(),
)
def test_taken_items_are_the_items_taken(counts, data):
    choices = [[f"{row}{i}" * (i + 1) for i in range(count)] for row, count in enumerate(counts)]
    gold = [list(range(count)) for count in counts]
    batch = choice_batch(
        columns(
            choices, lls=[[float(row * 10 + i) for i in range(c)] for row, c in enumerate(counts)], gold=gold
        )
    )
    rows = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=6))
    taken = take_items(batch, np.array(rows, dtype=np.intp))
    assert taken.lls.tolist() == [float(row * 10 + i) for row in rows for i in range(counts[row])]
    assert taken.chars.tolist() == [len(text) for row in rows for text in choices[row]]
    assert taken.gold.tolist() == [i for row in rows for i in gold[row]]
    assert (
        np.diff(taken.offsets).tolist()
        == np.diff(taken.gold_offsets).tolist()
        == [counts[row] for row in rows]
    )


def test_a_users_metric_of_likelihoods_sees_all_that_is_known_of_an_item():
    seen = []

    def margin(references, predictions, result):
        seen.append(result)
        return result.lls[result.predicted] - min(result.lls)

    metric = build_metric(MetricConfig(metric="f.py:margin"), lambda reference: margin, "multiple_choice")
    unconditional = pa.array([[-1.0, -2.0], None, [-3.0]], FLOATS)
    lls, gold, scored = [[-3.0, -1.0], None, [-2.0]], [[0], [0], [0]], [True, False, True]
    given = columns([["ab", "c ü"], [], ["d"]], lls, gold, scored)
    batch = replace(given, unconditional_lls=unconditional)
    kept = take_items(choice_batch(batch), np.array([2, 0]))
    scores = metric.evaluate([[0], [0]], [0, 1], likelihood_results(kept, np.array([0, 1])))
    assert scores.score.tolist() == [0.0, 2.0]
    assert seen[1] == LikelihoodResult(
        choices=["ab", "c ü"], lls=[-3.0, -1.0], is_greedy=[True, False], targets=[0], predicted=1,
        char_lengths=[2, 3], byte_lengths=[2, 4], word_lengths=[1, 2], unconditional_lls=[-1.0, -2.0],
    )  # fmt: skip
    assert seen[0].choices == ["d"]
