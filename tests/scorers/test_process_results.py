"""A user's dictionary fans out into pairs; what is missing or unknown in it is named."""

import numpy as np
import pytest

from metrics.errors import ConfigError
from scorers.base import ScorerError
from scorers.config import ScoringConfig
from scorers.factory import build_scorer


def scorer_of(function, metric_list, **config):
    config = {"process_results": "u.py:fn", "metric_list": metric_list, **config}
    return build_scorer(ScoringConfig.model_validate(config), lambda _: function)


def column_of(scorer, batch, name, filter_name="none"):
    metric = next(one for one in scorer.get_metrics(filter_name) if one.name == name)
    return scorer.column(scorer.process(batch), metric, batch)


def test_function_runs_once_per_scored_sample_with_its_document(make_batch):
    seen = []

    def fn(doc, results):
        seen.append((doc, results))
        return {"a": 1, "b": 0}

    scorer = scorer_of(fn, ["a", "b"])
    batch = make_batch(["x", "y", None], docs=[{"q": 1}, {"q": 2}, {"q": 3}], failed=[1])
    processed = scorer.process(batch)
    assert processed == [{"a": 1, "b": 0}, None, {"a": 1, "b": 0}]
    for metric in scorer.get_metrics("none"):
        scorer.column(processed, metric, batch)
    assert seen == [({"q": 1}, ["x"]), ({"q": 3}, [None])]


def test_function_may_write_into_its_document_without_harm(make_batch):
    docs = [{"q": 1}]
    scorer_of(lambda doc, results: {"a": doc.pop("q")}, ["a"]).process(make_batch(["x"], docs=docs))
    assert docs == [{"q": 1}]


def test_tuples_reach_the_aggregation_that_needs_them(make_batch):
    scorer = scorer_of(
        lambda doc, results: {"bleu": (doc["gold"], results[0])}, [{"metric": "bleu", "aggregation": "bleu"}]
    )
    batch = make_batch(
        ["the cat sat on the mat", "a b c d"], docs=[{"gold": "the cat sat on the mat"}, {"gold": "a b c d"}]
    )
    scores = column_of(scorer, batch, "bleu")
    metric = scorer.get_metrics("none")[0]
    assert metric.aggregation.value(scores.scores.statistics, None) == pytest.approx(100.0)


def test_what_is_no_number_is_kept_beside_the_statistics_made_of_it(make_batch):
    fn = lambda doc, results: {"f1": (1, 0), "acc": 1.0}  # noqa: E731
    scorer = scorer_of(fn, [{"metric": "f1", "aggregation": "f1"}, "acc"])
    batch = make_batch(["x", "y"], docs=[{}, {}], failed=[1])
    pairs = column_of(scorer, batch, "f1").scores
    assert pairs.values[0] == [1, 0]
    assert pairs.statistics is not None
    assert column_of(scorer, batch, "acc").scores.values is None


def test_numpy_values_become_plain_numbers(make_batch):
    scorer = scorer_of(
        lambda doc, results: {"a": np.float32(0.5), "b": np.array([1, 2]), "c": {np.int64(1)}},
        ["a", "b", "c"],
    )
    assert scorer.process(make_batch(["x"])) == [{"a": 0.5, "b": [1, 2], "c": [1]}]


def test_value_that_nothing_can_be_made_of_names_the_item(make_batch):
    scorer = scorer_of(lambda doc, results: {"a": object()}, ["a"])
    with pytest.raises(ScorerError, match=r"item 'item-0'.*object"):
        scorer.process(make_batch(["x"]))


def test_function_that_raises_names_the_item(make_batch):
    def fn(doc, results):
        return {"a": 1 / len(results[0])}

    with pytest.raises(ScorerError, match=r"item 'item-1'.*ZeroDivisionError"):
        scorer_of(fn, ["a"]).process(make_batch(["x", ""]))


def test_missing_metric_is_named_with_the_nearest(make_batch):
    scorer = scorer_of(lambda doc, results: {"exact_mach": 1}, ["exact_match"])
    batch = make_batch(["x"])
    with pytest.warns(
        UserWarning, match=r"'exact_mach' \(did you mean 'exact_match'\?\): not in metric_list"
    ):
        processed = scorer.process(batch)
    with pytest.raises(ScorerError, match="returned no 'exact_match'; did you mean 'exact_mach'"):
        scorer.column(processed, scorer.get_metrics("none")[0], batch)


def test_names_that_both_lists_have_are_no_guess(make_batch):
    fn = lambda doc, results: {"rouge1": 0.5, "rouge2": 0.25, "rougeL": 0.5, "extra": 1}  # noqa: E731
    said = r"returned 'extra' \(did you mean 'extras'\?\), 'rouge2', 'rougeL': not in metric_list"
    with pytest.warns(UserWarning, match=said):
        scorer_of(fn, ["rouge1", "extras"]).process(make_batch(["x"]))


def test_a_metric_of_some_samples_is_told_what_to_return_for_the_others(make_batch):
    scorer = scorer_of(lambda doc, results: {"acc": 1.0}, ["acc", "acc_hard"])
    batch = make_batch(["x"])
    said = r"no 'acc_hard' \(it returned 'acc'\)\. .* NaN and write aggregation: nanmean"
    with pytest.raises(ScorerError, match=said):
        scorer.column(scorer.process(batch), scorer.get_metrics("none")[1], batch)


def test_unknown_metric_is_named_and_its_siblings_have_their_numbers(make_batch):
    scorer = scorer_of(lambda doc, results: {"a": 1, "extra": 2}, ["a"])
    batch = make_batch(["x"])
    with pytest.warns(UserWarning, match="'extra': not in metric_list"):
        processed = scorer.process(batch)
    assert scorer.column(processed, scorer.get_metrics("none")[0], batch).scores.score.tolist() == [1]


def test_single_metric_may_be_a_bare_number(make_batch):
    assert column_of(
        scorer_of(lambda doc, results: 0.25, ["a"]), make_batch(["x"]), "a"
    ).scores.score.tolist() == [0.25]


def test_bare_number_for_several_metrics_is_an_error(make_batch):
    with pytest.raises(
        ScorerError, match="returned float; expected a dictionary with an entry for each of a, b"
    ):
        scorer_of(lambda doc, results: 0.25, ["a", "b"]).process(make_batch(["x"]))


def test_dictionary_as_a_value_gives_the_entry_of_its_name_and_details(make_batch):
    scorer = scorer_of(lambda doc, results: {"a": {"why": "so", "a": 1}}, ["a"])
    scores = column_of(scorer, make_batch(["x", "y"], failed=[0]), "a")
    assert scores.scores.score[1] == 1
    assert scores.scores.details == [None, {"why": "so"}]


def test_dictionary_without_the_name_gives_its_first_entry_and_warns(make_batch):
    scorer = scorer_of(lambda doc, results: {"a": {"first": 0.5, "second": 1}}, ["a"])
    with pytest.warns(UserWarning, match="'first' counts"):
        scores = column_of(scorer, make_batch(["x"]), "a")
    assert scores.scores.score.tolist() == [0.5]
    assert scores.scores.details == [{"second": 1}]


def test_none_leaves_a_sample_unscored_with_a_reason(make_batch):
    scorer = scorer_of(lambda doc, results: {"a": None if results[0] == "?" else 1}, ["a"])
    scores = column_of(scorer, make_batch(["x", "?"]), "a")
    assert scores.scored.tolist() == [True, False]
    assert scores.errors == [None, "process_results gave no value for 'a'"]


def test_value_that_its_aggregation_cannot_take_names_the_item(make_batch):
    scorer = scorer_of(lambda doc, results: {"a": "text"}, ["a"])
    with pytest.raises(ScorerError, match=r"item 'item-1'.*metric 'a'"):
        column_of(scorer, make_batch(["x", "y"], failed=[0]), "a")


def test_name_with_a_filter_belongs_to_that_filter():
    filters = [{"name": "strict"}, {"name": "flexible"}]
    metric_list = ["exact_match,strict", "exact_match,flexible", "bleu"]
    scorer = scorer_of(lambda doc, results: {}, metric_list, filter_list=filters)
    assert [m.name for m in scorer.get_metrics("strict")] == ["exact_match,strict", "bleu"]
    assert [m.name for m in scorer.get_metrics("flexible")] == ["exact_match,flexible", "bleu"]


def test_name_with_a_filter_that_is_not_configured_comes_from_the_one_there_is(make_batch):
    scorer = scorer_of(lambda doc, results: {"exact_match,strict": 1}, ["exact_match,strict"])
    assert column_of(scorer, make_batch(["x"]), "exact_match,strict").scores.score.tolist() == [1]


def test_name_with_a_filter_that_two_filters_would_give_is_refused():
    with pytest.raises(ConfigError, match="'exact_match,strict' would come from the filters 'a' and 'b'"):
        scorer_of(lambda doc, results: {}, ["exact_match,strict"], filter_list=[{"name": "a"}, {"name": "b"}])


@pytest.mark.parametrize("metric_list", [None, []])
def test_process_results_without_names_is_refused(metric_list):
    with pytest.raises(ConfigError, match="needs a metric_list that names the metrics"):
        scorer_of(lambda doc, results: {}, metric_list)


def test_function_that_takes_too_little_is_refused():
    with pytest.raises(ConfigError, match=r"is called with \(doc, results\), and takes 1 arguments"):
        scorer_of(lambda doc: {}, ["a"])


def test_multiple_choice_results_are_pairs_of_log_likelihood_and_greediness(make_batch):
    seen = []
    scorer = scorer_of(
        lambda doc, results: seen.append(results) or {"a": 1}, ["a"], output_type="multiple_choice"
    )
    scorer.process(make_batch(lls=[[-1, -2], [-3]], gold=[[0], [0]], choices=[["x", "y"], ["z"]]))
    assert seen == [[(-1.0, False), (-2.0, False)], [(-3.0, False)]]


def test_results_without_context_follow_with_the_greediness_that_is_known_of_them(make_batch):
    seen = []
    scorer = scorer_of(
        lambda doc, results: seen.append(results) or {"a": 1}, ["a"], output_type="multiple_choice"
    )
    alone = [[(-3.0, True), (-4.0, False)], [(-5.0, None)]]
    batch = make_batch(lls=[[-1, -2], [-3]], gold=[[0], [0]], choices=[["x", "y"], ["z"]], alone=alone)
    scorer.process(batch)
    assert [results[len(results) // 2 :] for results in seen] == alone


def test_rolling_results_are_the_log_likelihood(make_batch):
    seen = []
    scorer = scorer_of(
        lambda doc, results: seen.append(results) or {"a": 1}, ["a"], output_type="loglikelihood_rolling"
    )
    scorer.process(make_batch(lls=[[-7.5]], gold=[[]], choices=[["x"]]))
    assert seen == [[-7.5]]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"metric": "a", "agregation": "median"},
            "'a': nothing takes the argument 'agregation'; did you mean",
        ),
        ({"metric": "a", "weight": 2}, "nothing takes the argument 'weight'"),
        ({"metric": "a", "aggregation": "percentile", "p": 90}, "nothing takes the argument 'p'"),
    ],
)
def test_argument_that_nothing_takes_is_refused(entry, said):
    with pytest.raises(ConfigError, match=said):
        scorer_of(lambda doc, results: {"a": 1.0}, [entry])


def test_aggregation_of_a_column_has_its_arguments():
    listed = [
        {"metric": "a", "aggregation": "percentile", "q": 90},
        {"metric": "f1", "average": "macro"},
    ]
    a, f1 = scorer_of(lambda doc, results: {}, listed).get_metrics("none")
    assert (a.aggregation.name, f1.aggregation.name) == ("percentile@90", "f1_macro")


def test_function_that_raises_is_named_with_its_line(make_batch):
    def fn(doc, results):
        raise ValueError("not this one")

    said = r"item 'item-0' \(sample 0\): .*ValueError: not this one \(test_process_results\.py:\d+\)"
    with pytest.raises(ScorerError, match=said):
        scorer_of(fn, ["a"]).process(make_batch(["x"]))


def test_only_what_is_one_number_is_said_to_be_averaged(make_batch):
    scorer = scorer_of(lambda doc, results: {"mcc": doc["gives"]}, ["mcc"])
    for gives, told in ((0.5, True), (np.complex128(1), False), (10**400, False)):
        with pytest.raises(ScorerError) as refused:
            column_of(scorer, make_batch(["x"], docs=[{"gives": gives}]), "mcc")
        assert ("A number for each sample is averaged" in str(refused.value)) is told
