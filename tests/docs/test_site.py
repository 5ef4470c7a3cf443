"""The built pages: what ends the build, and what a reader gets. `make docs` builds the real ones."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = "# Pages\n\n| page | answers |\n|---|---|\n| [Readme](../README.md) | what it is |\n"


def built(place: Path, **pages: str) -> subprocess.CompletedProcess[str]:
    """Builds these pages, in a folder of their own, as `make docs` builds those of the checkout."""
    (recipe,) = re.findall(
        r"^\t\$\(RUN\) -m (sphinx .*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    (place / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", place / "docs")
    for folder in ("templates", "static"):
        shutil.copytree(ROOT / "docs" / folder, place / "docs" / folder)
    for name, text in {
        "README": "# Readme\n\n## A heading, and `code`\n",
        "docs/index": INDEX,
        **pages,
    }.items():
        (place / f"{name}.md").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", *recipe.split()]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


DEAD = {
    "[gone](nothing.md)": "cross-reference target not found: 'nothing.md'",
    "[gone](../nothing.txt)": "cross-reference target not found: '../nothing.txt'",
    "[gone](../README.md#no-such-heading)": "local id not found in doc 'README': 'no-such-heading'",
    "[gone](#no-such-heading)": "target not found: 'no-such-heading'",
    "![gone](images/nothing.png)": "image file not readable: docs/images/nothing.png",
}
"""What ends the build, and the complaint that names it."""


def test_each_dead_link_and_a_page_that_the_index_does_not_list_end_the_build(tmp_path: Path) -> None:
    """One build names them all (``--keep-going``)."""
    pages = {"docs/index": "\n\n".join([INDEX, *DEAD]), "docs/forgotten": "# Forgotten\n"}
    build = built(tmp_path, **pages)
    assert build.returncode != 0
    assert [complaint for complaint in DEAD.values() if complaint not in build.stderr] == []
    assert "docs/forgotten.md: WARNING: document isn't included in any toctree" in build.stderr
    assert build.stderr.count("WARNING") == len(DEAD) + 1


def test_one_dead_link_is_enough(tmp_path: Path) -> None:
    build = built(tmp_path, **{"docs/index": f"{INDEX}\n[gone](nothing.md)\n"})
    assert build.returncode != 0


def test_built_pages_are_searchable_and_ask_no_network(tmp_path: Path) -> None:
    page = "# Readme\n\n## A heading, and `code`\n\nAn uncommon word: quokka. [Here](#a-heading-and-code).\n"
    build = built(tmp_path, README=page)
    assert (build.returncode, build.stderr) == (0, "")
    site = tmp_path / "site"
    assert "quokka" in (site / "searchindex.js").read_text("utf-8")
    pages = list(site.rglob("*.html"))
    assert {"index.html", "README.html", "search.html"} <= {page.name for page in pages}
    asked = re.compile(r"<(?:img|script|link|iframe)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+")
    assert [found for page in pages for found in asked.findall(page.read_text("utf-8"))] == []
    assert [
        sheet.name
        for sheet in site.rglob("*.css")
        if re.search(r"url\([\"']?https?:", sheet.read_text("utf-8"))
    ] == []
