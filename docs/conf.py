"""How Sphinx builds these pages: ``make docs``.

A dead link or anchor is a warning, and a warning is an error.
Links to other sites are not followed: the build asks no network.
"""

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "Nightjar"
author = "the authors of Nightjar"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]
highlight_language = "text"
nitpicky = True

myst_heading_anchors = 4  # GitHub's anchors

html_theme = "furo"
html_title = "Nightjar"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # fetching pages is refused where they are opened from disk
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]

LINK = re.compile(r"^\| \[[^\]]+\]\((?:\.\./)?([\w./-]+)\.md\)", re.MULTILINE)


def table_of_contents(index: str) -> str:
    """Toctrees of the pages that the index's tables link to, one for each heading with such a table.

    A page that no table links to is in no toctree, which Sphinx warns about.
    """
    trees = []
    for section in re.split(r"^#+ ", index, flags=re.MULTILINE):
        title = section.partition("\n")[0]
        pages = [f"/{page}" if (ROOT / f"{page}.md").exists() else page for page in LINK.findall(section)]
        if pages:
            lines = ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""]
            trees.append("\n".join(lines))
    return "\n".join(trees)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Appends the toctrees to the index, whose source stays plain Markdown for readers elsewhere."""
    if page == root_doc:
        source[0] += table_of_contents(source[0])


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", add_contents)
    app.add_lexer("csv", TextLexer)
