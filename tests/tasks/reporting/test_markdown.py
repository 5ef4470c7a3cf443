"""What others wrote is text in Markdown: names, messages, answers, fields of a dataset."""

from collections.abc import Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tasks.messages.markdown import as_block, as_cells, as_code, as_text, table_row

HOSTILE = [
    "![x](http://a/b.png)", "<img src=x onerror=alert(1)>", "a\n\n# b", "```", "**a** _b_ ~~c~~", "[a](b)",
    "`a` \\", "&lt;", "a | b |", "1. one", "12) one", "- one", "+ one", "===", "# one", "> one", "http://a.b/c",
    "www.example.com", "a@example.com", "``` `x` ``", "    four", "| a |\n|---|",
]  # fmt: skip
PARSER = MarkdownIt("gfm-like", {"html": True, "linkify": False})


def tokens(page: str) -> Iterator[Token]:
    """All tokens of a page, those within a line too."""
    for token in PARSER.parse(page):
        yield token
        yield from token.children or ()


def kinds(page: str) -> list[str]:
    return [token.type for token in tokens(page)]


def text_of(page: str) -> str:
    return "".join(token.content for token in tokens(page) if token.type in ("text", "code_inline"))


@pytest.mark.parametrize("said", HOSTILE)
def test_a_text_is_shown_sign_by_sign_wherever_it_stands(said: str) -> None:
    line = " ".join(said.split())
    paragraph, item = as_text(said), f"- {as_text(said)}"
    assert kinds(paragraph) == ["paragraph_open", "inline", "text", "paragraph_close"]
    assert kinds(item).count("list_item_open") == 1
    assert set(kinds(item)) <= {
        "bullet_list_open", "list_item_open", "paragraph_open", "inline", "text",
        "paragraph_close", "list_item_close", "bullet_list_close",
    }  # fmt: skip
    assert text_of(paragraph) == text_of(item) == text_of(f"# {as_text(said)}") == line


@pytest.mark.parametrize("said", HOSTILE)
def test_a_cell_and_a_span_of_code_hold_any_text(said: str) -> None:
    line = " ".join(said.split())
    page = "\n".join(
        ["| a | b | c |", "|---|---|---|", table_row([as_text(said), as_code(said, cell=True), "end"])]
    )
    assert kinds(page).count("td_open") == 3
    assert kinds(page).count("code_inline") == 1
    assert text_of(page) == f"abc{line}{line}end"
    assert text_of(as_code(said)) == line


@pytest.mark.parametrize("said", HOSTILE)
def test_a_block_of_code_holds_any_text(said: str) -> None:
    (block,) = PARSER.parse(as_block(said))
    assert (block.type, block.content) == ("fence", f"{said}\n")


@pytest.mark.parametrize(
    ("said", "address"), [("see http://a.b/c", "http:"), ("www.a.org", "www."), ("a@b.org", "a@b")]
)
def test_an_address_in_a_text_makes_no_link(said: str, address: str) -> None:
    assert address not in as_text(said)


def test_a_name_with_signs_between_letters_stays_as_it_is() -> None:
    for name in ("exact_match,strict-match", "org/model_v1.5", "2026-11-24 02:25"):
        assert as_text(name) == name


@pytest.mark.parametrize("said", HOSTILE)
def test_a_cell_of_a_table_of_prefects_is_text(said: str) -> None:
    (row,) = as_cells([{"group": said, "value": 0.5, "reason": None}])
    assert (row["value"], row["reason"]) == (0.5, None)
    assert text_of(row["group"]) == " ".join(said.split())
    assert kinds(row["group"]) == ["paragraph_open", "inline", "text", "paragraph_close"]
