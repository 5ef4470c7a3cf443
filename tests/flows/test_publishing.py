"""The numbers of a run go where ``publish:`` says. What is away fails its own step, never the run."""

import ast
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.requirements import Requirement

from metrics.errors import ConfigError
from tasks.publish import publish_to
from tasks.publishers.config import PublishConfig
from tasks.publishers.every_eval_ever import EveryEvalEver
from tasks.publishers.mlflow import QUIET, MLflow
from tasks.publishers.publisher import SENT, FinishedRun, PublishError, named_numbers
from tasks.store.home import PROJECT, write_json
from tests.flows.endpoints import ScriptedChat

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "every_eval_ever" / "eval.schema.json").read_text("utf-8")
)
ITEMS = [{"id": str(n), "question": f"{n}?", "answer": "a b", "topic": "ab"[n % 2]} for n in range(12)]


def written(folder: Path, publish: Any, **more: Any) -> Path:
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    for model in ("org/one", "two"):
        rows = [{"item_id": item["id"], "response": "a b" if n % 3 else "c"} for n, item in enumerate(ITEMS)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{model.partition('/')[2] or model}.jsonl").write_text(text)
    config = {
        "name": "sums & more",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "metric_list": ["exact_match", "bleu", "ter"],
        "facets": ["model_name", "topic"],
        "models": [
            {"name": "org/one", "type": "replay", "config": {"path": "one.jsonl"}},
            {"name": "two", "type": "replay", "config": {"path": "two.jsonl"}},
        ],
        "publish": publish,
        **more,
    }
    (folder / "sums.yaml").write_text(json.dumps(config))
    return folder / "sums.yaml"


def documents(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Each document by its path below the run's folder."""
    found = sorted((folder / "every_eval_ever").rglob("*.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text("utf-8")) for path in found}


def test_each_model_has_a_document_of_the_common_record(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    keys = {"organization": "Lab", "relationship": "third_party"}
    ran = evaluate(written(tmp_path, [{"every_eval_ever": keys}]), "--json")
    assert ran.code == 0, ran.err
    folder = Path(ran.document["output"])
    found = documents(folder)
    assert [path.rpartition("/")[0] for path in found] == [
        "every_eval_ever/data/sums_more/org/one",
        "every_eval_ever/data/sums_more/unknown/two",
    ]
    for document in found.values():
        jsonschema.Draft7Validator(SCHEMA).validate(document)
        assert document["source_metadata"]["source_organization_name"] == "Lab"
    told = [
        (document["model_info"]["name"], entry["metric_config"]["metric_name"], entry["score_details"])
        for document in found.values()
        for entry in document["evaluation_results"]
    ]
    rows = ran.document["results"]
    assert len(told) == len(rows) == 2 * 3 * 3  # of each topic, and of both
    for row in rows:
        (mine,) = [
            details
            for model, metric, details in told
            if (model, metric) == (row["model_name"], row["metric"])
            and details["details"].get("facet.topic") == row["facets"].get("topic")
        ]
        assert mine["score"] == row["value"]
        assert mine["uncertainty"]["standard_error"]["value"] == row["stderr"]
        assert mine["uncertainty"]["confidence_interval"]["lower"] == row["ci_low"]
    lower = {
        entry["metric_config"]["metric_name"]: entry["metric_config"]["lower_is_better"]
        for entry in next(iter(found.values()))["evaluation_results"]
    }
    assert lower == {"exact_match": False, "bleu": False, "ter": True}
    (kept, *_) = found
    others = {
        folder / kept.replace("org/one", "org/one/earlier"): found[kept],
        folder / "every_eval_ever/data/sums_more/theirs.json": {"source_metadata": {"source_name": "Lab"}},
        folder / "every_eval_ever/data/other/one.json": found[kept],
    }
    for path, document in others.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
    again = list(EveryEvalEver.model_validate(keys).send(FinishedRun(folder)))
    assert sorted(again) == sorted(str(folder / path) for path in found)
    earlier, *theirs = others
    assert not earlier.exists()
    assert all(path.exists() for path in theirs)
    assert {name: document for name, document in documents(folder).items() if name in found} == found


@pytest.mark.parametrize(
    ("publish", "told"),
    [
        (["every_eval"], "did you mean 'every_eval_ever'"),
        ([{"every_eval_ever": {"organisation": "Lab"}}], "did you mean 'organization'"),
        (["every_eval_ever", "every_eval_ever"], "twice"),
        ([{}], "one destination an entry"),
        ([{"mlflow": {"tracking_uri": "http://me:secret@127.0.0.1"}}], "without a password"),
    ],
)
def test_an_entry_that_names_no_destination_is_refused(
    evaluate: Callable[..., Any], tmp_path: Path, publish: Any, told: str
) -> None:
    ran = evaluate(written(tmp_path, publish))
    assert ran.code == 2
    assert told in ran.err


KEYS: dict[str, dict[str, str]] = {
    "hub": {"repo": "lab/model", "dataset": "lab/sums"},
    "otel": {"endpoint": "http://127.0.0.1:9"},
    "wandb": {"project": "nights"},
}
"""What an entry needs at least."""
WITH_A_CLIENT = [
    (name, module)
    for name in PublishConfig.model_fields
    for module in PublishConfig.model_validate({name: KEYS.get(name, {})}).publisher.client
]


@pytest.mark.parametrize(("name", "module"), WITH_A_CLIENT)
def test_a_client_that_is_not_installed_is_told_before_anything_is_asked(
    evaluate: Callable[..., Any],
    endpoint: ScriptedChat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: str,
) -> None:
    asked = {"name": "asked", "type": "openai", "config": {"base_url": endpoint.url}}
    config = written(tmp_path, [{name: KEYS.get(name, {})}], models=[asked])
    monkeypatch.setitem(sys.modules, module, None)
    ran = evaluate(config)
    assert ran.code == 2
    entry = PublishConfig.model_validate({name: KEYS.get(name, {})})
    extra = entry.publisher.extra
    assert f"publish.0.{name}: needs the package '{module}' of the extra '{extra}'" in ran.err
    assert f"pip install -e '.[{extra}]'" in ran.err
    assert endpoint.asked == []
    with pytest.raises(ConfigError, match="which is not installed"):  # on a worker that lacks it
        publish_to.fn(entry, str(tmp_path))


def test_what_a_client_needs_is_declared() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    publishers = [
        PublishConfig.model_validate({name: KEYS.get(name, {})}).publisher
        for name in PublishConfig.model_fields
    ]
    declared = {module.partition(".")[0] for publisher in publishers for module in publisher.client}
    assert all(
        publisher.extra in project["optional-dependencies"] for publisher in publishers if publisher.client
    )
    needed = {Requirement(line).name.replace("-", "_") for line in project["dependencies"]}
    ours = {"flows", "tasks", "scorers", "metrics", "yaml"} | set(sys.stdlib_module_names) | needed
    trees = (ast.parse(path.read_text("utf-8")) for path in (PROJECT / "tasks" / "publishers").glob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in imported} - ours == declared


def test_a_model_without_a_number_has_no_document(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    config = written(tmp_path, ["every_eval_ever"])
    (tmp_path / "two.jsonl").write_text(json.dumps({"item_id": "absent", "response": "x"}) + "\n")
    ran = evaluate(config, "--force", "--output", tmp_path / "there")
    assert ran.code == 1
    assert [document["model_info"]["name"] for document in documents(tmp_path / "there").values()] == [
        "org/one"
    ]
    shutil.rmtree(tmp_path / "there")


def test_numbers_of_groups_that_look_alike_as_text_are_all_sent() -> None:
    def row(level: Any, value: float) -> dict[str, Any]:
        place = {
            "prompt_template": None,
            "metric": "acc",
            "filter": "none",
            "reduction": "mean",
            "label": None,
        }
        return {**place, "facets": json.dumps({"level": level}), "value": value, **dict.fromkeys(SENT[1:])}

    found = named_numbers([row(1, 0.25), row("1", 0.5), row(2, 1.0)], "/".join)
    assert sorted(found.values()) == [0.25, 0.5, 1.0]
    assert found["acc/none/level:2"] == 1.0


def test_a_manifest_that_cannot_be_written_again_costs_no_numbers(
    evaluate: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hindered(path: Path, document: Mapping[str, Any]) -> None:
        write_json(path / "below a file", document)

    monkeypatch.setattr("flows.eval.publishing.write_json", hindered)
    ran = evaluate(written(tmp_path, ["every_eval_ever"]), "--json")
    assert ran.code == 0, ran.err
    told = "where it was published could not be written into manifest.json: can't write"
    assert told in ran.document["message"]
    assert told in caplog.text


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("breaks", ["flows.eval.flow.publish_run", "tasks.publish.write_metrics"])
def test_a_run_that_is_not_published_says_why_and_shows_nothing_of_the_folders_former_run(
    evaluate: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    config = written(tmp_path, [])
    former = evaluate(config, "--limit", "6", "--json")
    assert former.code == 0, former.err
    monkeypatch.setattr(breaks, full_disk)
    ran = evaluate(config)
    assert ran.code == 1
    assert "No space left on device" in ran.err
    for told in ("exact_match", "report:", "requests:"):
        assert told not in ran.out
    document = evaluate(config, "--json").document
    assert document["results"] == []
    assert "No space left on device" in document["message"]
    assert document.get("run_id") is None
    output = tmp_path / "out"
    if "publish_run" in breaks:  # it wrote nothing
        assert json.loads((output / "manifest.json").read_text())["run_id"] == former.document["run_id"]
    else:
        left = {path.name for path in output.iterdir()}
        assert not {"manifest.json", "report.html", "metrics.jsonl"} & left


def test_a_run_that_fails_once_its_numbers_are_written_shows_them_and_says_why(
    evaluate: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.publish.record_manifest", full_disk)
    ran = evaluate(written(tmp_path, []))
    assert ran.code == 1
    assert "exact_match" in ran.out
    assert "No space left on device" in ran.err


def test_the_table_of_several_runs_has_no_numbers_of_one_that_was_not_published(
    evaluate: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path, [])
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text().replace("sums & more", "others"))
    assert evaluate(config, other).code == 0
    monkeypatch.setattr("flows.eval.flow.publish_run", full_disk)
    ran = evaluate(config, other)
    assert ran.code == 1
    assert "All together" not in ran.out


def test_no_message_holds_the_password_of_an_address_from_the_environment(
    evaluate: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:s3cret@passw0rd@127.0.0.1:9")
    ran = evaluate(written(tmp_path, []), "--json")
    with pytest.raises(PublishError) as caught:
        MLflow().publish(FinishedRun(Path(ran.document["output"])))
    assert "http://bob:***@127.0.0.1:9/api" in str(caught.value)
    assert "passw0rd" not in str(caught.value)


def test_a_client_that_exits_fails_its_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLflow, "send", lambda *_: sys.exit(0))
    with pytest.raises(PublishError, match="SystemExit: 0"):
        MLflow(tracking_uri="http://127.0.0.1:9").publish(FinishedRun(tmp_path))
