import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.checks import check_templates
from flows.config.load import load_config
from metrics.errors import ConfigError
from tasks.benchmarks.open import open_benchmark

CONFIG = """\
name: sums
dataset: items.jsonl
models: [qwen]
prompt_templates:
  - name: plain
    template: "{{question}}"
  - name: cot
    path: cot.md
target: "{{answer}}"
"""


def write(
    folder: Path, text: str = CONFIG, rows: list[dict[str, Any]] | None = None, cot: str = "{{question}}"
) -> Path:
    found = rows or [{"id": "a", "question": "2+2?", "answer": "4"}]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    (folder / "cot.md").write_text(cot)
    (folder / "bench.yaml").write_text(text)
    return folder / "bench.yaml"


def check(path: Path, *overrides: str) -> None:
    config = load_config(path, overrides)
    check_templates(config, next(open_benchmark(config).items()), overrides)


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        check(path, *overrides)
    return str(error.value)


def test_names_that_the_items_have_pass(tmp_path: Path) -> None:
    check(write(tmp_path))
    check(
        write(
            tmp_path,
            CONFIG.replace("{{question}}", "{{id}}{{ground_truth}}{{item.question}}{% set x = 1 %}{{x}}"),
        )
    )


def test_a_name_that_no_item_has_is_refused_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    message = (
        "template variable 'qestion' is in no item; did you mean 'question'? "
        "(known: answer, ground_truth, id, item, question)"
    )
    path = write(tmp_path, CONFIG.replace("{{question}}", "{{qestion}}"))
    assert refused(path) == f"bench.yaml:6: prompt_templates.0.template: {message}"


def test_every_unknown_name_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG.replace("{{answer}}", "{{anwser}}"), cot="{{question}} {{hint}}")
    found = [line.rpartition(" (")[0] for line in refused(path).splitlines()]
    assert found == [
        "bench.yaml:9: target: template variable 'anwser' is in no item; did you mean 'answer'?",
        "bench.yaml:8: prompt_templates.1.path: template variable 'hint' is in no item",
    ]


def test_a_template_given_on_the_command_line_is_named_as_such(tmp_path: Path) -> None:
    found = refused(write(tmp_path), "target={{'{{solution}}'}}".replace("{{'", '"').replace("'}}", '"'))
    assert found.startswith("--set target: template variable 'solution' is in no item")


def test_a_template_that_is_not_the_files_own_is_said_to_come_from_the_command_line(tmp_path: Path) -> None:
    config = load_config(write(tmp_path), ['target="{{solution}}"'])
    with pytest.raises(ConfigError, match=r"^--set target: template variable 'solution' is in no item"):
        check_templates(config, next(open_benchmark(config).items()))


def test_names_asked_for_before_use_may_be_missing(tmp_path: Path) -> None:
    check(write(tmp_path, cot="{% if hint is defined %}{{hint}}{% endif %}{{question}}"))
    check(write(tmp_path, cot="{{hint | default('none')}}{{question}}"))


def test_a_name_that_only_other_items_have_passes(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "x", "answer": "1"},
        {"id": "b", "question": "y", "answer": "2", "hint": "z"},
    ]
    check(write(tmp_path, cot="{% if id == 'b' %}{{hint}}{% endif %}", rows=rows))


def test_a_file_that_was_moved_since_leaves_the_key(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG.replace("{{answer}}", "{{anwser}}"))
    config = load_config(path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"^bench\.yaml: target: template variable 'anwser' is in no item"):
        check_templates(config, next(open_benchmark(config).items()))
