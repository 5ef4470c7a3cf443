"""A run never writes what it reads: recorded responses stay as they are, any other file is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.files import kept_outputs
from flows.config.load import load_config
from metrics.errors import ConfigError
from tasks.store.outputs import output_files
from tests.flows.conftest import Evaluate

ITEMS = 6
MODELS = ("A", "B")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset, and an output folder with the twelve recorded responses of two models."""
    items = [{"id": f"i{n}", "q": f"{n}?", "ground_truth": str(n)} for n in range(ITEMS)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "out").mkdir()
    write_recorded(tmp_path / "out" / "responses.jsonl")
    return tmp_path


def write_recorded(path: Path) -> None:
    rows = [
        {"item_id": f"i{n}", "sample_index": 0, "model_name": model, "response": str(n)}
        for model in MODELS
        for n in range(ITEMS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_config(folder: Path, **keys: Any) -> Path:
    config = {
        "name": "tiny",
        "dataset": "items.jsonl",
        "prompt_template": "{{q}}",
        "metric_list": ["exact_match"],
        "models": [{"name": "A", "type": "replay", "config": {"path": "out/responses.jsonl"}}],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**config, **keys}), encoding="utf-8")
    return path


def two_phase(folder: Path, **keys: Any) -> Path:
    """Asks no model: the endpoint is never there."""
    return write_config(
        folder,
        workflow={"mode": "evaluation"},
        output_dir=str(folder / "out"),
        models=[{"name": "A", "endpoint": "http://127.0.0.1:9/v1"}],
        **keys,
    )


def kept(config: Path, folder: Path) -> tuple[str, ...]:
    """What a run of the config leaves as it is in the output folder."""
    return kept_outputs(load_config(config, strict=False), folder / "out")


def test_scoring_a_recorded_folder_leaves_its_responses_as_they_are(folder: Path, evaluate: Evaluate) -> None:
    """However many of them the config asks for: the models that it names, some items, or none that fit."""
    recorded = folder / "out" / "responses.jsonl"
    before = recorded.read_bytes()
    endpoint = [{"name": "A", "config": {"base_url": "http://127.0.0.1:9/v1"}}]
    ways: list[tuple[Callable[..., Path], dict[str, Any], tuple[str, ...]]] = [
        (two_phase, {}, ()),
        (two_phase, {"limit": 1}, ()),
        (write_config, {}, ()),
        (write_config, {"models": endpoint}, ("--phase", "score", "--limit", "1")),
    ]
    for write, keys, arguments in ways:
        for file in output_files(folder / "out", "tiny"):
            if file != recorded:
                file.unlink(missing_ok=True)
        ran = evaluate(write(folder, **keys), *arguments, "--json")
        assert ran.code == 0, ran.err
        assert ran.value("exact_match,none") == 1.0
        assert recorded.read_bytes() == before
        beside = {"metrics.jsonl", "results.json", "results.parquet", "items.parquet", "manifest.json"}
        assert {*beside, "report.html", "samples_tiny.jsonl"} <= set(os.listdir(folder / "out"))


def test_a_recorded_file_that_is_refused_is_not_touched(folder: Path, evaluate: Evaluate) -> None:
    recorded = folder / "out" / "responses.jsonl"
    with recorded.open("a") as file:
        file.write("no JSON\n")
    before = recorded.read_bytes()
    for config in (two_phase(folder), write_config(folder)):
        assert evaluate(config, "--force").code != 0
        assert recorded.read_bytes() == before


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("linked", ["the recording", "the output's"])
def test_a_linked_recording_is_the_same_file(
    folder: Path, link: Callable[[Path, Path], None], linked: str
) -> None:
    own, other = folder / "out" / "responses.jsonl", folder / "recorded.jsonl"
    if linked == "the recording":
        link(own, other)
    else:
        shutil.move(own, other)
        link(other, own)
    models = [{"name": "A", "type": "replay", "config": {"path": "recorded.jsonl"}}]
    assert kept(write_config(folder, models=models), folder) == ("responses.jsonl",)


def test_a_linked_recording_is_not_replaced(folder: Path, evaluate: Evaluate) -> None:
    own, other = folder / "out" / "responses.jsonl", folder / "recorded.jsonl"
    before = own.read_bytes()
    shutil.move(own, other)
    own.symlink_to(other)
    models = [{"name": "A", "type": "replay", "config": {"path": "recorded.jsonl"}}]
    ran = evaluate(write_config(folder, models=models), "--limit", "1", "--json")
    assert ran.code == 0, ran.err
    assert (own.is_symlink(), other.read_bytes()) == (True, before)


def test_responses_of_others_have_no_place_beside_a_recording(folder: Path, evaluate: Evaluate) -> None:
    before = (folder / "out" / "responses.jsonl").read_bytes()
    models = [
        {"name": "A", "type": "replay", "config": {"path": "out/responses.jsonl"}},
        {"name": "demo", "type": "demo"},
    ]
    refused = evaluate(write_config(folder, models=models))
    assert refused.code == 2
    assert "so it can't write the responses of demo there; name another folder by --output" in refused.err
    assert os.listdir(folder / "out") == ["responses.jsonl"]
    elsewhere = evaluate(write_config(folder, models=models), "--output", folder / "second")
    assert elsewhere.code == 0, elsewhere.err
    assert (folder / "out" / "responses.jsonl").read_bytes() == before


REPLAY = {"name": "A", "type": "replay"}
JUDGE = {"type": "llm_judge", "prompt": "{{response}}", "parse": {"type": "number"}}
DOORS: dict[str, Callable[[str], dict[str, Any]]] = {
    "dataset.path": lambda name: {"dataset": name},
    "fewshot.path": lambda name: {"fewshot": {"num": 1, "path": name}},
    "prompt_templates.1.path": lambda name: {
        "prompt_template": None,
        "prompt_templates": [{"name": "a", "template": "{{q}}"}, {"name": "b", "path": name}],
    },
    "models.0.config.path": lambda name: {"models": [{**REPLAY, "config": {"path": name}}]},
    "scorer.calibration": lambda name: {
        "scorer": {**JUDGE, "judges": ["A"], "calibration": name},
    },
    "scorer.members.1.scorer.calibration": lambda name: {
        "scorer": {
            "type": "ensemble",
            "members": [
                {"scorer": {"type": "llm_judge", **JUDGE, "judges": ["A"]}},
                {"scorer": {**JUDGE, "judges": ["A"], "calibration": name}},
            ],
        },
    },
    "scorer.grader.config.path": lambda name: {
        "scorer": {**JUDGE, "judges": [{"name": "grader", "type": "replay", "config": {"path": name}}]},
    },
    "turns.model.config.path": lambda name: {
        "turns": {"model": {**REPLAY, "config": {"path": name}}, "prompt": "{{transcript}}"},
        "models": ["C"],
    },
}
"""What each key that names a file is written as."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("written", ["results.json", "samples_tiny.jsonl", "evaluation_results.jsonl"])
def test_a_file_that_is_read_by_any_door_is_never_written(folder: Path, door: str, written: str) -> None:
    """By its own name, and by a hard link of another."""
    read = folder / "out" / written
    read.write_text((folder / "items.jsonl").read_text())
    (folder / "out" / "responses.jsonl").unlink()
    os.link(read, folder / "linked.jsonl")
    for name in (f"out/{written}", "linked.jsonl"):
        with pytest.raises(ConfigError) as refused:
            kept(write_config(folder, **DOORS[door](name)), folder)
        assert f"would write over {written}, which it reads ({door}: {name})" in str(refused.value)
        assert "name another folder by --output" in str(refused.value)


def test_what_would_be_written_over_is_refused_before_anything_starts(
    folder: Path, evaluate: Evaluate
) -> None:
    read = folder / "out" / "metrics.jsonl"
    shutil.move(folder / "items.jsonl", read)
    (folder / "out" / "responses.jsonl").unlink()
    refused = evaluate(
        write_config(folder, dataset="out/metrics.jsonl", models=[{"name": "d", "type": "demo"}])
    )
    assert refused.code == 2
    assert "would write over metrics.jsonl, which it reads (dataset.path: out/metrics.jsonl)" in refused.err
    assert os.listdir(folder / "out") == ["metrics.jsonl"]
    assert len(lines(read)) == ITEMS


def test_a_plan_says_what_would_be_written_over(folder: Path, evaluate: Evaluate) -> None:
    shutil.copy(folder / "items.jsonl", folder / "out" / "metrics.jsonl")
    planned = evaluate(write_config(folder, dataset="out/metrics.jsonl"), "--dry-run", "--json")
    assert planned.code == 2
    (said,) = planned.document["refused"]
    assert "would write over metrics.jsonl" in said


def test_a_dataset_beside_the_output_s_files_is_no_clash(folder: Path, evaluate: Evaluate) -> None:
    before = (folder / "items.jsonl").read_bytes()
    ran = evaluate(write_config(folder), "--output", folder, "--json")
    assert ran.code == 0, ran.err
    assert (folder / "items.jsonl").read_bytes() == before


def test_files_of_a_harness_benchmark_are_among_those_that_are_read(folder: Path) -> None:
    shutil.copy(folder / "items.jsonl", folder / "out" / "metrics.jsonl")
    (folder / "data").mkdir()
    os.link(folder / "out" / "metrics.jsonl", folder / "data" / "test.jsonl")
    task = "task: tiny\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{ground_truth}}'\n"
    for keys in (
        "dataset_path: json\ndataset_kwargs: {data_files: {test: out/metrics.jsonl}}\n",
        "dataset_path: data\n",
    ):
        (folder / "task.yaml").write_text(task + keys)
        with pytest.raises(ConfigError, match=r"would write over metrics\.jsonl"):
            kept(folder / "task.yaml", folder)


def test_every_file_that_a_run_leaves_is_known_to_be_written(folder: Path, evaluate: Evaluate) -> None:
    """The list that inputs are held against is complete: whatever else lies there would be written unseen."""
    methods = [{"name": "long", "type": "length_check", "params": {"min_length": 1}}]
    config = write_config(
        folder,
        models=[{"name": name, "type": "demo"} for name in MODELS],
        evaluation_methods=methods,
        metrics=[{"name": "mean"}],
    )
    ran = evaluate(config, "--output", folder / "run")
    assert ran.code in (0, 1), ran.err
    known = set(output_files(folder / "run", "tiny"))
    assert {path for path in (folder / "run").rglob("*") if path.is_file()} == known


def test_a_suite_refuses_the_night_that_would_write_over_its_data(
    folder: Path, evaluate: Evaluate, suite_night: Evaluate
) -> None:
    night = folder / "night-1" / "tiny-A"
    night.mkdir(parents=True)
    shutil.copy(folder / "items.jsonl", night / "metrics.jsonl")
    write_config(folder, dataset=str(night / "metrics.jsonl"))
    (folder / "suite.yaml").write_text("name: s\nbenchmarks: [config.yaml]\n")
    refused = suite_night(folder / "suite.yaml")
    assert refused.code == 2
    assert "would write over metrics.jsonl" in refused.err


def test_a_run_that_writes_elsewhere_renews_the_page_of_all_runs_of_its_store(
    folder: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    config, results = write_config(folder), tmp_path / "results"
    env = {"NIGHTJAR_RESULTS": str(results)}

    def shown() -> list[str]:
        text = (results / "index-runs.js").read_text(encoding="utf-8")
        runs = json.loads(text.removeprefix("globalThis.nightjarRuns = ").removesuffix(";\n"))["runs"]
        return [run["id"].rpartition("-")[0] for run in runs]

    places = [("results/one", "store"), ("elsewhere", "store"), ("third", "another-store")]
    for name, (output, store) in zip(("one", "away", "other"), places, strict=True):
        ran = evaluate(
            config, "--run-name", name, "--output", tmp_path / output, "--store", tmp_path / store, env=env
        )
        assert ran.code == 0, ran.err
    assert sorted(shown()) == ["away", "one"]
