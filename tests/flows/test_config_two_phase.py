"""Configs of the two-phase framework, recognised and read as native keys."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config import load_config
from flows.config.load import read_native
from metrics.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[1] / "fixtures" / "two-phase" / "configs"
BASE: dict[str, Any] = {
    "models": ["m"],
    "dataset": {"type": "file", "path": "d.jsonl"},
    "prompt_template": "{{ question }}",
    "evaluation_methods": [{"name": "exact", "type": "exact_match"}],
}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def read(**keys: Any) -> Any:
        (tmp_path / "d.jsonl").write_text('{"id": "a", "question": "q", "ground_truth": "1"}\n')
        (tmp_path / "f.py").write_text(
            "def items(n=1):\n    return []\n"
            "def judge(response, **params):\n    return True\n"
            "def count(evaluation_results, **params):\n    return {'n': len(evaluation_results)}\n"
        )
        (tmp_path / "one.md").write_text("One {{ question }}")
        (tmp_path / "two.md").write_text("Two {{ question }}")
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(BASE | keys, sort_keys=False))
        settings = read_native(path)[1]
        assert settings is not None
        return load_config(path), settings

    return read


def test_the_inference_config_runs_as_it_lies() -> None:
    path = CONFIGS / "inference.yaml"
    config, (_, settings) = load_config(path), read_native(path)
    local, hosted = config.models
    assert (local.name, local.config.base_url, local.served_name) == (
        "local-one", "http://localhost:1234/v1", "local-one",
    )  # fmt: skip
    assert (hosted.served_name, hosted.config.base_url, hosted.config.api_key_env) == (
        "some/model", "http://localhost:8000/v1", "OPENAI_API_KEY",
    )  # fmt: skip
    assert config.sampling(hosted).model_dump(exclude_none=True) == {
        "temperature": 0.2, "max_tokens": 256, "num_samples": 6,
    }  # fmt: skip
    assert {model.config.max_concurrency for model in config.models} == {2}
    assert config.prompt_template == "Problem: {{ question }}\nAnswer:"
    assert [method.function or method.type for method in config.evaluation_methods] == [
        "../methods.py:judge", "exact_match",
    ]  # fmt: skip
    assert config.evaluation_methods[1].params == {"ground_truth_field": "answer", "ignore_case": True}
    assert [metric.function or metric.type for metric in config.metrics] == [
        "pass_at_k", "mean", "../methods.py:mycount",
    ]  # fmt: skip
    assert settings is not None
    assert (settings.phase, settings.output) == ("infer", "out")
    said = "\n".join(settings.notes)
    for key in ("dataset.params", "workflow.batch_size", "resume", "logging"):
        assert f": {key}: " in said
    assert "inference.yaml:13: dataset.params: " in said


def test_the_evaluation_config_runs_as_it_lies() -> None:
    path = CONFIGS / "container.yaml"
    config, (_, settings) = load_config(path), read_native(path)
    [model] = config.models
    assert (model.type, model.config.base_url) == ("openai", "http://localhost:28000/v1")
    [prompt] = config.prompts()
    assert (prompt.name, prompt.path) == ("default", "prompt.md")
    assert settings is not None
    assert settings.phase == "score"
    said = "\n".join(settings.notes)
    assert "no container is started: 'small-gguf' is asked at http://localhost:28000/v1" in said
    assert "models.0.inference.think: has no meaning here" in said


def test_datasets_models_and_prompts_in_their_other_spellings(load: Any) -> None:
    custom = {"type": "custom", "path": "f.py", "function_name": "items", "params": {"n": 2}}
    config, _ = load(dataset=custom)
    assert (config.dataset.function, config.dataset.params) == ("f.py:items", {"n": 2})

    models = [
        {"name": "a", "type": "vllm", "model_path": "x/y", "docker": {"host_port": 99}},
        {"name": "b", "model_name": "served", "inference": {"top_p": 0.5, "chat_template_kwargs": {"t": 1}}},
        {"name": "c", "type": "replay", "config": {"path": "d.jsonl"}},
    ]
    config, settings = load(models=models, timeout=7, sample_params={"guided": "x", "max_tokens": -1})
    first, second, third = config.models
    assert first.config.base_url == "http://localhost:99/v1"
    assert (second.served_name, second.sample_params.top_p, second.config.timeout) == ("served", 0.5, 7)
    assert second.config.extra_body == {"guided": "x", "chat_template_kwargs": {"t": 1}}
    assert third.type == "replay"
    assert config.sample_params.max_tokens is None
    assert "sample_params.guided: is sent to endpoints as it is" in "\n".join(settings.notes)

    config, _ = load(prompt_template=[{"path": "one.md"}, "two.md", "Three {{ question }}"])
    assert [(prompt.name, prompt.path or prompt.template) for prompt in config.prompts()] == [
        ("one", "one.md"), ("two", "two.md"), ("prompt_3", "Three {{ question }}"),
    ]  # fmt: skip


def test_methods_and_metrics_in_their_other_spellings(load: Any) -> None:
    methods = [
        {
            "name": "contains",
            "type": "built_in",
            "params": {"expected_content": "x", "case_sensitive": False},
        },
        {"name": "judge", "type": "custom", "path": "f.py"},
        {"name": "length", "type": "length_check", "params": {"expected_length": 3, "odd": 1}},
    ]
    metrics = [
        {"name": "n", "type": "custom", "path": "f.py", "function_name": "count", "labels": {}},
        {"name": "p", "type": "pass_at_k", "labels": {"include": ["contains"], "exclude": []}},
    ]
    config, settings = load(evaluation_methods=methods, metrics=metrics)
    first, second, third = config.evaluation_methods
    assert (first.type, first.params) == ("contains", {"values": ["x"], "ignore_case": True})
    assert second.function == "f.py:judge"
    assert third.params == {"min_length": 3, "max_length": 3}
    assert "evaluation_methods.2.params.odd: has no counterpart in length_check" in settings.notes[0]
    assert [metric.facets for metric in config.metrics] == [(), ()]
    assert config.metrics[1].labels.include == ("contains",)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"models": [{"name": "m", "api_key": "sk-abc"}]},
            "models.0.api_key: holds a key; put it into an env",
        ),
        (
            {"models": [{"name": "m", "config": {"api_key": "sk-abc"}}]},
            "models.0.config.api_key: holds a key",
        ),
        ({"models": [{"name": "m", "type": "vlm"}]}, "models.0.type: expected one of .*did you mean 'vllm'"),
        ({"dataset": {"type": "hub"}}, "dataset.type: expected file or custom, got 'hub'"),
        ({"dataset": {"type": "custom", "path": "f.py"}}, "needs path .or module. and function_name"),
        ({"workflow": {"mode": "both"}}, "workflow.mode: expected inference or evaluation, got 'both'"),
        ({"inference_engine": "x.py"}, "inference_engine: engines of one's own are not called"),
        ({"evaluation_methods": [{"name": "x", "type": "custom"}]}, "evaluation_methods.0: of type custom"),
        *(
            ({"limit": odd}, "limit: expected a number of items from 1")
            for odd in (0, -1, True, 1.5, "few", [5])
        ),
        ({"colour": 1}, "c.yaml:10: colour: 'colour' is not a key here"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(load: Any, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load(**keys)
    assert "c.yaml:" in str(refused.value)
    assert "sk-abc" not in str(refused.value)


def test_a_limit_is_a_number_of_items_or_none(load: Any) -> None:
    assert [load(limit=given)[1].limit for given in (5, "5", None)] == [5, 5, None]


def test_recorded_answers_of_the_inference_are_replayed(load: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config, settings = load(output_dir=str(out), workflow={"mode": "evaluation"})
    assert (config.models[0].type, settings.phase) == ("openai", "score")
    out.mkdir()
    (out / "responses.jsonl").write_text("")
    config, settings = load(output_dir=str(out), workflow={"mode": "evaluation"})
    assert (config.models[0].type, config.models[0].config.path, settings.phase) == (
        "replay", str(out / "responses.jsonl"), None,
    )  # fmt: skip
    assert "its responses.jsonl is replayed" in "\n".join(settings.notes)


@pytest.mark.parametrize("odd", [[], [1], {}, {"a": {}}, 7, True, ""], ids=str)
@pytest.mark.parametrize(
    "keys",
    [
        lambda odd: {"workflow": {"mode": [odd]}},
        lambda odd: {"mode": [odd]},
        lambda odd: {"evaluation_methods": [{"name": odd, "type": "built_in"}]},
        lambda odd: {"evaluation_methods": [{"name": "x", "type": [odd]}]},
        lambda odd: {"evaluation_methods": [{"name": "contains", "type": "built_in", "params": [odd]}]},
        lambda odd: {"metrics": [{"name": "pass_at_k", "type": "built_in", "labels": [odd]}]},
    ],
    ids=["workflow", "mode", "name", "type", "params", "labels"],
)
def test_a_value_of_another_type_is_refused_and_no_traceback(load: Any, keys: Any, odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml:"):
        load(**keys(odd))
