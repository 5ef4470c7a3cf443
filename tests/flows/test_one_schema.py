"""One schema for a config, wherever it comes in: the reader, editors, a deployment's form, the docs."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from flows.config.load import load_config
from flows.config.reference import json_schema
from flows.config.schema import EvalConfig
from flows.eval import evaluate
from tests.docs.test_config_reference import SHORT

ROOT = Path(__file__).resolve().parents[2]
FORM = parameter_schema(evaluate).model_dump()
README = yaml.safe_load(
    re.findall(r"```yaml\n(# my_benchmark.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[0]
)


def refusals(schema: Any, value: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]


@pytest.mark.parametrize("config", [README, {"name": "short", **SHORT}], ids=["README", "short forms"])
def test_all_doors_take_the_same_config(config: dict[str, Any], tmp_path: Path) -> None:
    assert refusals(json_schema(), config) == []
    assert refusals(FORM, {"config": config}) == []
    assert refusals(json.loads((ROOT / "docs" / "config.schema.json").read_text("utf-8")), config) == []
    EvalConfig.model_validate(config)


def test_the_readmes_config_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    (tmp_path / "my_benchmark.yaml").write_text(yaml.safe_dump(README))
    assert load_config(tmp_path / "my_benchmark.yaml").name == "my_benchmark"


@pytest.mark.parametrize(
    "wrong",
    [
        {"datasett": "x"},
        {"models": [{"name": "qwen", "config": {"tiemout": 3}}]},
        {"metric_list": [3]},
        {"prices": {"qwen": {"promt": 1}}},
    ],
)
def test_a_deployments_form_refuses_what_the_reader_refuses(wrong: dict[str, Any]) -> None:
    assert refusals(FORM, {"config": {**README, **wrong}})


def test_the_form_shows_the_keys_of_the_reference() -> None:
    assert set(json_schema()["properties"]) - {"benchmark"} <= set(
        FORM["definitions"]["EvalConfig"]["properties"]
    )
