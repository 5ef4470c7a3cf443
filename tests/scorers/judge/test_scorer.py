"""The judge: what it asks, how verdicts combine, and that an unreadable reply is unscored and asked again
alone."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from metrics.config import StatisticsConfig
from metrics.errors import ConfigError
from metrics.statistics.estimate import estimate as estimate_of
from scorers.base import ModelReply, ScorerError
from scorers.config import ScoringConfig
from scorers.factory import build_scorer
from scorers.grading import ask_again
from scorers.judge.config import JudgeConfig

CHOICE = {"type": "choice", "choices": {"YES": 1, "NO": 0}}


def judge(metric_list=None, **config):
    config = {"type": "llm_judge", "prompt": "{{ response }}?", "judges": ["j"], "parse": CHOICE, **config}
    return build_scorer(ScoringConfig.model_validate({"scorer": config, "metric_list": metric_list}), None)


def metric_of(scorer, name="llm_judge"):
    return next(metric for metric in scorer.get_metrics("none") if metric.name == name)


def replies_of(*texts):
    return [None if text is None else ModelReply(text) for text in texts]


def test_judge_stands_beside_the_benchmarks_metrics(make_batch):
    scorer = judge(metric_list=["exact_match", "bleu"])
    assert [metric.name for metric in scorer.get_metrics("none")] == ["exact_match", "bleu", "llm_judge"]
    batch, metric = make_batch(["a"], [["a"]]), metric_of(scorer, "exact_match")
    assert (scorer.needs(metric), list(scorer.requests(batch, metric))) == (None, [])
    assert scorer.score(batch, metric).scores.score.tolist() == [1]


def test_metric_list_may_give_the_judges_metric_an_alias_and_a_reduction():
    scorer = judge(metric_list=[{"metric": "llm_judge", "alias": "quality", "reduction": ["mean", "pass@2"]}])
    (metric,) = scorer.get_metrics("none")
    assert (metric.name, [reduction.name for reduction in metric.reductions]) == (
        "quality",
        ["mean", "pass@2"],
    )
    assert scorer.needs(metric) == "llm_judge"


def test_prompt_sees_the_item_and_the_sample_and_the_sample_wins(make_batch):
    names = ("q", "response", "prediction", "reference", "references[1]", "item.response")
    scorer = judge(prompt="|".join(f"{{{{ {name} }}}}" for name in names))
    batch = make_batch(["4"], [["x", "y"]], docs=[{"q": "2 + 2", "response": "field"}], responses=["It is 4"])
    assert scorer.requests(batch, metric_of(scorer))[0].prompt == "2 + 2|It is 4|4|x|y|field"


def test_no_prediction_is_shown_as_an_empty_answer(make_batch):
    scorer = judge(prompt="[{{ prediction }}]")
    assert scorer.requests(make_batch([None]), metric_of(scorer))[0].prompt == "[]"


def test_system_prompt_and_turns_make_chat_messages(make_batch):
    batch = make_batch(["4"])
    with_system = judge(system_prompt="Grade {{ response }}")
    assert with_system.requests(batch, metric_of(with_system))[0].prompt == [
        {"role": "system", "content": "Grade 4"},
        {"role": "user", "content": "4?"},
    ]
    turns = judge(
        prompt=None,
        messages=[{"role": "user", "content": "{{ response }}"}, {"role": "assistant", "content": "Grade:"}],
    )
    assert [turn["content"] for turn in turns.requests(batch, metric_of(turns))[0].prompt] == ["4", "Grade:"]


def test_variable_that_the_sample_does_not_have_names_it_and_the_nearest(make_batch):
    scorer = judge(prompt="{{ respons }}")
    with pytest.raises(ScorerError, match=r"item 'item-0'.*'respons' is undefined; did you mean 'response'"):
        scorer.requests(make_batch(["4"]), metric_of(scorer))


def test_template_that_is_none_is_refused_at_load():
    with pytest.raises(ConfigError, match="grading prompt, line 1"):
        judge(prompt="{{ response")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prompt": None}, "prompt: or messages:"),
        ({"judges": []}, "at least 1"),
        ({"judges": ["a", "a"]}, "a name of its own"),
        ({"quorum": 2}, "quorum is 2 of 1 judges"),
        ({"repeats": 0}, "greater than or equal to 1"),
        ({"parse": {"type": "number", "max": math.inf}}, "finite number"),
        ({"parse": {"type": "number", "min": 10, "max": 1}}, "min must be below max"),
        ({"parse": {"type": "json", "min": 10, "max": 1}}, "min must be below max"),
        ({"parse": {"type": "regex", "pattern": "(x)", "min": math.nan}}, "finite number"),
        ({"parse": {"type": "choice", "choices": {"A": math.nan, "B": 0}}}, "finite number"),
        ({"parse": {"type": "choice", "choices": {" ": 1, "B": 0}}}, "a label that is empty"),
        ({"parse": {"type": "json", "choices": {}}}, "at least 1 item"),
        ({"parse": {"type": "regex", "pattern": "(x)"}, "pairwise": {"baseline": "b"}}, "min and max"),
        ({"sampl_params": {}}, "not permitted"),
        ({"calibration": [{"human": True}]}, "judge's verdict, or response"),
    ],
)
def test_judge_that_cannot_work_is_refused_at_load(config, message):
    with pytest.raises(ValueError, match=message):
        judge(**config)


def test_failed_samples_are_not_judged(make_batch):
    scorer = judge()
    batch = make_batch(["a", "b", "c"], failed=[1])
    assert [request.row for request in scorer.requests(batch, metric_of(scorer))] == [0, 2]
    scores = scorer.score(batch, metric_of(scorer), replies_of("YES", "NO"))
    np.testing.assert_array_equal(scores.scores.score, [1, np.nan, 0])
    assert scores.errors == [None, None, None]


def test_nonsense_in_a_tenth_of_the_replies_is_a_tenth_unscored_and_nothing_zero(make_batch):
    scorer, n = judge(), 200
    batch = make_batch([str(i) for i in range(n)])
    metric = metric_of(scorer)
    requests = scorer.requests(batch, metric)
    first = [ModelReply("I like turtles" if i % 10 == 3 else "YES") for i in range(n)]
    scores = scorer.score(batch, metric, first)
    assert scores.scored.sum() == 180
    assert np.nanmin(scores.scores.score) == 1
    assert all(bool(error) == (i % 10 == 3) for i, error in enumerate(scores.errors))
    again = ask_again(scorer, batch, metric, requests, first)
    assert [request.row for request in again if request] == [i for i in range(n) if i % 10 == 3]
    assert {(request.attempt, request.sample_index) for request in again if request} == {(1, 1)}
    second = [ModelReply("NO") if request else reply for request, reply in zip(again, first, strict=True)]
    assert scorer.score(batch, metric, second).scored.all()
    assert not any(ask_again(scorer, batch, metric, requests, second))


def test_failed_request_is_no_unreadable_reply(make_batch):
    scorer, batch = judge(), make_batch(["a", "b"])
    replies = [None, ModelReply(None, "HTTP 500")]
    assert scorer.unreadable(batch, metric_of(scorer), replies) == [False, False]
    scores = scorer.score(batch, metric_of(scorer), replies)
    assert not scores.scored.any()
    assert "the request failed" in scores.errors[0]
    assert "HTTP 500" in scores.errors[1]


def test_attempts_of_repeats_never_share_a_sample_index(make_batch):
    scorer = judge(repeats=3)
    batch = make_batch(["a"])
    requests = scorer.requests(batch, metric_of(scorer))
    assert [request.sample_index for request in requests] == [0, 1, 2]
    again = ask_again(scorer, batch, metric_of(scorer), requests, replies_of("?", "?", "?"))
    assert [request.sample_index for request in again] == [3, 4, 5]


def test_every_judge_and_repeat_is_asked_about_every_sample(make_batch):
    scorer = judge(judges=["a", {"name": "b", "type": "openai"}], repeats=2, sample_params={"temperature": 1})
    requests = scorer.requests(make_batch(["x", "y"]), metric_of(scorer))
    assert [(one.row, one.judge, one.repeat) for one in requests] == [
        (row, name, repeat) for row in (0, 1) for name in "ab" for repeat in (0, 1)
    ]
    assert requests[0].sampling == {"temperature": 1}


@pytest.mark.parametrize(
    ("combine", "texts", "score"),
    [
        ("mean", ["YES", "YES", "NO"], 2 / 3),
        ("majority", ["YES", "YES", "NO"], 1),
        ("majority", ["NO", "YES", "NO"], 0),
    ],
)
def test_verdicts_are_combined(make_batch, combine, texts, score):
    scorer = judge(judges=["a", "b", "c"], combine=combine)
    scores = scorer.score(make_batch(["x"]), metric_of(scorer), replies_of(*texts))
    assert scores.scores.score == pytest.approx([score])
    assert scores.scores.details[0]["verdicts"] == dict(
        zip("abc", [[float(t == "YES")] for t in texts], strict=True)
    )


def test_majority_without_one_is_the_mean_of_the_tied(make_batch):
    scorer = judge(judges=["a", "b"], combine="majority")
    assert scorer.score(
        make_batch(["x"]), metric_of(scorer), replies_of("YES", "NO")
    ).scores.score.tolist() == [0.5]


def test_one_unreadable_judge_leaves_the_sample_unscored_unless_a_quorum_is_set(make_batch):
    texts = replies_of("YES", "?", "NO")
    strict, lenient = judge(judges=["a", "b", "c"]), judge(judges=["a", "b", "c"], quorum=2)
    scores = strict.score(make_batch(["x"]), metric_of(strict), texts)
    assert scores.scored.tolist() == [False]
    assert "judge 'b', verdict 1 of 1" in scores.errors[0]
    assert lenient.score(make_batch(["x"]), metric_of(lenient), texts).scores.score.tolist() == [0.5]


def pairwise(**config):
    return judge(
        prompt="A: {{ answer_a }} B: {{ answer_b }}",
        parse={"type": "choice", "choices": {"A": 1, "B": 0, "tie": 0.5}},
        pairwise={"baseline": "{{ base }}", **config},
    )


def test_pairwise_grading_asks_in_both_orders(make_batch):
    scorer = pairwise()
    batch = make_batch(["mine"], docs=[{"base": "theirs"}])
    requests = scorer.requests(batch, metric_of(scorer))
    assert [(one.prompt, one.swapped) for one in requests] == [
        ("A: mine B: theirs", False),
        ("A: theirs B: mine", True),
    ]


@pytest.mark.parametrize(
    ("texts", "score"),
    [
        (["A", "B"], 1),
        (["B", "A"], 0),
        (["A", "A"], 0.5),
        (["B", "B"], 0.5),
        (["tie", "tie"], 0.5),
        (["A", "tie"], 0.75),
    ],
)
def test_verdict_that_follows_the_place_says_nothing(make_batch, texts, score):
    scorer = pairwise()
    scores = scorer.score(make_batch(["m"], docs=[{"base": "t"}]), metric_of(scorer), replies_of(*texts))
    assert scores.scores.score.tolist() == [score]


def test_pair_with_one_unreadable_order_is_unscored(make_batch):
    scorer = pairwise()
    scores = scorer.score(make_batch(["m"], docs=[{"base": "t"}]), metric_of(scorer), replies_of("A", "?"))
    assert scores.scored.tolist() == [False]


def test_pairwise_grading_without_swap_asks_once(make_batch):
    scorer = pairwise(swap=False)
    assert len(scorer.requests(make_batch(["m"], docs=[{"base": "t"}]), metric_of(scorer))) == 1


def test_another_number_of_replies_than_requests_is_an_error(make_batch):
    scorer = judge()
    with pytest.raises(ScorerError, match="1 replies of judges for 2 requests"):
        scorer.score(make_batch(["a", "b"]), metric_of(scorer), replies_of("YES"))


def test_agreement_of_several_judges_is_reported_with_an_error_bar(make_batch):
    scorer = judge(judges=["a", "b"])
    metric = metric_of(scorer, "llm_judge_agreement")
    batch = make_batch([str(i) for i in range(6)])
    texts = ["YES", "YES", "NO", "NO", "YES", "NO", "NO", "NO", "?", "YES", "YES", "YES"]
    assert list(scorer.requests(batch, metric)) == list(scorer.requests(batch, metric_of(scorer)))
    scores = scorer.score(batch, metric, replies_of(*texts))
    assert scores.scored.tolist() == [True, True, True, True, False, True]
    kept = [value for value in scores.scores.values if value is not None]
    # Observed disagreement 2, expected 2 · 5 · 5 / 9 over the ten grades of five units.
    assert metric.aggregation.value(None, kept) == pytest.approx(1 - 2 / (50 / 9))
    result = estimate_of(metric.aggregation, None, kept, None, StatisticsConfig())
    assert result.stderr > 0


def test_one_judge_once_has_nothing_to_agree_with():
    assert [metric.name for metric in judge().get_metrics("none")] == ["llm_judge"]


ROWS = [{"human": i < 10, "judge": i < 9 or i == 12} for i in range(20)]


def test_calibration_gives_the_corrected_rate_with_an_interval(make_batch):
    scorer = judge(calibration=ROWS)
    metric = metric_of(scorer, "llm_judge_corrected")
    texts = ["YES"] * 7 + ["NO"] * 3
    scores = scorer.score(make_batch([str(i) for i in range(10)]), metric, replies_of(*texts))
    assert scores.scores.score.sum() == 7
    table = scores.scores.statistics
    assert metric.aggregation.value(table, None) == pytest.approx((0.7 + 0.9 - 1) / 0.8)
    estimate = scorer.estimate(metric, table, None, StatisticsConfig())
    assert estimate.value == pytest.approx(0.75)
    assert estimate.ci_low < 0.75 < estimate.ci_high
    assert scorer.estimate(metric_of(scorer), table, None, StatisticsConfig()) is None
    assert np.isnan(scorer.estimate(metric, table, None, StatisticsConfig(bootstrap_iters=0)).stderr)


def test_another_calibration_is_another_argument():
    one, two = judge(calibration=ROWS), judge(calibration=[*ROWS, {"human": True, "judge": False}])
    assert metric_of(one, "llm_judge_corrected").arguments != metric_of(two, "llm_judge_corrected").arguments


def test_calibration_that_is_still_to_be_judged_goes_through_the_same_judge():
    rows = [{"human": True, "response": "yes", "q": "1"}, {"human": False, "response": "no", "q": "2"}]
    scorer = judge(prompt="{{ q }}: {{ response }}", calibration=rows * 12)
    batch = scorer.calibration_batch()
    requests = scorer.requests(batch, metric_of(scorer))
    assert [request.prompt for request in requests[:2]] == ["1: yes", "2: no"]
    judged = scorer.score(batch, metric_of(scorer), replies_of(*["YES", "NO"] * 10, "YES", "YES", "?", "NO"))
    calibrated = scorer.calibrated(judged)
    assert (calibrated.calibration.sensitivity, calibrated.calibration.specificity) == (1.0, 11 / 12)
    assert metric_of(calibrated, "llm_judge_corrected").aggregation.value(np.ones((4, 1)), None) == 1.0
    assert np.isnan(metric_of(scorer, "llm_judge_corrected").aggregation.value(np.ones((4, 1)), None))


def test_corrected_rate_without_its_calibration_is_an_error_and_no_number(make_batch):
    scorer = judge(calibration="calibration.jsonl")
    with pytest.raises(ScorerError, match="its rows are not read"):
        scorer.score(make_batch(["x"]), metric_of(scorer, "llm_judge_corrected"), replies_of("YES"))


def test_calibration_file_is_put_in_place_of_its_name():
    config = JudgeConfig(prompt="p", judges=["j"], parse=CHOICE, calibration="people.jsonl")
    rows = config.with_calibration(
        [{"human": 1, "judge": 0}, {"human": False, "response": "x", "q": "2"}]
    ).calibration
    assert [(row.human, row.judge, row.response) for row in rows] == [(True, False, None), (False, None, "x")]
    assert rows[1].model_extra == {"q": "2"}


@pytest.mark.parametrize(
    ("row", "message"),
    [({"human": "?"}, "human"), ({}, "human: Field required"), ({"human": 1}, "needs judge")],
)
def test_calibration_row_that_is_none_is_named(row, message):
    config = JudgeConfig(prompt="p", judges=["j"], parse=CHOICE, calibration="people.jsonl")
    with pytest.raises(ConfigError, match=rf"people.jsonl, row 2: .*{message}"):
        config.with_calibration([{"human": True, "judge": True}, row])


@pytest.mark.parametrize("metric", ["llm_judge", "llm_judge_agreement"])
def test_argument_that_a_judges_metric_does_not_take_is_refused(metric):
    with pytest.raises(ConfigError, match=f"metric '{metric}' takes no argument 'levl'"):
        judge(metric_list=[{"metric": metric, "levl": "interval"}], judges=["a", "b"])


def test_calibration_with_some_verdicts_missing_is_refused():
    with pytest.raises(ConfigError, match="1 of 2 rows have a verdict"):
        judge(calibration=[{"human": True, "judge": True}, {"human": False, "response": "x"}])


def test_judge_of_log_likelihoods_is_refused():
    config = {"type": "llm_judge", "prompt": "p", "judges": ["j"], "parse": CHOICE}
    with pytest.raises(ConfigError, match="looks at text, and output_type is multiple_choice"):
        build_scorer(ScoringConfig.model_validate({"scorer": config, "output_type": "multiple_choice"}), None)


def test_the_calibration_names_its_method():
    scorer = judge(calibration={"rows": ROWS, "method": "ppi"})
    assert (scorer.config.calibration_method, len(scorer.config.calibration)) == ("ppi", len(ROWS))
    metric = metric_of(scorer, "llm_judge_corrected")
    made = scorer.estimate(metric, np.ones((30, 1)), None, StatisticsConfig())
    assert made.stderr_method == "prediction-powered inference"
    with pytest.raises(ValidationError, match="calibration takes path"):
        judge(calibration={"rows": ROWS, "manner": "ppi"})
