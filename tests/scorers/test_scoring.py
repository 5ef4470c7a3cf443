"""Generated text and log-likelihoods: rows keep their places, failures stay unscored, errors name their
item."""

import numpy as np
import pytest

from metrics.errors import ConfigError
from scorers.base import ScorerError, prediction_codes
from scorers.config import ScoringConfig
from scorers.factory import build_pipelines, build_scorer
from scorers.generation import GenerationScorer
from scorers.loglikelihood import LoglikelihoodScorer
from scorers.process_results import ProcessResultsScorer


def scorer_of(resolve=None, **config):
    return build_scorer(ScoringConfig.model_validate(config), resolve)


def names(scorer, filter_name="none"):
    return [metric.name for metric in scorer.get_metrics(filter_name)]


def test_failed_request_is_unscored_and_never_looked_at(make_batch):
    def metric(references, predictions):
        assert predictions != ["boom"]
        return float(predictions[0] == references[0])

    scorer = scorer_of(lambda _: metric, metric_list=[{"metric": "m.py:metric"}])
    batch = make_batch(["a", "boom", "b"], [["a"], ["x"], ["a"]], failed=[1])
    scores = scorer.score(batch, scorer.get_metrics("none")[0])
    np.testing.assert_array_equal(scores.scores.score, [1, np.nan, 0])
    np.testing.assert_array_equal(scores.scores.statistics[:, 0], [1, np.nan, 0])
    assert scores.scored.tolist() == [True, False, True]
    assert scores.codes[1] == -1


def test_no_prediction_is_wrong_and_scored(make_batch):
    scorer = scorer_of(metric_list=["exact_match"])
    scores = scorer.score(make_batch([None], [["4"]]), scorer.get_metrics("none")[0])
    assert scores.scores.score.tolist() == [0.0]
    assert scores.scored.tolist() == [True]
    assert scores.codes.tolist() == [-1]


def test_metric_that_raises_names_the_item_and_not_the_row_of_a_subset(make_batch):
    def metric(references, predictions):
        return 1 / len(predictions[0])

    scorer = scorer_of(lambda _: metric, metric_list=["m.py:metric"])
    batch = make_batch(["a", "b", ""], failed=[0], item_ids=["one", "two", "three"], sample_index=[0, 0, 3])
    with pytest.raises(ScorerError, match=r"item 'three' \(sample 3\).*ZeroDivisionError"):
        scorer.score(batch, scorer.get_metrics("none")[0])


def test_dictionary_of_a_metric_keeps_its_rest_as_details(make_batch):
    scorer = scorer_of(
        lambda _: lambda references, predictions: {"m": 0.5, "why": "so"},
        metric_list=[{"metric": "m", "function": "x.py:m"}],
    )
    scores = scorer.score(make_batch(["a", "b"], failed=[0]), scorer.get_metrics("none")[0])
    assert scores.scores.details == [None, {"why": "so"}]


def test_batch_without_a_scored_row_has_no_scores(make_batch):
    scorer = scorer_of(metric_list=["exact_match"])
    scores = scorer.score(make_batch(["a", "b"], failed=[0, 1]), scorer.get_metrics("none")[0])
    assert np.isnan(scores.scores.score).all()
    assert not scores.scored.any()


def test_failed_item_does_not_shift_the_log_likelihoods_of_others(make_batch):
    scorer = scorer_of(output_type="multiple_choice", metric_list=["acc"])
    batch = make_batch(
        lls=[[-1, -2], [], [-2, -1, -3]],
        gold=[[0], [0], [1]],
        choices=[["a", "b"], [], ["c", "d", "e"]],
        failed=[1],
    )
    scores = scorer.score(batch, scorer.get_metrics("none")[0])
    np.testing.assert_array_equal(scores.scores.score, [1, np.nan, 1])
    assert scores.codes.tolist() == [0, -1, 1]


def test_users_text_metric_sees_the_index_of_the_chosen_choice(make_batch):
    seen = []

    def metric(references, predictions):
        seen.append((references, predictions))
        return float(predictions[0] in references)

    scorer = scorer_of(lambda _: metric, output_type="multiple_choice", metric_list=["m.py:metric"])
    scores = scorer.score(
        make_batch(lls=[[-2, -1], [-1, -2]], gold=[[1], [1]], choices=[["a", "b"], ["c", "d"]]),
        scorer.get_metrics("none")[0],
    )
    assert scores.scores.score.tolist() == [1, 0]
    assert seen == [([1], [1]), ([1], [0])]


def test_users_text_metric_may_see_the_log_likelihoods_as_result(make_batch):
    def metric(references, predictions, result):
        return result.lls[result.targets[0]]

    scorer = scorer_of(lambda _: metric, output_type="multiple_choice", metric_list=["m.py:metric"])
    scores = scorer.score(
        make_batch(
            lls=[[-2, -1], [], [-1, -3]],
            gold=[[1], [0], [1]],
            choices=[["a", "b"], [], ["c", "d"]],
            failed=[1],
        ),
        scorer.get_metrics("none")[0],
    )
    np.testing.assert_array_equal(scores.scores.score, [-1, np.nan, -3])


def test_log_likelihood_metric_without_log_likelihoods_says_so(make_batch):
    scorer = scorer_of(output_type="multiple_choice")
    with pytest.raises(ScorerError, match="needs log-likelihoods"):
        scorer.score(make_batch(["a"]), scorer.get_metrics("none")[0])


@pytest.mark.parametrize(
    ("output_type", "kind", "default"),
    [
        ("generate_until", GenerationScorer, ["exact_match"]),
        ("multiple_choice", LoglikelihoodScorer, ["acc", "acc_norm"]),
        ("loglikelihood", LoglikelihoodScorer, ["perplexity", "acc"]),
        (
            "loglikelihood_rolling",
            LoglikelihoodScorer,
            ["word_perplexity", "byte_perplexity", "bits_per_byte"],
        ),
    ],
)
def test_output_type_chooses_the_scorer_and_its_default_metrics(output_type, kind, default):
    scorer = scorer_of(output_type=output_type)
    assert type(scorer) is kind
    assert names(scorer) == default


def test_empty_metric_list_is_no_metric():
    assert names(scorer_of(metric_list=[])) == []


def test_filters_own_list_wins_over_the_benchmarks():
    scorer = scorer_of(
        metric_list=["exact_match"],
        filter_list=[{"name": "a", "metric_list": ["bleu", "rouge1"]}, {"name": "b"}],
    )
    assert names(scorer, "a") == ["bleu", "rouge1"]
    assert names(scorer, "b") == ["exact_match"]
    assert names(scorer, "c") == []


def test_process_results_wins_over_the_output_type_and_an_explicit_scorer_over_both():
    config = {"process_results": "u.py:fn", "metric_list": ["exact_match"]}
    assert type(scorer_of(lambda _: lambda doc, results: {}, **config)) is ProcessResultsScorer
    assert (
        type(scorer_of(lambda _: lambda doc, results: {}, scorer="generation", **config)) is GenerationScorer
    )


def test_metrics_that_differ_in_one_argument_have_two_names():
    scorer = scorer_of(metric_list=["exact_match", {"metric": "exact_match", "ignore_case": True}])
    assert len(set(names(scorer))) == 2
    assert "exact_match" in names(scorer)[0]
    assert "ignore_case" in names(scorer)[1]


def test_name_made_of_arguments_holds_no_comma():
    ignoring = {"metric": "exact_match", "regexes_to_ignore": [",", "x"]}
    first, second = names(scorer_of(metric_list=["exact_match", ignoring]))
    assert first == "exact_match"
    assert second.startswith("exact_match[regexes_to_ignore=")
    assert "," not in second


def test_alias_tells_metrics_apart():
    scorer = scorer_of(
        metric_list=["exact_match", {"metric": "exact_match", "ignore_case": True, "alias": "em_ic"}]
    )
    assert names(scorer) == ["exact_match", "em_ic"]


@pytest.mark.parametrize(
    "metric_list",
    [
        ["exact_match", "exact_match"],
        [{"metric": "exact_match", "alias": "a"}, {"metric": "bleu", "alias": "a"}],
        [{"metric": "exact_match", "alias": "bleu"}, "bleu"],
        [
            {"metric": "exact_match", "alias": "max(exact_match)"},
            {"metric": "exact_match", "reduction": "max"},
        ],
        [{"metric": "exact_match", "alias": "bleu_stderr"}, "bleu"],
        [{"metric": "exact_match", "ignore_case": True}, {"metric": "exact_match", "ignore_case": True}],
    ],
)
def test_result_that_would_overwrite_another_is_refused(metric_list):
    with pytest.raises(ConfigError, match=r"filter .none.: (metric .* twice|.*choose another)"):
        scorer_of(metric_list=metric_list)


def test_the_signature_of_a_scorer_class_names_it_and_its_arguments(resolve):
    def signature(**config):
        (metric,) = scorer_of(resolve, metric_list=["exact_match"], **config).get_metrics("none")
        return metric.signature()

    assert signature() == signature(scorer="generation") == "exact_match|agg:mean|version:2"
    own = signature(scorer={"type": "user_code.py:LengthScorer", "scale": 2})
    assert own == "exact_match|agg:mean|scale:2|scorer:LengthScorer|version:2"


def test_two_filters_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="filter 'a' is listed twice"):
        scorer_of(filter_list=[{"name": "a"}, {"name": "a"}])


def test_filter_may_not_be_called_as_all_of_them_are():
    with pytest.raises(ConfigError, match="stands for all filters"):
        scorer_of(filter_list=[{"name": "*"}])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"metric_list": ["exactmatch"]}, "did you mean 'exact_match'"),
        ({"metric_list": [{"metric": "exact_match", "ignore_cas": True}]}, "did you mean 'ignore_case'"),
        ({"metric_list": ["acc"]}, r"made for .*not for generate_until"),
        ({"scorer": "loglikelihood"}, "not made for output_type generate_until"),
        ({"scorer": "process_results"}, "needs process_results: file.py:fn"),
        ({"metric_list": [{"metric": "exact_match", "alias": "a,b"}]}, "'a,b' can't hold a comma"),
        ({"metric_list": ["llm_judge"]}, "comes from a scorer; add scorer: {type: llm_judge"),
        ({"metric_list": ["filter_agreement"]}, "add scorer: {type: agreement"),
    ],
)
def test_scoring_that_cannot_work_is_refused_at_load(config, message):
    with pytest.raises(ConfigError, match=message):
        scorer_of(**config)


@pytest.mark.parametrize("bad", ["llm_judg", {"type": "reward"}, {"type": "generation", "extra": 1}])
def test_unknown_scorer_type_or_key_is_refused(bad):
    with pytest.raises(ValueError, match=r"not known|not permitted"):
        ScoringConfig.model_validate({"scorer": bad})


def test_unknown_scorer_type_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'llm_judge'"):
        ScoringConfig.model_validate({"scorer": {"type": "llm_judg"}})


JUDGE = {
    "type": "llm_judge",
    "prompt": "p",
    "judges": ["a", {"name": "b", "type": "openai", "config": {"model": "m"}}],
    "parse": {"type": "json", "field": "a.b", "min": 0, "max": 5},
    "calibration": [{"human": True, "judge": False}],
}
MEMBERS = [{"metric": "exact_match", "weight": 2}, {"scorer": {"type": "u.py:S", "x": 1}}, {"scorer": JUDGE}]


@pytest.mark.parametrize(
    "scorer",
    [
        "generation",
        {"type": "reward_model", "function": "r.py:fn", "params": {"a": 1}},
        {"type": "ensemble", "members": MEMBERS},
        {"type": "u.py:S", "x": [1, 2]},
        JUDGE,
    ],
)
def test_config_survives_json(scorer):
    config = ScoringConfig.model_validate(
        {"scorer": scorer, "filter_list": [{"name": "f", "filter": [{"function": "take_first_k", "k": 2}]}]}
    )
    assert ScoringConfig.model_validate_json(config.model_dump_json()) == config


def test_pipelines_are_built_in_the_configs_order():
    config = ScoringConfig.model_validate(
        {"filter_list": [{"name": "b", "filter": "take_first"}, {"name": "a"}]}
    )
    assert [pipeline.name for pipeline in build_pipelines(config, None)] == ["b", "a"]


def test_codes_are_the_same_in_every_process_and_tell_predictions_apart():
    codes = prediction_codes(["4", None, "4", 4, {"b": 1, "a": [2]}, {"a": [2], "b": 1}, "", '"4"'])
    assert codes[0] == codes[2] == 4294004229091306477
    assert codes[1] == -1
    assert codes[4] == codes[5]
    assert len(set(codes.tolist())) == 6
    assert (codes >= -1).all()
