"""Prompts and documents are the harness's own: bench/lm_eval/record.py wrote cases/expected.json."""

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.lm_eval import select, translate
from tasks.benchmarks.lm_eval.benchmark import HarnessBenchmark
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item, Rendered

CASES = Path(__file__).parent / "cases"
EXPECTED = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))
SELECTION = select([name for name in EXPECTED if " " not in name], [CASES])


def translated(name: str, **changes: Any) -> dict[str, Any]:
    definition = SELECTION.benchmarks[name]
    return translate(replace(definition, config={**definition.config, **changes}))


def benchmark(name: str, **knobs: Any) -> HarnessBenchmark:
    config = translated(name)
    return HarnessBenchmark({**config["harness"], **knobs}, config["base_dir"], name)


def asked(rendered: Rendered) -> list[list[Any]]:
    doc_id = rendered.item.doc_id
    if rendered.kind == "generate":
        prompt = rendered.prompts[0]
        text = json.dumps(json.loads(prompt), ensure_ascii=False) if rendered.chat else prompt
        return [[doc_id, text]]
    if rendered.kind == "rolling":
        return [[doc_id, text] for text in rendered.continuations]
    pairs = zip(rendered.prompts, rendered.continuations, strict=True)
    return [[doc_id, *pair] for pair in pairs] + [[doc_id, "", text] for text in rendered.unconditional]


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("case", EXPECTED)
def test_requests_and_documents_are_those_of_the_harness(case):
    expected, chat = EXPECTED[case], case.endswith(" (chat)")
    chosen = benchmark(case.removesuffix(" (chat)"), apply_chat_template=chat, fewshot_as_multiturn=chat)
    items = list(chosen.items())
    requests = [request for rendered in chosen.render("default", items) for request in asked(rendered)]
    assert [request for request in requests if request[0] == 0] == expected["first"]
    assert [request for request in requests if request[0] == items[-1].doc_id] == expected["last"]
    assert digest_of(requests) == expected["requests"]
    assert digest_of([dict(item.data) for item in items]) == expected["docs"]


@pytest.mark.parametrize("name", sorted(SELECTION.benchmarks))
def test_a_part_of_the_items_is_rendered_as_in_the_whole(name):
    items = list(benchmark(name).items())
    whole = list(benchmark(name).render("default", items))
    for start in range(0, len(items), 4):
        part = items[start : start + 3]
        assert list(benchmark(name).render("default", part)) == whole[start : start + 3]


def test_per_item_examples_do_not_depend_on_order_or_seed_state():
    config = translated("counting", fewshot_config={"sampler": "per_item"})
    mine = HarnessBenchmark(config["harness"], config["base_dir"], "counting")
    items = list(mine.items())
    forwards = [rendered.prompts for rendered in mine.render("default", items)]
    alone = [next(mine.render("default", [item])).prompts for item in reversed(items)]
    assert forwards == alone[::-1]
    assert len(set(map(tuple, forwards))) > 10


def test_chat_examples_may_stand_in_one_message():
    chosen = benchmark(
        "counting", apply_chat_template=True, fewshot_as_multiturn=False, system_instruction="Be brief."
    )
    rendered = next(chosen.render("default", chosen.items()))
    messages = json.loads(rendered.prompts[0])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] == "Be brief.\n\nCount the beetles.\n\n"
    assert messages[1]["content"].count("Question:") == 4


def test_log_likelihoods_of_chats_are_refused():
    with pytest.raises(ConfigError, match="use api: completions"):
        benchmark("habitats", apply_chat_template=True)


def test_right_answers_are_indices_texts_or_lists():
    first = {
        name: next(benchmark(name).render("default", benchmark(name).items()))
        for name in SELECTION.benchmarks
    }
    assert (first["habitats"].gold, first["habitats"].choices[0]) == ([0], "otter")
    assert (first["habitats_letters"].gold, first["moods"].gold, first["blanks"].gold) == ([0], [1], [0])
    assert {f" {target}" for target in first["blanks"].references} == set(first["blanks"].continuations)
    assert first["answers"].references == ["otter", "Otter", "the otter"]
    assert first["lines"].references == [" dawn"]
    assert first["pages"].choices == (first["pages"].continuations[0],)


def test_code_that_models_write_is_refused_unless_allowed():
    definition = translated("counting", unsafe_code=True)
    with pytest.raises(ConfigError, match=r"unsafe_code.*--set harness\.allow_unsafe_code=true"):
        HarnessBenchmark(definition["harness"], definition["base_dir"], "t")
    HarnessBenchmark({**definition["harness"], "allow_unsafe_code": True}, definition["base_dir"], "t")


def test_an_empty_field_is_no_prefix_and_no_description(tmp_path: Path):
    """As in the harness: the text "None" stood in the prompts of documents, and of examples, without one."""
    rows = [{"q": f"q{n}", "a": f"a{n}", "lead": None if n % 2 else "It is", "said": None} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(
        "task: t\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        "fewshot_split: test\ndoc_to_text: q\ndoc_to_target: a\ngen_prefix: lead\ndescription: said\n"
        "num_fewshot: 1\nfewshot_config: {sampler: first_n}\noutput_type: generate_until\n"
    )
    config = translate(select(["t"], [tmp_path]).benchmarks["t"])
    mine = HarnessBenchmark(config["harness"], config["base_dir"], "t")
    prompts = [rendered.prompts[0] for rendered in mine.render("default", mine.items())]
    assert prompts[:3] == ["q1 a1\n\nq0 It is", "q0 It is a0\n\nq1", "q0 It is a0\n\nq2 It is"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_fewshot": 9}, "num_fewshot needs 9"),
        ({"num_fewshot": 1, "fewshot_config": {"doc_to_target": [1]}}, "the answer of a few-shot example is"),
        ({"doc_to_text": "{{nowhere}}"}, "doc_to_text: template"),
    ],
)
def test_a_document_that_has_no_prompt_is_refused_with_the_benchmark_once(changed, said):
    config = translated("counting", **changed)
    mine = HarnessBenchmark(config["harness"], config["base_dir"], "counting")
    with pytest.raises(DatasetError, match=f"^benchmark counting: (document 0: )?{said}") as refused:
        list(mine.render("default", mine.items()))
    assert str(refused.value).count("benchmark counting") == 1


def test_too_few_examples_are_refused_with_both_numbers():
    config = translated("counting", num_fewshot=9)
    mine = HarnessBenchmark(config["harness"], config["base_dir"], "counting")
    with pytest.raises(
        DatasetError, match="document 0: num_fewshot needs 9 different examples to draw, and there are 6"
    ):
        list(mine.render("default", mine.items()))


def test_equal_documents_have_ids_of_their_own_and_ids_come_from_content():
    ids = [item.item_id for item in benchmark("counting").items()]
    assert len(set(ids)) == len(ids)
    assert ids[5] == f"{ids[2]}-2"
    assert ids[9] == f"{ids[2]}-3"


def test_cluster_is_a_field_of_the_document():
    config = translated("counting")
    fields = BenchmarkFields(
        name="c", harness=config["harness"], base_dir=config["base_dir"], cluster="topic"
    )
    items: list[Item] = list(open_benchmark(fields).items())
    assert {item.cluster for item in items} == {"sums", "déjà vu"}


@pytest.mark.parametrize(
    ("key", "value", "dataset", "render"),
    [
        ("doc_to_text", "{{question}}?", False, True),
        ("num_fewshot", 1, False, True),
        ("description", "x", False, True),
        ("fewshot_delimiter", "x", False, True),
        ("fewshot_config", {"sampler": "first_n"}, False, True),
        ("test_split", "train", True, True),
        ("metadata", {"version": 9}, False, True),
        ("metric_list", [{"metric": "bleu"}], False, False),
        ("generation_kwargs", {"until": ["x"]}, False, False),
        ("repeats", 5, False, False),
    ],
)
def test_digests_change_with_what_decides_items_and_prompts(key, value, dataset, render):
    one = benchmark("counting")
    config = translated("counting", **{key: value})
    other = HarnessBenchmark(config["harness"], config["base_dir"], "counting")
    assert (one.dataset_digest() != other.dataset_digest()) is dataset
    assert (one.render_identity("default") != other.render_identity("default")) is render


def test_examples_are_drawn_for_the_documents_that_are_asked_alone_where_these_are_named() -> None:
    whole, some = benchmark("counting"), benchmark("counting", documents=[2, 4])
    items = [*whole.items()]
    first, second = (next(iter(whole.render("default", [item]))) for item in items[:2])
    third, fifth = some.render("default", [items[2], items[4]])
    assert _examples(third) == _examples(first)  # as the first draw
    assert _examples(fifth) == _examples(second)
    (alone,) = some.render("default", [items[4]])  # of another partition
    assert _examples(alone) == _examples(second)
    assert whole.render_identity("default") != some.render_identity("default")
    assert "documents" not in whole.render_identity("default")


def _examples(rendered: Any) -> str:
    (prompt,) = rendered.prompts
    return str(prompt).rpartition("\n\n")[0]


def test_global_generators_begin_at_the_seeds_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(
        "import random\n\n\ndef mixed(docs):\n"
        "    rows = docs.to_list()\n    random.shuffle(rows)\n    return rows\n"
    )
    rows = [{"q": str(number), "a": "x"} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "t.yaml").write_text(
        "task: t\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        "doc_to_text: q\ndoc_to_target: a\nprocess_docs: !function utils.mixed\n"
    )
    config = translate(select(["t"], [tmp_path]).benchmarks["t"])

    def order(**knobs: Any) -> list[str]:
        made = HarnessBenchmark({**config["harness"], **knobs}, config["base_dir"], "t")
        return [item.data["q"] for item in made.items()]

    def shuffled(seed: int) -> list[str]:
        names = [row["q"] for row in rows]
        random.Random(seed).shuffle(names)
        return names

    assert order() == shuffled(0)
    assert order(seeds=[42, 1]) == shuffled(42)
