"""What every metric says of nothing, of one item, of no prediction, of what is not finite and of what is
unscored; the rows here have to name every metric."""

import json
import math
from typing import Any

import numpy as np
import pytest

from metrics.config import StatisticsConfig
from metrics.errors import MetricError
from metrics.reductions.reduction import Repeats, reduce_repeats
from metrics.registry import METRICS
from metrics.statistics.estimate import estimate
from metrics.types import Answer, Scores

NAN, INF = math.nan, math.inf
OWN = [name for name in METRICS if METRICS[name].function.__module__.startswith("metrics.")]
CHOICES = [name for name in OWN if METRICS[name].style == "choices"]
TEXT = [name for name in OWN if name not in CHOICES]

# The score of no prediction where the reference is "[1]", and where it is "" (None: it is refused).
NO_PREDICTION: dict[str, tuple[float, float | None]] = {
    "exact_match": (0, 0),
    "contains": (0, 0),
    "regex_match": (0, 0),
    "numeric_match": (0, None),
    "json_match": (0, None),
    "math_match": (0, 0),
    "squad_exact_match": (0, 1),  # an empty answer, as to a question that has none
    "token_f1": (0, 1),
    "edit_similarity": (0, 1),
    "length": (0, 0),
    "bypass": (999, 999),
    "bleu": (0, 0),
    "sentence_bleu": (0, 0),
    "chrf": (0, 0),
    "chrf++": (0, 0),
    "ter": (100, 0),
    "wer": (1, 0),
    "rouge1": (0, 0),
    "rouge2": (0, 0),
    "rougeL": (0, 0),
    "rougeLsum": (0, 0),
    "tool_match": (0, None),
    "tool_use_rate": (0, 0),
    "json_schema_valid": (0, None),
    "refusal": (0, 0),
}

# The score of an item whose right choice has the log-likelihood NaN, and -inf, the other one having -1.
NOT_FINITE: dict[str, tuple[float | None, float]] = {
    "acc": (NAN, 0),
    "acc_norm": (NAN, 0),
    "acc_bytes": (NAN, 0),
    "acc_mutual_info": (NAN, 0),
    "acc_greedy": (NAN, 1),
    "exact_match_mc": (NAN, 1),  # which choice was greedy is the model's word, not the log-likelihoods'
    "f1": (None, 0),
    "mcc": (None, 0),
    "logprob": (NAN, -INF),
    "likelihood": (NAN, -INF),
    "bpb": (NAN, INF),
    "choice_logprob": (NAN, -INF),
    "choice_logprob_norm": (NAN, -INF),
    "choice_prob_norm": (NAN, 0),
    "brier_score": (NAN, 2),
    "perplexity": (NAN, -INF),  # of one item: its log-likelihood
    "word_perplexity": (NAN, INF),
    "byte_perplexity": (NAN, INF),
    "bits_per_byte": (NAN, INF),
    "bypass_choices": (999, 999),
}


# The reference where "[1]" is none.
GOLDS: dict[str, Any] = {
    "numeric_match": "1",
    "tool_match": {"name": "f"},
    "json_schema_valid": {"type": "array", "contains": {"const": 1}},
}


def of_texts(metric: Any, predictions: Any, gold: str = "[1]") -> Scores:
    own = GOLDS.get(metric.entry, gold) if gold else gold
    whole = [Answer(text, [], [], []) for text in predictions] if metric.takes_answer else None
    return metric.evaluate([[own]] * len(predictions), predictions, answers=whole)


def of_choices(metric: Any, batch_of: Any, lls: Any) -> Scores:
    """Items of two choices, the first right and greedy; of one where whole documents are scored."""
    rolling = metric.output_types == ("loglikelihood_rolling",)
    rows = [[own] if rolling else [own, -1.0] for own in lls]
    greedy = [[True, False][: len(row)] for row in rows]
    return metric.evaluate_choices(
        batch_of(rows, [[0]] * len(rows), greedy=greedy, unconditional=[[-1.0] * len(row) for row in rows])
    )


def some(metric: Any, batch_of: Any, n: int) -> Scores:
    if metric.input == "text":
        return of_texts(metric, ["[1]", "[2] 3", "4", None][:n])
    return of_choices(metric, batch_of, [-0.5, -2.0, -0.25, -3.0][:n])


def values_of(scores: Scores) -> Any:
    return scores.values if scores.values is not None else scores.score


def test_every_metric_has_its_row() -> None:
    assert set(NO_PREDICTION) == set(TEXT)
    assert set(NOT_FINITE) == set(CHOICES)


@pytest.mark.parametrize("name", OWN)
def test_nothing_has_no_value(name: str, build: Any, batch_of: Any) -> None:
    metric = build(name)
    scores = some(metric, batch_of, 0)
    made = estimate(metric.aggregation, scores.statistics, values_of(scores), None, StatisticsConfig())
    assert len(scores) == 0
    assert (math.isnan(made.value), math.isnan(made.stderr)) == (True, True)
    assert (made.n_items, made.stderr_method, made.warning) == (0, "none", "no scored items")


@pytest.mark.parametrize("name", OWN)
def test_one_item_has_a_value_and_no_standard_error(name: str, build: Any, batch_of: Any) -> None:
    metric = build(name)
    scores = some(metric, batch_of, 1)
    made = estimate(metric.aggregation, scores.statistics, values_of(scores), None, StatisticsConfig())
    assert math.isfinite(made.value)
    assert math.isnan(made.stderr)
    assert made.warning in ("one item has no spread", f"no error bar for {metric.aggregation.name}")
    assert math.isnan(made.ci_low) == (made.stderr_method != "wilson")


@pytest.mark.parametrize("name", TEXT)
def test_no_prediction_is_wrong_or_an_empty_text(name: str, build: Any) -> None:
    metric, (wrong, empty) = build(name), NO_PREDICTION[name]
    assert of_texts(metric, [None]).score.tolist() == [wrong]
    if empty is None:
        with pytest.raises(MetricError, match="row 0"):
            of_texts(metric, [None], gold="")
    else:
        assert of_texts(metric, [None], gold="").score.tolist() == [empty]


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("value", [1, 0, 0.5, True])
def test_a_number_that_a_filter_gives_counts_as_it_is_written(name: str, build: Any, value: Any) -> None:
    metric, gold = build(name), "1"
    text = str(value).lower() if "json" in name else str(value)
    assert of_texts(metric, [value], gold).score.tolist() == of_texts(metric, [text], gold).score.tolist()


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999", "NaN", "", "\0", "\ud800", "9" * 5000])
def test_texts_that_look_like_no_number_have_a_score_as_any_other(name: str, build: Any, text: str) -> None:
    low, high = METRICS[name].bounds
    score = float(of_texts(build(name), [text]).score[0])
    assert low <= score <= high
    assert math.isfinite(score)


DEEP, NESTED, LONG = "[" * 2000, "[" * 101 + "]" * 101, "1" + "0" * 400
DEEPEST = "[" * 100 + "]" * 100
RECURSIVE = {"type": ["array", "number"], "items": {"$ref": "#"}}


@pytest.mark.parametrize(
    ("name", "gold", "right", "looping"),
    [
        ("json_match", '{"a": 1}', '{"a": 1}', DEEP),
        ("json_match", '{"a": 1}', '{"a": 1}', f'{{"a": {LONG}}}'),
        ("json_match", '{"a": 1.5}', '{"a": 1.5}', f'{{"a": {LONG}}}'),
        ("json_match", "[1]", "[1]", NESTED),
        ("json_schema_valid", {"type": "integer"}, "1", DEEP),
        ("json_schema_valid", {"type": "number", "multipleOf": 0.5}, "1", LONG),
        ("json_schema_valid", RECURSIVE, "[[1]]", NESTED),
        ("json_schema_valid", {"uniqueItems": True}, "[]", f"[{NESTED}, {NESTED}]"),
        ("numeric_match", "1", "1", "9" * 5000),
        ("numeric_match", "1", "1", LONG),
        ("math_match", "1", "1", "9" * 5000),
        ("math_match", "1", "1", "$" + "\\frac{" * 500),
    ],
)  # fmt: skip
def test_an_answer_that_loops_is_wrong_and_takes_no_score_from_others(
    build: Any, name: str, gold: Any, right: str, looping: str
) -> None:
    assert build(name).evaluate([[gold]] * 2, [right, looping]).score.tolist() == [1, 0]


def test_a_reference_that_is_nested_too_deeply_is_refused(build: Any) -> None:
    for nested in (NESTED, "[" * 2000 + "]" * 2000, "[" * 20_000 + "]" * 20_000):
        with pytest.raises(MetricError, match=r"row 1 has a reference that .* nested too deeply"):
            build("json_match").evaluate([["1"], [nested]], ["1", "1"])
    with pytest.raises(MetricError, match="row 1 has a reference that is not JSON"):
        build("json_match").evaluate([["1"], [DEEP]], ["1", "1"])


@pytest.mark.parametrize("entry", ["json_match", {"metric": "json_match", "ignore_order": True}])
def test_json_of_a_hundred_levels_is_compared_and_of_one_more_wrong(build: Any, entry: Any) -> None:
    objects = '{"a": ' * 100 + "1" + "}" * 100
    right = build(entry).evaluate([[DEEPEST], [objects]], [DEEPEST, objects])
    assert right.score.tolist() == [1, 1]
    wrong = build(entry).evaluate([[DEEPEST]] * 2, [NESTED, json.loads(NESTED)])
    assert wrong.score.tolist() == [0, 0]
    assert "nested too deeply" in wrong.details[0]["difference"]


def test_a_schema_that_refers_to_itself_checks_a_hundred_levels(build: Any) -> None:
    checked = build("json_schema_valid").evaluate([[RECURSIVE]] * 2, [DEEPEST, json.loads(NESTED)])
    assert checked.score.tolist() == [1, 0]
    stack = {"anyOf": [{"type": "number"}, {"items": {"$ref": "#"}}]}
    for _ in range(4):  # each takes more of Python's stack for a level
        stack = {"allOf": [stack]}
    checked = build("json_schema_valid").evaluate([[stack]] * 2, ["[[1]]", DEEPEST])
    assert checked.score[0] == 1  # and whatever the other is, it takes nothing from this one


def test_a_schema_that_refers_to_itself_for_ever_is_an_error_and_no_answer_is_wrong(build: Any) -> None:
    with pytest.raises(MetricError, match="recursion"):
        build("json_schema_valid").evaluate([[{"$ref": "#"}]], ["1"])


@pytest.mark.parametrize("name", CHOICES)
def test_a_log_likelihood_that_is_no_number_is_not_hidden(name: str, build: Any, batch_of: Any) -> None:
    metric, expected = build(name), NOT_FINITE[name][0]
    if expected is None:
        with pytest.raises(
            MetricError, match=r"item 1 has no most likely choice; .* \[nan, -1.0\]"
        ) as caught:
            of_choices(metric, batch_of, [-0.5, NAN])
        assert caught.value.index == 1
        return
    scores = of_choices(metric, batch_of, [-0.5, NAN])
    np.testing.assert_array_equal(scores.score[1:], [expected])
    made = estimate(metric.aggregation, scores.statistics, values_of(scores), None, StatisticsConfig())
    if math.isnan(expected):
        assert math.isnan(made.value)
        assert made.warning == "1 of 2 items have a value that is not finite"


@pytest.mark.parametrize("name", CHOICES)
def test_an_impossible_choice_has_probability_0(name: str, build: Any, batch_of: Any) -> None:
    metric = build(name)
    scores = of_choices(metric, batch_of, [-0.5, -INF])
    np.testing.assert_array_equal(scores.score[1:], [NOT_FINITE[name][1]])
    made = estimate(metric.aggregation, scores.statistics, values_of(scores), None, StatisticsConfig())
    assert not math.isnan(made.value)
    assert math.isfinite(made.value) or math.isnan(made.stderr)


@pytest.mark.parametrize("name", OWN)
def test_an_unscored_sample_is_in_no_average(name: str, build: Any, batch_of: Any) -> None:
    metric = build(name)
    scores = some(metric, batch_of, 4)
    # Four items; of the second the only sample is unscored, the third has a second, unscored sample.
    rows, scored = [0, 1, 2, 1, 3], np.array([True, False, True, False, True])
    statistics = None if scores.statistics is None else scores.statistics[rows]
    if statistics is not None:
        statistics[~scored] = NAN  # as a scorer leaves them
    values = None if scores.values is None else [scores.values[row] for row in rows]
    column = np.where(scored, scores.score[rows], NAN)
    repeats = Repeats(column, scored, np.zeros(5, np.int64), np.array([0, 1, 2, 4, 5]), statistics, values)
    (reduced,) = reduce_repeats(metric.reductions[0], repeats)
    assert reduced.valid.tolist() == [True, False, True, True]
    assert reduced.n_scored.tolist() == [1, 0, 1, 1]
    kept = [0, 2, 3]
    np.testing.assert_array_equal(reduced.value[kept], scores.score[kept])
    alone = estimate(
        metric.aggregation,
        None if scores.statistics is None else scores.statistics[kept],
        [values_of(scores)[row] for row in kept],
        None,
        StatisticsConfig(),
    )
    made = estimate(
        metric.aggregation,
        None if reduced.statistics is None else reduced.statistics[reduced.valid],
        [(reduced.value if reduced.values is None else reduced.values)[row] for row in kept],
        None,
        StatisticsConfig(),
    )
    assert repr(made) == repr(alone)  # NaN is not equal to itself


def test_half_a_character_in_a_key_leaves_an_error_that_can_be_written(build: Any) -> None:
    schema = {"additionalProperties": {"type": "string"}}
    [details] = build("json_schema_valid").evaluate([[schema]], ['{"\\ud800": 1}']).details
    assert details["error"].encode().startswith(rb"$['\ud800']: 1 is not")
