import pytest
from pydantic import ValidationError

from tasks.verdicts.config import (
    EvaluationMethodConfig,
    EvaluationMetricConfig,
    lacking_samples,
)


@pytest.mark.parametrize("name", ["exact_match", "contains", "json_match", "numeric_match", "regex_match"])
def test_the_name_of_a_built_in_alone_is_that_built_in(name: str) -> None:
    assert EvaluationMethodConfig.model_validate(name).type == name
    assert EvaluationMethodConfig.model_validate({"name": name}).type == name


def test_a_name_of_its_own_needs_a_type_or_a_function() -> None:
    with pytest.raises(ValidationError, match=r"'quality' takes either type: .* or function: file\.py:name"):
        EvaluationMethodConfig(name="quality")
    with pytest.raises(ValidationError, match="takes either type"):
        EvaluationMethodConfig(name="quality", type="contains", function="a.py:b")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"name": "m", "type": "exact_match", "params": {"ignorecase": True}}, "did you mean 'ignore_case'"),
        ({"name": "m", "type": "length_check"}, "needs min_length, max_length or both"),
        (
            {"name": "m", "type": "length_check", "params": {"min_length": 3, "max_length": 2}},
            "above max_length 2",
        ),
        ({"name": "m", "type": "regex_match", "params": {"pattern": "("}}, "no regular expression"),
        ({"name": "m", "type": "regex_match", "params": {"pattern": "a", "group": 2}}, "has no group 2"),
        (
            {"name": "m", "type": "regex_match", "params": {"group": 1}},
            "group: belongs to pattern, and there is none",
        ),
        ({"name": "m", "type": "numeric_match", "params": {"tolerance": -1}}, "greater than or equal to 0"),
        ({"name": "m", "type": "contains", "parms": {}}, "Extra inputs are not permitted"),
        ({"name": "", "type": "contains"}, "at least 1 character"),
    ],
)
def test_a_method_is_refused_with_a_sentence(config: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EvaluationMethodConfig.model_validate(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"name": "p", "type": "pass_at_k", "params": {"estimator": "unbiased", "num_trials": 2}},
            "num_trials: belongs to estimator: trials, and here it is unbiased",
        ),
        (
            {"name": "p", "type": "classification", "params": {"estimator": "items", "num_trials": 2}},
            "num_trials: belongs to estimator: trials, and here it is items",
        ),
        ({"name": "p", "type": "pass_at_k", "params": {"k": 0}}, "greater than or equal to 1"),
        (
            {"name": "p", "type": "pass_at_k", "params": {"k": 1, "aggregation": "mode"}},
            "'mean', 'median', 'min' or",
        ),
        ({"name": "p", "type": "percentile", "params": {"percentile": 101}}, "less than or equal to 100"),
        (
            {"name": "p", "type": "percentile", "params": {"percentile": True}},
            "percentile: expected no boolean, got true",
        ),
        (
            {"name": "p", "type": "mean", "params": {"k": 1}},
            "does not take the argument 'k' .it takes estimator",
        ),
        ({"name": "p", "type": "mean", "labels": {"include": ["a"], "exclude": ["b"]}}, "either include"),
        ({"name": "p", "type": "mean", "labels": {}}, "either include"),
        ({"name": "p", "type": "mean", "facets": ["a", "a"]}, "names a facet twice"),
    ],
)
def test_a_metric_is_refused_with_a_sentence(config: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EvaluationMetricConfig.model_validate(config)


def test_fewer_samples_than_k_times_trials_are_named() -> None:
    enough = EvaluationMetricConfig(name="fine", type="pass_at_k", params={"k": 2, "num_trials": 2})
    short = EvaluationMetricConfig(name="pass@2", type="pass_at_k", params={"k": 2, "num_trials": 3})
    unbiased = EvaluationMetricConfig(name="pass@5", type="pass_at_k", params={"k": 5})

    said = lacking_samples([enough, short, unbiased, EvaluationMetricConfig(name="mean", type="mean")], 4, 4)

    assert [sentence.split(" needs ")[0] for sentence in said] == ["metric 'pass@2'", "metric 'pass@5'"]
    assert "needs 6 samples" in said[0]
    assert "num_samples is 4;" in said[0]
    assert lacking_samples([enough, short, unbiased], 4, None) == []
    [sentence] = lacking_samples([EvaluationMetricConfig(name="p", type="pass_at_k", params={"k": 9})], 4, 8)
    assert "num_samples is 4 and a group has 8;" in sentence


def test_labels_are_selected_by_either_list() -> None:
    include = EvaluationMetricConfig.model_validate({"name": "mean", "labels": {"include": ["a"]}}).labels
    exclude = EvaluationMetricConfig.model_validate({"name": "mean", "labels": {"exclude": ["a"]}}).labels
    assert include is not None
    assert exclude is not None
    assert (include.keeps("a"), include.keeps("b")) == (True, False)
    assert (exclude.keeps("a"), exclude.keeps("b")) == (False, True)


def test_a_config_survives_json() -> None:
    config = EvaluationMetricConfig.model_validate(
        {
            "name": "p",
            "type": "pass_at_k",
            "params": {"k": 1},
            "facets": ["item.x"],
            "labels": {"include": ["a"]},
        }
    )
    assert EvaluationMetricConfig.model_validate_json(config.model_dump_json()) == config
