"""A prompt that ends in white space, where likelihoods are asked for: the space is scored with the answer, as
lm-evaluation-harness does it, or stays where it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.lm_eval import select, translate
from tasks.benchmarks.lm_eval.benchmark import HarnessBenchmark
from tasks.benchmarks.native import NativeBenchmark
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.item import Rendered
from tasks.rows.items import request_batches

ROWS = [
    {"id": str(place), "question": f"What is {place} + 1?{end}", "options": ["3", "4"], "right": 1}
    for place, end in enumerate(["", " ", "\n", "  ", "\u00a0", ""])
]
KINDS: dict[str, dict[str, Any]] = {
    "multiple_choice": {"output_type": "multiple_choice", "choices": "{{options}}", "target": "{{right}}"},
    "loglikelihood": {"output_type": "loglikelihood", "target": "{{options[right]}}"},
}


def native(folder: Path, rows: list[dict[str, Any]] = ROWS, **keys: Any) -> NativeBenchmark:
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prompt = {"prompt_template": "{{question}}"}
    fields = BenchmarkFields(name="sums", dataset="items.jsonl", base_dir=str(folder), **{**prompt, **keys})
    made = open_benchmark(fields)
    assert isinstance(made, NativeBenchmark)
    return made


def pairs(rendered: list[Rendered]) -> list[tuple[str, str]]:
    return [pair for one in rendered for pair in zip(one.prompts, one.continuations, strict=True)]


def asked(benchmark: Any) -> list[Rendered]:
    return list(benchmark.render("default", list(benchmark.items())))


@pytest.mark.parametrize("delimiter", [" ", "\n", "", "\nA: "], ids=["space", "line", "none", "word"])
@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods_are_asked_for_as_the_harness_asks(tmp_path: Path, kind: str, delimiter: str) -> None:
    own = native(tmp_path, **KINDS[kind], target_delimiter=delimiter)
    found, expected = pairs(asked(own)), pairs(asked(harness(tmp_path, kind, delimiter)))
    if kind != "multiple_choice":  # there the harness has no delimiter: see the next test
        found = [pair for pair in found if pair[0][-1].isspace()]
        expected = [pair for pair in expected if pair[0][-1].isspace()]
    assert found == expected


def harness(tmp_path: Path, kind: str, delimiter: str) -> HarnessBenchmark:
    """The same benchmark as a definition of the harness."""
    choice = kind == "multiple_choice"
    task = {
        "task": "sums", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "items.jsonl"}},
        "test_split": "test", "output_type": kind, "doc_to_text": "{{question}}",
        "doc_to_target": "{{right}}" if choice else "{{options[right]}}", "target_delimiter": delimiter,
        **({"doc_to_choice": "{{options}}"} if choice else {}),
    }  # fmt: skip
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(task))
    config = translate(select(["sums"], [tmp_path]).benchmarks["sums"])
    return HarnessBenchmark(config["harness"], config["base_dir"], "sums")


def test_where_a_native_benchmark_asks_otherwise_than_the_harness(tmp_path: Path) -> None:
    """The harness puts its delimiter before every choice and before no lone target; here it stands where
    neither side has white space, and behind white space that the prompt itself ends in. Without a delimiter
    both ask the same, byte for byte."""
    rows = [
        {"id": str(place), "question": question, "options": ["three", " four"], "right": right}
        for place, (question, right) in enumerate([("One and", 0), ("One and", 1), ("One and ", 0)])
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def both(kind: str, delimiter: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        own = native(tmp_path, rows, **KINDS[kind], target_delimiter=delimiter)
        return pairs(asked(own)), pairs(asked(harness(tmp_path, kind, delimiter)))

    for kind in KINDS:
        assert len(set(map(tuple, both(kind, "")))) == 1
    found, expected = both("loglikelihood", " ")
    assert found == [("One and", " three"), ("One and", " four"), ("One and ", "three")]
    assert expected == [("One and", "three"), ("One and", " four"), ("One and ", "three")]
    found, expected = both("multiple_choice", " ")
    different = [(one[1], other[1]) for one, other in zip(found, expected, strict=True) if one != other]
    assert set(different) == {(" four", "  four")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_space_stays_in_the_prompt_and_the_request_says_so(tmp_path: Path, kind: str) -> None:
    rendered = asked(native(tmp_path, **KINDS[kind], keep_trailing_space=True))
    assert [one.keeps_space for one in rendered] == [False, True, True, True, True, False]
    assert [one.continuations[-1] for one in rendered] == [" 4", "4", "4", "4", "4", " 4"]
    (batch,) = request_batches("default", rendered)
    assert batch.column("keeps_space").to_pylist() == [one.keeps_space for one in rendered]


def test_keeping_the_space_is_a_decision_about_the_prompt(tmp_path: Path) -> None:
    identities = [
        native(tmp_path, **KINDS["loglikelihood"], **keys).render_identity("default")
        for keys in ({}, {"keep_trailing_space": False}, {"keep_trailing_space": True})
    ]
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_end_in_white_space_are_told_either_way(tmp_path: Path, kind: str) -> None:
    for keep, said in (
        (False, "white space is scored with the answer"),
        (True, "keep_trailing_space"),
    ):
        benchmark = native(tmp_path, **KINDS[kind], keep_trailing_space=keep)
        (told,) = benchmark.prompt_warnings(benchmark.items(), 60)
        assert told.startswith("prompt 'default': 4 of 6 prompts end in white space")
        assert said in told


def test_a_template_that_names_no_field_is_told(tmp_path: Path) -> None:
    single = native(tmp_path, prompt_template="Q: {question}", target="{{options[right]}}")
    (told,) = single.prompt_warnings(single.items(), 60)
    assert told.startswith(
        "prompt 'default': the first 6 items are asked the same, 'Q: {question}'; a template"
    )
    one = native(tmp_path, ROWS[:1], prompt_template="Q: {question}", target="{{options[right]}}")
    assert one.prompt_warnings(one.items(), 60) == []


def test_only_likelihoods_are_told_of_white_space(tmp_path: Path) -> None:
    clean = [row for row in ROWS if not row["question"][-1].isspace()]
    likelihoods = native(tmp_path, clean, **KINDS["multiple_choice"])
    assert likelihoods.prompt_warnings(likelihoods.items(), 60) == []
    lettered = native(tmp_path, **KINDS["multiple_choice"], choices_by="letter")
    assert lettered.prompt_warnings(lettered.items(), 60) == []
    texts = native(tmp_path, target="{{options[right]}}")
    assert texts.prompt_warnings(texts.items(), 60) == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"target": "x"}, "belongs to likelihoods"),
        ({**KINDS["multiple_choice"], "choices_by": "letter"}, "belongs to likelihoods"),
        ({"output_type": "loglikelihood_rolling"}, "belongs to likelihoods"),
        ({"harness": {}, "dataset": None, "prompt_template": None}, "belongs to native benchmarks"),
    ],
)
def test_keeping_the_space_is_refused_where_there_is_none_to_keep(keys: dict[str, Any], said: str) -> None:
    base = {"name": "x", "dataset": "x.jsonl", "prompt_template": "x", "keep_trailing_space": True}
    with pytest.raises(ValidationError, match=said):
        BenchmarkFields.model_validate({**base, **keys})
