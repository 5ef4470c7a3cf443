"""Pages and messages are in plain English: the house words that CONTRIBUTING lists don't come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "tasks", "scorers", "metrics")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "tasks" / "reporting" / "assets").glob("*.*"))
TABLE = re.compile(r"^\| house word \| plain \|\n\|---\|---\|\n((?:\|.*\|\n)+)", re.MULTILINE)


def listed() -> dict[str, str]:
    """House word → plain form, as CONTRIBUTING's table has them."""
    found = TABLE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert found is not None
    rows = [line.strip("|").split("|") for line in found[1].splitlines()]
    return {word.strip(): plain.strip() for words, plain in rows for word in words.split(",")}


WORDS = listed()
PATTERN = re.compile(r"\b(" + "|".join(map(re.escape, WORDS)) + r")\b", re.IGNORECASE)


def messages(file: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that people may see: every text but docstrings and comments."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def house_words(text: str) -> Iterator[str]:
    for found in PATTERN.finditer(" ".join(text.split())):
        yield f"{found[1]!r}; write {WORDS[found[1].lower()]!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_house_words(page: Path) -> None:
    assert list(house_words(TABLE.sub("", page.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_have_no_house_words(package: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {said}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for line, text in messages(file)
        for said in house_words(text)
    ]
    assert found == []


def test_a_house_word_is_found_across_a_line_break() -> None:
    assert list(house_words("It is Held\n  against last night.")) == ["'Held against'; write 'compared with'"]
