from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.load import load_config
from flows.config.models import ModelFlags
from flows.config.source import YamlSource, override, parse_override, with_overrides
from flows.suite.plan import SuiteOptions, load_suite, plan_night
from metrics.errors import ConfigError

CONFIG = """\
name: sums
dataset: items.jsonl
prompt_template: "{{question}}"
models:
  - qwen
  - {name: demo, type: demo}
filter_list:
  - {name: a, filter: [{function: take_first}], metric_list: [exact_match]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "bench.yaml").write_text(CONFIG)
    return tmp_path / "bench.yaml"


def overridden(data: dict[str, Any], *overrides: str) -> dict[str, Any]:
    return with_overrides(YamlSource("x.yaml", data), overrides, Path()).data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("b=2", {"a": [1, {"x": 1}], "b": 2}),
        ("a.0=text", {"a": ["text", {"x": 1}]}),
        ("a.1.x=null", {"a": [1, {"x": None}]}),
        ("a.1.y.z=[1, 2]", {"a": [1, {"x": 1, "y": {"z": [1, 2]}}]}),
        ("a.2={x: 2}", {"a": [1, {"x": 1}, {"x": 2}]}),
        ("a=[]", {"a": []}),
        ("new.0.x=1.5", {"a": [1, {"x": 1}], "new": [{"x": 1.5}]}),
        ('new."gpt-4.1".x=true', {"a": [1, {"x": 1}], "new": {"gpt-4.1": {"x": True}}}),
        ("a.1.7=x", {"a": [1, {"x": 1, "7": "x"}]}),
        ("b=a=b", {"a": [1, {"x": 1}], "b": "a=b"}),
        ('new."r=8".x="=="', {"a": [1, {"x": 1}], "new": {"r=8": {"x": "=="}}}),
        ("b=", {"a": [1, {"x": 1}], "b": None}),
        ("b='007'", {"a": [1, {"x": 1}], "b": "007"}),
    ],
)
def test_a_value_read_as_yaml_takes_its_place(text: str, data: dict[str, Any]) -> None:
    before = {"a": [1, {"x": 1}]}
    assert overridden(before, text) == data
    assert before == {"a": [1, {"x": 1}]}


@pytest.mark.parametrize(
    "value",
    [
        1e-05, 1e16, 1.5, 10**18, True, None, "1e-05", "no", "010", "12:30", "2024-01-01", "=", "<<",
        "!function a.b", "😀", " a: b # c\n\n d ", "\x7f\x85\u2028", "\U0001f600" * 60, "", [], {},
        [[1e-7], {"5": 2e-9, "😀.=": ["~"]}],
    ],
)  # fmt: skip
def test_an_override_that_is_made_is_read_as_its_value(value: Any) -> None:
    shared = [value, value]
    assert parse_override(override("a.b", value), Path()) == (("a", "b"), value)
    assert parse_override(override("a", [shared, shared]), Path()) == (("a",), [shared, shared])


def test_small_numbers_and_signs_of_a_suite_and_of_flags_stay_what_they_are(path: Path) -> None:
    body = {"min_p": 1e-05, "stop": "😀"}
    models = [{"name": "m", "config": {"extra_body": body}}]
    metrics = [{"metric": "numeric_match", "abs_tol": 1e-06}]
    entry = {"config": path.name, "set": {"metric_list": metrics, "filter_list": None}}
    suite = path.with_name("suite.yaml")
    suite.write_text(yaml.safe_dump({"name": "s", "benchmarks": [entry], "models": models}))
    (night,) = plan_night(load_suite(suite), SuiteOptions(), "u").evaluations
    assert night.config is not None, night.refusal
    assert night.config.models[0].config.extra_body == body  # type: ignore[union-attr]
    assert night.config.metric_list is not None
    assert night.config.metric_list[0].kwargs == {"abs_tol": 1e-06}
    flags = ModelFlags(names=("m",)).overrides(night.config.models)
    assert load_config(path, flags).models[0].config.extra_body == body  # type: ignore[union-attr]


def test_overrides_apply_in_order() -> None:
    assert overridden({}, "a=[1]", "a.1=2", "a.0=3") == {"a": [3, 2]}


def test_a_text_that_stands_for_a_mapping_is_spelled_out(path: Path) -> None:
    config = load_config(
        path,
        [
            "models.0.config.base_url=http://localhost:9/v1",
            "dataset.id=key",
            "filter_list.0.metric_list.0.ignore_case=true",
        ],
    )
    assert (config.models[0].name, config.models[0].config.base_url) == ("qwen", "http://localhost:9/v1")
    assert config.dataset is not None
    assert (config.dataset.path, config.dataset.id) == ("items.jsonl", "key")
    assert config.filters()[0].metric_list[0].kwargs == {"ignore_case": True}


def test_null_takes_a_key_back(path: Path) -> None:
    assert load_config(path, ["filter_list=null", "facets=null"]).filter_list is None


def test_a_function_may_be_named(path: Path) -> None:
    (path.parent / "own.py").write_text("def fn(references, predictions):\n    return 1.0\n")
    config = load_config(path, ["filter_list.0.metric_list=[{metric: !function own.fn}]"])
    assert config.filters()[0].metric_list[0].metric == "own.py:fn"


REFUSED = {
    ("nothing",): "--set nothing: expected KEY=VALUE with a dotted key, such as models.0.name=qwen",
    ("=3",): "--set: expected KEY=VALUE with a dotted key, such as models.0.name=qwen",
    ("a..b=3",): "--set a..b: expected KEY=VALUE with a dotted key, such as models.0.name=qwen",
    ("models=[",): "--set models: not valid YAML: did not find expected node content",
    ("models.x=3",): "--set models.x: models is a list of 2; expected an index (0 to 2), not 'x'",
    ("models.5=3",): "--set models.5: models is a list of 2; expected an index (0 to 2), not '5'",
    ("name.x=3",): "--set name.x: name is 'sums', which has no 'x'",
    ("models.0.typ=demo",): "--set models.0.typ: 'typ' is not a key here; did you mean 'type'? "
    "(known: name, type, config, sample_params, tokenizer, max_length, reasoning, identity, path, "
    "peft, checkpoints, serve, metadata)",
    ("models.1.type=dmo",): "--set models.1.type: model type 'dmo' is not known; did you mean 'demo'? "
    "(python -m flows.catalog lists them)",
    ("facts.0=x",): None,
    (
        "filter_list.0.metric_list.0=exactmatch",
    ): "--set filter_list.0.metric_list.0: filter_list.0.metric_list.0.metric: "
    "metric 'exactmatch' is not known; did you mean 'exact_match'? (python -m flows.catalog lists them)",
    ("models=null",): "bench.yaml:1: 'models' is missing: which models to evaluate, as in models: "
    "[{name: qwen, config: {base_url: …}}]",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=lambda overrides: " ".join(overrides))
def test_an_override_that_does_not_fit_is_named(path: Path, overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides)
    expected = REFUSED[overrides]
    assert (
        str(refused.value).startswith(f"--set {overrides[0].partition('=')[0]}".rstrip())
        or expected is not None
    )
    if expected is not None:
        assert str(refused.value) == expected


def test_no_message_repeats_a_value_that_may_be_a_secret(path: Path) -> None:
    for text in (
        "models.0.config.base_url=http://me:hunter2@host/v1",
        "api_key=hunter2",
        "models.0.config.key=hunter2",
    ):
        with pytest.raises(ConfigError) as refused:
            load_config(path, [text])
        assert "hunter2" not in str(refused.value)


def test_other_mistakes_keep_their_line(path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(path, ["models.0.config.base_url=http://host/v1", "filter_list.0.metric_list.1=nope"])
    assert "--set filter_list.0.metric_list.1: " in str(refused.value)
    with pytest.raises(ConfigError, match=r"^--set dataset\.split: belongs to hub, and there is none"):
        load_config(path, ["models.0=qwen", "dataset.split=test"])


def test_a_key_and_its_value_are_read_apart() -> None:
    assert parse_override('prices."gpt-4.1".prompt=2', Path()) == (("prices", "gpt-4.1", "prompt"), 2)
    assert parse_override(" models.0.name = qwen", Path()) == (("models", 0, "name"), "qwen")


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield at
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield from places(entry, (*at, key))


WEIRD = ["null", "3", "-1.5", "true", "text", "''", "[1]", "{x: 1}", "[[{}]]", "[null]", "{name: null}"]


@pytest.mark.parametrize("weird", WEIRD)
def test_a_value_of_any_kind_in_any_place_is_taken_or_answered(path: Path, weird: str) -> None:
    keys = """
    output_type: generate_until
    dataset: {path: items.jsonl, id: key, ground_truth: answer}
    prompt_templates: [{name: a, template: x}, {name: b, messages: [{role: user, content: x}]}]
    target: [x]
    fewshot: {num: 1, examples: [{question: x}]}
    sample_params: {temperature: 0.5, stop: [x]}
    filter_list:
      - {name: a, filter: [{function: take_first}], metric_list: [{metric: exact_match, reduction: [mean]}]}
    metric_list: [bleu]
    scorer: {type: llm_judge, prompt: x, judges: [qwen], parse: {type: number}}
    evaluation_methods: [{name: contains, params: {mode: any}}]
    metrics: [{name: p, type: pass_at_k, params: {k: 1}, facets: [model_name], labels: {include: [contains]}}]
    facets: [model_name]
    statistics: {seed: 1}
    errors: {max_rate: 0.1}
    limits: {max_cost: 1}
    prices: {qwen: {prompt: 1}}
    """
    config = {**yaml.safe_load(CONFIG.replace("prompt_template:", "system_prompt:")), **yaml.safe_load(keys)}
    path.write_text(yaml.safe_dump(config))
    assert load_config(path).name == "sums"
    for place in places(config):
        if place:
            with suppress(ConfigError):
                load_config(path, [f"{'.'.join(map(str, place))}={weird}"])
