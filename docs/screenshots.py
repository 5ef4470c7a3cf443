"""Takes the pictures of the report that the README shows.

    python docs/screenshots.py REPORT.html [--compare COMPARISON.html] [--index INDEX.html] [--output IMAGES]

Needs Chromium on the PATH and Playwright, which the test tools bring; downloads nothing and asks no network.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP, PHONE = (1280, 860), (390, 800)


@dataclass(frozen=True)
class Shot:
    """One picture: its name, the window, light or dark, and what is done before it is taken."""

    name: str
    size: tuple[int, int]
    scheme: str
    prepare: Callable[[Any], None] | None = None


def samples(page: Any) -> None:
    """Scrolls to the samples."""
    page.wait_for_selector(".detail h3")
    page.evaluate("document.getElementById('samples').scrollIntoView({behavior: 'instant'})")


def search(page: Any) -> None:
    """Searches the samples for a word."""
    samples(page)
    page.fill("#search", "eggs")


def read(page: Any) -> None:
    """Opens a sample as on a phone."""
    page.evaluate("document.getElementById('samples').scrollIntoView({behavior: 'instant'})")
    page.locator(".row").nth(1).click()
    page.wait_for_selector(".detail h3")


def tick(page: Any) -> None:
    """Ticks the two newest runs."""
    for at in (0, 1):
        page.locator("#found input").nth(at).check()


REPORT = (
    Shot("report", DESKTOP, "light"),
    Shot("report-samples", DESKTOP, "light", samples),
    Shot("report-search-dark", DESKTOP, "dark", search),
    Shot("report-phone", PHONE, "light"),
    Shot("report-phone-sample", PHONE, "dark", read),
)
COMPARISON = (
    Shot("comparison", DESKTOP, "light"),
    Shot("comparison-samples", DESKTOP, "light", samples),
)
INDEX = (Shot("runs", DESKTOP, "light", tick),)


def main() -> int:
    """Parses the command line and takes the pictures; 2 if there is no browser or no report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="report.html of a run")
    parser.add_argument("--compare", type=Path, help="page of python -m flows.compare")
    parser.add_argument("--index", type=Path, help="index.html of a folder of results")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    given = parser.parse_args()
    named = [(given.report, REPORT), (given.compare, COMPARISON), (given.index, INDEX)]
    pages = [(path, shots) for path, shots in named if path]
    missing = [str(path) for path, _ in pages if not path.exists()]
    if missing:
        print(f"{', '.join(missing)} is not there; run python -m flows.eval first", file=sys.stderr)
        return 2
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        take(pages, given.output)
    except NoBrowser as error:
        print(error, file=sys.stderr)
        return 2
    return 0


class NoBrowser(RuntimeError):
    """There is no Chromium to take pictures with."""


@contextmanager
def headless() -> Iterator[Any]:
    """A Chromium without a window. Raises NoBrowser."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise NoBrowser("no Chromium on the PATH (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def take(pages: list[tuple[Path, tuple[Shot, ...]]], output: Path) -> None:
    """Opens each page in a window of its own for every picture."""
    with headless() as browser:
        for path, shots in pages:
            for shot in shots:
                width, height = shot.size
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=shot.scheme,
                    reduced_motion="reduce",
                )
                page.goto(path.resolve().as_uri())
                page.wait_for_selector("html[data-ready]")
                if shot.prepare:
                    shot.prepare(page)
                page.screenshot(path=output / f"{shot.name}.png")
                page.close()
                print(output / f"{shot.name}.png")


if __name__ == "__main__":
    sys.exit(main())
