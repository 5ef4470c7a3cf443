import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from metrics.errors import ConfigError
from tasks.benchmarks.config import BenchmarkFields, template_texts
from tasks.benchmarks.open import open_benchmark
from tasks.benchmarks.prompts import ENVIRONMENT, Template, scope
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item, Rendered
from tasks.rows.items import request_batches
from tasks.store.keys import digest

ROW = {"id": "q1", "question": "What is 2 + 2?", "answer": "4", "options": ["3", "4", "5"]}


def fields(folder: Path, rows: list[dict[str, Any]] | None = None, **keys: Any) -> BenchmarkFields:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in (rows or [ROW]))
    (folder / "items.jsonl").write_text("".join(lines), encoding="utf-8")
    keys = {"dataset": "items.jsonl", "base_dir": str(folder), **keys}
    if not {"prompt_template", "prompt_templates", "messages"} & set(keys):
        keys["prompt_template"] = "Question: {{question}}\nAnswer:"
    return BenchmarkFields(name="sums", **keys)


def rendered(config: BenchmarkFields, prompt: str = "default") -> list[Rendered]:
    benchmark = open_benchmark(config)
    return list(benchmark.render(prompt, benchmark.items()))


def first(config: BenchmarkFields, prompt: str = "default") -> Rendered:
    return rendered(config, prompt)[0]


def test_a_generation_has_one_prompt_its_references_and_the_row(tmp_path: Path) -> None:
    found = first(fields(tmp_path, target="{{answer}}"))
    assert (found.kind, found.chat, list(found.prompts), list(found.continuations)) == (
        "generate", False, ["Question: What is 2 + 2?\nAnswer:"], [""],
    )  # fmt: skip
    assert found.references == ("4",)
    assert found.doc == {**ROW, "ground_truth": None}


def test_templates_see_data_fields_id_ground_truth_and_the_whole_row(tmp_path: Path) -> None:
    rows = [{"id": 5, "data": {"question": "x", "id": "inner"}, "ground_truth": "y"}]
    template = "{{question}} {{id}} {{ground_truth}} {{item.question}} {{item.data.id}} {{item.ground_truth}}"
    found = first(fields(tmp_path, rows, prompt_template=template))
    assert found.prompts[0] == "x inner y x inner y"
    assert found.item.item_id == "5"


@pytest.mark.parametrize("seed", range(4))
def test_texts_and_fields_are_joined_as_jinja_renders_them(seed: int) -> None:
    draw = random.Random(seed)
    fields = ["{{question}}", "{{ id }}", "{{-ground_truth}}", "{{ b -}}", "{{ c }}{{c}}", "{{ range }}"]
    texts = [" \n", "\r\nA: ", "é}", "%", "{# said #}", "\n\n"]
    others = ["{{ 'text' }}", "{{ b + 1 }}", "{% if c %}x{% endif %}", "{{ item.b }}"]
    data = {"question": "ä\u2028\n", "b": 3, "c": [1, None, {"d": "e"}], "range": 0.1}
    item = Item(item_id="7", doc_id=0, data=data, ground_truth=None)
    joined = 0
    for _ in range(300):
        source = "".join(draw.choices(fields + texts + draw.choice(([], others)), k=draw.randrange(6)))
        template = Template(source, "prompt_template")
        assert template.text(item) == ENVIRONMENT.from_string(source).render(scope(item)), source
        joined += template._pieces is not None
    assert joined > 100
    assert Template("{{ c }}", "target").value(item) is data["c"]


def test_a_field_that_is_missing_is_named_beside_those_that_are_there() -> None:
    item = Item(item_id="7", doc_id=0, data={"question": "x"})
    for ask in (Template("Q: {{ qestion }}", "prompt_template").text, Template("{{ no }}", "target").value):
        with pytest.raises(DatasetError, match="is undefined in item '7'; its fields are question"):
            ask(item)


def test_trailing_line_break_of_a_template_is_kept(tmp_path: Path) -> None:
    assert first(fields(tmp_path, prompt_template="{{question}}\n")).prompts[0] == "What is 2 + 2?\n"


def test_text_is_rendered_as_it_is_without_escaping(tmp_path: Path) -> None:
    rows = [{"question": 'a < b & "c" {{answer}} ä ☃'}]
    assert first(fields(tmp_path, rows, prompt_template="{{question}}")).prompts[0] == rows[0]["question"]


@pytest.mark.parametrize(
    ("target", "truth", "references"),
    [
        (None, "4", ("4",)),
        (None, 4, ("4",)),
        (None, ["4", "four"], ("4", "four")),
        (None, {"value": 4}, ({"value": 4},)),
        (None, None, ()),
        ("{{ground_truth}}", ["4", "four"], ("4", "four")),
        ("{{ground_truth}}", None, ()),
        ("#### {{ground_truth}}", 4, ("#### 4",)),
        (["{{ground_truth}}", "four"], "4", ("4", "four")),
        (["{{ground_truth}}", 7], ["4", "IV"], ("4", "IV", "7")),
    ],
)
def test_references_are_the_target_or_the_ground_truth(
    tmp_path: Path, target: Any, truth: Any, references: tuple[Any, ...]
) -> None:
    assert (
        first(fields(tmp_path, [{"question": "x", "ground_truth": truth}], target=target)).references
        == references
    )


@pytest.mark.parametrize("truth", [["paris"], [], 18, False, {"answer": "x"}, None])
@pytest.mark.parametrize("keys", [{}, {"target": "T"}])
def test_a_request_holds_the_ground_truth_as_the_item_has_it(
    tmp_path: Path, truth: Any, keys: dict[str, Any]
) -> None:
    row = {"question": "q", "answer": truth, "ground_truth": "another field"}
    config = fields(
        tmp_path, [row], dataset={"path": "items.jsonl", "ground_truth": "answer"}, **{"target": None, **keys}
    )
    (batch,) = request_batches("default", rendered(config))
    (text,) = batch.column("ground_truth_json").to_pylist()
    assert (text if text is None else json.loads(text)) == truth


def test_several_prompts_keep_their_names_and_order(tmp_path: Path) -> None:
    (tmp_path / "cot.md").write_text("{{question}}\nThink first.\n")
    prompts = [
        {"name": "plain", "template": "{{question}}"},
        {"name": "cot", "path": "cot.md"},
        {"name": "chat", "messages": [{"role": "user", "content": "{{question}}"}]},
    ]
    config = fields(tmp_path, prompt_templates=prompts)
    assert open_benchmark(config).prompt_names() == ("plain", "cot", "chat")
    assert first(config, "plain").prompts[0] == ROW["question"]
    assert first(config, "cot").prompts[0] == "What is 2 + 2?\nThink first."
    assert json.loads(first(config, "chat").prompts[0]) == [{"role": "user", "content": ROW["question"]}]


def test_messages_are_a_chat_prompt_with_each_content_a_template(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Item {{id}}"}, {"role": "user", "content": "{{question}}"}]
    found = first(fields(tmp_path, messages=turns, gen_prefix="Answer {{id}}:"))
    assert found.chat
    assert json.loads(found.prompts[0]) == [
        {"role": "system", "content": "Item q1"},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "Answer q1:"},
    ]


def test_a_system_prompt_makes_a_text_prompt_a_chat(tmp_path: Path) -> None:
    found = first(fields(tmp_path, system_prompt="Be short.", prompt_template="{{question}}"))
    assert found.chat
    assert json.loads(found.prompts[0]) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What is 2 + 2?"},
    ]


def test_before_log_likelihoods_a_system_prompt_is_text(tmp_path: Path) -> None:
    found = first(fields(tmp_path, output_type="loglikelihood", system_prompt="Sums.", target="{{answer}}"))
    assert not found.chat
    assert found.prompts == ("Sums.\n\nQuestion: What is 2 + 2?\nAnswer:",)


def test_gen_prefix_stands_behind_the_prompt_with_one_delimiter(tmp_path: Path) -> None:
    assert first(fields(tmp_path, gen_prefix="It is")).prompts[0].endswith("\nAnswer: It is")
    assert first(fields(tmp_path, prompt_template="A: ", gen_prefix="It is")).prompts[0] == "A: It is"


def test_multiple_choice_asks_for_each_choice_behind_the_same_prompt(tmp_path: Path) -> None:
    found = first(fields(tmp_path, output_type="multiple_choice", choices="{{options}}", target="{{answer}}"))
    assert found.kind == "loglikelihood"
    assert found.prompts == ("Question: What is 2 + 2?\nAnswer:",) * 3
    assert found.continuations == (" 3", " 4", " 5")
    assert (found.choices, found.gold, found.references) == (("3", "4", "5"), (1,), ("4",))
    assert found.unconditional == ()


def test_mutual_information_asks_for_the_same_continuations_without_context(tmp_path: Path) -> None:
    found = first(
        fields(
            tmp_path, output_type="multiple_choice", choices="{{options}}", target=1, mutual_information=True
        )
    )
    assert found.unconditional == found.continuations


@pytest.mark.parametrize(
    ("target", "truth", "gold"),
    [
        (None, 2, (2,)),
        (None, "blue", (1,)),
        (None, " blue ", (1,)),
        (None, "C", (2,)),
        (None, "c", (2,)),
        (None, "0", (0,)),
        (None, [0, 2], (0, 2)),
        (None, -100, (-100,)),
        ("{{ground_truth}}", 1, (1,)),
        ("{{ ['red', 'blue'].index(ground_truth) }}", "blue", (1,)),
        (2, "blue", (2,)),
        (["red", "{{ground_truth}}"], "blue", (0, 1)),
    ],
)
def test_gold_is_an_index_a_text_or_a_letter(
    tmp_path: Path, target: Any, truth: Any, gold: tuple[int, ...]
) -> None:
    choices = ["red", "blue", "green"]
    row = {"question": "x", "ground_truth": truth}
    found = first(fields(tmp_path, [row], output_type="multiple_choice", choices=choices, target=target))
    assert found.gold == gold
    assert found.references == tuple(choices[index] for index in gold if index >= 0)


def test_a_choice_that_is_itself_a_letter_or_digit_wins_over_its_meaning(tmp_path: Path) -> None:
    row = {"question": "x", "ground_truth": "2"}
    found = first(fields(tmp_path, [row], output_type="multiple_choice", choices=["2", "4", "8"]))
    assert found.gold == (0,)


def test_choices_may_be_a_list_of_templates(tmp_path: Path) -> None:
    found = first(
        fields(tmp_path, output_type="multiple_choice", choices=["not {{answer}}", "{{answer}}", 7], target=1)
    )
    assert found.choices == ("not 4", "4", "7")


def test_loglikelihood_is_of_the_target_behind_the_prompt(tmp_path: Path) -> None:
    found = first(fields(tmp_path, output_type="loglikelihood", target="{{answer}}", target_delimiter="\t"))
    assert (found.kind, found.continuations, found.references) == ("loglikelihood", ("\t4",), ("4",))


@pytest.mark.parametrize("key", ["prompt_template", "target"])
def test_rolling_is_of_the_document_alone(tmp_path: Path, key: str) -> None:
    keys: dict[str, Any] = {"prompt_template": None, key: "{{question}}\n"}
    found = first(fields(tmp_path, output_type="loglikelihood_rolling", **keys))
    document = "What is 2 + 2?" + ("\n" if key == "prompt_template" else "")
    assert (found.kind, found.prompts, found.continuations) == ("rolling", ("",), (document,))


REFUSED_ITEMS = {
    "undefined": (
        {"prompt_template": "{{qestion}}"},
        "prompt_template: 'qestion' is undefined in item 'q1'; its fields are id, question, answer, options",
    ),
    "undefined target": (
        {"target": "{{solution}}"},
        "target: 'solution' is undefined in item 'q1'; its fields are id, question, answer, options",
    ),
    "failing": (
        {"prompt_template": "{{question + 1}}"},
        "prompt_template fails on item 'q1': TypeError: can only concatenate str (not \"int\") to str",
    ),
    "no choice": (
        {"output_type": "multiple_choice", "choices": "{{options}}", "target": "{{question}}"},
        "target 'What is 2 + 2?' of item 'q1' is none of its choices: expected an index from 0 to 2, "
        "a letter, or one of '3', '4', '5'",
    ),
    "an index too far": (
        {"output_type": "multiple_choice", "choices": "{{options}}", "target": 3},
        "target 3 of item 'q1' is none of its choices: expected an index from 0 to 2, a letter, "
        "or one of '3', '4', '5'",
    ),
    "choices that are no list": (
        {"output_type": "multiple_choice", "choices": "{{question}}", "target": 0},
        "choices of item 'q1' must be a list, got 'What is 2 + 2?'",
    ),
    "no target": (
        {"output_type": "multiple_choice", "choices": "{{options}}"},
        "item 'q1' has no target; multiple_choice needs the index or text of a choice",
    ),
    "two continuations": (
        {"output_type": "loglikelihood", "target": ["a", "b"]},
        "item 'q1' has 2 targets; loglikelihood scores exactly one continuation",
    ),
}


@pytest.mark.parametrize("case", REFUSED_ITEMS)
def test_an_item_that_a_template_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    keys, message = REFUSED_ITEMS[case]
    with pytest.raises(ConfigError) as refused:
        first(fields(tmp_path, **keys))
    assert str(refused.value) == f"items.jsonl:1: {message}"


def test_a_template_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^prompt template file 'cot\.md' is not there: expected it at "):
        open_benchmark(fields(tmp_path, prompt_templates=[{"name": "cot", "path": "cot.md"}]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"prompt_template": "x", "messages": [{"role": "user", "content": "x"}]},
            "not prompt_template and messages",
        ),
        ({"prompt_templates": [{"name": "a"}]}, "prompt template 'a' needs one of template, path, messages"),
        ({"prompt_templates": []}, "is empty: expected at least one prompt"),
        ({"messages": []}, "is empty: expected at least one turn"),
        ({"fewshot": {}}, "fewshot needs num: how many examples to show"),
        ({"fewshot": {"num": 2, "examples": [{"q": 1}]}}, "fewshot.num is 2, but 'examples' holds 1"),
        (
            {"fewshot": {"path": "a.jsonl", "examples": []}},
            "few-shot examples come from 'path' or from 'examples'",
        ),
        ({"name": "a/b"}, "String should match pattern"),
        (
            {"prompt_template": "x", "output_type": "loglikelihood_rolling", "fewshot": 2},
            "with nothing beside it",
        ),
        (
            {
                "prompt_template": "x",
                "output_type": "loglikelihood",
                "fewshot": {"num": 1, "format": "turns"},
            },
            "use format text",
        ),
        (
            {
                "system_prompt": "x",
                "messages": [{"role": "system", "content": "y"}, {"role": "user", "content": "z"}],
            },
            "there is a system message in messages already",
        ),
        ({"harness": {}, "dataset": None, "prompt_template": "x"}, "belongs to native benchmarks"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BenchmarkFields.model_validate({"name": "x", "dataset": "x.jsonl", **keys})
    assert message in str(refused.value)


def test_every_template_of_the_config_is_listed_with_its_place(tmp_path: Path) -> None:
    config = fields(
        tmp_path,
        prompt_templates=[
            {"name": "a", "template": "A"},
            {"name": "b", "messages": [{"role": "user", "content": "B"}]},
        ],
        target=["T", 1],
        gen_prefix="G",
    )
    assert dict(template_texts(config)) == {
        ("gen_prefix",): "G",
        ("target", 0): "T",
        ("prompt_templates", 0, "template"): "A",
        ("prompt_templates", 1, "messages", 0, "content"): "B",
    }


def test_render_identity_changes_with_everything_that_decides_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?", "ground_truth": "2"}\n')
    base: dict[str, Any] = {"prompt_template": "{{question}}", "target": "{{answer}}"}
    changes: list[dict[str, Any]] = [
        {},
        {"prompt_template": "Q: {{question}}"},
        {"target": "{{answer}}."},
        {"gen_prefix": "So"},
        {"system_prompt": "Be short."},
        {"target_delimiter": "\n"},
        {"output_type": "loglikelihood"},
        {"output_type": "multiple_choice", "choices": ["a", "b"]},
        {"output_type": "multiple_choice", "choices": ["a", "c"]},
        {"output_type": "multiple_choice", "choices": ["a", "b"], "mutual_information": True},
        {"fewshot": {"num": 1, "path": "train.jsonl"}},
        {"fewshot": {"num": 1, "path": "train.jsonl", "seed": 1}},
        {"fewshot": {"num": 1, "examples": [{"question": "1+1?", "answer": "2"}]}},
    ]
    digests = [
        open_benchmark(fields(tmp_path, **{**base, **change})).render_identity("default")
        for change in changes
    ]
    (tmp_path / "train.jsonl").write_text('{"question": "1+2?", "ground_truth": "3"}\n')
    digests.append(open_benchmark(fields(tmp_path, **{**base, **changes[10]})).render_identity("default"))
    assert len({digest(entry) for entry in digests}) == len(changes) + 1


def test_digests_do_not_hang_on_folder_or_file_names(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / f"{folder.name}.md").write_text("{{question}}")
        benchmark = open_benchmark(
            fields(folder, prompt_templates=[{"name": "p", "path": f"{folder.name}.md"}])
        )
        found.append((benchmark.dataset_digest(), benchmark.render_identity("p")))
    assert found[0] == found[1]
