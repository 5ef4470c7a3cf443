"""The examples of docs/report.md run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"(?P<mark><!-- runs: [^>]*-->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
BLOCKS = list(BLOCK.finditer((ROOT / "docs" / "report.md").read_text(encoding="utf-8")))


def test_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    plain = [block["code"] for block in BLOCKS if not block["mark"]]
    assert len(plain) == 2
    for code in plain:
        exec(compile(code, "docs/report.md", "exec"), names)
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_every_finding_is_explained() -> None:
    sources = (ROOT / "tasks" / "reporting" / "diagnostics").glob("*.py")
    kinds = {
        kind
        for source in sources
        for kind in re.findall(
            r'(?:finding|Diagnostic)\(\s*(?:"all_cut_off" if every else )?"([a-z_]+)"',
            source.read_text(encoding="utf-8"),
        )
    }
    explained = set(
        re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs" / "report.md").read_text(), re.MULTILINE)
    )
    assert explained == kinds


def test_pictures_of_the_page_are_there() -> None:
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert pictures
    assert [name for name in pictures if not (ROOT / "docs" / name).exists()] == []
