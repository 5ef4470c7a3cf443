"""``flows.why`` says first, in a few lines, what became of a run's steps."""

import pytest

from flows.why import REASONS, step_line, summary_lines


def test_a_thousand_steps_are_a_few_lines_with_counts_and_reasons() -> None:
    steps = [
        {"stage": "score", "outcome": "cached" if n % 4 else "computed", "differences": [f"reason {n % 8}"]}
        for n in range(1000)
    ]
    steps.append({"stage": "publish", "outcome": "computed", "differences": ["computed for the first time"]})
    lines = list(summary_lines(steps))
    assert lines[0] == "score: 250 computed, 750 cached"
    assert len(lines) == REASONS + 5
    assert "publish: 1 computed" in lines
    assert "1,001 steps" in lines[-1]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("infer a", "cached    infer a (plain): unchanged"),
        ("infer a · plain", "cached    infer a · plain: unchanged"),
        ("filter none", "cached    filter none (a · plain): unchanged"),
    ],
)
def test_a_line_names_model_and_prompt_once(step: str, line: str) -> None:
    entry = {"outcome": "cached", "step": step, "model_name": "a", "prompt_template": "plain"}
    assert step_line({**entry, "differences": ["unchanged"]}) == line
