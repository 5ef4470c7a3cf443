"""From config to metric: names, arguments, refusals; users' metrics, corpus metrics and columns."""

import functools
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from metrics import CorpusMetric, metric
from metrics.aggregation import build_aggregation
from metrics.aliases import METRIC_ALIASES
from metrics.build import build_column, build_metric, named_apart
from metrics.config import MetricConfig, StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.metric import Metric
from metrics.reductions.reduction import Repeats, reduce_repeats
from metrics.registry import AGGREGATIONS, METRICS, parameters
from metrics.statistics.estimate import estimate
from metrics.statistics.rules import QuantileRule


def user(function: Any) -> Any:
    return lambda reference: function


def words(references: list[Any], predictions: list[Any], minimum: int = 0) -> float:
    return float(max(len(predictions[0].split()), minimum))


def several(references: list[Any], predictions: list[Any]) -> dict[str, Any]:
    return {"right": float(predictions == references), "length": len(predictions[0])}


class Longest(CorpusMetric):
    """The longest answer."""

    def __init__(self, unit: int = 1):
        self.unit = unit

    def __call__(self, references: Sequence[Any], predictions: Sequence[Any]) -> Any:
        return len(predictions[0]) / self.unit

    def aggregation(self, items: Sequence[Any]) -> float:
        return float(max(items))


def test_an_argument_of_the_metric_reaches_it_and_one_of_the_aggregation_reaches_that(build: Any) -> None:
    assert build({"metric": "exact_match", "ignore_case": True}).evaluate([["A"]], ["a"]).score.tolist() == [
        1.0
    ]
    made = build({"metric": "bleu", "smooth_method": "floor", "lowercase": True})
    assert dict(made.kwargs) == {"lowercase": True}
    assert made.aggregation.point is not None
    assert build({"metric": "length", "aggregation": "percentile", "q": 90}).aggregation.rule == QuantileRule(
        0.9
    )


@pytest.mark.parametrize(
    ("entry", "output_type", "said"),
    [
        ("exactmatch", None, "metric 'exactmatch' is not known; did you mean 'exact_match'"),
        ("", None, "needs a name that is not empty"),
        (
            {"metric": "exact_match", "ignore_cse": True},
            None,
            "no argument 'ignore_cse'; did you mean 'ignore_case'",
        ),
        ("acc", "generate_until", "'acc' is made for multiple_choice, loglikelihood, not for generate_until"),
        ({"metric": "acc", "aggregation": "men"}, None, "aggregation 'men' is not known"),
        ({"metric": "acc", "reduction": "pass@x"}, None, "reduction 'pass@x' is not known"),
        ({"metric": "acc", "reduction": ["mean", "mean"]}, None, "lists reduction 'mean' twice"),
        ({"metric": "bleu", "reduction": "pass@2"}, None, "computes one number"),
        ({"metric": "bleu", "smooth_method": "exp2"}, None, "smooth_method must be one of"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    build: Any, entry: Any, output_type: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build(entry, output_type)


def test_a_function_that_is_not_one_is_refused(build: Any) -> None:
    with pytest.raises(ConfigError, match=r"metrics.py:fn is not a function"):
        build("metrics.py:fn", resolve=user(3))


def test_a_record_without_aggregation_or_reduction_is_refused(build: Any) -> None:
    made = build("acc")
    with pytest.raises(ConfigError, match="has no aggregation"):
        Metric("m", None, None, made.reductions)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no reduction"):
        Metric("m", None, made.aggregation, ())
    with pytest.raises(ConfigError, match="is not a function"):
        Metric("m", 3, made.aggregation, made.reductions)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "wer", "exact_match"])
@pytest.mark.parametrize("aggregation", ["mean", "nanmean", "median", "sum"])
def test_an_aggregation_of_numbers_takes_each_samples_own(build: Any, name: str, aggregation: str) -> None:
    made = build({"metric": name, "aggregation": aggregation})
    scores = made.evaluate([["a b c d e"], ["x y z"], ["q"]], ["a b c d e", "x y", None])
    expected = {"mean": np.mean, "nanmean": np.mean, "median": np.median, "sum": np.sum}[aggregation]
    assert made.aggregation.value(scores.statistics, scores.score) == pytest.approx(expected(scores.score))


@pytest.mark.parametrize(
    ("name", "aggregation", "said"),
    [
        ("bleu", "chrf", "returned 10 statistics a sample; aggregation 'chrf' takes 18"),
        (
            "exact_match",
            "mcc",
            "'matthews_corrcoef' takes pairs of labels; metric 'exact_match' gives numbers",
        ),
    ],
)
def test_an_aggregation_of_something_else_is_refused(
    build: Any, name: str, aggregation: str, said: str
) -> None:
    with pytest.raises(MetricError, match=said):
        build({"metric": name, "aggregation": aggregation}).evaluate([["a"]], ["a"])


def test_exact_match_of_choices_is_the_greedy_one(build: Any) -> None:
    made = build("exact_match", "multiple_choice")
    assert (made.name, made.input) == ("exact_match", "choices")


def test_metrics_that_differ_in_an_argument_have_names_that_say_so() -> None:
    entries = [
        "exact_match",
        {"metric": "exact_match", "ignore_case": True},
        {"metric": "exact_match", "alias": "em"},
    ]
    configs = [MetricConfig.model_validate(entry) for entry in entries]
    names = [made.name for made in named_apart([build_metric(config, user(None)) for config in configs])]
    assert names == ["exact_match", "exact_match[ignore_case=True]", "em"]


def test_metrics_that_differ_in_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        named_apart([build_metric(MetricConfig.model_validate("bleu"), user(None))] * 2)


def test_a_users_function_is_a_metric(build: Any) -> None:
    made = build({"metric": "mine.py:words", "minimum": 2}, resolve=user(words))
    assert made.name == "words"
    assert made.evaluate([["x"], ["x"]], ["a b c", None]).score.tolist() == [3.0, 2.0]
    assert words in made.scoring_code()
    assert words not in (*made.reduction_code(), *made.aggregation.code())
    named = build({"metric": "size", "function": "mine.py:words"}, resolve=user(words))
    assert named.name == "size"
    with pytest.raises(ConfigError, match="takes no argument 'minimun'; did you mean 'minimum'"):
        build({"metric": "mine.py:words", "minimun": 2}, resolve=user(words))


def test_what_a_config_names_is_called_and_not_the_declared_metric_that_it_is_made_of(build: Any) -> None:
    declared = METRICS["exact_match"].function

    @functools.wraps(declared)
    def doubled(references: Any, predictions: Any, **arguments: Any) -> Any:
        return 2 * declared(references, predictions, **arguments).score

    made = build({"metric": "mine.py:doubled"}, resolve=user(doubled))
    assert made.evaluate([["a"], ["a"]], ["a", "b"]).score.tolist() == [2.0, 0.0]
    assert doubled in made.scoring_code()
    assert made.aggregation.bounds != METRICS["exact_match"].bounds


def test_the_entry_called_like_the_metric_is_the_score_and_the_rest_are_details(build: Any) -> None:
    scores = build({"metric": "length", "function": "mine.py:several"}, resolve=user(several)).evaluate(
        [["a"]], ["ab"]
    )
    assert scores.score.tolist() == [2.0]
    assert scores.details == [{"right": 0.0}]


def test_without_such_an_entry_the_first_is_the_score_with_one_warning(build: Any) -> None:
    made = build({"metric": "quality_of_answer", "function": "mine.py:several"}, resolve=user(several))
    with pytest.warns(UserWarning, match="'quality_of_answer'.*first entry, 'right'") as caught:
        first, scores = (made.evaluate([["a"], ["b"]], ["a", "a"]) for _ in range(2))
    assert len(first) == 2
    assert scores.score.tolist() == [1.0, 0.0]
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned nothing for row 0"),
        ("x", "returned str"),
        ({}, "empty dictionary"),
        (np.array([1j]), "returned complex128 for row 0"),
        (np.complex128(1), "returned complex128 for row 0"),
        (np.array(["1"]), "returned str_ for row 0"),
        (np.array([None]), "returned nothing for row 0"),
        (np.timedelta64(3, "s"), "returned timedelta64 for row 0"),
        pytest.param(10**400, "returned int for row 0", id="huge"),
    ],
)
def test_a_metric_that_returns_no_number_is_an_error_with_its_row(
    build: Any, returned: Any, said: str
) -> None:
    made = build("mine.py:fn", resolve=user(lambda references, predictions: returned))
    with pytest.raises(MetricError, match=said) as caught:
        made.evaluate([["a"]], ["a"])
    assert caught.value.index == 0


def test_a_callable_without_a_module_is_a_metric(build: Any) -> None:
    made = build("mine.py:fn", resolve=user({"2": 1.0}.get))
    assert made.function.__module__ is None
    names: dict[str, Any] = {}
    exec("def fn(references, predictions): return 1.0", names)
    made = build("mine.py:fn", resolve=user(names["fn"]))
    assert made.evaluate([["a"]], ["a"]).score.tolist() == [1.0]


def test_a_metric_that_raises_names_the_row_and_the_reason(build: Any) -> None:
    made = build("mine.py:words", resolve=user(words))
    with pytest.raises(MetricError, match="'words' failed on row 1: AttributeError") as caught:
        made.evaluate([["a"], ["a"]], ["a", 7])
    assert caught.value.index == 1


@pytest.mark.usefixtures("own_names")
def test_a_batched_metric_returns_its_statistics(build: Any) -> None:
    @metric("pairs_for_test", batched=True, aggregation="weighted_mean", output_type="generate_until")
    def pairs(references: Any, predictions: Any) -> Any:
        return np.array([[len(text), 2.0] for text in predictions])

    made = build("mine.py:pairs", resolve=user(pairs))
    scores = made.evaluate([["a"], ["a"]], ["abc", "a"])
    assert made.name == "pairs_for_test"
    assert made.aggregation.value(scores.statistics, None) == 1.0
    assert scores.score.tolist() == [1.5, 0.5]
    with pytest.raises(
        MetricError, match="returned 1 statistics a sample; aggregation 'weighted_mean' takes 2"
    ):
        build(
            "m.py:f",
            resolve=user(
                metric("one_for_test", batched=True, aggregation="weighted_mean")(
                    lambda references, predictions: np.zeros((len(predictions), 1))
                )
            ),
        ).evaluate([["a"]], ["a"])


def test_a_name_of_this_package_cannot_be_taken_over() -> None:
    assert "acc" in METRICS
    with pytest.raises(ConfigError, match="metric 'acc' exists already"):
        metric("acc")(words)


def test_a_corpus_metric_sees_all_items(build: Any) -> None:
    made = build({"metric": "mine.py:Longest", "unit": 2}, resolve=user(Longest))
    scores = made.evaluate([["a"], ["a"]], ["abcd", "ab"])
    assert made.kind == "values"
    assert estimate(made.aggregation, None, scores.score, None, StatisticsConfig()).value == 2.0
    with pytest.raises(ConfigError, match="takes no argument 'units'"):
        build({"metric": "mine.py:Longest", "units": 2}, resolve=user(Longest))


def test_a_corpus_metric_of_repeats_warns_once_and_takes_their_mean(build: Any) -> None:
    class Pairs(Longest):
        def __call__(self, references: Sequence[Any], predictions: Sequence[Any]) -> Any:
            return [len(predictions[0]), 1]

    made = build("mine.py:Pairs", resolve=user(Pairs))
    scores = made.evaluate([["a"], ["a"]], ["abcd", "ab"])
    repeats = Repeats(
        scores.score, np.ones(2, np.bool_), np.zeros(2, np.int64), np.array([0, 2]), values=scores.values
    )
    with pytest.warns(UserWarning, match="got several repeats of an item") as caught:
        reduced, _ = (reduce_repeats(made.reductions[0], repeats)[0] for _ in range(2))
    assert reduced.values == [[3.0, 1.0]]
    assert len(caught) == 1


def test_a_column_takes_any_name_and_a_known_one_brings_its_aggregation() -> None:
    def column(entry: Any) -> Metric:
        return build_column(MetricConfig.model_validate(entry), user(None))

    assert column("whatever").aggregation.name == "mean"
    assert column("bleu").aggregation.name == "bleu"
    made = column({"metric": "my_bleu", "aggregation": "bleu", "higher_is_better": True})
    scores = made.scores_of([("a b c d", "a b c d")])
    assert made.aggregation.value(scores.statistics, None) == pytest.approx(100.0)
    with pytest.raises(MetricError, match="not computed from texts"):
        made.evaluate([["a"]], ["a"])


LOWER = {"perplexity", "weighted_perplexity", "bits_per_byte", "brier_score", "wer", "ter"}


@pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
def test_the_aggregation_says_which_way_a_number_is_better_where_nobody_else_does(aggregation: str) -> None:
    def better(**entry: Any) -> bool:
        return build_column(MetricConfig(aggregation=aggregation, **entry), _none).higher_is_better

    named = {"metric": "mine.py:words", "aggregation": aggregation}
    function = build_metric(MetricConfig.model_validate(named), user(words))
    assert better(metric="mine") is function.higher_is_better is (aggregation not in LOWER)
    assert better(metric="mine", higher_is_better=True)
    assert not better(metric="mine", higher_is_better=False)
    assert not better(metric="refusal")  # it says so itself


def test_what_a_metric_says_of_its_direction_is_what_its_aggregation_says(build: Any) -> None:
    for name in METRICS:
        definition, own = METRICS[name], build_aggregation(METRICS[name].aggregation).higher_is_better
        assert own is None or definition.higher_is_better in (None, own), name
    assert not build(
        {"metric": "logprob", "aggregation": "perplexity"}, output_type="loglikelihood"
    ).higher_is_better


def test_an_item_of_a_metric_that_is_better_when_lower_may_be_better_when_higher(build: Any) -> None:
    made = build({"metric": "exact_match", "aggregation": "perplexity"})
    assert (made.higher_is_better, made.best, made.worst) == (False, 1.0, None)
    assert [build_aggregation(name).falls for name in ("perplexity", "mean", "brier_score")] == [
        True,
        False,
        False,
    ]


def test_the_signature_says_how_the_number_was_made(build: Any) -> None:
    assert (
        build({"metric": "bleu", "lowercase": True})
        .signature()
        .startswith("bleu|agg:bleu|lowercase:True|version:1|sacrebleu:")
    )


def test_a_name_alone_or_a_mapping_makes_a_config() -> None:
    assert MetricConfig.model_validate("bleu") == MetricConfig(metric="bleu")
    made = MetricConfig.model_validate({"metric": "bleu", "reduction": "max", "lowercase": True})
    assert (made.reduction, made.kwargs) == (["max"], {"lowercase": True})
    assert MetricConfig.model_validate(made.model_dump()) == made
    assert MetricConfig.model_validate({"function": "mine.py:words"}).metric == "words"
    with pytest.raises(ValidationError):
        MetricConfig.model_validate({"alias": "x"})


def test_statistics_options_are_checked() -> None:
    with pytest.raises(ValidationError):
        StatisticsConfig(ci_level=1.5)
    with pytest.raises(ValidationError):
        StatisticsConfig.model_validate({"level": 0.9})


def test_missing_and_superfluous_rows_are_refused(build: Any) -> None:
    with pytest.raises(MetricError, match="1 references for 2 predictions"):
        build("exact_match").evaluate([["a"]], ["a", "b"])
    with pytest.raises(MetricError, match="not computed from log-likelihoods"):
        build("exact_match").evaluate_choices(None)


def test_the_number_of_a_user_may_be_nan(build: Any) -> None:
    made = build("mine.py:fn", resolve=user(lambda references, predictions: math.nan))
    assert math.isnan(made.evaluate([["a"]], ["a"]).score[0])


def test_a_name_of_the_field_is_answered_with_ours() -> None:
    with pytest.raises(ConfigError, match="metric 'EM' is not known; did you mean 'exact_match'"):
        build_metric(MetricConfig(metric="EM"), _none)


@pytest.mark.parametrize(("alias", "own"), list(METRIC_ALIASES.items()))
def test_an_alias_is_the_metric_under_its_own_name(alias: str, own: str) -> None:
    built, known = (build_metric(MetricConfig(metric=name), _none) for name in (alias, own))
    assert (built.name, built.function, built.entry) == (alias, known.function, own)


def _none(reference: str) -> Any:
    raise AssertionError(reference)


def test_a_family_of_reductions_takes_its_numbers_from_k() -> None:
    config = MetricConfig.model_validate(
        {"metric": "exact_match", "reduction": ["pass@k", "mean", "maj@k"], "k": [1, 8]}
    )
    built = build_metric(config, _none)
    names = [reduction.name for reduction in built.reductions]
    assert names == ["pass@1", "pass@8", "mean", "maj@1", "maj@8"]
    assert "k" not in built.arguments
    for wrong in ([], 0, True, "8"):
        entry = MetricConfig.model_validate({"metric": "exact_match", "reduction": "pass@k", "k": wrong})
        with pytest.raises(ConfigError, match="k must be a whole number from 1"):
            build_metric(entry, _none)


def test_a_metric_declares_its_reduction() -> None:
    @metric("declared_here", reduction=("pass@k",))
    def declared(references: Any, predictions: Any) -> dict[str, list[float]]:
        return {"declared_here": [float(prediction in references) for prediction in predictions]}

    config = MetricConfig.model_validate({"function": "f.py:declared", "k": [1, 2]})
    built = build_metric(config, lambda reference: declared)
    assert [reduction.name for reduction in built.reductions] == ["pass@1", "pass@2"]
    scores = built.evaluate([["a"], ["a"]], ["a", "b"])
    assert scores.score.tolist() == [1.0, 0.0]


def test_a_list_holds_one_value_for_the_one_prediction() -> None:
    config = MetricConfig.model_validate({"function": "f.py:two"})

    def two(references: Any, predictions: Any) -> list[float]:
        return [1.0, 0.0]

    with pytest.raises(MetricError, match="returned 2 values for row 0; it is called with one prediction"):
        build_metric(config, lambda reference: two).evaluate([["a"]], ["a"])


def test_a_signature_is_read_once_and_callables_without_a_hash_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def score(references, predictions, *, width=1): ...

    class Scores:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, references, predictions, **more): ...

    read, signature = [], inspect.signature

    def counted(function: Any) -> inspect.Signature:
        read.append(function)
        return signature(function)

    monkeypatch.setattr(inspect, "signature", counted)
    assert parameters(score) == parameters(score) == {"width"}
    assert len(read) == 1
    assert parameters(Scores()) is None
