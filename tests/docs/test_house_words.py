"""Pages, messages, docstrings and comments are plain English: CONTRIBUTING's house words don't come back."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
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
NAMES = re.compile(r"``[^`]*``")
PATTERN = re.compile(r"\b(" + "|".join(map(re.escape, WORDS)) + r")\b", re.IGNORECASE)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Messages and docstrings of a module with their lines; what a docstring has in backticks is left out."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, NAMES.sub("``", node.value) if id(node) in docstrings else node.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments of a module with their first lines: those that stand below each other are one text."""
    first, last, column, text = 0, 0, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("# ")
        if token.start == (last + 1, column):
            last, text = last + 1, f"{text} {words}"
            continue
        yield first, NAMES.sub("``", text)
        (first, column), text = token.start, words
        last = first
    yield first, NAMES.sub("``", text)


def house_words(text: str) -> Iterator[str]:
    for found in PATTERN.finditer(" ".join(text.split())):
        yield f"{found[1]!r}; write {WORDS[found[1].lower()]!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_house_words(page: Path) -> None:
    assert list(house_words(TABLE.sub("", page.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("read", [texts, comments])
@pytest.mark.parametrize("package", PACKAGES)
def test_modules_have_no_house_words(package: str, read: Callable[[str], Iterator[tuple[int, str]]]) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {said}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for line, text in read(file.read_text(encoding="utf-8"))
        for said in house_words(text)
    ]
    assert found == []


def test_a_house_word_is_found_across_a_line_break() -> None:
    assert list(house_words("It is Held\n  against last night.")) == ["'Held against'; write 'compared with'"]


def test_a_house_word_is_found_across_two_lines_of_a_comment() -> None:
    source = "answer = 1  # it is held\n            # against ``anew``\nother = 2  # anew\n"
    assert [(line, said) for line, text in comments(source) for said in house_words(text)] == [
        (1, "'held against'; write 'compared with'"),
        (3, "'anew'; write 'again'"),
    ]


def test_a_docstring_may_name_a_function_by_a_house_word() -> None:
    source = '"""What ``mend`` fixes anew."""\n'
    assert [said for _, text in texts(source) for said in house_words(text)] == ["'anew'; write 'again'"]
