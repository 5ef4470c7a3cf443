"""The page of config keys and the schema for editors are the code's: equal to it, and complete."""

import json
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from flows.catalog import aggregations_page, stages_page
from flows.config import load_config
from flows.config.reference import NOT_WRITTEN, as_markdown, json_schema, keys_named, sections
from flows.config.schema import EvalConfig
from flows.suite.plan import SuiteConfig
from tasks.comparison.compare import Gate
from tasks.history.prune import Retention
from tasks.models.registry import schemas

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "deployments" / "benchmarks").rglob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
SHORT = {
    "dataset": "questions.jsonl",
    "prompt_template": "{{question}}",
    "models": ["qwen", {"name": "demo", "type": "demo", "config": {"latency": 0.1}}],
    "fewshot": 2,
    "facets": "model_name",
    "metric_list": {"metric": "exact_match", "ignore_case": True, "reduction": "pass@2"},
    "filter_list": [{"name": "a", "filter": {"function": "take_first_k", "k": 2}, "metric_list": "bleu"}],
    "scorer": "generation",
    "evaluation_methods": ["exact_match", {"name": "own", "function": "own.py:judge"}],
    "prices": {"currency": "USD", "qwen": {"prompt": 1}},
    "sample_params": {"stop": "\n", "num_samples": 2},
}


PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
OTHERS = (SuiteConfig, Gate, Retention)


class _Loader(yaml.SafeLoader):
    """YAML with the tag ``!function``."""


_Loader.add_constructor("!function", lambda loader, node: str(node.value))


def refusals(config: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(config)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.md", as_markdown()),
        ("config.schema.json", json.dumps(json_schema())),
        ("stages.md", stages_page()),
        ("aggregations.md", aggregations_page()),
    ],
)
def test_page_and_schema_are_those_of_the_code(file: str, text: str) -> None:
    written = (ROOT / "docs" / file).read_text(encoding="utf-8")
    same = json.loads(written) == json.loads(text) if file.endswith("json") else written == text
    assert same, f"docs/{file} is not what the code says: run `make reference`, and commit what it writes"


def test_every_key_says_what_it_means() -> None:
    silent = [key.path for section in sections() for key in section.keys if not key.meaning]
    assert silent == [], "a key of the config has no description in its Field(...)"


def test_every_key_of_the_top_level_is_there() -> None:
    top = {key.path for key in sections()[0].keys}
    assert top == set(EvalConfig.model_fields) - NOT_WRITTEN
    assert top == set(json_schema()["properties"]) - {"benchmark", "mutual_information"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_keep_the_schema_and_name_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert refusals(yaml.load(text, _Loader)) == []
    named = text.partition("# yaml-language-server: $schema=")[2].partition("\n")[0]
    assert (file.parent / named).resolve() == ROOT / "docs" / "config.schema.json"


def blocks() -> Iterator[Any]:
    """Every YAML block of the pages that is an evaluation's, or a part of one."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"^```ya?ml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)):
            config = yaml.load(block, _Loader)
            holders = [model for model in (EvalConfig, *OTHERS) if set(config) <= set(model.model_fields)]
            if holders[:1] in ([], [EvalConfig]):
                yield pytest.param(config, id=f"{page.name}:{number}")


@pytest.mark.parametrize("config", [*blocks()])
def test_what_the_pages_show_keeps_the_schema(config: dict[str, Any]) -> None:
    assert refusals(config) == []


@pytest.mark.parametrize(
    "config",
    [
        {"publish": ["mlflow", {"every_eval_ever": None}]},
        {"models": [{"name": "sft", "checkpoints": "runs/*", "serve": "vllm"}]},
        {"output_type": "multiple_choice", "choices": ["a", "b"], "choices_by": "letter"},
        {"dataset": {"path": None, "function": "own.py:items"}},
        {"prompt_templates": None, "metric_list": {"function": "own.py:metric"}},
    ],
    ids=lambda config: next(iter(config)),
)
def test_a_name_alone_keeps_the_schema_where_the_reader_takes_one(config: dict[str, Any]) -> None:
    EvalConfig.model_validate({"name": "short", "dataset": "x.csv", "prompt_template": "x", **config})
    assert refusals(config) == []


def test_a_key_without_a_value_is_not_given_for_the_schema_as_for_the_reader(tmp_path: Path) -> None:
    keys = dict.fromkeys(set(json_schema()["properties"]) - {"benchmark"})
    config = keys | {name: SHORT[name] for name in ("dataset", "prompt_template", "models")}
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(config))
    assert load_config(tmp_path / "bare.yaml", strict=False).name == "bare"
    assert refusals(config) == []


def test_the_schema_takes_whatever_short_form_the_reader_takes() -> None:
    EvalConfig.model_validate({"name": "short", **SHORT})
    assert refusals(SHORT) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"filterlist": []},
        {"models": [{"name": "qwen", "kind": "demo"}]},
        {"models": [{"name": "qwen", "config": {"tiemout": 3}}]},
        {"models": [{"name": "qwen", "type": "demo", "config": {"base_url": "http://localhost"}}]},
        {"models": [{"name": "qwen", "type": "opanai"}]},
        {"sample_params": {"temperature": -1}},
        {"prices": {"qwen": {"promt": 1}}},
        {"output_type": "generate"},
        {"scorer": {"type": "llm_jugde"}},
        {"statistics": {"ci_level": 1.5}},
        {"filter_list": []},
        {"turns": []},
        {"dataset": {}},
        {"dataset": {"path": "x.csv", "hub": "a/b", "split": "test"}},
        {"messages": [{"role": "user", "content": "x"}]},
        {"metric_list": {"ignore_case": True}},
        {"evaluation_methods": [{"type": "exact_match"}]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_the_schema_refuses_what_the_reader_refuses(wrong: dict[str, Any]) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError):
        EvalConfig.model_validate({"name": "wrong", **SHORT, **wrong})
    assert refusals({**SHORT, **wrong})


def test_a_key_is_found_by_its_path_with_or_without_numbers_and_by_its_name_alone() -> None:
    (section,) = keys_named("models.0.config.timeout")[:1]
    assert [key.path for key in section.keys] == ["models.config.timeout"]
    types = {f"models.config (type {name})" for name in schemas()}
    assert {section.title for section in keys_named("models.config")} == {"models", *types}
    assert "limits" in {section.path for section in keys_named("max_cost")}
    assert keys_named("max_cots") == []


def test_the_terminal_shows_a_key_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import redirect_stdout

    from flows import catalog

    monkeypatch.setattr(catalog, "WIDTH", 80)
    with redirect_stdout(StringIO()) as printed:
        catalog._print_keys("limits")
    assert printed.getvalue().splitlines() == [
        "limits   mapping",
        "    Where inference stops",
        "",
        "inspect",
        "inspect.limits   mapping",
        "    Where a sample ends",
        "",
        "scorer (type execution)",
        "scorer.limits   mapping",
        "    What one run of a program may take",
        "",
        "limits",
        "Where a run stops asking, with what it has.",
        "limits.max_tokens   integer ≥ 1",
        "    Tokens sent and received",
        "limits.max_cost   number > 0",
        "    In the currency of prices; each model that is asked needs one",
        "limits.max_seconds   number > 0",
        "    Seconds since the run began; waiting for batches is not counted",
        "",
    ]
