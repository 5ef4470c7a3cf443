import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.benchmarks import prompts as fewshot_module
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark

ROWS = [{"id": f"q{i}", "question": f"{i}+{i}?", "answer": str(2 * i)} for i in range(12)]


def write(folder: Path, rows: Iterable[dict[str, Any]], name: str = "items.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def prompts(folder: Path, limit: int | None = None, **keys: Any) -> dict[str, str]:
    keys = {
        "prompt_template": "Q: {{question}}\nA:",
        "target": "{{answer}}",
        "dataset": "items.jsonl",
        **keys,
    }
    benchmark = open_benchmark(BenchmarkFields(name="sums", base_dir=str(folder), **keys))
    items = list(benchmark.items())[:limit]
    return {found.item.item_id: found.prompts[0] for found in benchmark.render("default", items)}


def test_examples_stand_before_the_question_with_their_answers(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    examples = [{"question": "a?", "answer": "b"}, {"question": "c?", "answer": "d"}]
    found = prompts(tmp_path, limit=1, fewshot={"examples": examples})["q0"]
    assert found == "Q: a?\nA: b\n\nQ: c?\nA: d\n\nQ: 0+0?\nA:"


def test_the_first_n_of_a_fixed_list(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    examples = [{"question": "a?", "answer": "b"}, {"question": "c?", "answer": "d"}]
    found = prompts(tmp_path, limit=1, fewshot={"num": 1, "examples": examples, "delimiter": "\n"})["q0"]
    assert found == "Q: a?\nA: b\nQ: 0+0?\nA:"


@pytest.mark.parametrize("sampler", ["random", "first_n"])
def test_an_item_is_never_its_own_example(tmp_path: Path, sampler: str) -> None:
    write(tmp_path, ROWS[:4])
    for row in ROWS[:4]:
        found = prompts(tmp_path, fewshot={"num": 3, "sampler": sampler})[row["id"]]
        assert found.count(f"Q: {row['question']}") == 1
        assert found.count("Q: ") == 4


def test_an_item_is_not_its_own_example_from_another_file_with_other_ids(tmp_path: Path) -> None:
    write(tmp_path, [{"question": row["question"], "answer": row["answer"]} for row in ROWS[:3]])
    write(
        tmp_path, [{"question": row["question"], "answer": row["answer"]} for row in ROWS[:3]], "train.jsonl"
    )
    for prompt in prompts(tmp_path, fewshot={"num": 2, "path": "train.jsonl"}).values():
        assert len(set(prompt.split("\n\n"))) == 3
        assert prompt.count(prompt.split("\n\n")[-1].removesuffix("\nA:")) == 1


def test_no_limit_shard_or_order_changes_a_prompt(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    whole = prompts(tmp_path, fewshot=3)
    assert prompts(tmp_path, limit=4, fewshot=3) == {key: whole[key] for key in list(whole)[:4]}
    shuffled = ROWS[:]
    random.Random(7).shuffle(shuffled)
    write(tmp_path, shuffled)
    assert prompts(tmp_path, fewshot=3) == whole
    benchmark = open_benchmark(
        BenchmarkFields(
            name="sums",
            base_dir=str(tmp_path),
            prompt_template="Q: {{question}}\nA:",
            target="{{answer}}",
            dataset="items.jsonl",
            fewshot=3,
        )
    )
    shard = list(benchmark.items())[5:9]
    assert {found.item.item_id: found.prompts[0] for found in benchmark.render("default", shard)} == {
        item.item_id: whole[item.item_id] for item in shard
    }


def test_no_limit_shard_or_order_changes_a_prompt_beyond_the_pool_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewshot_module, "POOL_LIMIT", 5)
    write(tmp_path, ROWS)
    whole = prompts(tmp_path, fewshot=3)
    write(tmp_path, ROWS[::-1])
    assert prompts(tmp_path, fewshot=3) == whole


def test_the_draw_differs_between_items_and_seeds(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    found = prompts(tmp_path, fewshot={"num": 2, "seed": 1})
    examples = {prompt.rpartition("\n\n")[0] for prompt in found.values()}
    assert len(examples) > len(ROWS) // 2
    other = prompts(tmp_path, fewshot={"num": 2, "seed": 2})
    assert sum(found[key] != other[key] for key in found) > len(ROWS) // 2


def test_the_draw_is_the_same_on_every_machine(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    drawn = prompts(tmp_path, limit=1, fewshot={"num": 3, "seed": 1234})["q0"]
    assert drawn.split("\n\n") == ["Q: 11+11?\nA: 22", "Q: 10+10?\nA: 20", "Q: 1+1?\nA: 2", "Q: 0+0?\nA:"]


def test_every_example_is_drawn_about_equally_often(tmp_path: Path) -> None:
    write(tmp_path, [{"id": f"q{i}", "question": f"item {i}", "answer": "x"} for i in range(600)])
    write(tmp_path, ROWS, "train.jsonl")
    text = "".join(prompts(tmp_path, fewshot={"num": 4, "path": "train.jsonl"}).values())
    counts = [text.count(f"Q: {row['question']}") for row in ROWS]
    assert sum(counts) == 600 * 4
    assert all(150 <= count <= 250 for count in counts)


def test_first_n_takes_the_files_first_ones(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    found = prompts(tmp_path, fewshot={"num": 2, "sampler": "first_n"})
    assert found["q5"] == "Q: 0+0?\nA: 0\n\nQ: 1+1?\nA: 2\n\nQ: 5+5?\nA:"
    assert found["q0"] == "Q: 1+1?\nA: 2\n\nQ: 2+2?\nA: 4\n\nQ: 0+0?\nA:"


def test_too_few_examples_are_refused(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:3])
    with pytest.raises(ConfigError) as refused:
        prompts(tmp_path, fewshot=3)
    assert str(refused.value) == "fewshot.num is 3, but items.jsonl has only 2 examples besides item 'q0'"


def test_the_same_example_twice_in_a_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:1])
    write(tmp_path, [{"id": i, "question": "a?", "answer": "b"} for i in range(3)], "train.jsonl")
    with pytest.raises(ConfigError, match="has only 1 examples besides item 'q0'"):
        prompts(tmp_path, fewshot={"num": 2, "path": "train.jsonl"})


def test_no_examples_asked_for_gives_none_and_reads_no_file(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    assert prompts(tmp_path, limit=1, fewshot={"num": 0, "path": "nope.jsonl"}) == {"q0": "Q: 0+0?\nA:"}


def test_an_example_without_an_answer_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    with pytest.raises(ConfigError, match=r"^few-shot example: item 'fewshot\.examples\.0' has no answer"):
        prompts(tmp_path, target=None, fewshot={"examples": [{"question": "a?"}]})


@pytest.mark.parametrize("keys", [{"prompt_template": "{{item.id2}}\nA:"}, {"target": "{{more}}"}])
def test_an_example_that_a_template_does_not_fit_is_named_by_its_file_and_line(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    write(tmp_path, [{**row, "id2": 1, "more": "m"} for row in ROWS])
    train = [{"question": "a?", "answer": "b", "id2": 1, "more": "m"}, {"question": "c?", "answer": "d"}]
    write(tmp_path, train, "train.jsonl")
    with pytest.raises(ConfigError, match=r"^train\.jsonl:2: few-shot example: .*'(id2|more)'"):
        prompts(tmp_path, **keys, fewshot={"num": 2, "path": "train.jsonl"})


def test_an_example_of_the_dataset_itself_is_named_by_its_line(tmp_path: Path) -> None:
    write(tmp_path, [*ROWS[:2], {"id": "q2", "question": "a?"}])
    with pytest.raises(ConfigError, match=r"^items\.jsonl:3: few-shot example: "):
        prompts(tmp_path, limit=1, fewshot={"num": 2})


def chat(folder: Path, **keys: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(prompts(folder, limit=1, **keys)["q0"])
    return found


EXAMPLES = [{"question": "a?", "answer": "b"}, {"question": "c?", "answer": "d"}]
MESSAGES = [{"role": "system", "content": "Sums."}, {"role": "user", "content": "{{question}}"}]


def test_before_messages_an_example_is_a_turn_of_each_side(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    keys = {
        "prompt_template": None,
        "messages": MESSAGES,
        "gen_prefix": "It is",
        "fewshot": {"examples": EXAMPLES},
    }
    assert chat(tmp_path, **keys) == [
        {"role": "system", "content": "Sums."},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "It is b"},
        {"role": "user", "content": "c?"},
        {"role": "assistant", "content": "It is d"},
        {"role": "user", "content": "0+0?"},
        {"role": "assistant", "content": "It is"},
    ]


def test_format_turns_makes_a_text_prompt_a_chat(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    assert chat(tmp_path, fewshot={"num": 1, "examples": EXAMPLES, "format": "turns"}) == [
        {"role": "user", "content": "Q: a?\nA:"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "Q: 0+0?\nA:"},
    ]


def test_format_message_puts_all_examples_into_the_users_message(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    shot = {"examples": EXAMPLES, "format": "message"}
    assert chat(tmp_path, fewshot=shot, system_prompt="Sums.") == [
        {"role": "system", "content": "Sums."},
        {"role": "user", "content": "Q: a?\nA: b\n\nQ: c?\nA: d\n\nQ: 0+0?\nA:"},
    ]
    assert chat(tmp_path, prompt_template=None, messages=MESSAGES, fewshot=shot) == [
        {"role": "system", "content": "Sums."},
        {"role": "user", "content": "a? b\n\nc? d\n\n0+0?"},
    ]


def test_a_system_prompt_with_text_examples_is_one_message_of_each(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    assert chat(tmp_path, fewshot={"num": 1, "examples": EXAMPLES}, system_prompt="Sums.") == [
        {"role": "system", "content": "Sums."},
        {"role": "user", "content": "Q: a?\nA: b\n\nQ: 0+0?\nA:"},
    ]


def test_an_example_of_multiple_choice_shows_the_text_of_the_right_choice(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    found = prompts(
        tmp_path, limit=1, output_type="multiple_choice", choices=["{{answer}}", "7"], target=0,
        fewshot={"examples": EXAMPLES},
    )  # fmt: skip
    assert found["q0"] == "Q: a?\nA: b\n\nQ: c?\nA: d\n\nQ: 0+0?\nA:"
