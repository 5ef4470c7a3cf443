import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.config.errors import revalidated
from flows.config.load import DEFAULT_CONFIG, load_config
from flows.config.schema import EvalConfig, RunOptions
from flows.eval import evaluate
from metrics.errors import ConfigError
from tasks.models.config import SampleParams

EVERY_KEY = """\
name: everything
output_type: generate_until
dataset: {path: items.jsonl, id: question_id, ground_truth: answer}
prompt_templates:
  - {name: plain, template: "Question: {{question}}"}
  - {name: cot, path: cot.md}
  - {name: chat, messages: [{role: user, content: "{{question}}"}]}
system_prompt: Answer in one word.
gen_prefix: "So:"
target: ["{{answer}}", "{{ground_truth}}"]
target_delimiter: "\\n"
fewshot: {num: 1, path: train.jsonl, seed: 1234, sampler: first_n, delimiter: "\\n", format: turns}
sample_params: {temperature: 0.7, max_tokens: 512, num_samples: 16, stop: ["\\n\\n"], seed: 1}
models:
  - name: qwen
    type: openai
    config: {model: Qwen/Qwen3-8B, base_url: "http://localhost:8000/v1", api: chat,
             api_key_env: OPENAI_API_KEY,
             max_concurrency: 64, timeout: 120, max_retries: 6, extra_body: {top_k: 5}}
    sample_params: {temperature: 0.0}
    tokenizer: Qwen/Qwen3-8B
    max_length: 4096
    identity: qwen-on-our-cluster
  - local_model
  - {name: recorded, type: replay, config: {path: responses.jsonl}}
  - {name: m175b, type: replay, config: {field: 175b_finetuning.solution}}
  - {name: demo, type: demo}
filter_list:
  - name: strict-match
    filter:
      - {function: regex, regex_pattern: '#### (\\-?[0-9\\.\\,]+)'}
    metric_list:
      - {metric: exact_match, ignore_case: true, reduction: [mean, pass@1, pass@8, maj@8]}
  - name: whole
    metric_list: [bleu, rouge1, rouge2, rougeL]
  - name: common
metric_list: [exact_match, {metric: !function user.shout}]
evaluation_methods:
  - {name: quality, function: user.py:judge_quality, params: {strict: true}}
  - exact_match
metrics:
  - {name: pass@1, type: pass_at_k, facets: [metadata.model_id, prompt_template],
     params: {k: 1, num_trials: 16, aggregation: mean}}
  - {name: own, function: !function user.own_metric, labels: {include: [quality]}}
facets: [model_name, prompt_template]
cluster: passage_id
statistics: {ci_level: 0.9, bootstrap_iters: 1000, seed: 3, method: auto}
errors: {max_rate: 0.1}
limits: {max_tokens: 1000, max_cost: 2.5, max_seconds: 60}
prices: {qwen: {prompt: 0.1, completion: 0.4}, local_model: {}}
"""

USER = """\
def shout(references, predictions):
    return float(predictions[0].isupper())

def judge_quality(response, ground_truth, inference_result, strict=False):
    return {"label": "quality", "result": {"passed": True}}

def own_metric(evaluation_results, facets):
    return {"value": 1.0}

def process_results(doc, results):
    return {"acc": 1.0}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "everything.yaml").write_text(EVERY_KEY)
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "cot.md").write_text("{{question}} Think.\n")
    return tmp_path


def minimal(**keys: Any) -> EvalConfig:
    keys = {"name": "x", "dataset": "x.jsonl", "prompt_template": "{{question}}", "models": ["qwen"], **keys}
    return EvalConfig.model_validate(keys)


def test_every_key_is_accepted(folder: Path) -> None:
    config = load_config(folder / "everything.yaml")
    assert [prompt.name for prompt in config.prompts()] == ["plain", "cot", "chat"]
    assert [model.name for model in config.models] == ["qwen", "local_model", "recorded", "m175b", "demo"]
    assert config.models[1].config.base_url == "http://localhost:1234/v1"
    assert config.metric_list is not None
    assert config.metric_list[1].metric == "user.py:shout"
    assert config.metrics[1].function == "user.py:own_metric"
    assert config.base_dir == str(folder)
    assert config.config_file == "everything.yaml"
    assert set(json.loads(config.model_dump_json())) == set(EvalConfig.model_fields)


def test_a_config_survives_json(folder: Path) -> None:
    config = load_config(folder / "everything.yaml")
    text = config.model_dump_json()
    again = EvalConfig.model_validate_json(text)
    assert again == config
    assert again.model_dump_json() == text
    assert EvalConfig.model_validate(json.loads(text)) == config


def test_a_models_own_sampling_parameters_still_override_only_what_they_set_after_json(folder: Path) -> None:
    config = EvalConfig.model_validate_json(load_config(folder / "everything.yaml").model_dump_json())
    own, common = config.sampling(config.models[0]), config.sampling(config.models[1])
    assert (own.temperature, own.max_tokens, own.num_samples) == (0.0, 512, 16)
    assert (common.temperature, common.max_tokens, common.num_samples) == (0.7, 512, 16)
    assert config.fewest_samples() == 16


def test_a_config_is_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        minimal().name = "y"  # type: ignore[misc]


def test_every_key_has_a_description_for_the_form() -> None:
    properties = EvalConfig.model_json_schema()["properties"]
    assert [name for name, schema in properties.items() if not schema.get("description")] == []


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("metrics", {"name": "a", "type": "mean"}),
        ("evaluation_methods", {"name": "a", "type": "contains"}),
        ("models", {"name": "a", "type": "demo"}),
        ("filter_list", {"name": "a"}),
    ],
)
def test_names_that_two_entries_claim_are_refused(key: str, entry: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="'a' is there twice; give each entry a name of its own"):
        minimal(**{key: [entry, {**entry, "name": "b"}, entry]})


def test_without_filters_there_is_one_called_none() -> None:
    assert [entry.name for entry in minimal().filters()] == ["none"]


def test_with_evaluation_methods_there_is_no_default_metric() -> None:
    assert minimal().scoring().metric_list is None
    assert minimal(evaluation_methods=["exact_match"]).scoring().metric_list == ()
    kept = minimal(evaluation_methods=["exact_match"], metric_list=["bleu"]).scoring().metric_list
    assert kept is not None
    assert [metric.metric for metric in kept] == ["bleu"]


def names(config: EvalConfig) -> list[list[str] | None]:
    lists = (entry.metric_list for entry in config.filters())
    return [None if entries is None else [metric.metric for metric in entries] for entries in lists]


def test_a_filter_has_its_own_metrics_else_the_common_ones_else_the_default_ones() -> None:
    filters = [{"name": "a"}, {"name": "b", "metric_list": ["bleu"]}]
    assert names(minimal(filter_list=filters)) == [["exact_match"], ["bleu"]]
    assert names(minimal(filter_list=filters, metric_list=["rougeL"])) == [["rougeL"], ["bleu"]]
    assert names(minimal(filter_list=filters, evaluation_methods=["contains"])) == [[], ["bleu"]]
    assert names(minimal(output_type="multiple_choice", choices=["a", "b"])) == [["acc", "acc_norm"]]


SEVERAL = {
    "models": ["qwen", {"name": "twin", "config": {"model": "qwen"}}, "llama"],
    "prompt_template": None,
    "prompt_templates": [{"name": name, "template": f"{name}: {{{{q}}}}"} for name in ("plain", "cot")],
    "sample_params": {"num_samples": 4},
}


@pytest.mark.parametrize(
    ("facets", "most"),
    [
        (["model_name", "prompt_template"], 4),
        (["model_name"], 8),
        (["prompt_template"], 12),
        (["metadata.model_id", "prompt_template"], 4),  # llama's; the other id is that of two models
        ([], 24),
        (["item.subject"], 24),
        (None, 4),  # grouped as the run is
    ],
)
def test_a_metric_takes_as_many_samples_as_a_group_of_its_facets_has(
    facets: list[str] | None, most: int
) -> None:
    def of(k: int) -> EvalConfig:
        metric = {"name": "p", "type": "pass_at_k", "facets": facets, "params": {"k": k}}
        return minimal(**SEVERAL, evaluation_methods=["exact_match"], metrics=[metric])

    assert of(most).metrics[0].required_samples() == most
    with pytest.raises(ValidationError, match=f"needs {most + 1} samples of every item"):
        of(most + 1)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "old", "type": "replay", "config": {"path": "r.jsonl"}},  # with as many prompts as it has
        {"name": "step", "checkpoints": "runs/*"},
    ],
)
def test_how_many_samples_a_group_has_is_left_open_where_only_files_tell(model: dict[str, Any]) -> None:
    metric = {"name": "p", "type": "pass_at_k", "facets": [], "params": {"k": 9}}
    config = minimal(models=[model], evaluation_methods=["exact_match"], metrics=[metric])
    assert config.metrics[0].required_samples() == 9
    with pytest.raises(ValidationError, match="num_samples is 1"):
        minimal(
            models=[model],
            evaluation_methods=["exact_match"],
            metrics=[metric | {"facets": ["model_name", "prompt_template"]}],
        )


def test_where_the_scorer_knows_the_metrics_no_default_is_added() -> None:
    assert names(minimal(process_results="u.py:f", metric_list=["acc"])) == [None]
    assert names(minimal(scorer={"type": "reward_model", "function": "u.py:f"})) == [None]
    assert names(minimal(scorer="generation")) == [["exact_match"]]


@pytest.mark.parametrize(
    "keys",
    [
        {"metric_list": ["acc", "acc_mutual_info"]},
        {"metric_list": [{"metric": "acc_mutual_info"}]},
        {"filter_list": [{"name": "none", "metric_list": ["acc_mutual_info"]}]},
    ],
)
def test_mutual_information_is_asked_for_where_a_metric_needs_it(keys: dict[str, Any]) -> None:
    config = minimal(output_type="multiple_choice", choices=["a", "b"], **keys)
    assert config.mutual_information
    assert EvalConfig.model_validate_json(config.model_dump_json()).mutual_information
    assert not minimal(
        output_type="multiple_choice", choices=["a", "b"], metric_list=["acc"]
    ).mutual_information


def test_one_metric_facet_or_filter_step_needs_no_list() -> None:
    config = minimal(
        facets="model_name", metric_list="bleu", filter_list=[{"name": "a", "filter": "lowercase"}]
    )
    assert config.facets == ("model_name",)
    assert config.metric_list is not None
    assert config.metric_list[0].metric == "bleu"
    assert config.filters()[0].filter[0].function == "lowercase"


def test_the_embedded_default_declares_the_six_metrics_twice() -> None:
    by_filters = load_config()
    by_function = load_config(DEFAULT_CONFIG.with_name("gsm8k_process_results.yaml"))
    pairs = {
        f"{metric.metric},{entry.name}" if entry.name != "none" else metric.metric
        for entry in by_filters.filters()
        for metric in entry.metric_list or ()
    }
    assert by_function.metric_list is not None
    assert {metric.metric for metric in by_function.metric_list} == pairs
    assert pairs == {
        "exact_match,strict-match", "exact_match,flexible-extract", "bleu", "rouge1", "rouge2", "rougeL",
    }  # fmt: skip


MISTYPED: list[tuple[Callable[[EvalConfig], dict[str, Any]], str]] = [
    (lambda config: {"sample_param": {}}, "sample_param: 'sample_param' is not a key here; did you mean"),
    (
        lambda config: {"sample_params": config.sample_params.model_copy(update={"max_token": 1})},
        "sample_params.max_token: 'max_token' is not a key here; did you mean 'max_tokens'?",
    ),
    (
        lambda config: {"models": (config.models[0].model_copy(update={"latency": 1}),)},
        "models.0.latency: 'latency' is not a key here",
    ),
    (lambda config: {"models": (config.models[0], config.models[0])}, "models.1: 'demo' is there twice"),
    (lambda config: {"models": [{"name": "b", "type": "openay"}]}, "models.0.type: "),
    (lambda config: {"canaries": -1}, "canaries: expected"),
]


@pytest.mark.parametrize(("changes", "told"), MISTYPED, ids=[told for _, told in MISTYPED])
def test_a_copy_of_a_config_is_checked_before_it_is_evaluated(
    changes: Callable[[EvalConfig], dict[str, Any]], told: str
) -> None:
    config = load_config(DEFAULT_CONFIG)
    with pytest.raises(ConfigError, match=f"^config: {re.escape(told)}"):
        asyncio.run(evaluate.fn(config.model_copy(update=changes(config))))
    with pytest.raises(ConfigError, match="config: limt: 'limt' is not a key here"):
        asyncio.run(evaluate.fn(config, RunOptions().model_copy(update={"limt": 1})))


def test_a_copy_with_plain_values_is_read_as_a_file_is_and_a_sound_one_stays_as_it_is() -> None:
    config = load_config(DEFAULT_CONFIG)
    assert revalidated(config) is config
    plain = {"models": [{"name": "b", "type": "demo"}], "sample_params": {"max_tokens": "1"}}
    copied = revalidated(config.model_copy(update=plain))
    assert (copied.models[0].served_name, copied.sample_params.max_tokens) == ("b", 1)
    assert copied.filter_list is not None
    assert copied == config.model_copy(
        update={"models": copied.models, "sample_params": SampleParams(max_tokens=1)}
    )


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"metric_list": [{"metric": "bleu", "kwargs": "x", "k": 1}]}, "metric_list.0.kwargs"),
        ({"filter_list": [{"name": "a", "filter": [{"function": "f", "kwargs": "x"}]}]}, "filter.0.kwargs"),
        ({"metrics": [{"name": "mean", "type": ""}]}, "metrics.0.type"),
        ({"evaluation_methods": [{"name": "exact_match", "type": []}]}, "evaluation_methods.0.type"),
        (
            {"scorer": {"type": "llm_judge", "judges": [{"name": "a", "entry": ""}]}},
            "scorer.llm_judge.judges.0.entry",
        ),
        ({"scorer": {"type": "u.py:S", "kwargs": "x"}}, "scorer.user.kwargs"),
        (
            {"scorer": {"type": "llm_judge", "judges": [{"name": "a", "entry": "x"}]}},
            "scorer.llm_judge.judges.0.entry",
        ),
    ],
)
def test_arguments_that_are_no_mapping_are_refused_at_their_place(keys: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as refused:
        minimal(**keys)
    assert any(".".join(map(str, one["loc"])).endswith(place) for one in refused.value.errors())
