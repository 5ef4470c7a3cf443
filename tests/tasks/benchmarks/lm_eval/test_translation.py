"""Definitions as native configs: every key kept, given its default, or refused with its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.schema import EvalConfig
from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval import Definition, translate_definition
from tasks.benchmarks.lm_eval.yaml import FunctionName

BASE: dict[str, Any] = {
    "task": "t",
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{q}}",
    "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": ["\n"]},
}
CHOICE = {"output_type": "multiple_choice", "doc_to_choice": ["x", "y"], "generation_kwargs": None}
LIKELIHOOD = {"output_type": "loglikelihood", "generation_kwargs": None}
ROLLING = {"output_type": "loglikelihood_rolling", "generation_kwargs": None, "doc_to_text": ""}


UTILS = """
import nowhere_to_be_found

def fn(references, predictions): return 1

def keep(items):
    'Kept.'
    return items

def agg(items): return 1

@register_filter('own_name')
class Own:
    pass
"""


@pytest.fixture
def translated(tmp_path: Path):
    (tmp_path / "utils.py").write_text(UTILS)

    def run(**keys: Any):
        config = {key: value for key, value in {**BASE, **keys}.items() if value is not None}
        return translate_definition(Definition("t", tmp_path / "t.yaml", config))

    return run


def function(translated, name: str) -> FunctionName:
    folder = translated().config["base_dir"]
    return FunctionName(f"{folder}/utils.py:{name}")


def test_a_config_survives_json_and_is_a_native_config(translated):
    config = translated(
        process_results=function(translated, "fn"), process_docs=function(translated, "fn")
    ).config
    native = EvalConfig.model_validate(json.loads(json.dumps(config)))
    assert native.process_results == "utils.py:fn"
    assert native.harness["config"]["process_docs"] == {"!function": "utils.py:fn"}


def test_the_default_filter_takes_the_first_response(translated):
    assert translated().config["filter_list"] == [{"name": "none", "filter": [{"function": "take_first"}]}]


@pytest.mark.parametrize(
    ("keys", "metrics"),
    [
        ({}, ["exact_match"]),
        (CHOICE, ["acc", "acc_norm"]),
        (LIKELIHOOD, ["perplexity", "acc"]),
        (ROLLING, ["word_perplexity", "byte_perplexity", "bits_per_byte"]),
    ],
)
def test_each_output_type_has_its_default_metrics(translated, keys, metrics):
    assert [metric["metric"] for metric in translated(**keys).config["metric_list"]] == metrics


def test_filters_get_the_harness_defaults_for_what_they_do_not_find(translated):
    steps = [{"function": "regex", "group_select": -1}, {"function": "take_first"}]
    filters = translated(filter_list=[{"name": "f", "filter": steps}]).config["filter_list"]
    assert filters[0]["filter"][0] == {
        "function": "regex",
        "regex_pattern": r"#### (\-?[0-9\.\,]+)",
        "group_select": -1,
        "fallback": "[invalid]",
    }


def test_a_filter_of_the_definitions_own_file_is_named_by_its_function_or_registered_name(translated):
    steps = [
        {"function": "custom", "filter_fn": function(translated, "fn")},
        {"function": function(translated, "Own"), "k": 1},
        {"function": "own_name"},
        {"function": "take_first"},
    ]
    config = translated(
        filter_list=[{"name": "f", "filter": steps}], process_docs=function(translated, "fn")
    ).config
    names = [step["function"] for step in config["filter_list"][0]["filter"]]
    assert names == ["utils.py:fn", "utils.py:Own", "utils.py:Own", "take_first"]


def test_functions_see_all_responses_where_no_filter_chose_one(translated):
    filters = [{"name": "f", "filter": [{"function": "lowercase"}]}]
    by_function = translated(filter_list=filters, process_results=function(translated, "fn")).config
    assert [step["function"] for step in by_function["filter_list"][0]["filter"]] == ["lowercase", "collect"]
    by_name = translated(filter_list=filters).config
    assert [step["function"] for step in by_name["filter_list"][0]["filter"]] == ["lowercase"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"max_tokens": 256, "temperature": 0.0, "stop": ["\n\n"]}),
        ({"until": "Q:", "max_gen_toks": 9}, {"max_tokens": 9, "temperature": 0.0, "stop": ["Q:"]}),
        ({"until": [], "temperature": "0.7", "do_sample": True}, {"max_tokens": 256, "temperature": 0.7}),
        (
            {"max_new_tokens": 5, "max_tokens": 6, "top_p": 0.9},
            {"max_tokens": 6, "top_p": 0.9, "stop": ["\n\n"]},
        ),
        ({"until": ["a", "a", ""]}, {"stop": ["a"]}),
        ({"max_new_tokens": 5, "max_gen_toks": 7}, {"max_tokens": 7, "stop": ["\n\n"]}),
    ],
)
def test_generation_arguments_become_sampling_parameters(translated, given, expected):
    parameters = translated(generation_kwargs=given).config["sample_params"]
    assert {key: parameters.get(key) for key in expected} == expected
    assert ("stop" in parameters) == ("stop" in expected)
    assert parameters["seed"] == 1234


def test_a_length_that_endpoints_are_not_told_is_a_warning(translated):
    found = translated(generation_kwargs={"max_new_tokens": 5, "seed": 9})
    assert (found.config["sample_params"]["max_tokens"], found.config["sample_params"]["seed"]) == (256, 9)
    (warning,) = found.warnings
    assert "max_new_tokens has no effect on endpoints, as in the harness: 256 tokens" in warning


def test_metrics_of_log_likelihoods_that_later_versions_have_are_taken(translated):
    entries = [{"metric": "bpb", "aggregation": "mean", "higher_is_better": False}, {"metric": "logprob"}]
    assert translated(**CHOICE, metric_list=entries).config["metric_list"] == [
        {"metric": "bpb", "higher_is_better": False},
        {"metric": "logprob"},
    ]


def test_repeats_are_samples(translated):
    assert translated(repeats=8).config["sample_params"]["num_samples"] == 8


def test_a_few_shot_delimiter_of_ones_own_is_the_default_stop(translated):
    assert translated(generation_kwargs=None, fewshot_delimiter="###").config["sample_params"]["stop"] == [
        "###"
    ]


def test_arguments_of_a_metric_are_kept_where_the_harness_gives_them_to_it(translated):
    entry = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}
    assert translated(metric_list=[entry]).config["metric_list"] == [
        {"metric": "exact_match", "higher_is_better": True, "ignore_case": True}
    ]


def test_arguments_without_effect_are_a_warning(translated):
    found = translated(**CHOICE, metric_list=[{"metric": "acc", "ignore_case": True, "hf_evaluate": True}])
    assert found.config["metric_list"] == [{"metric": "acc"}]
    assert [warning.partition(": ")[2] for warning in found.warnings] == [
        "metric 'acc': ignore_case has no effect here, as in the harness"
    ]


def test_a_mean_of_word_error_rates_is_not_the_rate_of_the_corpus(translated):
    entry = {"metric": "wer", "aggregation": "mean", "higher_is_better": False}
    assert translated(metric_list=[entry]).config["metric_list"] == [entry]
    assert translated(metric_list=[{"metric": "wer"}]).config["metric_list"] == [{"metric": "wer"}]


def test_a_metric_whose_work_is_in_its_aggregation_becomes_pairs(translated):
    aggregation = function(translated, "agg")
    metrics = [
        {"metric": "f1", "aggregation": aggregation},
        {"metric": function(translated, "keep"), "aggregation": aggregation},
    ]
    for metric in translated(metric_list=metrics).config["metric_list"]:
        assert metric["function"] == "tasks.benchmarks.lm_eval.translation:pair"
        assert metric["aggregation"] == "utils.py:agg"


def test_a_metric_function_goes_by_its_name(translated):
    config = translated(metric_list=[{"metric": function(translated, "fn"), "k": 3}]).config
    assert config["metric_list"] == [
        {"metric": "fn", "function": "utils.py:fn", "higher_is_better": True, "k": 3}
    ]


def test_metrics_of_process_results_have_an_aggregation_and_no_arguments(translated):
    metrics = [
        {"metric": "x", "k": 1},
        {"metric": "bleu"},
        {"metric": "ppl", "aggregation": "perplexity", "higher_is_better": False},
    ]
    config = translated(process_results=function(translated, "fn"), metric_list=metrics).config
    assert config["metric_list"] == [
        {"metric": "x", "aggregation": "mean", "higher_is_better": True},
        {"metric": "bleu", "aggregation": "bleu", "higher_is_better": True},
        {"metric": "ppl", "aggregation": "perplexity", "higher_is_better": False},
    ]


def test_the_aggregation_says_which_way_is_better_where_a_benchmark_does_not(translated):
    fn = function(translated, "fn")
    entries = [{"metric": "x", "aggregation": "perplexity"}, {"metric": "wer", "aggregation": "mean"}]
    for metric in translated(process_results=fn, metric_list=entries).config["metric_list"]:
        assert metric["higher_is_better"] is False
    asked = [{"metric": fn, "aggregation": "perplexity"}, {"metric": "f1", "aggregation": "brier_score"}]
    for metric in translated(metric_list=asked).config["metric_list"]:
        assert metric["higher_is_better"] is False


def test_mutual_information_is_asked_for(translated):
    assert (
        translated(**CHOICE, metric_list=[{"metric": "acc_mutual_info"}]).config["mutual_information"] is True
    )


def test_an_unknown_key_is_a_warning_with_the_nearest(translated):
    (warning,) = translated(doc_to_txt="x").warnings
    assert "unknown key 'doc_to_txt' has no effect; did you mean 'doc_to_text'?" in warning


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"doc_to_audio": ["sound"]}, "'doc_to_audio' plays the model audio"),
        ({"class": "x"}, "'class' is a Python class of the harness"),
        ({"use_prompt": "promptsource:x"}, "'use_prompt' takes its prompts from the library promptsource"),
        ({"output_type": "generate"}, "output_type 'generate' is not one of"),
        ({"dataset_path": None}, "names no dataset"),
        ({"test_split": None}, "names no split to evaluate"),
        ({"doc_to_target": None}, "'doc_to_target' is missing"),
        ({"doc_to_text": None}, "'doc_to_text' is missing"),
        ({"output_type": "multiple_choice"}, "needs 'doc_to_choice'"),
        ({"num_fewshot": "five"}, "'num_fewshot' takes an integer or null, got str 'five'"),
        ({"num_fewshot": True}, "'num_fewshot' takes an integer"),
        ({"repeats": 0}, "at least 1; got 0"),
        (
            {"fewshot_config": {"smapler": "first_n"}},
            "fewshot_config has no key 'smapler'; did you mean 'sampler'",
        ),
        ({"fewshot_config": {"sampler": "balanced"}}, "'balanced' is not one of default, first_n, per_item"),
        ({"doc_to_text": "{{q"}, r"doc_to_text: not a Jinja2 template: .*line 1"),
        ({"description": "{% for %}"}, "description: not a Jinja2 template"),
        ({"generation_kwargs": {"beam_width": 3}}, "generation_kwargs.beam_width is not supported"),
        ({"generation_kwargs": {"until": 3}}, "until takes a text or a list of texts, got 3"),
        ({"generation_kwargs": {"max_gen_toks": 0}}, "integer of at least 1, got 0"),
        ({"generation_kwargs": {"temperature": "hot"}}, "temperature is not a number"),
        ({"metric_list": []}, "metric_list is empty"),
        ({"metric_list": [{"metrics": "x"}]}, "is a mapping with 'metric'"),
        ({"metric_list": [{"metric": "exact_mach"}]}, "did you mean 'exact_match'"),
        ({"metric_list": [{"metric": "acc"}]}, "averages pairs of reference and prediction"),
        ({**CHOICE, "metric_list": [{"metric": "bleu"}]}, "has no value for output_type multiple_choice"),
        ({"filter_list": []}, "filter_list is empty"),
        ({"filter_list": [{"name": "f", "filter": [{"function": "regexp"}]}]}, "did you mean 'regex'"),
        ({"filter_list": [{"name": "f", "filters": []}]}, "filter 'f' has no key 'filters'"),
        (
            {"filter_list": [{"name": "f", "filter": []}, {"name": "f", "filter": []}]},
            "two filters are named 'f'",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_name(translated, keys, message):
    with pytest.raises(ConfigError, match=message):
        translated(**keys)


def test_a_function_that_its_file_does_not_define_is_refused_without_importing_it(translated):
    with pytest.raises(ConfigError, match=r"names 'gone', which .*utils\.py does not define"):
        translated(process_docs=function(translated, "gone"))


def test_names_made_when_a_module_runs_are_left_to_it(translated):
    folder = Path(translated().config["base_dir"])
    (folder / "made.py").write_text("globals().update({f'process_{n}': len for n in 'ab'})\n")
    name = FunctionName(f"{folder}/made.py:process_a")
    assert translated(process_docs=name).config["harness"]["config"]["process_docs"] == {
        "!function": "made.py:process_a"
    }
