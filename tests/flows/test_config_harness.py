import json
from pathlib import Path

import pytest

from flows.config.load import load_config, load_configs, load_selected, validate_configs
from metrics.errors import ConfigError

TASK = """\
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: items.jsonl}}
test_split: test
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 32}
metric_list:
  - metric: exact_match
"""
MODELS = "models=[qwen]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": "2+2?", "answer": "4"}) + "\n")
    (tmp_path / "sums.yaml").write_text(TASK)
    (tmp_path / "products.yaml").write_text(TASK.replace("task: sums", "task: products"))
    (tmp_path / "group.yaml").write_text("group: arithmetic\ntask: [sums, products]\n")
    return tmp_path


def test_a_file_with_a_task_key_is_the_harness_own_and_runs_as_it_is(folder: Path) -> None:
    config = load_config(folder / "sums.yaml", [MODELS])
    assert (config.name, config.dataset, config.base_dir) == ("sums", None, str(folder))
    assert config.harness is not None
    assert config.sample_params.stop == ("\n",)
    assert config.sample_params.max_tokens == 32


def test_without_models_it_says_how_to_add_them(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^sums\.yaml: 'models' is missing"):
        load_config(folder / "sums.yaml")
    assert load_config(folder / "sums.yaml", strict=False).models == ()


def test_an_override_changes_keys_of_the_harness_and_native_ones(folder: Path) -> None:
    overrides = [
        MODELS,
        "num_fewshot=3",
        "metric_list.0.ignore_case=true",
        "errors.max_rate=0.5",
        "facets=model_name",
    ]
    config = load_config(folder / "sums.yaml", overrides)
    assert config.harness is not None
    assert config.harness["config"]["num_fewshot"] == 3
    assert config.metric_list is not None
    assert config.metric_list[0].kwargs["ignore_case"] is True
    assert (config.errors.max_rate, config.facets) == (0.5, ("model_name",))
    assert load_config(folder / "sums.yaml", [MODELS]).harness["config"].get("num_fewshot") is None  # type: ignore[index]


def test_a_native_key_that_the_harness_replaces_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(folder / "sums.yaml", [MODELS, "prompt_template=x"])
    expected = (
        "--set prompt_template: belongs to native benchmarks; a benchmark of lm-evaluation-harness is "
        "changed by its own keys (doc_to_text, num_fewshot …)"
    )
    assert str(refused.value) == expected


def test_a_group_is_several_benchmarks(folder: Path) -> None:
    configs = load_configs(folder / "group.yaml", [MODELS])
    assert [config.name for config in configs] == ["sums", "products"]
    with pytest.raises(ConfigError, match=r"holds several benchmarks \(sums, products\); expected one"):
        load_config(folder / "group.yaml", [MODELS])


def test_benchmarks_are_selected_by_name_and_pattern(folder: Path) -> None:
    configs, selection = load_selected(["prod*"], [folder], [MODELS])
    assert [config.name for config in configs] == ["products"]
    assert list(selection.benchmarks) == ["products"]


def test_a_native_config_may_name_a_benchmark_of_the_harness(folder: Path) -> None:
    (folder / "native.yaml").write_text(
        "benchmark: {lm_eval: sums, include_path: ., num_fewshot: 2}\nname: mine\nmodels: [qwen]\n"
        "sample_params: {num_samples: 4}\n"
    )
    config = load_config(folder / "native.yaml")
    assert config.name == "mine"
    assert config.harness is not None
    assert config.harness["config"]["num_fewshot"] == 2
    assert (config.sample_params.num_samples, config.sample_params.max_tokens) == (4, 32)
    (folder / "native.yaml").write_text("benchmark: {lm_eval: sums.yaml}\nmodels: [qwen]\n")
    assert load_config(folder / "native.yaml").name == "sums"


def test_no_shots_of_a_definition_give_way_to_those_that_are_asked_for(folder: Path) -> None:
    (folder / "none.yaml").write_text(TASK.replace("task: sums", "task: none") + "num_fewshot: 0\n")
    (config,) = load_configs(folder / "none.yaml", ("models=[m]", "num_fewshot=2"))
    assert config.harness is not None
    assert config.harness["config"]["num_fewshot"] == 2
    (folder / "native.yaml").write_text(
        "benchmark: {lm_eval: none, include_path: ., num_fewshot: 3}\nmodels: [m]\n"
    )
    native = load_config(folder / "native.yaml")
    assert native.harness is not None
    assert native.harness["config"]["num_fewshot"] == 3


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ("gsm8k", "native.yaml:1: benchmark: expected a mapping such as {lm_eval: gsm8k}, got 'gsm8k'"),
        (
            "{lm_eval: sms, include_path: .}",
            "native.yaml:1: benchmark: no benchmark, group or tag is named 'sms'",
        ),
        ("{lm_eval: sums, include_path: nope}", "native.yaml:1: benchmark: --include-path "),
    ],
)
def test_a_benchmark_that_is_not_there_is_refused(folder: Path, benchmark: str, message: str) -> None:
    (folder / "native.yaml").write_text(f"benchmark: {benchmark}\nmodels: [qwen]\n")
    with pytest.raises(ConfigError) as refused:
        load_config(folder / "native.yaml")
    assert str(refused.value).startswith(message)


def test_many_files_are_answered_one_by_one(folder: Path) -> None:
    (folder / "bad.yaml").write_text(TASK.replace("task: sums", "task: bad") + "doc_to_audio: x\n")
    paths = [folder / name for name in ("sums.yaml", "bad.yaml", "group.yaml", "nope.yaml")]
    entries = validate_configs(paths)
    assert [(entry["path"], entry["status"]) for entry in entries] == [
        (str(paths[0]), "ok"), (str(paths[1]), "refused"), (str(paths[2]), "ok"), (str(paths[3]), "refused"),
    ]  # fmt: skip
    assert all((entry["reason"] is None) == (entry["status"] == "ok") for entry in entries)
