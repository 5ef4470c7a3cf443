"""Installed distributions add metrics, filters, scorers, providers and servers by entry points: named in
YAML, listed by the catalogue, and in keys."""

import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.catalog import catalog
from metrics.errors import ConfigError
from metrics.registry import METRICS, plugins
from scorers.config import ScoringConfig, UserScorerConfig
from scorers.factory import build_scorer
from scorers.filters import FILTERS
from tasks.models.config import ModelConfig
from tasks.models.providers.provider import provider_of
from tasks.models.registry import PROVIDERS
from tasks.serving.config import PRESETS, ServeConfig
from tasks.store.fingerprint import library_version
from tasks.usercode import files
from tasks.usercode.load import load_function
from tasks.usercode.sources import sources_of

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "nightjar-shouting"
CONFIG = {
    "name": "shouts",
    "dataset": "items.jsonl",
    "prompt_template": "{{question}}",
    "target": "{{answer}}",
    "filter_list": [{"name": "loud", "filter": [{"function": "shout"}]}, {"name": "as-is"}],
    "metric_list": ["loudness"],
    "models": [{"name": "kept", "type": "replay", "config": {"path": "answers.jsonl"}}],
}


def install(site: Path, name: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Leaves in ``site`` what an installer leaves of a distribution besides its modules."""
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in groups.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    (about / "top_level.txt").write_text(f"{name.replace('-', '_')}\n")


def install_example(site: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    install(site, project["name"], project["version"], project["entry-points"])
    shutil.copy(EXAMPLE / "nightjar_shouting.py", site)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages of the test's own."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for registry in (METRICS, FILTERS, PROVIDERS):
        len(registry)  # what it registers by itself stays
    registries = {registry: dict(registry._entries) for registry in (METRICS, FILTERS, PROVIDERS)}
    plugins.cache_clear()
    yield folder
    plugins.cache_clear()
    for registry, entries in registries.items():
        registry._entries.clear()
        registry._entries.update(entries)
    for name in [name for name in sys.modules if name.startswith(("nightjar_shouting", "plugin_of_a_test"))]:
        del sys.modules[name]


def written(folder: Path) -> Path:
    items = [{"id": str(n), "question": f"{n}?", "answer": "x"} for n in range(12)]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    kept = [{"item_id": item["id"], "response": "Ab"} for item in items]
    (folder / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in kept))
    (folder / "shouts.yaml").write_text(json.dumps(CONFIG))
    return folder / "shouts.yaml"


def test_an_installed_package_is_named_in_yaml_and_its_edit_recomputes(
    evaluate_process: Callable[..., Any], site: Path, tmp_path: Path
) -> None:
    install_example(site)
    config, env = written(tmp_path), {"PYTHONPATH": str(site)}
    ran = evaluate_process(config, "--json", env=env)
    assert ran.code == 0, ran.err
    values = {row["filter"]: row["value"] for row in json.loads(ran.out)["results"]}
    assert values == {"loud": 1.0, "as-is": 0.5}
    module = site / "nightjar_shouting.py"
    module.write_text(module.read_text().replace("str.isupper", "str.islower"))
    again = evaluate_process(config, "--json", env=env)
    assert again.code == 0, again.err
    values = {row["filter"]: row["value"] for row in json.loads(again.out)["results"]}
    assert values == {"loud": 0.0, "as-is": 0.5}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("metrics", "loudness"),
        ("filters", "shout"),
        ("scorers", "even_length"),
        ("models", "parrot"),
        ("servers", "shouting-server"),
    ],
)
def test_the_catalogue_lists_it_with_its_distribution(site: Path, kind: str, name: str) -> None:
    install_example(site)
    (entry,) = [entry for entry in catalog(kind) if entry.name == name]
    assert entry.source == "nightjar-shouting 1.0"
    assert entry.meaning


def test_the_version_of_its_distribution_is_in_keys(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example(site)
    folders = ((f"{site}/", False), *files._library_folders())
    monkeypatch.setattr(files, "_library_folders", lambda: folders)
    files._library.cache_clear()
    library_version.cache_clear()
    scorer = UserScorerConfig.model_validate({"type": "even_length"})
    behind = [METRICS["loudness"].function, FILTERS["shout"].function, PROVIDERS["parrot"]]
    for code in [*behind, load_function(scorer.type, site)]:
        assert sources_of(code)["nightjar-shouting"] == "1.0"
    assert "nightjar-shouting 1.0" in PRESETS["shouting-server"].version
    files._library.cache_clear()


def test_a_scorer_a_provider_and_a_server_work_by_their_names(site: Path) -> None:
    install_example(site)
    config = ScoringConfig.model_validate(
        {"scorer": {"type": "even_length"}, "filter_list": [{"name": "all"}]}
    )
    scorer = build_scorer(config, lambda reference: load_function(reference, site))
    assert [metric.name for metric in scorer.get_metrics("all")] == ["score"]
    model = ModelConfig.model_validate(
        {"name": "polly", "type": "parrot", "config": {"base_url": "http://h/v1"}}
    )
    assert provider_of(model).headers("secret") == {"x-parrot-key": "secret"}
    assert ServeConfig.model_validate({"preset": "shouting-server"}).preset_name == "shouting-server"


@pytest.mark.parametrize(
    ("value", "text", "told"),
    [
        ("plugin_of_a_test:f", "", "does not load: AttributeError"),
        ("plugin_of_a_test:f", "1 / 0", "does not load: ZeroDivisionError"),
        ("plugin_of_a_test_absent:f", "", "does not load: ModuleNotFoundError"),
        (
            "plugin_of_a_test:f",
            "def f(references, predictions): return 1.0",
            "registers no metric of that name",
        ),
    ],
)
def test_a_plugin_that_does_not_work_is_named_and_listed(
    site: Path, value: str, text: str, told: str
) -> None:
    install(site, "broken-plugin", "2.0", {"nightjar.metrics": {"broken": value}})
    (site / "plugin_of_a_test.py").write_text(text)
    with pytest.raises(ConfigError, match=told) as refused:
        METRICS["broken"]
    assert "broken-plugin" in str(refused.value)
    (entry,) = [entry for entry in catalog("metrics") if entry.name == "broken"]
    assert told in entry.meaning


def test_a_name_of_this_program_is_not_taken_over(site: Path) -> None:
    install(site, "greedy", "1.0", {"nightjar.metrics": {"exact_match": "plugin_of_a_test:f"}})
    assert METRICS["exact_match"].function.__module__.startswith("metrics.")
    with pytest.raises(ConfigError, match="plugin 'exact_match' of greedy has the name of a metric"):
        METRICS["no such metric"]


def test_one_name_of_two_distributions_is_refused(site: Path) -> None:
    install(site, "one-plugin", "1.0", {"nightjar.filters": {"same": "plugin_of_a_test:f"}})
    install(site, "other-plugin", "1.0", {"nightjar.filters": {"same": "plugin_of_a_test:f"}})
    with pytest.raises(ConfigError, match="two plugins named 'same'") as refused:
        FILTERS["same"]
    assert "one-plugin" in str(refused.value)
    assert "other-plugin" in str(refused.value)
