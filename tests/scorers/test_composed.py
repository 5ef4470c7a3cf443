"""Reward models, ensembles, agreement across filters, and users' classes."""

from dataclasses import replace

import numpy as np
import pytest

from metrics.errors import ConfigError
from metrics.types import Answer
from scorers.base import ModelReply, Scorer, ScorerError, ScorerRequest
from scorers.config import ScoringConfig
from scorers.factory import build_scorer


def scorer_of(scorer, resolve=None, **config):
    return build_scorer(ScoringConfig.model_validate({"scorer": scorer, **config}), resolve)


def metric_of(scorer, name, filter_name="none"):
    return next(metric for metric in scorer.get_metrics(filter_name) if metric.name == name)


def reward(function, **config):
    return scorer_of({"type": "reward_model", "function": "r.py:fn"}, lambda _: function, **config)


def test_reward_stands_beside_the_benchmarks_metrics(make_batch):
    scorer = reward(lambda responses, docs: [0.5] * len(responses), metric_list=["exact_match"])
    assert [metric.name for metric in scorer.get_metrics("none")] == ["exact_match", "reward"]
    batch = make_batch(["4"], [["4"]])
    assert scorer.score(batch, metric_of(scorer, "exact_match")).scores.score.tolist() == [1]
    assert scorer.score(batch, metric_of(scorer, "reward")).scores.score.tolist() == [0.5]


def test_reward_function_sees_unfiltered_responses_of_answered_samples(make_batch):
    seen = []

    def fn(responses, docs):
        seen.append((responses, docs))
        return [1.0] * len(responses)

    scorer = reward(fn)
    batch = make_batch(["a", "b"], docs=[{"q": 1}, {"q": 2}], failed=[0], responses=["A!", "B!"])
    np.testing.assert_array_equal(scorer.score(batch, metric_of(scorer, "reward")).scores.score, [np.nan, 1])
    assert seen == [(["B!"], [{"q": 2}])]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda responses, docs: [1.0], "returned 1 numbers for 2 responses"),
        (lambda responses, docs: ["x", "y"], "item 'item-0'.*'x', not a number"),
        (lambda responses, docs: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_reward_function_that_fails_is_named(make_batch, function, message):
    scorer = reward(function)
    with pytest.raises(ScorerError, match=message):
        scorer.score(make_batch(["a", "b"]), metric_of(scorer, "reward"))


def test_reward_of_none_is_unscored(make_batch):
    scorer = reward(lambda responses, docs: [None, 1])
    scores = scorer.score(make_batch(["a", "b"]), metric_of(scorer, "reward"))
    assert scores.scored.tolist() == [False, True]
    assert scores.errors == ["the reward model gave no number", None]


def test_reward_endpoint_is_asked_and_its_number_read(make_batch):
    scorer = scorer_of(
        {"type": "reward_model", "model": "rm", "prompt": "Rate {{ response }} to {{ question }}"}
    )
    metric = metric_of(scorer, "reward")
    batch = make_batch(["a", "b", "c"], docs=[{"question": "Q"}] * 3, failed=[0])
    requests = scorer.requests(batch, metric)
    assert [(one.row, one.judge, one.prompt) for one in requests] == [
        (1, "rm", "Rate b to Q"),
        (2, "rm", "Rate c to Q"),
    ]
    assert scorer.needs(metric) == "reward"
    replies = [ModelReply("0.75"), ModelReply("n/a")]
    scores = scorer.score(batch, metric, replies)
    np.testing.assert_array_equal(scores.scores.score, [np.nan, 0.75, np.nan])
    assert "no number" in scores.errors[2]
    assert scorer.unreadable(batch, metric, replies) == [False, True]


def test_reward_model_is_either_a_function_or_an_endpoint():
    with pytest.raises(ValueError, match="one of the two"):
        scorer_of({"type": "reward_model"})


def test_reward_keyword_that_the_function_does_not_take_is_refused():
    with pytest.raises(ConfigError, match="no argument 'temprature'; did you mean 'temperature'"):
        scorer_of(
            {"type": "reward_model", "function": "r.py:fn", "params": {"temprature": 1}},
            lambda _: lambda responses, docs, temperature=0: [],
        )


def test_ensemble_weighs_its_members_and_keeps_their_numbers(make_batch):
    scorer = scorer_of(
        {
            "type": "ensemble",
            "members": [{"metric": "exact_match", "weight": 1}, {"metric": "rouge1", "weight": 3}],
        }
    )
    metric = metric_of(scorer, "ensemble")
    scores = scorer.score(make_batch(["a b", "a c"], [["a b"], ["a b"]]), metric)
    assert scores.scores.score == pytest.approx([(1 + 3 * 100) / 4, (0 + 3 * 50) / 4])
    assert scores.scores.details[1] == {"exact_match": 0.0, "rouge1": pytest.approx(50)}


def test_ensemble_stands_beside_the_metrics_of_each_filter(make_batch):
    scorer = scorer_of(
        {"type": "ensemble", "members": [{"metric": "exact_match"}]},
        filter_list=[
            {"name": "a", "metric_list": ["rouge1", {"metric": "ensemble", "alias": "mix"}]},
            {"name": "b"},
        ],
        metric_list=["exact_match"],
    )
    assert [metric.name for metric in scorer.get_metrics("a")] == ["rouge1", "mix"]
    assert [metric.name for metric in scorer.get_metrics("b")] == ["exact_match", "ensemble"]
    batch = make_batch(["x"], [["x"]])
    assert scorer.score(batch, metric_of(scorer, "mix", "a")).scores.score.tolist() == [1]
    assert scorer.score(batch, metric_of(scorer, "exact_match", "b")).scores.score.tolist() == [1]
    assert (
        scorer.needs(metric_of(scorer, "rouge1", "a")),
        list(scorer.requests(batch, metric_of(scorer, "rouge1", "a"))),
    ) == (None, [])


def test_ensemble_of_log_likelihood_metrics(make_batch):
    scorer = scorer_of(
        {"type": "ensemble", "members": [{"metric": "acc"}, {"metric": "acc_norm", "weight": 3}]},
        output_type="multiple_choice",
    )
    batch = make_batch(lls=[[-1.5, -2]], gold=[[0]], choices=[["a", "bb"]])
    assert scorer.score(batch, metric_of(scorer, "ensemble")).scores.score.tolist() == [0.25]


def test_ensemble_without_normalisation_is_a_sum(make_batch):
    scorer = scorer_of(
        {"type": "ensemble", "normalize": False, "members": [{"metric": "exact_match", "weight": 2}] * 2}
    )
    scores = scorer.score(make_batch(["a"], [["a"]]), metric_of(scorer, "ensemble"))
    assert scores.scores.score.tolist() == [4]
    assert set(scores.scores.details[0]) == {"exact_match[0]", "exact_match[1]"}


def test_ensemble_is_unscored_where_one_member_is(make_batch):
    scorer = scorer_of(
        {
            "type": "ensemble",
            "members": [
                {"metric": "exact_match"},
                {"scorer": {"type": "reward_model", "function": "r.py:fn"}},
            ],
        },
        lambda _: lambda responses, docs: [None, 1.0],
    )
    scores = scorer.score(make_batch(["a", "b"], [["a"], ["b"]]), metric_of(scorer, "ensemble"))
    assert scores.scored.tolist() == [False, True]
    assert scores.errors[0] == "reward: the reward model gave no number"


def test_ensemble_shares_replies_out_to_the_members_that_asked(make_batch):
    judge = {"type": "llm_judge", "prompt": "{{ response }}?", "judges": ["j"], "parse": {"type": "number"}}
    scorer = scorer_of(
        {
            "type": "ensemble",
            "members": [
                {"scorer": {"type": "reward_model", "model": "rm"}},
                {"metric": "exact_match"},
                {"scorer": judge},
            ],
        }
    )
    metric, batch = metric_of(scorer, "ensemble"), make_batch(["a", "b"], [["a"], ["x"]])
    assert [one.judge for one in scorer.requests(batch, metric)] == ["rm", "rm", "j", "j"]
    assert scorer.needs(metric) == "ensemble"
    replies = [ModelReply("1"), ModelReply("2"), ModelReply("4"), ModelReply("?")]
    assert scorer.unreadable(batch, metric, replies) == [False, False, False, True]
    scores = scorer.score(batch, metric, replies)
    np.testing.assert_allclose(scores.scores.score, [2.0, np.nan])
    with pytest.raises(ScorerError, match="3 replies for the 4 requests"):
        scorer.score(batch, metric, replies[:3])


def ensemble(*members, **config):
    return scorer_of({"type": "ensemble", "members": members}, **config)


JUDGE = {"type": "llm_judge", "prompt": "{{ response }}?", "judges": ["j"], "parse": {"type": "number"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({**JUDGE, "judges": {"name": "j", "type": "demo"}}, JUDGE),
        (
            {"type": "reward_model", "model": {"type": "openai", "config": {"model": "a"}}},
            {"type": "ensemble", "members": [{"scorer": {"type": "reward_model", "model": "reward"}}]},
        ),
    ],
)
def test_ensemble_of_different_models_under_one_name_is_refused(one, other):
    with pytest.raises(ValueError, match=r"different models named '(j|reward)'"):
        ensemble({"scorer": one}, {"scorer": other})
    ensemble({"scorer": one}, {"scorer": one})


def test_ensemble_sees_calls_where_a_member_does(make_batch):
    scorer = ensemble({"metric": "tool_use_rate"}, {"scorer": JUDGE}, metric_list=["exact_match"])
    metric = metric_of(scorer, "ensemble")
    assert scorer.takes_answer(metric)
    assert not scorer.takes_answer(metric_of(scorer, "exact_match"))
    assert not ensemble({"metric": "exact_match"}).takes_answer(metric)
    call = Answer(None, [{"name": "tip", "arguments": {}}], [], [])
    batch = replace(make_batch(["a", "b"]), answers=[call, Answer("b", [], [], [])])
    scores = scorer.score(batch, metric, [ModelReply("3"), ModelReply("3")])
    assert scores.scores.score.tolist() == [2, 1.5]


@pytest.mark.parametrize(
    "config", [{}, {"scorer": {"type": "ensemble", "members": [{"metric": "tool_match"}]}}]
)
def test_answers_vote_by_their_calls_where_the_metric_looks_at_them(make_batch, config):
    def answer(text, *cities):
        return Answer(text, [{"name": "weather", "arguments": {"city": city}} for city in cities], [], [])

    answers = [
        answer("", "Rome"),
        answer("", "Oslo"),
        answer("", "Oslo"),
        answer(""),
        answer("", "Oslo", "Rome"),
    ]
    reference = [{"name": "weather", "arguments": {"city": "Rome"}}]
    batch = replace(make_batch([""] * 5, [reference] * 5), answers=answers)
    scorer = build_scorer(ScoringConfig.model_validate({"metric_list": ["tool_match"], **config}), None)
    for metric in scorer.get_metrics("none"):
        scored = scorer.score(batch, metric)
        assert scored.scores.score.tolist() == [1, 0, 0, 0, 0]
        codes = scored.codes.tolist()
        assert codes[1] == codes[2]
        assert len(set(codes)) == 4


def test_ensemble_is_better_when_lower_where_its_members_are():
    listed = {"metric": "ensemble", "reduction": ["max"]}
    for config in ({}, {"metric_list": [listed]}):
        scorer = ensemble({"metric": "ter"}, {"metric": "refusal"}, **config)
        assert not metric_of(scorer, "ensemble").higher_is_better
    assert metric_of(ensemble({"metric": "exact_match"}), "ensemble").higher_is_better
    assert metric_of(  # log-likelihoods are better when higher, and the perplexity of them when lower
        ensemble({"metric": "perplexity"}, output_type="loglikelihood"), "ensemble"
    ).higher_is_better


def test_range_of_an_ensemble_is_that_of_its_members_by_their_weights():
    right, overlap = {"metric": "exact_match"}, {"metric": "rouge1", "weight": 3}
    unknown = {"scorer": {"type": "reward_model", "model": "rm"}}

    def bounds(*members, **more):
        scorer = scorer_of({"type": "ensemble", "members": members, **more})
        return metric_of(scorer, "ensemble").aggregation.bounds

    assert bounds(right, overlap) == (0, (1 + 3 * 100) / 4)
    assert bounds(right, overlap, normalize=False) == (0, 301)
    assert bounds({"scorer": JUDGE}, right) == (0, 5.5)
    assert bounds(right, unknown) == (-np.inf, np.inf)
    assert bounds({"metric": "ter"}) == (-np.inf, np.inf)  # a corpus's, and not that of each answer


def test_ensemble_of_members_of_both_directions_is_refused():
    with pytest.raises(ConfigError, match="'exact_match' is better when higher, and 'ter' when lower"):
        ensemble({"metric": "exact_match"}, {"metric": "ter"})
    ensemble({"metric": "exact_match"}, {"metric": {"metric": "ter", "higher_is_better": True}})


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ({**JUDGE, "calibration": "people.jsonl"}, "leave calibration out"),
        ({"type": "execution"}, "programs are run for"),
        ({"type": "agreement"}, "a member sees one"),
        ({"type": "arena", "judges": "j", "prompt": "{{ answer_a }}"}, "compares models"),
    ],
)
def test_ensemble_takes_no_member_that_needs_more_than_an_answer(member, said):
    with pytest.raises(ConfigError, match=f"ensemble member 0: .*{said}"):
        ensemble({"scorer": member}, filter_list=[{"name": "a"}, {"name": "b"}])


def agreement(**config):
    return scorer_of("agreement", filter_list=[{"name": "a"}, {"name": "b"}], **config)


def test_agreement_stands_beside_the_metrics_of_each_filter(make_batch):
    scorer = agreement(metric_list=["exact_match"])
    assert [metric.name for metric in scorer.get_metrics("*")] == ["filter_agreement"]
    assert [metric.name for metric in scorer.get_metrics("a")] == ["exact_match"]
    scores = scorer.score(make_batch(["4"], [["4"]]), scorer.get_metrics("a")[0])
    assert scores.scores.score.tolist() == [1]


def test_agreement_may_be_listed_for_an_alias():
    listed = ["exact_match", {"metric": "filter_agreement", "alias": "fa"}]
    for scorer in (
        agreement(metric_list=listed),
        # What a benchmark's own list becomes once it is each filter's.
        scorer_of("agreement", filter_list=[{"name": name, "metric_list": listed} for name in "ab"]),
    ):
        assert [metric.name for metric in scorer.get_metrics("*")] == ["fa"]
        assert [metric.name for metric in scorer.get_metrics("a")] == ["exact_match"]


def test_agreement_joins_samples_and_leaves_lonely_ones_unscored(make_batch):
    scorer = agreement()
    a = make_batch(["x", "y", "z"], item_ids=["1", "1", "2"], sample_index=[0, 1, 0], failed=[2])
    b = make_batch(["x", "z"], item_ids=["1", "2"], sample_index=[0, 0])
    batch = scorer.combine({"a": a, "b": b})
    assert list(zip(batch.item_ids, batch.sample_index.tolist(), strict=True)) == [
        ("1", 0),
        ("1", 1),
        ("2", 0),
    ]
    scores = scorer.score(batch, scorer.get_metrics("*")[0])
    np.testing.assert_array_equal(scores.scores.score, [1, np.nan, np.nan])
    assert scores.errors == [None, "only one filter kept this sample", None]


def test_agreement_of_one_filter_is_refused():
    with pytest.raises(ConfigError, match="compares filters and has 1"):
        scorer_of("agreement")
    with pytest.raises(ConfigError, match=r"compares filters and has 1 \(a\)"):
        scorer_of({"type": "agreement", "filters": ["a", "a"]}, filter_list=[{"name": "a"}, {"name": "b"}])


def test_agreement_over_a_filter_that_is_not_there_names_the_nearest():
    with pytest.raises(ConfigError, match="'strct' is not there; did you mean 'strict'"):
        scorer_of(
            {"type": "agreement", "filters": ["strct", "b"]}, filter_list=[{"name": "strict"}, {"name": "b"}]
        )


class Users:
    """What the tests below resolve ``u.py:…`` to."""

    class Plain:
        def score(self, batch):
            return [1.0, None]

    class Several:
        def get_metrics(self, filter_name):
            return ["a", {"metric": "b", "aggregation": "median"}]

        def score(self, batch, metric):
            return {"a": [1, 2], "b": [3, 4]}

    class Asking:
        def requests(self, batch):
            return [
                ScorerRequest(row, "helper", 0, f"Rate {text}") for row, text in enumerate(batch.predictions)
            ]

        def score(self, batch, replies):
            return [None if reply is None else len(reply.text) for reply in replies]

    class Short:
        def score(self, batch):
            return [1]

    class Wrong:
        def score(self, batch):
            return {"b": [1, 2]}

        def requests(self, batch):
            return ["not a request"]

    class Broken:
        def score(self, batch):
            raise KeyError("gone")

    class Nothing:
        pass


def user(name, **config):
    return scorer_of({"type": f"u.py:{name}"}, lambda reference: getattr(Users, reference[5:]), **config)


def test_users_scorer_gives_a_number_per_sample(make_batch):
    scorer = user("Plain")
    scores = scorer.score(make_batch(["a", "b"]), metric_of(scorer, "score"))
    assert scores.scored.tolist() == [True, False]
    assert scores.errors == [None, "scorer 'u.py:Plain' gave no number"]


def test_users_scorer_may_name_its_metrics_and_their_aggregations(make_batch):
    scorer = user("Several")
    assert [(m.name, m.aggregation.name) for m in scorer.get_metrics("none")] == [
        ("a", "mean"),
        ("b", "median"),
    ]
    assert scorer.score(make_batch(["a", "b"]), metric_of(scorer, "b")).scores.score.tolist() == [3, 4]


def test_users_scorer_may_ask_a_model_first(make_batch):
    scorer, batch = user("Asking"), make_batch(["a", "b"])
    metric = metric_of(scorer, "score")
    assert [one.prompt for one in scorer.requests(batch, metric)] == ["Rate a", "Rate b"]
    assert scorer.needs(metric)
    assert scorer.score(batch, metric, [ModelReply("abc"), None]).scored.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Short", "returned 1 numbers for 2 samples"),
        ("Wrong", r"returned no 'score' \(it returned 'b'\)"),
        ("Broken", "raised KeyError"),
    ],
)
def test_users_scorer_that_does_not_fit_is_named(make_batch, name, message):
    scorer = user(name)
    with pytest.raises(ScorerError, match=message):
        scorer.score(make_batch(["a", "b"]), metric_of(scorer, "score"))


def test_users_requests_that_are_none_are_named(make_batch):
    scorer = user("Wrong")
    with pytest.raises(ScorerError, match="returned str, not ScorerRequest"):
        scorer.requests(make_batch(["a"]), metric_of(scorer, "score"))


def test_class_without_score_is_refused():
    with pytest.raises(ConfigError, match=r"has no method score\(batch\)"):
        user("Nothing")


@pytest.mark.parametrize(
    "scorer",
    [
        "generation",
        {"type": "reward_model", "model": "m"},
        {"type": "llm_judge", "prompt": "p", "judges": ["j"], "parse": {"type": "number"}},
        {"type": "ensemble", "members": [{"metric": "exact_match"}]},
        "agreement",
        {"type": "u.py:Plain"},
    ],
)
def test_every_scorer_keeps_the_protocol(scorer):
    built = scorer_of(scorer, lambda _: Users.Plain, filter_list=[{"name": "a"}, {"name": "b"}])
    assert isinstance(built, Scorer)
    assert all(map(callable, built.code()))
