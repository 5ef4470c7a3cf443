"""Definitions that make their documents themselves are told the models' tokenizer."""

import json
from pathlib import Path

import pytest

from flows.config.load import load_config
from flows.config.schema import EvalConfig
from flows.plan.fields import benchmark_fields
from metrics.errors import ConfigError
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.config import DatasetError

TASK = """task: long
custom_dataset: !function utils.make
test_split: test
doc_to_text: "{{text}}"
doc_to_target: "{{size}}"
metadata: {max_seq_lengths: [4, 8]}
"""
MAKE = """def make(max_seq_lengths=(), **kwargs):
    name = kwargs.get('tokenizer', kwargs.get('pretrained'))
    assert name, 'No tokenizer or pretrained provided.'
    return {'test': [{'text': f'{name} {size}', 'size': size} for size in max_seq_lengths]}
"""
MODEL = {"name": "m", "config": {"api": "completions"}}


def config_of(folder: Path, *tokenizers: str | None) -> EvalConfig:
    (folder / "long.yaml").write_text(TASK)
    (folder / "utils.py").write_text(MAKE)
    told = [{} if one is None else {"tokenizer": one} for one in tokenizers]
    models = [{**MODEL, "name": f"m{at}", **own} for at, own in enumerate(told)]
    return load_config(folder / "long.yaml", (f"models={json.dumps(models)}",))


def prompts(config: EvalConfig) -> list[str]:
    benchmark = open_benchmark(benchmark_fields(config))
    return [one.prompts[0] for one in benchmark.render("default", list(benchmark.items()))]


def test_documents_are_made_with_the_models_tokenizer(tmp_path: Path) -> None:
    assert prompts(config_of(tmp_path, "some/folder")) == ["some/folder 4", "some/folder 8"]
    assert prompts(config_of(tmp_path, "one", None, "one")) == ["one 4", "one 8"]


def test_the_tokenizer_is_in_the_digest_of_the_documents(tmp_path: Path) -> None:
    digests = {
        open_benchmark(benchmark_fields(config_of(tmp_path, name))).dataset_digest()
        for name in ("one", "two")
    }
    assert len(digests) == 2


def test_without_a_tokenizer_the_refusal_says_where_to_set_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"No tokenizer .* set tokenizer in their entries"):
        prompts(config_of(tmp_path, None))


def test_models_with_different_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"have the tokenizers one, two; evaluate them one by one"):
        benchmark_fields(config_of(tmp_path, "one", "two"))


ONE_ROW = "def make(**kwargs): return {'test': [{'a': 'b'}]}\n"


@pytest.mark.parametrize(
    ("functions", "named"),
    [
        ("def make(**kwargs): sys.exit(0)", "custom_dataset utils.py:make failed"),
        (
            "def make(**kwargs): return {'test': (sys.exit(0) for _ in 'a')}",
            "custom_dataset utils.py:make failed",
        ),
        (ONE_ROW + "def docs(rows): sys.exit(0)", "utils.py:docs failed"),
        (ONE_ROW + "def docs(rows): yield sys.exit(0)", "utils.py:docs failed"),
        (ONE_ROW + "def docs(rows): return rows\ndef text(doc): sys.exit(0)", "utils.py:text failed"),
    ],
)
def test_a_function_of_a_definition_that_exits_is_named(tmp_path: Path, functions: str, named: str) -> None:
    given = "".join(
        f"{key}: !function utils.{name}\n"
        for key, name in (("process_docs", "docs"), ("doc_to_text", "text"))
        if f"def {name}" in functions
    )
    (tmp_path / "long.yaml").write_text(
        "task: long\ncustom_dataset: !function utils.make\ntest_split: test\n"
        f"doc_to_target: ''\n{given}" + ("" if "doc_to_text" in given else "doc_to_text: ''\n")
    )
    (tmp_path / "utils.py").write_text(f"import sys\n{functions}\n")
    with pytest.raises(DatasetError, match=f"{named}: SystemExit: 0"):
        prompts(load_config(tmp_path / "long.yaml", (f"models={json.dumps([MODEL])}",)))
