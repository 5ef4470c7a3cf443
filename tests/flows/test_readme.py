"""The README's table is what the command prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parents[2].joinpath("README.md")


def table(text: str) -> list[str]:
    """Header and rows of the README's first table."""
    start = text.index("Model   Filter")
    return [line.rstrip() for line in text[start : text.index("```", start)].splitlines()]


def test_the_readmes_table_is_what_make_eval_prints(
    evaluate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    printed = evaluate().out.splitlines()
    shown = table(README.read_text("utf-8"))
    assert shown[2:]
    start = next(row for row, line in enumerate(printed) if line.startswith("Model "))
    stop = next(row for row, line in enumerate(printed) if line.startswith("report: "))
    assert [line.rstrip() for line in printed[start:stop]] == shown
