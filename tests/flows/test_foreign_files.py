"""A config whose code would need ``--trust`` names files of its own folder only: what is read is sent."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
import yaml
from PIL import Image
from pydantic import BaseModel

from flows.config.load import load_config, load_configs, validate_configs
from flows.config.models import ModelFlags
from flows.config.schema import EvalConfig
from flows.eval.start import RESPONSES
from flows.suite.plan import load_suite
from metrics.config import NamesFile, RunsProgram
from metrics.errors import ConfigError, NightjarError
from tasks.benchmarks.native import NativeBenchmark
from tasks.messages.media import MediaReader
from tasks.models.config import ModelConfig
from tasks.models.registry import PROVIDERS
from tasks.usercode import load
from tests.flows.conftest import Evaluate
from tests.flows.test_inputs_and_outputs import DOORS

TINY: dict[str, Any] = {
    "name": "tiny",
    "dataset": "items.jsonl",
    "prompt_template": "{{q}}",
    "metric_list": ["exact_match"],
    "models": [{"name": "A", "type": "demo"}],
}
ROWS = '{"id": "a", "q": "1 + 1?", "ground_truth": "2"}\n'


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can write to, below one that is the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("NIGHTJAR_TRUST", raising=False)
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    for place in (folder, tmp_path):
        (place / "items.jsonl").write_text(ROWS)
    yield folder
    load.trust_what_is_named(False)


def write(folder: Path, **keys: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**TINY, **keys}))
    return path


@pytest.mark.parametrize("door", DOORS)
def test_a_file_elsewhere_is_refused_by_whatever_key_names_it(shared: Path, door: str) -> None:
    """Plainly, by the folder above, and through a link; not in the folder, nor where it is trusted."""
    (shared / "linked.jsonl").symlink_to(shared.parent / "items.jsonl")
    for name in (str(shared.parent / "items.jsonl"), "../items.jsonl", "linked.jsonl"):
        path = write(shared, **DOORS[door](name))
        with pytest.raises(ConfigError) as refused:
            load_config(path, strict=False)
        assert f"{door}: '{name}' is not below {shared}, which every user can write to" in str(refused.value)
        assert "--trust" in str(refused.value)
        assert str(refused.value).startswith("config.yaml:")
    load_config(write(shared, **DOORS[door]("items.jsonl")), strict=False)
    shared.chmod(0o755)
    load_config(write(shared, **DOORS[door]("../items.jsonl")), strict=False)


def test_nothing_of_such_a_file_is_shown(shared: Path, evaluate: Evaluate) -> None:
    secret = shared.parent / "secret.txt"
    secret.write_text("root:x:a secret")
    path = write(shared, prompt_template=None, prompt_templates=[{"name": "a", "path": str(secret)}])
    for arguments in (("--dry-run",), ("--dry-run", "--no-data"), ("--show-prompts", "1"), ()):
        refused = evaluate(path, *arguments)
        assert refused.code == 2
        assert f"'{secret}' is not below {shared}" in refused.err + refused.out
        assert "a secret" not in refused.err + refused.out
    trusted = evaluate(path, "--dry-run", "--trust")
    assert (trusted.code, "a secret" in trusted.out) == (0, True), trusted.err
    assert evaluate(path, "--dry-run").code == 0, "what was trusted is remembered"


def test_what_the_command_line_names_is_the_user_s_own(shared: Path) -> None:
    data = f"dataset={shared.parent / 'items.jsonl'}"
    assert load_config(write(shared), [data]).dataset
    prompt = f"prompt_templates=[{{name: a, path: {shared.parent / 'items.jsonl'}}}]"
    load_config(write(shared, prompt_template=None), [prompt], strict=False)
    assert load_config(write(shared), [f"dataset.path={shared.parent / 'items.jsonl'}"]).dataset


def test_flags_of_models_make_no_name_of_the_config_the_user_s(shared: Path, evaluate: Evaluate) -> None:
    recorded = [{"name": "A", "type": "replay", "config": {"path": "../items.jsonl"}}]
    refused = evaluate(write(shared, models=recorded), "--model", "A", "--dry-run")
    assert (refused.code, "is not below" in refused.err) == (2, True)
    assert ModelFlags(("A",)).overrides([ModelConfig.model_validate(recorded[0])])


def test_the_two_phase_framework_s_keys_are_doors_too(shared: Path) -> None:
    out = shared.parent / "out"
    out.mkdir()
    (out / RESPONSES).write_text('{"item_id": "a", "response": "2"}\n')
    named: tuple[dict[str, Any], ...] = (
        {"eval_prompt_template": "../items.jsonl", "prompt_template": None},
        {"dataset": {"type": "file", "path": "../items.jsonl"}},
        {"workflow": {"mode": "evaluation"}, "output_dir": str(out), "models": ["A"]},
    )
    for keys in named:
        with pytest.raises(ConfigError, match="is not below"):
            load_config(write(shared, **keys), strict=False)


TASK = "task: tiny\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{ground_truth}}'\n"


@pytest.mark.parametrize(
    "keys",
    [
        "dataset_path: json\ndataset_kwargs: {data_files: {test: ../items.jsonl}}\n",
        "dataset_path: json\ndataset_kwargs: {data_dir: .., data_files: {test: '*.jsonl'}}\n",
        "dataset_path: ../data\n",
        "dataset_path: linked\n",
        "dataset_path: imagefolder\ndataset_kwargs: {data_dir: ../data}\n",
        "dataset_path: json\ndataset_kwargs: {data_files: {test: items.jsonl}}\ninclude: ../more.yaml\n",
    ],
    ids=["data file", "data folder", "folder", "link to a folder", "reader of a hub", "include"],
)
def test_a_harness_benchmark_is_held_to_its_folder_too(shared: Path, keys: str) -> None:
    (shared.parent / "data").mkdir()
    (shared.parent / "data" / "test.jsonl").write_text(ROWS)
    (shared / "linked").symlink_to(shared.parent / "data")
    (shared.parent / "more.yaml").write_text("description: 'more '\n")
    (shared / "task.yaml").write_text(TASK + keys)
    with pytest.raises(ConfigError, match=f"is not below {shared}"):
        load_config(shared / "task.yaml", strict=False)
    (entry,) = validate_configs([shared / "task.yaml"])
    assert (entry["status"], "--trust" in entry["reason"]) == ("refused", True)
    own = f"dataset_kwargs={{data_files: {{test: {shared.parent / 'items.jsonl'}}}}}"
    if "test: ../items" in keys:
        load_config(shared / "task.yaml", [own], strict=False)
    shared.chmod(0o755)
    load_config(shared / "task.yaml", strict=False)


def test_a_config_of_such_a_folder_is_about_no_other(shared: Path) -> None:
    """Neither by saying that it lies there, nor over a benchmark there: its functions would run unasked."""
    (shared.parent / "task.yaml").write_text(
        TASK + "dataset_path: json\ndataset_kwargs: {data_files: items.jsonl}\n"
    )
    over = {key: value for key, value in TINY.items() if key in ("metric_list", "models")}
    for keys in (
        {**TINY, "base_dir": str(shared.parent)},
        {**over, "benchmark": {"lm_eval": "../task.yaml"}},
    ):
        (shared / "config.yaml").write_text(yaml.safe_dump(keys))
        with pytest.raises(ConfigError, match="--trust"):
            load_config(shared / "config.yaml", strict=False)
        shared.chmod(0o755)
        load_config(shared / "config.yaml", strict=False)
        shared.chmod(0o777)


def test_a_suite_of_such_a_folder_changes_no_config_elsewhere(shared: Path) -> None:
    config = write(shared.parent)
    with pytest.raises(ConfigError, match="is not below"):
        load_configs(config, suite=shared)
    inside = shared / "own"
    inside.mkdir(mode=0o700)
    (inside / "items.jsonl").write_text(ROWS)
    assert load_configs(write(inside), suite=shared)
    with pytest.raises(ConfigError, match=r"set of config\.yaml"):
        load_configs(write(inside), ["name=other"], suite=shared)
    with pytest.raises(ConfigError, match="is not below"):
        load_configs(write(shared), ["dataset=../items.jsonl"], suite=shared)


def test_a_suite_of_such_a_folder_has_its_gate_there(shared: Path) -> None:
    write(shared)
    (shared.parent / "gate.yaml").write_text("margin: 0.1\n")
    suite = {"name": "s", "benchmarks": ["config.yaml"], "gate": "../gate.yaml"}
    (shared / "suite.yaml").write_text(yaml.safe_dump(suite))
    with pytest.raises(ConfigError, match="is not below"):
        load_suite(shared / "suite.yaml")
    (shared / "suite.yaml").write_text(
        yaml.safe_dump({**suite, "gate": None, "base_dir": str(shared.parent)})
    )
    with pytest.raises(ConfigError, match="--trust"):
        load_suite(shared / "suite.yaml")


PROGRAMS: dict[str, dict[str, Any]] = {
    "models.0.serve.command": {
        "models": [{"name": "A", "path": "w", "serve": {"command": ["touch", "{port}"]}}]
    },
    "models.0.serve.python": {
        "models": [{"name": "A", "path": "w", "serve": {"preset": "transformers", "python": "./run"}}]
    },
    "scorer.python": {"scorer": {"type": "execution", "python": "./run"}, "metric_list": None},
}


@pytest.mark.parametrize("key", PROGRAMS)
def test_programs_that_such_a_config_names_are_code(shared: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: .* is code of {shared}.*--trust"):
        load_config(write(shared, **PROGRAMS[key]), strict=False)
    shared.chmod(0o755)
    load_config(write(shared, **PROGRAMS[key]), strict=False)


def picture(path: Path) -> str:
    Image.new("RGB", (2, 2), "red").save(path)
    return str(path)


def test_images_that_items_name_lie_in_the_folder(shared: Path, evaluate: Evaluate) -> None:
    """Beside the dataset, where the user named one elsewhere."""
    outside = picture(shared.parent / "private.png")
    picture(shared / "own.png")
    messages = [{"role": "user", "content": [{"text": "{{q}}"}, {"image": "{{image}}"}]}]

    def shown(image: str, **dataset: Any) -> Any:
        (shared / "pictures.jsonl").write_text(json.dumps({"id": "a", "q": "?", "image": image}) + "\n")
        keys = {"prompt_template": None, "messages": messages, "dataset": "pictures.jsonl", **dataset}
        config = load_config(write(shared, **keys))
        benchmark = NativeBenchmark(config)
        return list(benchmark.render("default", benchmark.items()))

    for image in (outside, "../private.png"):
        with pytest.raises(NightjarError, match="is not below"):
            shown(image)
    assert shown("own.png")
    shared.chmod(0o755)
    assert shown(outside)


def test_an_image_beside_a_dataset_of_the_user_s_own_is_read(shared: Path) -> None:
    elsewhere = shared.parent / "data"
    elsewhere.mkdir()
    picture(elsewhere / "own.png")
    picture(shared.parent / "private.png")
    reader = MediaReader([elsewhere, shared], shared)
    assert reader.part("image", "own.png")
    with pytest.raises(ValueError, match="is not below"):
        reader.part("image", str(shared.parent / "private.png"))


NOT_READ_AS_DATA = {
    "ModelConfig.path": "weights: they are served here",
    "ModelConfig.peft": "weights, too",
    "ModelConfig.tokenizer": "counts tokens",
    "VllmConfig.model": "weights: they are loaded here",
    "CheckpointsConfig.glob": "weights, too",
    "CheckpointsConfig.pattern": "a regular expression",
    "ReplayConfig.field": "a place in an item",
    "FieldReading.field": "a place in a reply",
    "EvalConfig.base_dir": "the folder itself",
    "EvaluationMethodConfig.depends_on": "its digest is in a key, its text goes nowhere",
    "EvaluationMetricConfig.depends_on": "the same",
    "FilterStepConfig.depends_on": "the same",
    "InspectTask.depends_on": "the same",
    "MetricConfig.depends_on": "the same",
    "RewardModelConfig.depends_on": "the same",
    "UserScorerConfig.depends_on": "the same",
}
"""Fields whose descriptions speak of files, folders or paths and that name nothing that a run sends."""
WORDS = ("file of", "file with", "folder", ".jsonl", "path")


def test_every_field_that_speaks_of_a_file_is_marked_or_says_why_not() -> None:
    """A door that somebody adds is in the list that both rules follow from, or this fails."""
    unmarked, marked = set(), set()
    every = set.union(models_of(EvalConfig), *(models_of(PROVIDERS[name].schema) for name in PROVIDERS))
    for model in every:
        for name, info in model.model_fields.items():
            said = (info.description or "").lower()
            if str not in set(parts(info.annotation)):
                continue
            if any(isinstance(entry, NamesFile | RunsProgram) for entry in info.metadata):
                marked.add(f"{model.__name__}.{name}")
            elif name in ("path", "file", "folder") or any(word in said for word in WORDS):
                unmarked.add(f"{model.__name__}.{name}")
    assert unmarked == set(NOT_READ_AS_DATA)
    assert marked >= {"DatasetConfig.path", "ReplayConfig.path", "JudgeConfig.calibration"}


def models_of(root: type[BaseModel]) -> set[type[BaseModel]]:
    """The model and all that its fields hold."""
    known: set[type[BaseModel]] = set()
    waiting = [root]
    while waiting:
        model = waiting.pop()
        if model not in known:
            known.add(model)
            types = {part for info in model.model_fields.values() for part in parts(info.annotation)}
            waiting += [one for one in types if isinstance(one, type) and issubclass(one, BaseModel)]
    return known


def parts(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield annotation
    if get_origin(annotation) is not None or isinstance(annotation, UnionType):
        for part in get_args(annotation):
            yield from parts(part)
