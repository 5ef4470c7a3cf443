"""Facets: a dataset's field by its plain name, and what is said of a name that nothing has."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.checks import check_templates
from flows.config.load import load_config
from metrics.errors import ConfigError
from tasks.datasets.items import open_dataset
from tests.flows.conftest import Evaluate

ITEMS = [
    {"question": f"{n}+1?", "answer": str(n + 1), "topic": "sums" if n % 2 else "words"} for n in range(6)
]


def config(folder: Path, **keys: Any) -> Path:
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    entry = {
        "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
        "prompt_template": "{{question}}", "metric_list": ["exact_match"],
        "models": [{"name": "own", "type": "demo"}],
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(entry | keys))
    return folder / "config.yaml"


@pytest.mark.parametrize(
    ("facets", "said"),
    [
        (["topc"], "did you mean 'topic'?"),
        (["item.topc"], "did you mean 'item.topic'?"),
        (["modle_name"], "did you mean 'model_name'?"),
        (["metadata.stepp"], "did you mean 'metadata.step'?"),
    ],
)
def test_a_facet_that_nothing_has_is_refused_with_its_place_and_the_nearest_name(
    facets: list[str], said: str, tmp_path: Path
) -> None:
    models = [{"name": "own", "type": "demo", "metadata": {"step": 3}}]
    loaded = load_config(config(tmp_path, facets=facets, models=models))
    first = next(iter(open_dataset(loaded.dataset, loaded.base_dir)))
    with pytest.raises(ConfigError, match=r"config\.yaml:1: facets") as refused:
        check_templates(loaded, first)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "facets",
    [["topic"], ["item.topic"], ["model_name", "topic"], ["metadata.step"], ["step"], ["finish_reason"]],
)
def test_facets_that_are_there_are_taken(facets: list[str], tmp_path: Path) -> None:
    models = [{"name": "own", "type": "demo", "metadata": {"step": 3}}]
    loaded = load_config(config(tmp_path, facets=facets, models=models))
    check_templates(loaded, next(iter(open_dataset(loaded.dataset, loaded.base_dir))))


def test_a_run_has_a_row_for_each_value_of_the_datasets_field(tmp_path: Path, evaluate: Evaluate) -> None:
    ran = evaluate(config(tmp_path, facets=["model_name", "topic"]), "--json")
    assert ran.code == 0, ran.err
    rows = {json.dumps(row["facets"]): row["n_items"] for row in ran.document["results"]}
    assert rows == {
        "{}": 6,
        '{"model_name": "own", "topic": "words"}': 3,
        '{"model_name": "own", "topic": "sums"}': 3,
    }
    refused = evaluate(config(tmp_path, facets=["model_name", "topc"]), "--dry-run")
    assert (refused.code, "did you mean 'topic'?" in refused.err) == (2, True)
