"""The examples in docstrings do what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
MODULES = sorted(
    ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    for package in ("flows", "tasks", "scorers", "metrics")
    for path in (PROJECT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
