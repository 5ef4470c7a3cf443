"""Exit codes mean what they say, and what is suggested after a failure helps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Evaluate = Callable[..., Any]


def test_a_finding_of_level_error_is_exit_1_although_every_pair_has_a_number(evaluate: Evaluate) -> None:
    nothing = (
        "filter_list=[{name: n, filter: [{function: regex, regex_pattern: zzz(.)}], metric_list: [bleu]}]"
    )
    ran = evaluate("--json", "--limit", "12", "--set", nothing)
    assert ran.document["diagnostics"][0]["severity"] == "error"
    assert {row["status"] for row in ran.document["results"]} == {"ok"}
    assert ran.code == 1
    assert evaluate("--json", "--limit", "12").code == 0


def test_an_example_is_named_by_its_line_and_shown_with_its_question(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    items = [{"id": f"q{number}", "question": f"{number} + 1?", "answer": "x"} for number in range(12)]
    lines = "\n\n".join(json.dumps(item) for item in items)
    (tmp_path / "questions.jsonl").write_text(lines + "\n")
    (tmp_path / "sums.yaml").write_text(
        "name: sums\ndataset: questions.jsonl\n"
        'prompt_template: "Question: {{question}}"\ntarget: "{{answer}}"\n'
        "models: [{name: demo, type: demo}]\nmetric_list: [exact_match]\n"
        "filter_list: [{name: n, filter: [{function: regex, regex_pattern: 'zzz(.)'}]}]\n"
    )
    ran = evaluate(tmp_path / "sums.yaml", "--samples", "3-11")
    assert "e.g. questions.jsonl:7, demo “Question: 3 + 1?”: " in ran.out.replace("\n", "")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ">questions.jsonl:7 · demo</a>" in page
    assert "Question: 3 + 1?" in page
