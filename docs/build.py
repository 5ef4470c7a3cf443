"""Builds ``docs/*.md``, the README and their pictures as HTML: ``python docs/build.py [--output site]``.

Needs nothing that an evaluation does not bring (markdown-it-py comes with rich). Pages open from disk and ask
no network. A link to something that is not there ends the build with an error.
"""

import argparse
import html
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { margin: 0 auto; max-width: 62rem; padding: 0 1.2rem 4rem; font: 1rem/1.6 system-ui, sans-serif; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 1rem 0; }
nav { border-bottom: 1px solid var(--line); }
nav a[aria-current] { font-weight: 700; text-decoration: none; color: inherit; }
h1, h2, h3 { line-height: 1.25; margin: 2em 0 .6em; }
pre { overflow-x: auto; padding: .8rem 1rem; line-height: 1.45; }
pre { border: 1px solid var(--line); border-radius: 6px; }
code { font: .92em ui-monospace, monospace; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .35rem .8rem .35rem 0; text-align: left; vertical-align: top; }
th, td { border-bottom: 1px solid var(--line); }
img { max-width: 100%; border: 1px solid var(--line); }
"""
NAVIGATION = ("docs/index.md", "README.md", "docs/notebook.md", "docs/report.md", "docs/statistics.md")
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Nightjar</title>
<style>{style}</style>
<nav aria-label="Pages">{navigation}</nav>
<main>
{body}</main>
</html>
"""


class BrokenLink(Exception):
    """A page links to something that is not there."""


@dataclass(frozen=True)
class Page:
    """A Markdown file, and where its HTML goes (relative to the site)."""

    source: Path
    target: Path
    tokens: Sequence[Token]

    @property
    def title(self) -> str:
        """Text of the first heading."""
        return next(text for kind, text in headings(self.tokens) if kind == "h1")

    @property
    def anchors(self) -> frozenset[str]:
        """What a link may name after ``#``."""
        return frozenset(slug(text) for _, text in headings(self.tokens))


def build(output: Path) -> int:
    """Writes the site, whatever was there before gone; returns the number of pages. Raises BrokenLink."""
    pages = read_pages()
    shutil.rmtree(output, ignore_errors=True)
    for page in pages.values():
        target = output / page.target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rendered(page, pages, output), encoding="utf-8")
    return len(pages)


def read_pages() -> dict[Path, Page]:
    """All pages by their source: those of the root, and everything below ``docs``."""
    sources = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return {source: read_page(source) for source in sources}


def read_page(source: Path) -> Page:
    """One page, parsed."""
    below = source.is_relative_to(ROOT / "docs")
    inside = source.relative_to(ROOT / "docs") if below else Path(source.name.lower())
    tokens = _markdown().parse(source.read_text(encoding="utf-8"))
    return Page(source, inside.with_suffix(".html"), tokens)


def rendered(page: Page, pages: dict[Path, Page], output: Path) -> str:
    """The page's HTML; files that it shows or links to are copied beside it."""
    tokens = list(page.tokens)
    for token, heading in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(_text(heading)))
    for token in links(tokens):
        name = "href" if token.type == "link_open" else "src"
        token.attrSet(name, _placed(str(token.attrGet(name)), page, pages, output))
    markdown = _markdown()
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return PAGE.format(
        title=html.escape(page.title), style=STYLE, navigation=_navigation(page, pages), body=body
    )


def links(tokens: Sequence[Token]) -> list[Token]:
    """Links and pictures of a page."""
    inline = [child for token in tokens for child in token.children or ()]
    return [child for child in inline if child.type in ("link_open", "image")]


def headings(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Tag and text of each heading."""
    pairs = pairwise(tokens)
    return [(token.tag, _text(inline)) for token, inline in pairs if token.type == "heading_open"]


def slug(text: str) -> str:
    """The anchor of a heading, as code hosts make it.

    >>> slug("Which one, and `why`?")
    'which-one-and-why'
    """
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def resolved(link: str, page: Page, pages: dict[Path, Page]) -> tuple[Path, str] | None:
    """The file and the anchor that a link leads to; None for addresses elsewhere. Raises BrokenLink."""
    if re.match(r"[a-z]+:", link):
        return None
    path, _, anchor = link.partition("#")
    file = (page.source.parent / unquote(path)).resolve() if path else page.source
    if not file.exists() or not file.is_relative_to(ROOT):
        raise BrokenLink(f"{page.source.relative_to(ROOT)}: {link} is not there")
    if anchor and (file not in pages or anchor not in pages[file].anchors):
        raise BrokenLink(f"{page.source.relative_to(ROOT)}: {link}: no heading of that name")
    return file, anchor


def _placed(link: str, page: Page, pages: dict[Path, Page], output: Path) -> str:
    """The link as it stands in the site."""
    found = resolved(link, page, pages)
    if found is None:
        return link
    file, anchor = found
    if file in pages:
        target = pages[file].target
    else:
        inside = file.is_relative_to(ROOT / "docs")
        target = file.relative_to(ROOT / "docs") if inside else Path("files") / file.relative_to(ROOT)
        _copied(file, output / target)
    relative = Path(os.path.relpath(target, page.target.parent)).as_posix()
    return f"{relative}#{anchor}" if anchor else relative


def _copied(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        shutil.copytree(file, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    else:
        shutil.copyfile(file, target)


def _navigation(page: Page, pages: dict[Path, Page]) -> str:
    entries = []
    for name in NAVIGATION:
        other = pages[ROOT / name]
        here = ' aria-current="page"' if other is page else ""
        address = Path(os.path.relpath(other.target, page.target.parent)).as_posix()
        entries.append(f'<a href="{address}"{here}>{html.escape(other.title)}</a>')
    return "\n".join(entries)


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable("table")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Builds the documentation as HTML.")
    parser.add_argument("--output", type=Path, default=ROOT / "site")
    output = parser.parse_args().output
    try:
        number = build(output)
    except BrokenLink as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    print(f"{number} pages, from {output / 'index.html'}")


if __name__ == "__main__":
    main()
