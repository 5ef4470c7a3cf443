"""How people find an item that has no id of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.comparison.runs import ComparedRun
from tasks.reporting.items import ItemName, input_of, item_names

ID, OTHER = "0123456789abcdef", "fedcba9876543210"


def run(folder: Path, *lines: dict[str, Any], dataset: str | None = "questions.jsonl") -> ComparedRun:
    """A run whose folder has these samples of the benchmark ``sums``."""
    folder.mkdir(exist_ok=True)
    rows = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    (folder / "samples_sums.jsonl").write_text("".join(rows), encoding="utf-8")
    config = {"dataset": {"path": dataset}, "base_dir": str(folder)}
    return ComparedRun("a run of the history", {}, manifest={"output": str(folder), "config": config})


def sample(doc_id: int, item_id: str, question: str, **doc: str) -> dict[str, Any]:
    asked = f"Answer with a number, and with nothing else that could be taken for one.\n\nQ: {question}\nA:"
    return {"doc_id": doc_id, "item_id": item_id, "doc": {"question": question, **doc},
            "arguments": {"gen_args_0": {"arg_0": asked, "arg_1": {"temperature": 0.0}}}}  # fmt: skip


def test_an_item_is_named_by_its_line_and_the_beginning_of_its_own_text(tmp_path: Path) -> None:
    found = run(
        tmp_path, sample(0, OTHER, "1+1?"), sample(2, ID, "How  many\neggs?", note="A long remark" * 9)
    )
    (tmp_path / "questions.jsonl").write_text('{"question": "1+1?"}\n\n{}\n{"question": "How many eggs?"}\n')
    names = item_names({"sums": {ID, "of no run"}}, [found])
    assert names == {ID: ItemName("questions.jsonl:4", "How many eggs?")}


def test_without_a_file_an_item_has_its_number(tmp_path: Path) -> None:
    found = run(tmp_path, sample(6, f"{ID}-2", "How many eggs?"), dataset=None)
    assert item_names({"sums": {f"{ID}-2"}}, [found]) == {f"{ID}-2": ItemName("item 7", "How many eggs?")}


def test_a_run_whose_folder_is_gone_or_damaged_names_nothing_and_another_may(tmp_path: Path) -> None:
    gone = ComparedRun("gone", {}, manifest={"output": str(tmp_path / "gone"), "config": {}})
    damaged = run(tmp_path / "damaged", sample(0, OTHER, "1+1?"))
    (tmp_path / "damaged" / "samples_sums.jsonl").write_bytes(
        b'{"doc_id":0,"item_id":"' + ID.encode() + b'"\xff'
    )
    whole = run(tmp_path / "whole", sample(0, ID, "1+1?"), dataset=None)
    assert item_names({"sums": {ID}}, [gone, damaged]) == {}
    assert item_names({"sums": {ID}}, [gone, damaged, whole])[ID].text == "1+1?"


CHAT = '[{"role": "user", "content": %s}]'


@pytest.mark.parametrize(
    ("doc", "asked", "text"),
    [
        ({"q": "Wie viele Äpfel?"}, CHAT % '"Wie viele Äpfel?"', "Wie viele Äpfel?"),
        ({"q": 'A "quoted"\nline'}, CHAT % r'"A \"quoted\"\nline"', 'A "quoted" line'),
        ({"nested": {"parts": ["short", "a longer part"]}}, "a longer part, short", "a longer part"),
        ({"a": 3}, "3 + 4", "3 + 4"),
        ({}, "", ""),
        ({"q": "x" * 500}, "x" * 500, "x" * 159 + "…"),
    ],
)
def test_the_text_is_the_longest_field_that_was_asked(doc: dict[str, Any], asked: str, text: str) -> None:
    assert input_of({"doc": doc, "arguments": {"gen_args_0": {"arg_0": asked}}}) == text
