"""``nightjar check``: all mistakes of a config's dataset at once, with their lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.check import main


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def config(folder: Path, **keys: Any) -> Path:
    entry = {
        "name": "sums", "dataset": "items.csv", "prompt_template": "{{question}}", "target": "{{answer}}",
        "metric_list": ["exact_match"], "models": [{"name": "own", "type": "demo"}],
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(entry | keys))
    return folder / "config.yaml"


def test_all_mistakes_of_a_dataset_are_told_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.csv").write_text("question,answer\n1+1?,2\nlost\n2+2?,4,5\n1+1?,2\n3+3?,6\n")
    code, _, said = check(capsys, config(tmp_path))
    assert code == 2
    assert [line.split("items.csv:")[1][0] for line in said.splitlines()] == ["3", "4", "5"]


def test_answers_that_are_missing_are_told_with_the_mistakes_of_other_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["question,answer", "1+1?,2", "2+2?,", "lost", "1+1?,2", "3+3?,", '"4+4?,8']
    (tmp_path / "items.csv").write_text("\n".join(lines) + "\n")
    code, _, said = check(capsys, config(tmp_path))
    assert code == 2
    assert [line.split("items.csv:")[1][0] for line in said.splitlines()] == ["4", "5", "7", "3"]
    assert "2 of 3 items have no right answer (null or empty): items.csv:3, items.csv:6" in said


def test_the_first_line_may_be_the_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "items.jsonl").write_text('no JSON\n{"question": "1+1?", "answer": null}\n')
    code, _, said = check(capsys, config(tmp_path, dataset="items.jsonl"))
    assert code == 2
    assert "items.jsonl:1: malformed JSON" in said
    assert "1 item has no right answer (null or empty): items.jsonl:2" in said


def test_a_dataset_without_mistakes_is_told_with_encoding_delimiter_and_empty_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.csv").write_text("question;answer\nGröße?;2\n2+2?;\n", encoding="cp1252")
    dataset = {"path": "items.csv", "encoding": "cp1252", "delimiter": ";"}
    code, said, _ = check(capsys, config(tmp_path, dataset=dataset))
    assert code == 0
    assert "sums: no mistakes, 2 items, encoding cp1252, delimiter ';'" in said
    assert "items.csv:3" in said


ROWS = '{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer": "4", "hint": "even"}\n'


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"prompt_template": "{{question}} {{hint}}"}, "'hint'"),
        ({"fewshot": {"num": 2}}, "fewshot"),
        ({"fewshot": {"num": 1, "path": "away.jsonl"}}, "away.jsonl"),
        (
            {"models": [{"name": "own", "type": "replay", "config": {"path": "away.jsonl"}}]},
            "config.yaml:1: models.0.config.path: 'away.jsonl' is not there: expected a file at",
        ),
        (
            {"models": [{"name": "own", "type": "replay", "config": {"path": "items.jsonl"}}]},
            "config.yaml:1: models.0.config.path: ",
        ),
        (
            {
                "models": [{"name": "own", "checkpoints": "runs/*", "serve": "transformers"}],
                "scorer": {"type": "execution", "cases": "hint"},
                "metric_list": ["tests_passed"],
            },
            "raises on items.jsonl:1: item ",
        ),
    ],
    ids=[
        "a field that one row lacks", "more examples than items", "no file of examples", "no recording",
        "no recorded responses", "no cases",
    ],
)  # fmt: skip
def test_what_an_evaluation_would_refuse_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], said: str
) -> None:
    (tmp_path / "items.jsonl").write_text(ROWS)
    code, out, told = check(capsys, config(tmp_path, dataset="items.jsonl", **keys))
    assert (code, out) == (2, ""), told
    assert said in told


def test_every_item_that_a_template_does_not_fit_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.jsonl").write_text(ROWS + '{"question": "3+3?", "answer": "6"}\n')
    code, _, told = check(capsys, config(tmp_path, dataset="items.jsonl", prompt_template="{{hint}}"))
    assert (code, len(told.splitlines())) == (2, 2)


def test_an_item_that_a_template_does_not_fit_is_named_by_its_line_and_the_templates_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.jsonl").write_text('{"q": "a", "a": "1"}\n\n{"q": "b"}\n')
    written = "name: sums\ndataset: items.jsonl\nmodels: [{name: own, type: demo}]\n"
    (tmp_path / "lacking.yaml").write_text(written + 'prompt_template: "{{q}}"\ntarget: "{{a}}"\n')
    code, _, said = check(capsys, tmp_path / "lacking.yaml")
    assert code == 2
    assert said.startswith("error: lacking.yaml:5: items.jsonl:3: target: 'a' is undefined")

    (tmp_path / "no_list.yaml").write_text(written + 'target: "{{q}}"\nprompt_template: "{{q.text}}"\n')
    code, _, said = check(capsys, tmp_path / "no_list.yaml")
    assert code == 2
    places = [line.removeprefix("error: ").partition(": prompt_template: ")[0] for line in said.splitlines()]
    assert places == ["no_list.yaml:5: items.jsonl:1", "no_list.yaml:5: items.jsonl:3"]

    code, _, said = check(capsys, tmp_path / "no_list.yaml", "--set", "prompt_template='{{q.other}}'")
    assert code == 2
    assert said.startswith("error: --set prompt_template: items.jsonl:1: prompt_template: ")
